"""Where the fields of a row lie, for the Python side: the twin of csrc/table/row_layout.h.

Above it: config.py (`TableConfig.layout`), tiers/top_tier.py, parameter_server/parquet.py,
table/schema.py. Below it: bfloat16.py. A row image is [key u64 | statistics, 16 bytes, of tables
that have them | two float32 scalars | weights, dim | state vectors, dim each | zeros to 16 bytes],
and statistics are [show f32 | click f32 | last period u32 | period of death u32, 0: it never dies].
Weights of a narrow table are bfloat16, padded to a multiple of 16 bytes; they are float32 to all
who ask for them.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hps.common.bfloat16 import widened

Images = NDArray[np.uint8]
Floats = NDArray[np.float32]
Keys = NDArray[np.uint64]
Periods = NDArray[np.uint32]
Labels = NDArray[np.uint8]  # of occurrences or examples, each 0 or 1

_HEADER_SCALARS = {"sgd": 0, "adagrad": 0, "rowwise_adagrad": 1, "adam": 2, "ftrl": 0}
_STATE_VECTORS = {"sgd": 0, "adagrad": 1, "rowwise_adagrad": 0, "adam": 2, "ftrl": 2}
_HEADER_FLOATS = 4
_STATISTICS_FLOATS = 4
_FIRST_SHOW = 2
_FIRST_SCALAR = 2


class Statistics(NamedTuple):
    """What rows know of the updates that reached them.

    Args:
        show: float32 [n], occurrences.
        click: float32 [n], of these with label 1.
        last_period: int64 [n], of the newest update, assignment or creation; -1: no row.
    """

    show: Floats
    click: Floats
    last_period: NDArray[np.int64]

    def images(self) -> Images:
        """As a row has them: uint8 [n, 16]."""
        words = np.zeros((len(self.show), _STATISTICS_FLOATS), np.float32)
        words[:, 0], words[:, 1] = self.show, self.click
        words.view(np.uint32)[:, 2] = self.last_period
        return words.view(np.uint8)


@dataclass(frozen=True)
class RowLayout:
    """The fields of a row of one table.

    Args:
        optimizer_kind: "sgd", "adagrad", "rowwise_adagrad", "adam" or "ftrl".
        dim: floats in an embedding.
        has_statistics: the header has them.
        is_narrow: weights are bfloat16.

    >>> RowLayout("rowwise_adagrad", 16).row_bytes
    80
    >>> RowLayout("rowwise_adagrad", 16, has_statistics=True).row_bytes
    96
    >>> RowLayout("rowwise_adagrad", 16, is_narrow=True).row_bytes
    48
    """

    optimizer_kind: str
    dim: int
    has_statistics: bool = False
    is_narrow: bool = False

    @property
    def _first_float(self) -> int:
        """Of the floats of an image: where those begin that are the same in every layout, of which
        the scalars and the weights count."""
        return _STATISTICS_FLOATS if self.has_statistics else 0

    @property
    def header_scalars(self) -> int:
        """Scalars of the optimizer in the header."""
        return _HEADER_SCALARS[self.optimizer_kind]

    @property
    def state_vectors(self) -> int:
        """State vectors as long as the weights."""
        return _STATE_VECTORS[self.optimizer_kind]

    @property
    def weight_floats(self) -> int:
        """Floats from the first weight to the first state vector."""
        return (self.dim + 7) // 8 * 4 if self.is_narrow else self.dim

    @property
    def state_floats(self) -> int:
        """Floats of optimizer state a row: header scalars, then state vectors."""
        return self.header_scalars + self.dim * self.state_vectors

    @property
    def row_bytes(self) -> int:
        """Bytes of a row image, a multiple of 16."""
        floats = self._first_float + _HEADER_FLOATS + self.weight_floats
        floats += self.dim * self.state_vectors
        return (4 * floats + 15) // 16 * 16

    def keys(self, images: Images) -> Keys:
        """Keys of row images [n, row_bytes] -> uint64 [n]; a copy."""
        return images.view(np.uint64)[:, 0].copy()

    def weights(self, images: Images) -> Floats:
        """Embeddings of row images [n, row_bytes] -> float32 [n, dim]; a copy."""
        first = self._first_float + _HEADER_FLOATS
        if self.is_narrow:
            return widened(images.view(np.uint16)[:, 2 * first : 2 * first + self.dim])
        return images.view(np.float32)[:, first : first + self.dim].copy()

    def state(self, images: Images) -> Floats:
        """Optimizer state of row images [n, row_bytes] -> float32 [n, state_floats]; a copy."""
        floats = images.view(np.float32)[:, self._first_float :]
        first = _HEADER_FLOATS + self.weight_floats
        scalars = floats[:, _FIRST_SCALAR : _FIRST_SCALAR + self.header_scalars]
        vectors = floats[:, first : first + self.dim * self.state_vectors]
        return np.concatenate([scalars, vectors], axis=1)

    def statistics(self, images: Images) -> Statistics:
        """Of row images [n, row_bytes] of a table that has them; copies."""
        assert self.has_statistics, "rows without statistics"
        words = images.view(np.float32)[:, _FIRST_SHOW : _FIRST_SHOW + _STATISTICS_FLOATS]
        last_period = images.view(np.uint32)[:, _FIRST_SHOW + 2].astype(np.int64)
        return Statistics(words[:, 0].copy(), words[:, 1].copy(), last_period)

    def deaths(self, images: Images) -> Periods:
        """Periods of death of row images [n, row_bytes] of a table with statistics -> uint32 [n]; 0
        where a row never dies; a copy."""
        assert self.has_statistics, "rows without statistics"
        return images.view(np.uint32)[:, _FIRST_SHOW + 3].copy()

    def set_deaths(self, images: Images, dies_at: Periods) -> None:
        """Sets what `deaths` tells, uint32 [n], in place."""
        assert self.has_statistics, "rows without statistics"
        images.view(np.uint32)[:, _FIRST_SHOW + 3] = dies_at
