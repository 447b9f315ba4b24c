"""What every contender holds and is asked: keys, their rows, batches of keys and of gradients.

Above it: every file of this folder. Below it: numpy. A pure function of its numbers, so that
processes need not send it to each other.
"""

import json
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.keys import hashed_keys

TABLE = "rows"
NUM_BATCHES = 8
LOAD_KEYS = 100_000  # a call

Keys = NDArray[np.uint64]
Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Workload:
    """`rows` stored keys; a request names `batch` distinct ones of them, in no order.

    >>> small = Workload(rows=1000, batch=10)
    >>> len(small.keys(3)), small.grads(3).shape, small.values(small.keys(3)).shape
    (10, (10, 16), (10, 16))
    """

    rows: int
    batch: int
    dim: int = 16

    @cached_property
    def all_keys(self) -> Keys:
        """uint64 [rows]."""
        return hashed_keys(np.arange(self.rows))

    def keys(self, batch: int) -> Keys:
        """uint64 [batch]; there are NUM_BATCHES of them, then they come again."""
        chance = np.random.default_rng((1, batch % NUM_BATCHES))
        return self.all_keys[chance.choice(self.rows, self.batch, replace=False)]

    def grads(self, batch: int) -> Rows:
        """float32 [batch, dim]: of the keys of that batch."""
        chance = np.random.default_rng((2, batch % NUM_BATCHES))
        return chance.standard_normal((self.batch, self.dim), np.float32)

    def values(self, keys: Keys) -> Rows:
        """float32 [N, dim]: what is stored for keys before the first push."""
        shifts = np.arange(self.dim, dtype=np.uint64) * np.uint64(3)
        words = (keys[:, None] >> shifts) & np.uint64(0xFFFF)
        return words.astype(np.float32) / np.float32(2**16)

    @property
    def row_bytes(self) -> int:
        """Bytes of a key's value, the same in every contender."""
        return 4 * self.dim

    def to_text(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str) -> "Workload":
        """The workload that `to_text` wrote."""
        return Workload(**json.loads(text))
