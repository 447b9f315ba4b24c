"""Reads criteo, libsvm, libffm and slots logs: files in, native parser, batches out.

Above it: `open_reader`. Below it: ByteSource, discover, csrc/reader/text_parser.h.
"""

from collections.abc import Generator, Sequence

import torch

from hps import _C
from hps.errors import ConfigError, DataError
from hps.reader.column_use import ColumnUse
from hps.reader.config import SIGNED_LOG1P
from hps.reader.dense import signed_log1p
from hps.reader.discover import (
    bad_line,
    collect_features,
    count_dense,
    most_common,
    read_lines,
    sample_lines,
)
from hps.reader.part_parser import Parser, PartParser
from hps.reader.position import Cut, Position
from hps.reader.reader import Reader
from hps.reader.sample import sample_rule
from hps.reader.schema import Schema, encode_name
from hps.types import Batch, Ids

CRITEO_DENSE = 13
CRITEO_CATEGORIES = 26
LIBSVM_FEATURE = "index"
# Text that a thread gets at once: enough to hide the threads' start, little enough for the cache.
_PIECE_BYTES = 512 * 1024


class TextReader(Reader):
    """A reader of a log whose examples are lines of text."""

    def _begin(self) -> None:
        self._num_categories = 0
        takes_all = any(table.features is None for table in self._tables)
        if self.config.format in ("criteo", "libsvm") or not takes_all:
            _ = self.schema  # cheap here, and shows a mistake at once

    def _find_features(self) -> tuple[Sequence[str] | None, int]:
        dense = self.config.dense
        if self.config.format == "criteo":
            return self._find_criteo_columns(CRITEO_DENSE if dense is None else dense)
        if self.config.format in ("libsvm", "libffm"):
            if dense:
                raise ConfigError(
                    f"ReaderConfig.dense={dense}: {self.config.format} has no dense values"
                )
            dense = 0
        if self.config.format == "libsvm":
            return [LIBSVM_FEATURE], dense or 0
        if dense is None:
            dense = most_common(sample_lines(self.paths), count_dense) or 0
        if all(table.features is not None for table in self._tables):
            return None, dense
        return collect_features(self.paths, self._native_schema(None, dense)), dense

    def _find_criteo_columns(self, dense: int) -> tuple[list[str], int]:
        num_tabs = most_common(sample_lines(self.paths), lambda line: line.count(b"\t"))
        self._num_categories = CRITEO_CATEGORIES if num_tabs is None else num_tabs - dense
        if self._num_categories < 0:
            raise DataError(
                f"{self.paths[0]}: most lines have {(num_tabs or 0) + 1} columns separated by "
                f"tabs, too few for a label and dense={dense} numbers"
            )
        return [f"C{number + 1}" for number in range(self._num_categories)], dense

    @property
    def raw_columns(self) -> list[ColumnUse]:
        """The label, numbers and features of a line; of libffm and slots those that tables have."""
        kind = self.config.format
        uses = [self._label("label", "text")]
        number = "integer" if kind == "criteo" else "float"
        name = "I" if kind == "criteo" else "dense_feature "
        for idx in range(self.schema.num_dense):
            uses.append(self._dense_value(f"{name}{idx + 1}", number))
        taken = set()
        is_text = kind == "criteo" or self.config.hashes_numbers
        for table, columns in self.schema.tables.items():
            for column in columns:
                taken.add(column.name)
                of_values = "text" if is_text else "integer"
                is_shared = column.seed == 0
                uses.append(
                    self._feature(
                        column.name, of_values, table, is_shared=is_shared, is_text=is_text
                    )
                )
        if kind == "criteo":
            names = [f"C{number + 1}" for number in range(self._num_categories)]
            uses += [
                self._unused(name, "text", "no table has this feature")
                for name in names
                if name not in taken
            ]
        return uses

    def _native_schema(self, schema: Schema | None, num_dense: int) -> _C.TextSchema:
        """The native twin of a schema; of one without columns if there is none yet."""
        columns = []
        sizes = []
        for table in schema.tables.values() if schema else ():
            sizes.append(len(table))
            for column in table:
                index = int(column.name[1:]) - 1 if self.config.format == "criteo" else 0
                columns.append((encode_name(column.name), column.seed, index))
        native = _C.TextSchema(self.format, columns, sizes)
        native.num_dense = num_dense
        native.num_categories = self._num_categories
        native.hash_keys = self.config.hashes_numbers
        native.signed_log = self.config.transform == SIGNED_LOG1P
        native.skip_bad_lines = self.config.on_error == "skip"
        native.refuse_unknown = schema is not None and schema.takes_all
        return native

    def _make_parser(self) -> Parser:
        """One that parses the own part alone, unless bad lines are to be counted everywhere."""
        native = self._native_schema(self.schema, self.schema.num_dense)
        threads = self.config.num_threads()
        sample = sample_rule(self.config)
        if self.config.in_blocks().part[1] == 1 or self.config.on_error == "skip":
            native.sample = sample
            return _C.TextParser(native, threads)
        return PartParser(native, self.format, threads, sample)

    def _read(self, start: Position) -> Generator[Cut, None, None]:
        parser = self._make_parser()
        config = self.config.in_blocks()
        piece_bytes = _PIECE_BYTES * self.config.num_threads()
        place = start
        for epoch in range(start.epoch, self.config.epochs):
            first = place
            paths = self._order(epoch)
            for file in range(first.file, len(paths)):
                # Only the file that the position is in is entered elsewhere than at its beginning.
                offset, line = (first.offset, first.line) if file == first.file else (0, 0)
                parser.start_file(file, offset, line)
                for _ in read_lines(paths[file], offset, piece_bytes, parser.feed):
                    while parser.num_ready >= config.batch_size:
                        before = place
                        batch, place = self._take(parser, config.batch_size, before, start)
                        yield batch, before, place
                        del batch
                    self._raise_bad_line(parser, epoch)
            if parser.num_ready and config.drop_last:
                parser.take(parser.num_ready, 0, 0)
            elif parser.num_ready:
                before = place
                batch, place = self._take(parser, parser.num_ready, before, start)
                yield batch, before, place
                del batch
            skipped = start.skipped + parser.num_bad
            place = Position(epoch=epoch + 1, examples=place.examples, skipped=skipped)
        self._position = place

    def _take(
        self, parser: Parser, count: int, place: Position, start: Position
    ) -> tuple[Batch, Position]:
        """The own part of the next `count` examples, and the position after all of them."""
        first, last = self.config.in_blocks().own_part(count)
        labels, dense, tables, (file, offset, line, num_bad) = parser.take(count, first, last)
        if len(labels) < last - first:
            self._raise_bad_line(parser, place.epoch)
        features = {
            name: Ids(
                torch.from_numpy(keys),
                torch.from_numpy(offsets),
                None if weights is None else torch.from_numpy(weights),
            )
            for name, (keys, offsets, weights) in zip(self.schema.tables, tables, strict=True)
        }
        after = Position(
            epoch=place.epoch,
            file=file,
            offset=offset,
            line=line,
            examples=place.examples + count,
            skipped=start.skipped + num_bad,
        )
        if self.config.format == "slots" and self.config.transform == SIGNED_LOG1P:
            dense = signed_log1p(dense)
        batch = Batch(
            features, torch.from_numpy(dense), torch.from_numpy(labels), global_size=count
        )
        return batch, after

    def _raise_bad_line(self, parser: Parser, epoch: int) -> None:
        """Raises what the parser has found, if it has."""
        if parser.error is not None:
            number, line, reason = parser.error
            raise bad_line(self._order(epoch)[number], line, reason)
