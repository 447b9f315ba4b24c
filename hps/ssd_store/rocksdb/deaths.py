"""Deaths: of one table how many stored records die in which period, and which of them died early.

Above it: live_table.py, which changes it with the rows; live.py. Below it: nothing. RocksDB has no
index in memory that could tell what is dead, so the records are counted by period of death as they
are written; the counts are part of a checkpoint. Keys that died early, as a bound wanted it, are
marked in memory until the next checkpoint erases them.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hps import _C
from hps.contracts.tiers import Keys

NEVER = 0  # the period of death of a row that lives for ever
ABSENT = -1  # what stands for it where there is no record

Periods = NDArray[np.int64]

NO_ROWS: tuple[Keys, Periods] = np.empty(0, np.uint64), np.empty(0, np.int64)


class Change(NamedTuple):
    """What a write did to records.

    Args:
        keys: uint64 [n], distinct.
        old, new: int64 [n], their periods of death before and after it; NEVER, or ABSENT.
    """

    keys: Keys
    old: Periods
    new: Periods


class Marks:
    """Keys of records that died early. One thread at a time takes some away; any may ask.

    Args:
        keys: uint64 [n], distinct, any order.

    >>> marks = Marks(np.array([7, 3, 5], np.uint64))
    >>> marks = marks.without(np.array([5], np.uint64))
    >>> len(marks), marks.keys.tolist()
    (2, [3, 7])
    """

    def __init__(self, keys: Keys) -> None:
        self._sorted = np.sort(keys)
        self._are_gone = np.zeros(len(keys), np.bool_)
        self._num = len(keys)

    def __len__(self) -> int:
        return self._num

    @property
    def keys(self) -> Keys:
        """In order; a copy."""
        return self._sorted[~self._are_gone]

    def has(self, keys: Keys) -> NDArray[np.bool_]:
        """Of keys [n] whether they are marked. Cost: grows with n, and the logarithm of all."""
        if not self._num:
            return np.zeros(len(keys), np.bool_)
        places = self._places(keys)
        found: NDArray[np.bool_] = (self._sorted[places] == keys) & ~self._are_gone[places]
        return found

    def _places(self, keys: Keys) -> NDArray[np.intp]:
        return np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)

    def without(self, keys: Keys) -> Self:
        """These but for some, distinct and all marked: the same object, or one without the keys
        that are gone once those are half of all. Cost: grows with the number of those keys."""
        if not len(keys):
            return self
        self._are_gone[self._places(keys)] = True
        self._num -= len(keys)
        return self if 2 * self._num > len(self._sorted) else self.copy()

    def copy(self) -> Self:
        """One that stays as it is now."""
        return type(self)(self.keys)


class Moment(NamedTuple):
    """The records of a table at one moment.

    Args:
        period: of the store.
        early: keys of records that died early; those that are written or erased later go from it.
        num_early: how many there were of them.
        num_records, num_expired: records, and those of them whose period of death has come.
    """

    period: int
    early: Marks
    num_early: int
    num_records: int
    num_expired: int

    @property
    def num_living(self) -> int:
        """Records that are not dead."""
        return self.num_records - self.num_expired - self.num_early

    def is_expired(self, deaths: Periods) -> NDArray[np.bool_]:
        """Of records [n] with these periods of death whether theirs has come."""
        return (deaths > NEVER) & (deaths <= self.period)

    def is_dead(self, keys: Keys, deaths: Periods) -> NDArray[np.bool_]:
        """Of records [n] with these periods of death. For who changes the records himself, or has
        a `frozen` moment."""
        return self.is_expired(deaths) | self.early.has(keys)

    def frozen(self) -> Self:
        """The same, which later writes leave as it is."""
        return self._replace(early=self.early.copy())


class Deaths:
    """The records of a table. One thread at a time changes it; any may read `now`.

    Args:
        counts: records by period of death.
        period: of the store.

    >>> deaths = Deaths({NEVER: 5, 3: 2, 4: 1}, 3)
    >>> deaths.now.num_records, deaths.now.num_living
    (8, 6)
    """

    def __init__(self, counts: Mapping[int, int], period: int) -> None:
        self._counts = Counter(counts)  # without those that died early
        self._renew(period, Marks(NO_ROWS[0]))

    def _renew(self, period: int, early: Marks) -> None:
        total = sum(self._counts.values())
        num_expired = self.num_dying(NEVER + 1, period)
        self.now = Moment(period, early, len(early), total + len(early), num_expired)

    @property
    def counts(self) -> dict[int, int]:
        """Records by period of death; none that died early may be left."""
        assert not len(self.now.early), "records that died early"
        return {death: num for death, num in sorted(self._counts.items()) if num}

    def num_dying(self, first: int, last: int) -> int:
        """Records whose period of death is one of these."""
        return sum(num for death, num in self._counts.items() if first <= death <= last)

    def take(self, change: Change) -> None:
        """Records were written or erased; those among them that had died early are no more."""
        early = self.now.early
        was_early = early.has(change.keys)
        for deaths, sign in ((change.old[~was_early], -1), (change.new, 1)):
            for death, num in zip(*np.unique(deaths, return_counts=True), strict=True):
                if death != ABSENT:
                    self._counts[int(death)] += sign * int(num)
        self._renew(self.now.period, early.without(change.keys[was_early]))

    def begin(self, period: int, keys: Keys, deaths: Periods) -> None:
        """The store is at that period from now on, and these living records [n] die early in it."""
        for death, num in zip(*np.unique(deaths, return_counts=True), strict=True):
            self._counts[int(death)] -= int(num)
        self._renew(period, Marks(np.concatenate([self.now.early.keys, keys])))

    def living_beyond(self, period: int) -> NDArray[np.uint64]:
        """As RowTier.count_deaths."""
        found = np.zeros(_C.MAX_GAP + 1, np.uint64)
        for death, num in self._counts.items():
            if death == NEVER:
                found[0] += np.uint64(num)
            elif death > period:
                found[min(death - period, _C.MAX_GAP)] += np.uint64(num)
        return found
