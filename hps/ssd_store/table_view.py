"""StoreTable: one table of the ssd_store, as the cache above it sees it.

Above it: tiers/cached_tier.py. Below it: a RowTier (hps/contracts/tiers.py). It counts what the
caches ask of the store.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from hps import _C
from hps.common.row_layout import Images, Keys

if TYPE_CHECKING:
    from hps.contracts.tiers import Flags, RowTier


@dataclass(slots=True)
class StoreCounters:
    """What one table's caches asked of the store; seconds are wall clock."""

    hits: int = 0
    misses: int = 0
    fetch_seconds: float = 0.0
    append_rows: int = 0
    append_seconds: float = 0.0


class StoreTable:
    """One table of a RowTier; the verbs of hps.contracts.tiers.TableTier."""

    def __init__(self, name: str, store: "RowTier") -> None:
        self.name = name
        self.store = store
        self.counters = StoreCounters()

    def fetch(self, keys: Keys, rows: Images, found: "Flags") -> None:
        started = perf_counter()
        self.store.fetch(self.name, keys, rows, found)
        num_found = int(np.count_nonzero(found))
        self.counters.hits += num_found
        self.counters.misses += len(keys) - num_found
        self.counters.fetch_seconds += perf_counter() - started

    def append(self, rows: Images, *, takes_slots: bool = True) -> None:
        started = perf_counter()
        self.store.append(self.name, rows)
        self.counters.append_seconds += perf_counter() - started
        self.counters.append_rows += len(rows)

    def write_back(self) -> int:
        return 0  # nothing here waits to go further down

    def contains(self, keys: Keys) -> "Flags":
        return self.store.contains(self.name, keys)

    @property
    def num_pins(self) -> int:
        return 0

    def refuse_pinned(self, keys: Keys) -> None:
        """Nothing is pinned here."""

    def erase(self, keys: Keys) -> "Flags":
        return self.store.erase(self.name, keys)

    def num_rows(self) -> int:
        return self.store.num_rows(self.name)

    def scan(self, batch_rows: int) -> Iterator[Images]:
        return self.store.scan(self.name, batch_rows)

    def turns(self) -> list[_C.Turn]:
        return []

    def begin_period(self, period: int, horizon: int) -> None:
        """Nothing is cached here; the store is told of all tables at once."""

    def restart(self) -> None:
        """Nothing is cached here."""
