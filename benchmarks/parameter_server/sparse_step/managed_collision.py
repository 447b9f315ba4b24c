"""Dynamic-key peer: TorchRec's managed-collision module maps keys to rows of an FBGEMM table.

TorchRec's other one, HashZchManagedCollisionModule, only reads on a CPU; it inserts on GPUs alone.
Above it: sparse_step_bench.py. Below it: fbgemm.py, torchrec (optional).
"""

import logging
from typing import Any

import torch

from benchmarks.parameter_server.sparse_step.contender import Workload
from benchmarks.parameter_server.sparse_step.fbgemm import make_table

EVICTION_INTERVAL = 10
WITHOUT_TOP_BIT = 2**63 - 1


def _jagged(keys: torch.Tensor) -> dict[str, Any]:
    from torchrec.sparse.jagged_tensor import JaggedTensor

    offsets = torch.arange(len(keys) + 1)
    return {"ids": JaggedTensor(keys, torch.ones(len(keys), dtype=torch.int64), offsets=offsets)}


class ManagedCollision:
    """MCHManagedCollisionModule with LFU over TBE with row-wise Adagrad.

    It searches in sorted keys and sorts them anew every tenth step, which the median step leaves
    out. It reserves the largest int64; the keys lose their top bit.
    """

    def __init__(self, work: Workload, all_keys: torch.Tensor) -> None:
        from torchrec.modules.mc_modules import LFU_EvictionPolicy, MCHManagedCollisionModule

        logging.getLogger("torchrec").setLevel(logging.ERROR)
        self._work = work
        self._mapping = MCHManagedCollisionModule(
            zch_size=work.rows + 1,
            device=torch.device("cpu"),
            eviction_policy=LFU_EvictionPolicy(),
            eviction_interval=EVICTION_INTERVAL,
        )
        in_order = torch.sort(all_keys & WITHOUT_TOP_BIT).values
        assert bool((in_order[1:] != in_order[:-1]).all()), "keys collide without their top bit"
        self._mapping._mch_sorted_raw_ids[: work.rows] = in_order
        self._table = make_table(work, work.rows + 1, "rowwise_adagrad")
        self._features = [_jagged(keys & WITHOUT_TOP_BIT) for keys in work.keys]
        self._offsets = torch.arange(work.length + 1)

    def _ids_of(self, idx: int) -> torch.Tensor:
        return self._mapping(self._features[idx])["ids"].values()

    def step(self, idx: int) -> None:
        self._mapping.train()
        self._table(self._ids_of(idx), self._offsets).backward(self._work.grads)

    def rows_of(self, idx: int) -> torch.Tensor:
        self._mapping.eval()
        with torch.no_grad():
            return self._table(self._ids_of(idx), self._offsets)

    def check(self) -> None:
        """No key fell out of the mapping: distinct keys still have distinct rows."""
        self._mapping.eval()
        num_keys = len(torch.unique(self._work.keys[0]))
        assert len(torch.unique(self._ids_of(0))) == num_keys, "keys collided in the mapping"
