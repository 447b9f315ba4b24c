"""FeatureBags: the keys of one feature in a batch, a bag an example, and what is done to bags.

Above it: keys.py. Below it: numpy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hps.common.row_layout import Keys

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class FeatureBags:
    """The bags of a feature, or of several one after the other.

    Args:
        keys: uint64 [L].
        ends: int64 [bags]; keys up to the end of each.
        weights: float32 [L], or None where the log has none.
    """

    keys: Keys
    ends: Counts
    weights: NDArray[np.float32] | None = None

    @property
    def counts(self) -> Counts:
        """Keys of each bag, int64 [bags]."""
        return np.diff(self.ends, prepend=0)

    @property
    def is_single(self) -> bool:
        """True if each bag holds one key."""
        count = len(self.ends)
        return len(self.keys) == count and bool((self.ends == np.arange(1, count + 1)).all())

    def taken(self, places: Counts, counts: Counts) -> "FeatureBags":
        """Bags of as many keys as `counts` says, of the keys at `places`."""
        weights = None if self.weights is None else self.weights[places]
        return FeatureBags(self.keys[places], np.cumsum(counts), weights)

    def without(self, key: int) -> "FeatureBags":
        """The bags less one key."""
        stays = self.keys != np.uint64(key)
        if stays.all():
            return self
        places = np.flatnonzero(stays)
        return self.taken(places, np.diff(np.searchsorted(places, self.ends), prepend=0))

    def limited(self, most: int, *, is_last: bool) -> "FeatureBags":
        """The first keys of each bag, or the last, and no more than `most`."""
        counts = self.counts
        kept = np.minimum(counts, most)
        if len(self.keys) == int(kept.sum()):
            return self
        begins = self.ends - kept if is_last else self.ends - counts
        rows, within = rows_of(kept)
        return self.taken(begins[rows] + within, kept)

    def filled(self, key: int) -> "FeatureBags":
        """The bags with a key in each that was empty, of weight 1."""
        counts = self.counts
        empty = np.flatnonzero(counts == 0)
        if not len(empty):
            return self
        places = self.ends[empty]
        weights = None if self.weights is None else np.insert(self.weights, places, 1.0)
        keys = np.insert(self.keys, places, np.uint64(key))
        return FeatureBags(keys, np.cumsum(np.maximum(counts, 1)), weights)


def rows_of(counts: Counts) -> tuple[Counts, Counts]:
    """The bag of each key, and its place in it: int64 [sum of counts]."""
    rows = np.repeat(np.arange(len(counts)), counts)
    begins = np.cumsum(counts) - counts
    return rows, np.arange(len(rows)) - begins[rows]


def combinations(
    bags: Sequence[FeatureBags], most: int
) -> tuple[list[Keys], Counts, NDArray[np.float32] | None]:
    """All combinations of a key of each feature, example by example; the last feature's keys change
    fastest, and the first `most` combinations of an example stay.

    Returns:
        Of each feature its keys in them, uint64 [L]; the ends of the bags; the products of weights.
    """
    if all(one.is_single for one in bags):
        weights = _product([one.weights for one in bags])
        return [one.keys for one in bags], bags[0].ends, weights
    counts = [one.counts for one in bags]
    # A stride beyond the most is as good as the most: no place is reached by it.
    strides = [np.ones(len(counts[0]), np.int64)]
    for of_feature in reversed(counts):
        strides.insert(0, np.minimum(strides[0] * of_feature, most))
    total = strides[0]
    rows, within = rows_of(total)
    places = []
    for one, of_feature, stride in zip(bags, counts, strides[1:], strict=True):
        begins = one.ends - of_feature
        places.append(begins[rows] + (within // stride[rows]) % of_feature[rows])
    keys = [one.keys[place] for one, place in zip(bags, places, strict=True)]
    weights = _product(
        [
            None if one.weights is None else one.weights[place]
            for one, place in zip(bags, places, strict=True)
        ]
    )
    return keys, np.cumsum(total), weights


def _product(weights: Sequence[NDArray[np.float32] | None]) -> NDArray[np.float32] | None:
    product: NDArray[np.float32] | None = None
    for one in weights:
        if one is not None:
            product = one if product is None else product * one
    return product
