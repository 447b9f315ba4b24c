"""Live: the database that a store's verbs work on, made of a checkpoint's files.

Above it: store.py. Below it: database.py, checkpoint_files.py. A writer's is in a
folder of its own, of hard links to the files of a checkpoint, and is thrown away with it. So is a
reader's, among the system's temporary files and of symbolic links: rocksdict writes a file of its
own into every folder that it opens, also read-only, where another reader may just be checking it.
"""

import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hps.ssd_store.rocksdb import checkpoint_files
from hps.ssd_store.rocksdb.database import RocksDbDatabase
from hps.ssd_store.rocksdb.manifest import RocksDbCheckpoint


class Live(NamedTuple):
    """A database, its folder, None without one, and the exact number of its rows by table.

    A restore puts another one in its place; who reads the old one meanwhile may finish, and it goes
    with the last of them.
    """

    database: RocksDbDatabase
    folder: Path | None
    counts: dict[str, int]

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
        tables: their names, in the order of their numbers.
        file_bytes: as RocksDbDatabase takes it.
    """

    path: Path
    tables: tuple[str, ...]
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
            database = RocksDbDatabase(folder, len(self.tables), self.file_bytes, False)
            return Live(database, folder, self._counts(checkpoint))
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
            database = RocksDbDatabase(folder, len(self.tables), self.file_bytes, True)
            return Live(database, folder, self._counts(checkpoint))
        except BaseException:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def _counts(self, checkpoint: RocksDbCheckpoint | None) -> dict[str, int]:
        return {name: checkpoint.rows.get(name, 0) if checkpoint else 0 for name in self.tables}
