"""Occurrences: how many shows and clicks the keys of a push stand for; statistics as they travel.

Above it: contracts/updates.py, tiers/top_tier.py, update_log/records.py, the service, the ranks.
Below it: row_layout.py. Where gradients are summed before they travel, a key stands for all of its
occurrences in a batch. They stay whole numbers until a row takes them, so that a row counts the
same wherever its gradients were summed.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hps.common.arrays import HostArray
from hps.common.row_layout import Labels, Statistics
from hps.errors import ConfigError

Words = NDArray[np.uint32]
MOST_SHOWS = 2**32 - 1  # of one push in all, which a cache counts in 32 bits a key
NEVER = -1  # the period of death of a row that lives for ever, and of a key without one
# Statistics of a row as messages and records have them, little-endian.
PACKED = np.dtype([("show", "<f4"), ("click", "<f4"), ("last_period", "<i8")])


class Occurrences(NamedTuple):
    """What each key of a push stands for, in a table with statistics.

    Args:
        shows: uint32 [L], from 1; None: one each.
        clicks: uint32 [L], of these with label 1; None: none.
    """

    shows: Words | None = None
    clicks: Words | None = None

    @classmethod
    def of_labels(cls, labels: Labels | None) -> "Occurrences":
        """Of keys that are one occurrence each, with labels uint8 [L] of 0 or 1."""
        return cls(None, None if labels is None else labels.astype(np.uint32))

    @classmethod
    def smallest(cls, shows: Words, clicks: Words) -> "Occurrences":
        """The same in as few arrays as say it.

        >>> Occurrences.smallest(np.ones(2, np.uint32), np.zeros(2, np.uint32))
        Occurrences(shows=None, clicks=None)
        """
        has_shows = len(shows) and int(shows.max()) > 1
        return cls(shows if has_shows else None, clicks if clicks.any() else None)

    def check(self, num_keys: int, what: str) -> None:
        """Refuses what no batch can have.

        Args:
            num_keys: of the push.
            what: the push, in words.

        Raises:
            ConfigError: names the first key's place that cannot be, or the sum.
        """
        for name, numbers in self._asdict().items():
            if numbers is not None and len(numbers) != num_keys:
                raise ConfigError(f"{what}: {name} has {len(numbers)} numbers for {num_keys} keys")
        shows = np.ones(num_keys, np.uint32) if self.shows is None else self.shows
        if num_keys and not shows.all():
            raise ConfigError(f"{what}: shows[{int(np.argmin(shows))}] is 0; needs 1 or more")
        total = int(shows.sum(dtype=np.uint64))
        if total > MOST_SHOWS:
            raise ConfigError(f"{what}: {total} shows; {MOST_SHOWS} at most: send several pushes")
        if self.clicks is not None and (self.clicks > shows).any():
            place = int(np.argmax(self.clicks > shows))
            raise ConfigError(
                f"{what}: clicks[{place}] is {self.clicks[place]}, and the key is shown "
                f"{shows[place]} times; labels must be 0 or 1"
            )


def pack(statistics: Statistics) -> HostArray:
    """Statistics [n] as they travel: [n] of PACKED."""
    packed = np.empty(len(statistics.show), PACKED)
    for name in PACKED.fields or ():
        packed[name] = getattr(statistics, name)
    return packed


def unpack(packed: HostArray) -> Statistics:
    """What pack made of; copies.

    >>> given = Statistics(*(np.array([5], kind) for kind in ("f4", "f4", "i8")))
    >>> unpack(pack(given)).last_period
    array([5])
    """
    return Statistics(**{name: packed[name].copy() for name in PACKED.fields or ()})
