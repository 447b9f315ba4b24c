"""LiveTable: the rows of one table in an opened database, of which those that are dead are absent.

Above it: live.py, store.py. Below it: database.py, deaths.py. A dead record stays where it is until
`bury` erases it, and nothing depends on when that is.
"""

import logging
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hps.common.json_text import Json
from hps.contracts.tiers import Flags, Keys, Rows
from hps.errors import CorruptionError
from hps.ssd_store.rocksdb.database import (
    RocksDbDatabase,
    compacted_bytes,
    deaths_of,
    pieces,
    row_deaths,
)
from hps.ssd_store.rocksdb.deaths import NEVER, Deaths, Moment, Periods
from hps.table.schema import TableSchema

_RENEWED_ROWS = 8192  # at a time


class _Dying(NamedTuple):
    """What `dying` found at one moment, which ends with the next change of a record."""

    now: Moment
    period: int
    horizon: int
    rows: tuple[Keys, Periods]

    def is_of(self, now: Moment, period: int, horizon: int) -> bool:
        """True if it is what there is to find now."""
        return self.now is now and (self.period, self.horizon) == (period, horizon)


class LiveTable:
    """Any thread may read; one at a time may change it.

    Args:
        database: that holds it.
        number: of the table there.
        schema: of the table.
        deaths: of its records.
    """

    def __init__(
        self, database: RocksDbDatabase, number: int, schema: TableSchema, deaths: Deaths
    ) -> None:
        self._database = database
        self._number = number
        self._name, self._row_bytes = schema.name, schema.row_bytes
        self._is_mortal = schema.statistics  # rows have periods of death
        self.deaths = deaths
        self._found: _Dying | None = None  # by the last `dying`, until it is asked for again

    def get(self, keys: Keys) -> list[bytes | None]:
        """The row image of each key [n], None where none is stored, or a dead one."""
        now = self.deaths.now
        # Before the read: who is marked is dead, whatever is stored meanwhile; and of a key whose
        # mark has gone the read finds what was stored then. The period of a new row comes later.
        was_early = now.early.has(keys)
        images = self._database.get(self._number, keys)
        if self._is_mortal:
            for place in np.flatnonzero(was_early | now.is_expired(deaths_of(images))):
                images[place] = None
        return images

    def append(self, rows: Rows) -> None:
        """Stores rows; the last row of a key wins."""
        for change in self._database.put(self._number, rows):
            self.deaths.take(change)

    def erase(self, keys: Keys) -> Flags:
        """Removes keys; 1 where a living row was stored, at its first occurrence."""
        found = np.zeros(len(keys), np.uint8)
        unique, first = np.unique(keys, return_index=True)
        found[first] = [image is not None for image in self.get(unique)]
        self._remove(unique)
        return found

    def _remove(self, keys: Keys) -> int:
        num_removed = 0
        for change in self._database.remove(self._number, keys):
            self.deaths.take(change)
            num_removed += len(change.keys)
        return num_removed

    def scan(self, batch_rows: int) -> Iterator[Rows]:
        """The rows that live now, in the order of their keys, at most so many at a time.

        Raises:
            CorruptionError: a record has another length, or there are fewer than there should be.
        """
        snapshot, now = self._database.snapshot(self._number), self.deaths.now.frozen()
        return self._living(pieces(snapshot, self._row_bytes, now.num_records, batch_rows), now)

    def _living(self, records: Iterator[Rows], now: Moment) -> Iterator[Rows]:
        for rows in records:
            if self._is_mortal:
                rows = rows[~now.is_dead(rows.view(np.uint64)[:, 0], row_deaths(rows))]
            if len(rows):
                yield rows

    # What dies.

    def dying(self, period: int, horizon: int) -> tuple[Keys, Periods]:
        """Living rows that die after a period, not later than a horizon: (keys, periods of death).
        No row changes; entries that are damaged are made again.

        Cost: reads their entries; of a second call for the same, none of whose rows has changed
        since the first, nothing.

        Raises:
            CorruptionError: rows are damaged, or others were counted.
        """
        known, self._found = self._found, None
        if known is not None and known.is_of(self.deaths.now, period, horizon):
            return known.rows
        found = self._find_dying(period, horizon)
        self._found = _Dying(self.deaths.now, period, horizon, found)
        return found

    def _find_dying(self, period: int, horizon: int) -> tuple[Keys, Periods]:
        num = self.deaths.num_dying(period + 1, horizon)
        found = self._due_living(period, horizon)
        if len(found[0]) != num:
            self._renew_entries()
            found = self._due_living(period, horizon)
        if len(found[0]) != num:
            raise CorruptionError(
                f"table {self._name!r}: {len(found[0])} rows were found that die by period "
                f"{horizon}, {num} are expected; restore an older checkpoint"
            )
        return found

    def _due_living(self, period: int, horizon: int) -> tuple[Keys, Periods]:
        """As `dying`, by the entries as they are."""
        keys, deaths = self._database.due(self._number, period + 1, horizon)
        lives = ~self.deaths.now.is_dead(keys, deaths)
        return keys[lives], deaths[lives]

    def _renew_entries(self) -> None:
        """Makes the entries of rows that die again, of the rows. Cost: reads the table once."""
        logging.getLogger(__name__).warning(
            "hps: warning: table %r: the entries of its rows that die are damaged; they are made "
            "again of its rows, which are all read for it",
            self._name,
        )
        snapshot, num = self._database.snapshot(self._number), self.deaths.now.num_records
        rows = pieces(snapshot, self._row_bytes, num, _RENEWED_ROWS)
        self._database.renew_due(self._number, rows)

    def bury(self, most: int) -> int:
        """Erases up to so many records whose period of death has come; tells the bytes of their
        images, 0 if there are none left.

        Raises:
            CorruptionError: there should be some, and none is found, by the rows neither.
        """
        now = self.deaths.now
        if not now.num_expired:
            return 0
        if not (num_removed := self._remove_due(now.period, most)):
            self._renew_entries()
            num_removed = self._remove_due(now.period, most)
        if not num_removed:
            raise CorruptionError(
                f"table {self._name!r}: {now.num_expired} dead rows are expected, none is found; "
                "restore an older checkpoint"
            )
        return num_removed * self._row_bytes

    def _remove_due(self, period: int, most: int) -> int:
        keys, _ = self._database.due(self._number, NEVER + 1, period, most)
        return self._remove(keys)

    def bury_early(self) -> None:
        """Erases what died early.

        Raises:
            CorruptionError: a record of those is not there.
        """
        self._remove(self.deaths.now.early.keys)
        if num_left := self.deaths.now.num_early:
            raise CorruptionError(
                f"table {self._name!r}: {num_left} rows that died early are expected, and are not "
                "found; restore an older checkpoint"
            )

    # Space.

    def compact(self) -> None:
        """Merges all files; nothing overwritten or erased stays in them."""
        self._database.compact(self._number)

    def files_bytes(self) -> int:
        """Bytes of the files."""
        return self._database.files_bytes(self._number)

    def compacted_bytes(self) -> int:
        """A bound on the bytes of the files that `compact` leaves."""
        now = self.deaths.now
        num_mortal = now.num_living - self.deaths.num_dying(NEVER, NEVER)
        return compacted_bytes(now.num_living, self._row_bytes) + compacted_bytes(num_mortal, 4)

    def stats(self) -> Json:
        """Of living rows, and the memory that RocksDB holds for the table."""
        num_rows = self.deaths.now.num_living
        return {
            "rows": num_rows,
            "live_bytes": num_rows * self._row_bytes,
            "index_bytes": self._database.memory_bytes(self._number),
        }
