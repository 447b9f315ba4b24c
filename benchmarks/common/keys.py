"""Seeded streams of ids: dense ids for peers, the same ids as 64-bit hashed keys for hps.

Above it: the benchmarks. Below it: numpy.
"""

import numpy as np

EXAMPLES = 4096
FEATURES = 26


def hashed_keys(ids: np.ndarray) -> np.ndarray:
    """uint64 keys of dense ids by a published bijection (splitmix64): distinct stays distinct."""
    keys = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


class ZipfIds:
    """Batches of dense ids whose popularity is Zipf with exponent `alpha` over `rows` ids.

    Args:
        rows: ids are 0 to rows - 1.
        alpha: exponent.
        seed: of the draws and of the order.
        ranked: True gives the most popular id the number 0 and so on, which lays hot rows of a
            dense table side by side; False shuffles the numbers.
    """

    def __init__(self, rows: int, alpha: float = 1.05, seed: int = 0, ranked: bool = False) -> None:
        self._random = np.random.default_rng(seed)
        weights = np.arange(1, rows + 1, dtype=np.float64) ** -alpha
        self._cumulative = np.cumsum(weights)
        self._cumulative /= self._cumulative[-1]
        self._order = None if ranked else self._random.permutation(rows)

    def batch(self, length: int) -> np.ndarray:
        """int64 [length]."""
        ranks = np.searchsorted(self._cumulative, self._random.random(length), side="right")
        ranks = np.minimum(ranks, len(self._cumulative) - 1)
        ids = ranks if self._order is None else self._order[ranks]
        return ids.astype(np.int64, copy=False)
