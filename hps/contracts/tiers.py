"""RowTier: what the lowest tier offers to those above it, whatever engine keeps the rows; and
TableTier: what a cache sees of the tiers below it.

Above it: `hps.ParameterServer`, which stacks tiers. Below it: an engine
(`hps.ssd_store.SsdStore`, or RocksDB's `RocksDbStore`).
Rows travel as images, uint8 [n, row_bytes]; the first eight bytes of an image are its key. A call
handles a whole batch and lets other threads run meanwhile.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from hps import _C
from hps.common.json_text import Json

if TYPE_CHECKING:
    from hps.table.schema import TableSchema

Rows = npt.NDArray[np.uint8]
Keys = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.uint8]


class RowTier(Protocol):
    """A tier that holds every stored row of every table, and checkpoints of it that survive a
    crash.

    The contract that every engine keeps; an engine's own words are only on what a verb costs there,
    and on what it promises beyond. Every method may be called from any thread. Mutations run one
    after the other; fetch, contains and scan run beside them.

    Raises, every verb of them: ConfigError for a table or checkpoint that is not there, by the
    names of those that are. StoreError once the store is closed, and for a mutation of one that was
    opened read-only or has stopped after an error.
    """

    @property
    def path(self) -> Path:
        """The store's directory, as it was given at the opening."""

    @property
    def schemas(self) -> "Mapping[str, TableSchema]":
        """Of every stored table, by its name."""

    @property
    def seed(self) -> int:
        """Of new rows' weights."""

    def append(self, table: str, rows: Rows) -> None:
        """Stores rows; the last row of a key wins, over earlier calls too.

        Args:
            table: its name.
            rows: uint8 [n, row_bytes], contiguous; the key of each is in its first 8 bytes.

        Raises:
            StoreError: the disk is full (repeat the call when there is space; some of the rows may
                be stored already), or a write was refused.

        Cost: durable from the next checkpoint on, not before.
        """

    def fetch(self, table: str, keys: Keys, rows: Rows, found: Flags) -> None:
        """Fills rows[i] where keys[i] is stored; other rows are left as they are.

        Args:
            table: its name.
            keys: uint64 [n], any order, duplicates allowed.
            rows: uint8 [n, row_bytes], contiguous, written.
            found: uint8 [n], written: 1 where stored, else 0.

        Raises:
            CorruptionError: what is stored fails its checksum, or a row has another key; nothing in
                `rows` and `found` means anything then.
        """

    def contains(self, table: str, keys: Keys) -> Flags:
        """uint8 [n]: 1 where keys[i], uint64 [n], is stored."""

    def erase(self, table: str, keys: Keys) -> Flags:
        """Removes keys; uint8 [n], 1 where one was stored (for its first occurrence in `keys`).

        Raises:
            StoreError: as append.
        """

    def num_rows(self, table: str) -> int:
        """Stored keys of the table, exactly."""

    def set_period(self, period: int, horizons: Mapping[str, int] | None = None) -> None:
        """Rows of tables with expiry whose period of death has come are absent to every verb from
        now on; it is a mutation.

        Args:
            period: the period.
            horizons: by table: its rows die early that would by then; later ones do not.
        """

    def check_period(self, period: int, horizons: Mapping[str, int] | None = None) -> None:
        """Raises what would keep `set_period` of the same from being done; no row changes."""

    def count_deaths(self, table: str, period: int) -> npt.NDArray[np.uint64]:
        """Rows of a table with expiry that live beyond a period, not before the store's: [0] never
        die, [i] die in the i-th period after it, i up to the longest gap that counts."""

    def follow_period(self) -> None:
        """Goes to the period of the current checkpoint, as an opening and a restore do by
        themselves; for who was interrupted in one."""

    def has_deaths(self, table: str) -> bool:
        """True if rows of the table may die: of every table with statistics, but for those that a
        version before there was expiry has made."""

    def scan(self, table: str, batch_rows: int = 65536) -> Iterator[Rows]:
        """Every row that is stored when the scan begins, once, in the engine's order.

        What is appended or erased meanwhile does not change what it yields.

        Args:
            table: its name.
            batch_rows: rows of a piece, at most; at least 1.

        Returns:
            uint8 [n, row_bytes] arrays, n > 0, each its own.

        Raises:
            CorruptionError: as fetch. StoreError: the store was closed meanwhile.
        """

    def checkpoint(
        self,
        tag: str | None = None,
        extras: Mapping[str, bytes] | None = None,
        taken: Callable[[], object] | None = None,
    ) -> Json:
        """Makes what is stored now a durable checkpoint; returns when it is on disk.

        Args:
            tag: keeps it until delete_checkpoint; replaces an older one of that tag. None: kept
                until keep_last newer untagged ones exist.
            extras: blobs kept with it by name, each with a digest.
            taken: may be called while the disk is waited for: what is stored later is not in the
                checkpoint, so that its caller need keep nobody away any more. It calls no store.

        Returns:
            id, tag, created (seconds since 1970), current, rows, segments (files of rows), bytes,
            names (that it was promoted to).

        Raises:
            ConfigError: `tag` is a promoted name.
            StoreError: the disk is full, and the checkpoint before it stays; or a sync failed, and
                the store stops.
        """

    def space_of_compact(self, table: str | None = None) -> dict[str, int]:
        """What `compact` would do, by the index; nothing is read.

        Returns:
            {"written_bytes", "freed_bytes", "held_bytes"}: of the new files, which are beside the
            old ones at first; of old files that go; of old files that other checkpoints keep.
        """

    def compact(self, table: str | None = None) -> None:
        """Gives the space of dead rows back.

        If nothing was stored since the current, kept checkpoint, that one is renewed: a new id, all
        else the same, and the space is free when this returns. Else it is after the next one. Other
        kept checkpoints and open readers keep their files in any case.

        Args:
            table: its name, which stands for the records of its keys that wait, too; None is all.

        Raises:
            CorruptionError: what is still needed is damaged. StoreError: the disk is full; every
                row is still there.
        """

    @property
    def num_loads(self) -> int:
        """Grows when a restore has replaced what is stored, whatever it raised afterwards."""

    def restore(self, checkpoint: str | int | None = None) -> None:
        """Makes a kept checkpoint the current one; what was stored since then is dropped.

        Args:
            checkpoint: tag or id; None is the current checkpoint (drops what no checkpoint holds).

        Raises:
            CorruptionError: it is damaged; the store stays where it was.
        """

    def checkpoints(self) -> list[Json]:
        """The kept checkpoints, oldest first, as `checkpoint` returns them."""

    def delete_checkpoint(self, checkpoint: str | int) -> list[str]:
        """Gives up a kept checkpoint. If it is the current one, its files go when another becomes
        current.

        Returns:
            The living readers ("process 12 (checkpoint 3)"), whose files stay until they close.
        """

    def extras(
        self, checkpoint: str | int | None = None, names: Collection[str] | None = None
    ) -> dict[str, bytes]:
        """The blobs of a kept checkpoint (None: of the current one), digests checked.

        Args:
            checkpoint: its tag or id.
            names: only these, as far as they are there; the others are not read.

        Raises:
            CorruptionError: a digest does not match.
        """

    def extra_bytes(self, checkpoint: str | int | None = None) -> dict[str, int]:
        """Of each blob of a kept checkpoint its length; none is read."""

    def stats(self) -> Json:
        """Counts and bytes, nested by table: bytes_read, bytes_written, files_bytes and
        checkpoint_only_bytes (which kept checkpoints alone hold); of a table rows, live_bytes and
        index_bytes. An engine has more."""

    def held_folder(self) -> Path:
        """The store's own folder, for files that are kept beside its files: a path that leads to it
        while the store is open, wherever it was moved.

        Raises:
            StoreError: it is not at the path any more at which it was opened.
        """

    def verify(self) -> list[tuple[str, str]]:
        """As `hps.ssd_store.verify` on this store's directory: all that is in a checkpoint."""

    def close(self) -> None:
        """Lets go of the lock and of all files; what no checkpoint holds is lost. May be called
        again."""


class TableTier(Protocol):
    """One table of the tiers below a cache: the ssd_store, or a dram_cache over it.

    The cache that fetches and appends is one thread at a time (rule I1 of
    hps/tiers/cached_tier.py).
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

    def begin_period(self, period: int, horizon: int) -> None:
        """Drops every cached row that dies by the horizon; updates count in the period, which may
        be earlier, from now on; none is dirty; within `still`, and under the lock."""

    def restart(self) -> None:
        """Forgets every cached row: the store has gone to another checkpoint; within `still`."""


class HoldsRows(Protocol):
    """Holds rows of some tables in their slots, or is about to."""

    def pinned_keys(self, table: str) -> Keys:
        """The distinct keys of a table, uint64 [N]. Under the lock."""
