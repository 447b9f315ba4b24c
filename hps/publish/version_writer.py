"""VersionWriter: one version in the making, which nobody sees yet: its dense part, and its rows,
which its origin writes.

Above it: publisher.py. Below it: origin.py, table_files.py, model_files.py.
"""

import hashlib
import secrets
import time
from contextlib import suppress
from dataclasses import replace
from typing import Generic

from hps.checkpoint.blobs import table_to_json
from hps.common.json_text import Json
from hps.errors import ConfigError, HpsError, StoreError
from hps.publish.destination import Destination
from hps.publish.fetch import read_checked
from hps.publish.graph import GRAPH_FILE, WEIGHTS_FILE
from hps.publish.model_files import encode_model_files
from hps.publish.options import PublishOptions
from hps.publish.origin import C, Origin, Published
from hps.publish.table_files import TableFiles, VersionFolder, check_tables
from hps.publish.version import (
    BASE,
    DATA,
    DELTA,
    PublishedGraph,
    PublishedModel,
    PublishedTable,
    Version,
)


class VersionWriter(Generic[C]):
    """One version in the making.

    Args:
        origin: writes its rows.
        destination: where to.
        number: of the version.
        after: the checkpoint that is published.
        options: what of it.
    """

    def __init__(
        self,
        origin: Origin[C],
        destination: Destination,
        number: int,
        after: C,
        options: PublishOptions,
    ) -> None:
        self._origin = origin
        self._number = number
        self._after = after
        self._options = options
        self._folder = VersionFolder(destination, f"{DATA}/{number:08d}-{secrets.token_hex(4)}")
        self._changed: int | None = None
        self._removed: int | None = None

    @property
    def names(self) -> list[str]:
        """Of the files of this version, which are not durable yet."""
        return self._folder.names

    @property
    def num_bytes(self) -> int:
        """Of the files of this version."""
        return self._folder.num_bytes

    def make(self, follows: Version | None, before: C | None, wants_base: bool) -> Version:
        """Writes all files of the version."""
        after = self._after
        check_tables(after.tables, self._options)
        before = None if follows is None else before
        model = self._model(follows, before, wants_base)  # first: it may be refused
        lineage = secrets.token_hex(8) if follows is None else follows.lineage
        written = self._origin.write(self._folder, self._options, after, before, is_base=wants_base)
        if before is not None:
            self._changed = sum(file.rows for one in written for file in one.changed or ())
            self._removed = sum(file.rows for one in written for file in one.removed or ())
        return Version(
            number=self._number,
            kind=BASE if wants_base else DELTA,
            created=time.time(),
            lineage=lineage,
            predecessor=None
            if follows is None
            else {"version": follows.number, "sha256": follows.sha256},
            source=source_of(after, self._options),
            period=after.period,
            seed=after.seed,
            tables=[self._table(one, follows) for one in written],
            model=model,
            folder=self._folder.name,
        )

    def _table(self, files: TableFiles, follows: Version | None) -> PublishedTable:
        if files.base is not None:
            num_rows = sum(file.rows for file in files.base)
        else:
            assert follows is not None, "a delta follows a version"
            num_rows = _rows_of(follows, files.table) + files.difference
        return PublishedTable(
            table=table_to_json(self._after.tables[files.table]),
            dtype=self._options.dtype,
            rows=num_rows,
            base=files.base,
            changed=files.changed,
            removed=files.removed,
        )

    def _model(
        self, follows: Version | None, before: C | None, wants_base: bool
    ) -> PublishedModel | None:
        """The dense part; a delta names the files of the version before, where it is the same."""
        has_graph = self._options.graph is not None
        if follows is None or before is None or wants_base or has_graph:
            return self._write_model(follows, wants_base)
        if self._after.keeps_model(before):
            return follows.model
        return self._write_model(follows, wants_base)

    def _write_model(self, follows: Version | None, wants_base: bool) -> PublishedModel | None:
        state = self._after.model
        if state is None:
            if self._options.graph is not None:
                raise ConfigError(
                    f"publish: checkpoint {self._after.name} holds no model to make "
                    "an ONNX graph of; publish one of `hps train`, give model=, or leave out onnx"
                )
            return None
        encoded = encode_model_files(state)
        before = None if follows is None else follows.model
        digest = hashlib.sha256(encoded.about).hexdigest()
        about = None if before is None or wants_base else before.about
        if about is None or about.sha256 != digest:
            about = self._folder.write_bytes("model.json", encoded.about)
        return PublishedModel(
            about=about,
            weights=self._folder.write_bytes(WEIGHTS_FILE, encoded.weights),
            tensors=encoded.tensors,
            graph=self._write_graph(state, encoded.tensors, before, wants_base),
        )

    def _write_graph(
        self, state: Json, tensors: list[Json], before: PublishedModel | None, wants_base: bool
    ) -> PublishedGraph | None:
        """The graph of the version before it, where that is still the model's: a delta names that
        file, and a base has a copy. Else it is exported."""
        maker = self._options.graph
        if maker is None:
            return None
        mark = maker.mark(state)
        kept = None if before is None else before.graph
        if before is not None and kept is not None and before.tensors == tensors:
            if kept.mark == mark and not wants_base:
                return kept
            if kept.mark == mark:
                with suppress(HpsError):  # a base does not need what was published before
                    data = read_checked(self._folder.destination, kept.file)
                    return replace(kept, file=self._folder.write_bytes(GRAPH_FILE, data))
        graph = maker.make(state, self._after.tables)
        graph.check_fits(tensors)
        file = self._folder.write_bytes(GRAPH_FILE, graph.onnx)
        return PublishedGraph(file=file, **graph.described(mark))

    def counts(self) -> tuple[int | None, int | None]:
        """Rows that changed and went."""
        return self._changed, self._removed

    def drop(self) -> None:
        """Removes what was written, as far as the destination lets it."""
        with suppress(StoreError):  # nobody sees it; `remove_old` tries again
            self._folder.destination.remove(self._folder.name)


def source_of(after: Published, options: PublishOptions) -> Json:
    """What a version tells of its checkpoint and of how it was published."""
    return {**after.source(), "options": options.described()}


def _rows_of(version: Version, table: str) -> int:
    return next(one.rows for one in version.tables if one.name == table)
