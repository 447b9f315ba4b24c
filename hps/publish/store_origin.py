"""StoreOrigin: a store, or the folder of several ranks, as what versions are published of.

Above it: `hps.ParameterServer.publish`, `hps publish`, `hps train --publish`. Below it: source.py,
table_files.py, the promoted names of the store.
"""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from hps.common.json_text import Json, JsonView
from hps.errors import ConfigError, StoreError
from hps.publish.options import PublishOptions
from hps.publish.source import Folder, Source
from hps.publish.table_files import TableFiles, VersionFolder, write_tables
from hps.ssd_store.promote import names_of
from hps.ssd_store.store import SsdStore

_MOST_EARLIER = 1  # that a name of a publisher can go back over: of those it keeps the files


class StoreOrigin:
    """Keeps hps.publish.origin.Origin.

    Args:
        path: the store, or the folder of several ranks.
        held: of one that this process has open for writing `RowTier.held_folder`, so that no copy
            of it that has taken its path is published for it.
    """

    def __init__(
        self, path: str | os.PathLike[str], held: Callable[[], object] | None = None
    ) -> None:
        self._path = path
        self._held = held
        self._folder: Folder | None = None  # what was opened first, of a store of segments

    def open(
        self,
        checkpoint: str | int | None,
        beside: Source | None,
        *,
        shares_index: bool = False,
    ) -> Source:
        """As Origin."""
        source = Source.open(self._path, checkpoint, beside, shares_index=shares_index)
        try:
            if self._held is not None:
                self._held()
            self._check_folder(source)
        except BaseException:
            source.close()
            raise
        return source

    def _check_folder(self, source: Source) -> None:
        """Refuses another store than the one that was opened first: a copy has files of the same
        numbers, and times, and who writes may still be at the other one."""
        if not isinstance(source.store, SsdStore):
            return
        if self._folder is not None and source.folder != self._folder:
            raise StoreError(
                errno.ESTALE,
                f"{source.path}: another folder has taken this path since publishing began, such "
                "as a clone or a copy that was put back; nothing of it was published. Put the "
                "store back, or, if this one is to be published from now on, start again what "
                "publishes it (a new hps.publish.Publisher, hps publish)",
            )
        self._folder = source.folder

    def find(self, source: JsonView, after: Source, known: Source | None = None) -> Source | None:
        """As Origin."""
        kept = [one for one in after.store.checkpoints() if one["created"] == source["created"]]
        if kept and known is not None and known.created == source["created"]:
            return known
        return Source.open(self._path, kept[0]["id"]) if kept else None

    def pin(self, checkpoint: Source, name: str, safe: Callable[[], object] = lambda: None) -> None:
        """As Origin: by a promoted name."""
        known = int(checkpoint.info["id"])
        own = checkpoint.store if isinstance(checkpoint.store, SsdStore) else None
        names = names_of(self._path, own)

        def listed() -> Sequence[Json]:  # while nobody can take a checkpoint
            found = names.listed()
            if any(one["id"] == known for one in found):
                safe()
            return found

        try:
            replace(names, listed=listed).promote(known, name, _MOST_EARLIER)
        except ConfigError:  # a compaction may have given it another id since
            now = self._id_now(checkpoint)
            if now is None or now == known:
                raise
            names_of(self._path).promote(now, name, _MOST_EARLIER)

    def _id_now(self, checkpoint: Source) -> int | None:
        """Of a checkpoint, as the store has it now; None: it is not kept."""
        with Source.open(self._path, None, rows=False) as newest:
            listed = newest.store.checkpoints()
        ids = (int(one["id"]) for one in listed if one["created"] == checkpoint.created)
        return next(ids, None)

    def write(
        self,
        folder: VersionFolder,
        options: PublishOptions,
        after: Source,
        before: Source | None,
        *,
        is_base: bool,
    ) -> list[TableFiles]:
        """As Origin."""
        return write_tables(folder, after, before, options, is_base=is_base)
