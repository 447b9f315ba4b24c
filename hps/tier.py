"""RowTier: what the lowest tier offers to those above it, whatever engine keeps the rows; and
TableTier: what a cache sees of the tiers below it.

Above it: `hps.ParameterServer`, which stacks tiers. Below it: an engine
(`hps.ssd_store.SsdStore`, or RocksDB's `RocksDbStore`).
Rows travel as images, uint8 [n, row_bytes]; the first eight bytes of an image are its key. A call
handles a whole batch and lets other threads run meanwhile.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hps import _C

Rows = npt.NDArray[np.uint8]
Keys = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.uint8]


class RowTier(Protocol):
    """A tier that holds every stored row of every table, and cuts of it that survive a crash."""

    def append(self, table: str, rows: Rows) -> None:
        """Stores rows; the last row of a key wins, over earlier calls too."""

    def fetch(self, table: str, keys: Keys, rows: Rows, found: Flags) -> None:
        """Fills rows[i] where keys[i] is stored, and found[i] with 1 or 0."""

    def contains(self, table: str, keys: Keys) -> Flags:
        """1 where a key is stored; reads no row."""

    def erase(self, table: str, keys: Keys) -> Flags:
        """Removes keys; 1 where one was stored."""

    def num_rows(self, table: str) -> int:
        """Stored keys of the table."""

    def scan(self, table: str, batch_rows: int) -> Iterator[Rows]:
        """Every row that is stored when the scan begins, once, in pieces."""

    def checkpoint(self, tag: str | None, extras: Mapping[str, bytes]) -> dict[str, Any]:
        """Makes what is stored now a durable cut, with named blobs beside it."""

    def compact(self, table: str | None) -> None:
        """Gives the space of dead rows back, of one table or all."""

    @property
    def num_loads(self) -> int:
        """Grows when a restore has replaced what is stored, whatever it raised afterwards."""

    def restore(self, checkpoint: str | int | None) -> None:
        """Makes a kept cut the current one."""

    def checkpoints(self) -> list[dict[str, Any]]:
        """The kept cuts, oldest first."""

    def delete_checkpoint(self, checkpoint: str | int) -> list[str]:
        """Gives up a kept cut; returns who still reads it."""

    def extras(self, checkpoint: str | int | None) -> dict[str, bytes]:
        """The blobs of a kept cut."""

    def stats(self) -> dict[str, Any]:
        """Counts and bytes, nested by table."""

    def verify(self) -> list[tuple[str, str]]:
        """Checks every checksum on disk; (file, damage) for each that fails."""

    def close(self) -> None:
        """Lets go of all files; what no checkpoint holds is lost."""


class TableTier(Protocol):
    """One table of the tiers below a cache: the ssd_store, or a dram_cache over it.

    The cache that fetches and appends is one thread at a time (rule I1 of hps/cached_tier.py).
    """

    def fetch(self, keys: Keys, rows: Rows, found: Flags) -> None:
        """Fills rows[i] where keys[i] (distinct) is stored, and found[i] with 1 or 0."""

    def append(self, rows: Rows, *, takes_slots: bool = True) -> None:
        """Takes over rows (distinct keys) that are newer than what is here.

        takes_slots: False passes a row that is not here on, rather than putting it into a slot.
        """

    def write_back(self) -> int:
        """Moves every dirty row down to the lowest tier; returns how many."""

    def contains(self, keys: Keys) -> Flags:
        """1 where a key is stored here or on its way down; the caller holds the lock."""

    def refuse_pinned(self, keys: Keys) -> None:
        """ConfigError if a batch in flight has one of the keys pinned; within `still`."""

    def erase(self, keys: Keys) -> Flags:
        """Removes distinct keys; 1 where one was stored; within `still`, and under the lock."""

    def num_rows(self) -> int:
        """Stored keys of the lowest tier."""

    @property
    def num_pins(self) -> int:
        """Pins on the slots of all caches from here on down; under the lock."""

    def scan(self, batch_rows: int) -> Iterator[Rows]:
        """Every stored row once, its newest image; between two pieces rows may move, not change."""

    def turns(self) -> list[_C.Turn]:
        """While all of these are had (`still`) no row moves between the tiers from here on down."""

    def restart(self) -> None:
        """Forgets every cached row: the store has gone to another cut; within `still`."""
