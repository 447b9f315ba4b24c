"""Reads criteo, libsvm, libffm and slots logs: files in, native parser, batches out.

Above it: `open_reader`. Below it: ByteSource, discover, csrc/reader/text_parser.h.
"""

from collections.abc import Generator, Sequence
from dataclasses import replace

from hps import _C
from hps.errors import ConfigError, DataError
from hps.reader.column_use import ColumnUse
from hps.reader.config import WEIGHTED
from hps.reader.discover import (
    bad_line,
    collect_features,
    count_dense,
    most_common,
    read_lines,
    sample_lines,
    slot_layout,
)
from hps.reader.part_parser import Parser, PartParser
from hps.reader.position import Cut, Position
from hps.reader.reader import Reader
from hps.reader.sample import sample_rule
from hps.reader.schema import Schema
from hps.reader.text_lines import TextLines
from hps.types import Batch

CRITEO_DENSE = 13
CRITEO_CATEGORIES = 26
LIBSVM_FEATURE = "index"
# Text that a thread gets at once: enough to hide the threads' start, little enough for the cache.
_PIECE_BYTES = 512 * 1024


class TextReader(Reader):
    """A reader of a log whose examples are lines of text."""

    def _begin(self) -> None:
        self._num_categories = 0
        self._dense_names = self._lines.dense_names
        takes_all = any(table.features is None for table in self._tables)
        if self.config.format in ("criteo", "libsvm") or not takes_all:
            _ = self.schema  # cheap here, and shows a mistake at once

    @property
    def _lines(self) -> TextLines:
        return TextLines(self.config)

    def _find_features(self) -> tuple[Sequence[str] | None, int]:
        dense = self.config.dense
        if self.config.format == "criteo":
            return self._find_criteo_columns(CRITEO_DENSE if dense is None else dense)
        if self.config.format in WEIGHTED:
            if dense not in (None, len(self._dense_names)):
                raise ConfigError(
                    f"ReaderConfig.dense={dense}: {self.config.format} has no dense values but "
                    "those of fields that are said to be dense (dense_columns), "
                    f"{len(self._dense_names)} here"
                )
            dense = len(self._dense_names)
        if self.config.format == "libsvm":
            fields = self._lines.fields
            names = (LIBSVM_FEATURE,) if fields is None else fields.names
            return self._keys_among(names), dense or 0
        if dense is None:
            dense = most_common(sample_lines(self.paths), count_dense) or 0
        if all(table.features is not None for table in self._tables):
            for table in self._tables:
                self._keys_among(table.features or ())
            return None, dense
        # The dense fields of libffm are looked for like others.
        found = collect_features(
            self.paths,
            self._native_schema(None, 0 if self._dense_names else dense),
            self.config.advice("line"),
        )
        missing = [name for name in self._dense_names if name not in found]
        if missing:
            raise ConfigError(
                f"ReaderConfig.dense_columns={missing!r}: the log has no such field; it has {found}"
            )
        return [name for name in found if name not in self._dense_names], dense

    def _keys_among(self, names: Sequence[str]) -> list[str]:
        """The fields that are no dense values.

        Raises:
            ConfigError: a table names one that is.
        """
        dense = self.config.dense_columns or ()
        for table in self._tables:
            wrong = [name for name in table.features or () if name in dense]
            if wrong:
                raise ConfigError(
                    f"table {table.name!r} names {wrong}, whose values are dense (dense_columns)"
                )
        return [name for name in names if name not in dense]

    @property
    def dense_columns(self) -> list[str] | None:
        """The fields whose values are dense; None where there are none."""
        return list(self.config.dense_columns) if self.config.dense_columns else None

    def settle(self) -> None:
        """The layout of slots, too, counts as that of the log."""
        super().settle()
        if self.format == "slots" and self.config.slot_layout is None:
            found = slot_layout(sample_lines(self.paths))
            self.config = replace(self.config, slot_layout=found)

    def _find_criteo_columns(self, dense: int) -> tuple[list[str], int]:
        num_tabs = most_common(sample_lines(self.paths), lambda line: line.count(b"\t"))
        self._num_categories = CRITEO_CATEGORIES if num_tabs is None else num_tabs - dense
        if self._num_categories < 0:
            raise DataError(
                f"{self.paths[0]}: most lines have {(num_tabs or 0) + 1} columns separated by "
                f"tabs, too few for a label and dense={dense} numbers; "
                "say how many numbers there are by dense (--dense)"
            )
        return [f"C{number + 1}" for number in range(self._num_categories)], dense

    @property
    def raw_columns(self) -> list[ColumnUse]:
        """The label, numbers and features of a line; of libffm and slots those that tables have."""
        kind = self.config.format
        uses = [self._label("label", "text")]
        number = "integer" if kind == "criteo" else "float"
        name = "I" if kind == "criteo" else "dense_feature "
        names = self._dense_names or [f"{name}{idx + 1}" for idx in range(self.schema.num_dense)]
        uses += [self._dense_value(name, number) for name in names]
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
        return self._lines.native(schema, num_dense, self._num_categories)

    def _make_parser(self) -> Parser:
        """One that parses the own part alone, unless bad lines are to be counted everywhere."""
        native = self._native_schema(self.schema, self.schema.num_dense)
        threads = self._own_threads()
        sample = sample_rule(self.config)
        if self.config.in_blocks().part[1] == 1 or self.config.on_error == "skip":
            native.sample = sample
            return _C.TextParser(native, threads)
        return PartParser(native, self.format, threads, sample)

    def _read(self, start: Position) -> Generator[Cut | None, None, None]:
        parser = self._make_parser()
        config = self.config.in_blocks()
        piece_bytes = _PIECE_BYTES * self.config.num_threads()
        place = start
        for epoch in range(start.epoch, self.config.epochs):
            first = place
            for next_file in self._epoch_files(epoch, first.file):
                if next_file is None:
                    yield None
                    continue
                file, path = next_file
                # Only the file that the position is in is entered elsewhere than at its beginning.
                offset, line = (first.offset, first.line) if file == first.file else (0, 0)
                parser.start_file(file, offset, line)
                for _ in read_lines(path, offset, piece_bytes, parser.feed):
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
        parsed = parser.take(count, first, last)
        if len(parsed[0]) < last - first:
            self._raise_bad_line(parser, place.epoch)
        file, offset, line, num_bad = parsed[3]
        after = Position(
            epoch=place.epoch,
            file=file,
            offset=offset,
            line=line,
            examples=place.examples + count,
            skipped=start.skipped + num_bad,
        )
        return self._lines.batch_of(parsed, self.schema, count), after

    def _raise_bad_line(self, parser: Parser, epoch: int) -> None:
        """Raises what the parser has found, if it has."""
        if parser.error is not None:
            number, line, reason = parser.error
            path = self._order(epoch)[number - self._first]
            raise bad_line(path, line, reason, self.config.advice("line"))
