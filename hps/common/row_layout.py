"""Where the fields of a row lie, for the Python side: the twin of csrc/table/row_layout.h.

Above it: tiers/top_tier.py, parameter_server/parquet.py, table/schema.py. Below it: nothing. A
row image is [key u64 | two float32 scalars | weights, dim | state vectors, dim each | zeros to 16
bytes].
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]
Floats = NDArray[np.float32]
Keys = NDArray[np.uint64]

_HEADER_SCALARS = {"sgd": 0, "adagrad": 0, "rowwise_adagrad": 1, "adam": 2, "ftrl": 0}
_STATE_VECTORS = {"sgd": 0, "adagrad": 1, "rowwise_adagrad": 0, "adam": 2, "ftrl": 2}
_HEADER_FLOATS = 4
_FIRST_SCALAR = 2


@dataclass(frozen=True)
class RowLayout:
    """The fields of a row of one table.

    Args:
        optimizer_kind: "sgd", "adagrad", "rowwise_adagrad", "adam" or "ftrl".
        dim: floats in an embedding.

    >>> RowLayout("rowwise_adagrad", 16).row_bytes
    80
    """

    optimizer_kind: str
    dim: int

    @property
    def header_scalars(self) -> int:
        """Scalars of the optimizer in the header."""
        return _HEADER_SCALARS[self.optimizer_kind]

    @property
    def state_vectors(self) -> int:
        """State vectors as long as the weights."""
        return _STATE_VECTORS[self.optimizer_kind]

    @property
    def state_floats(self) -> int:
        """Floats of optimizer state a row: header scalars, then state vectors."""
        return self.header_scalars + self.dim * self.state_vectors

    @property
    def row_bytes(self) -> int:
        """Bytes of a row image, a multiple of 16."""
        return (4 * (_HEADER_FLOATS + self.dim * (1 + self.state_vectors)) + 15) // 16 * 16

    def keys(self, images: Images) -> Keys:
        """Keys of row images [n, row_bytes] -> uint64 [n]; a copy."""
        return images.view(np.uint64)[:, 0].copy()

    def weights(self, images: Images) -> Floats:
        """Embeddings of row images [n, row_bytes] -> float32 [n, dim]; a copy."""
        return images.view(np.float32)[:, _HEADER_FLOATS : _HEADER_FLOATS + self.dim].copy()

    def state(self, images: Images) -> Floats:
        """Optimizer state of row images [n, row_bytes] -> float32 [n, state_floats]; a copy."""
        floats = images.view(np.float32)
        first = _HEADER_FLOATS + self.dim
        scalars = floats[:, _FIRST_SCALAR : _FIRST_SCALAR + self.header_scalars]
        vectors = floats[:, first : first + self.dim * self.state_vectors]
        return np.concatenate([scalars, vectors], axis=1)
