"""A step whose output and gradient are bfloat16: by the verbs of a SparseEmbedding in bfloat16, one
key a bag.

Above it: sparse_step, life_step. Below it: hps's joint verbs.
"""

from typing import Any

import torch

import hps
from benchmarks.common.server import TABLE
from hps.contracts.joint import JointUpdate, KeysByTable, Places


class NarrowStep:
    """A look-up and an update of all keys of a batch.

    Args:
        server: holds the rows of `TABLE`.
        grads: float32 [L, D], of every batch; rounded to bfloat16 here.
    """

    def __init__(self, server: Any, grads: torch.Tensor) -> None:
        self._server = server
        self._places = Places.of([TABLE], [grads.shape[1]], [False], [[0]], [[0]])
        self._offsets = torch.arange(len(grads) + 1)
        self._grads = grads.to(torch.bfloat16)

    def __call__(self, keys: torch.Tensor) -> None:
        """A step on `keys`, int64 [L]."""
        output = torch.empty(self._grads.shape, dtype=torch.bfloat16)
        ids = hps.Ids(keys, self._offsets)
        rows = self._server.joint.look_up(KeysByTable([ids], len(output)), self._places, output)
        self._server.joint.apply(JointUpdate(rows, self._places, self._grads))
