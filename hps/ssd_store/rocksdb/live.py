"""Live: the database that a store's verbs work on, made of a checkpoint's files.

Above it: store.py. Below it: live_table.py, database.py, checkpoint_files.py. A writer's is in a
folder of its own, of hard links to the files of a checkpoint, and is thrown away with it. So is a
reader's, among the system's temporary files and of symbolic links: rocksdict writes a file of its
own into every folder that it opens, also read-only, where another reader may just be checking it.
"""

import secrets
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hps.checkpoint.blobs import PERIOD, decode_period
from hps.contracts.tiers import Keys
from hps.ssd_store.rocksdb import checkpoint_files
from hps.ssd_store.rocksdb.database import RocksDbDatabase
from hps.ssd_store.rocksdb.deaths import NO_ROWS, Deaths, Periods
from hps.ssd_store.rocksdb.live_table import LiveTable
from hps.ssd_store.rocksdb.manifest import RocksDbCheckpoint
from hps.table.schema import TableSchema

_BURIED_ROWS = 8192  # at a time


class Live(NamedTuple):
    """A database, its folder, None without one, and its tables by name.

    A restore puts another one in its place; who reads the old one meanwhile may finish, and it goes
    with the last of them.
    """

    database: RocksDbDatabase
    folder: Path | None
    tables: dict[str, LiveTable]

    @property
    def num_expired(self) -> int:
        """Records whose period of death has come, and which are still there."""
        return sum(table.deaths.now.num_expired for table in self.tables.values())

    def dying(self, period: int, horizons: Mapping[str, int]) -> dict[str, tuple[Keys, Periods]]:
        """Of these tables the rows that die early, as `LiveTable.dying`."""
        return {
            name: self.tables[name].dying(period, horizon) for name, horizon in horizons.items()
        }

    def set_period(self, period: int, horizons: Mapping[str, int]) -> None:
        """As `RowTier.set_period`. All that may fail comes before anything changes."""
        early = self.dying(period, horizons)
        for name, table in self.tables.items():
            table.deaths.begin(period, *early.get(name, NO_ROWS))

    def bury(self) -> int:
        """Erases some records whose period of death has come; tells the bytes of their images, 0
        when none is left."""
        return next((size for one in self.tables.values() if (size := one.bury(_BURIED_ROWS))), 0)

    def bury_early(self) -> None:
        """Erases what died early, so that no checkpoint has it."""
        for table in self.tables.values():
            table.bury_early()

    def counted(self, checkpoint: RocksDbCheckpoint) -> RocksDbCheckpoint:
        """A checkpoint with the counts of what is stored now; none that died early may be left."""
        counts = {name: table.deaths.counts for name, table in self.tables.items()}
        return checkpoint.with_counts(counts, self.num_expired)

    def discard(self) -> None:
        """Closes it and removes its folder."""
        self.database.close()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True)
class LiveDatabases:
    """Makes them for one store.

    Args:
        path: of the store.
        tables: in the order of their numbers.
        file_bytes: as RocksDbDatabase takes it.
    """

    path: Path
    tables: tuple[TableSchema, ...]
    file_bytes: int

    def write(self, checkpoint: RocksDbCheckpoint | None) -> Live:
        """A writer's, over the files of a checkpoint, which are checked first.

        Raises:
            CorruptionError: a file of the checkpoint is damaged.
        """
        folder = self.path / f"{checkpoint_files.LIVE_PREFIX}{secrets.token_hex(8)}"
        try:
            if checkpoint is not None:
                checkpoint_files.check_checkpoint(self.path, checkpoint)
                checkpoint_files.link_database(
                    self.path / checkpoint.folder / checkpoint_files.DATABASE, folder
                )
            return self._open(folder, checkpoint, False)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def read(self, checkpoint: RocksDbCheckpoint | None) -> Live:
        """A reader's, of a checkpoint, which is checked first.

        Raises:
            CorruptionError: a file of the checkpoint is damaged.
        """
        folder = None
        if checkpoint is not None:
            checkpoint_files.check_checkpoint(self.path, checkpoint)
            folder = Path(tempfile.mkdtemp(prefix="hps-reader-"))
        try:
            if checkpoint is not None and folder is not None:
                checkpoint_files.refer_to_database(
                    self.path / checkpoint.folder / checkpoint_files.DATABASE, folder
                )
            return self._open(folder, checkpoint, True)
        except BaseException:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def _open(
        self, folder: Path | None, checkpoint: RocksDbCheckpoint | None, read_only: bool
    ) -> Live:
        """With the counts of a checkpoint, at its period."""
        period = 0
        if checkpoint is not None:
            extras = checkpoint_files.read_extras(self.path, checkpoint, (PERIOD,))
            period = decode_period(extras)
        mortal = [number for number, table in enumerate(self.tables) if table.statistics]
        database = RocksDbDatabase(folder, len(self.tables), self.file_bytes, read_only, mortal)
        tables = {}
        for number, table in enumerate(self.tables):
            counts = {} if checkpoint is None else checkpoint.counts_of(table.name)
            tables[table.name] = LiveTable(database, number, table, Deaths(counts, period))
        return Live(database, folder, tables)
