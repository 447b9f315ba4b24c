"""What the files of a RocksDB store take, and what compaction would make of them.

Above it: store.py. Below it: live.py, live_table.py, checkpoint_files.py.
"""

from pathlib import Path
from typing import NamedTuple

from hps.ssd_store.rocksdb import checkpoint_files
from hps.ssd_store.rocksdb.live import Live
from hps.ssd_store.rocksdb.live_table import LiveTable
from hps.ssd_store.rocksdb.manifest import RocksDbManifest


class FoldersOf(NamedTuple):
    """Where the checkpoints of a manifest are.

    Args:
        path: of the store.
        manifest: of it, as it is now.
    """

    path: Path
    manifest: RocksDbManifest

    @property
    def all(self) -> list[Path]:
        """Of all checkpoints."""
        return [self.path / one.folder for one in self.manifest.checkpoints]

    @property
    def current(self) -> Path | None:
        """Of the current one."""
        found = self.manifest.current
        return None if found is None else self.path / found.folder


def space_of_compact(live: Live, folders: FoldersOf, chosen: list[LiveTable]) -> dict[str, int]:
    """As `RowTier.space_of_compact`, of some tables."""
    current = folders.current
    theirs = checkpoint_files.unique_bytes([one for one in folders.all if one != current], ".sst")
    folder = current or live.folder
    ours = checkpoint_files.unique_bytes([] if folder is None else [folder], ".sst")
    held = sum(size for inode, size in ours.items() if inode in theirs)
    files = sum(ours.values())
    if len(chosen) < len(live.tables):
        files = sum(table.files_bytes() for table in chosen)
    return {
        "written_bytes": sum(table.compacted_bytes() for table in chosen),
        "freed_bytes": max(0, files - held),
        "held_bytes": held,
    }


def files_figures(live: Live, folders: FoldersOf, is_read_only: bool) -> dict[str, int]:
    """Bytes of all files, and of those that checkpoints alone hold."""
    kept = folders.all
    opened = kept if live.folder is None or is_read_only else [live.folder]
    ours = checkpoint_files.unique_bytes(opened)
    theirs = checkpoint_files.unique_bytes(kept)
    only = sum(size for inode, size in theirs.items() if inode not in ours)
    return {"files_bytes": sum(ours.values()) + only, "checkpoint_only_bytes": only}
