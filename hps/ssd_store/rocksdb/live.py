"""Live: the database that a store's verbs work on, made of a checkpoint's files.

Above it: store.py. Below it: database.py, cuts.py. A writer's is in a
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

from hps.ssd_store.rocksdb import cuts
from hps.ssd_store.rocksdb.database import RocksDbDatabase
from hps.ssd_store.rocksdb.manifest import Cut


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

    def write(self, cut: Cut | None) -> Live:
        """A writer's, over the files of a checkpoint, which are checked first.

        Raises:
            CorruptionError: a file of the checkpoint is damaged.
        """
        folder = self.path / f"{cuts.LIVE_PREFIX}{secrets.token_hex(8)}"
        try:
            if cut is not None:
                cuts.check_cut(self.path, cut)
                cuts.link_database(self.path / cut.folder / cuts.DATABASE, folder)
            database = RocksDbDatabase(folder, len(self.tables), self.file_bytes, False)
            return Live(database, folder, self._counts(cut))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def read(self, cut: Cut | None) -> Live:
        """A reader's, of a checkpoint, which is checked first.

        Raises:
            CorruptionError: a file of the checkpoint is damaged.
        """
        folder = None
        if cut is not None:
            cuts.check_cut(self.path, cut)
            folder = Path(tempfile.mkdtemp(prefix="hps-reader-"))
        try:
            if cut is not None and folder is not None:
                cuts.refer_to_database(self.path / cut.folder / cuts.DATABASE, folder)
            database = RocksDbDatabase(folder, len(self.tables), self.file_bytes, True)
            return Live(database, folder, self._counts(cut))
        except BaseException:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def _counts(self, cut: Cut | None) -> dict[str, int]:
        return {name: cut.rows.get(name, 0) if cut else 0 for name in self.tables}
