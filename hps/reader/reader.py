"""What every reader is: an iterator of batches whose position can be saved and taken up again.

Above it: `open_reader`, `hps.Pipeline`, checkpoints, which store the position. Below it: the text
and the record reader, which fill in how a format is read.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Self

from hps import _C
from hps.common.json_text import Json, JsonView
from hps.config import TableConfig
from hps.errors import ConfigError
from hps.reader.column_use import (
    DENSE,
    FEATURE,
    HASHED_WITH_FEATURE,
    IGNORED,
    LABEL,
    ColumnUse,
    dense_rule,
    feature_rule,
)
from hps.reader.config import ReaderConfig
from hps.reader.files import epoch_order, size_of
from hps.reader.followed import joined
from hps.reader.position import Cut, Position
from hps.reader.position_files import Files, PositionFiles
from hps.reader.reading_rules import (
    buffer_state,
    check_buffer,
    check_divided,
    check_keys,
    check_sample,
    divided_state,
    sample_state,
    stored_transform,
)
from hps.reader.schema import Schema, make_schema
from hps.reader.transform import BatchTransform
from hps.reader.urls import LogFile
from hps.types import Batch


@dataclass(frozen=True)
class Counts:
    """Examples handed out and bad lines skipped so far, all epochs together. Those of a block that
    is shuffled count once all of it is handed out."""

    examples: int
    skipped: int


class Reader(ABC, Iterator[Batch]):
    """The batches of a log. Made by `open_reader`, which has an example; for one thread at a time.

    Iterating goes on from the position: after a loop that was left by `break`, the next one
    continues with the batch that follows. Once a loop has run to the end of the last epoch, the
    next one starts over.
    """

    def __init__(
        self, paths: Sequence[LogFile], tables: Sequence[TableConfig], config: ReaderConfig
    ) -> None:
        self.paths = tuple(paths)
        self.config = config
        self.transform: BatchTransform | None = None
        # Tables that have the ids of other ones in each batch; no feature is theirs.
        self.repeated: Mapping[str, str] = {}
        self.left_out: Sequence[str] = ()  # columns that a stored model left out by their names
        self._tables = tuple(tables)
        self._schema: Schema | None = None
        self._position = Position()
        self._stream: Generator[tuple[Batch, Position] | None, None, None] | None = None
        self._threads: _C.ThreadPool | None = None  # of the stream
        self._finished = False
        self.follows = False  # the end of the last file is not the end of the log
        self.is_dry = False  # iterating has ended at such an end
        self._is_whole = False  # no more files will come
        # Sizes as they were when the reader was made: a log that grows is another log.
        self._files: list[list[str | int]] = [[path.name, size_of(path)] for path in self.paths]
        # Of a log that is followed and was taken up: what is before the first of these.
        self._first = 0
        self._read_files: Files = ()
        self._gone: Collection[str] = ()
        self._num_told_gone = 0
        self._told: tuple[object, Json | list[list[str | int]]] | None = None
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Sets the fields of a format's own reader. Where that is cheap it asks for the schema,
        which shows a mistake at once."""

    @abstractmethod
    def _find_features(self) -> tuple[Sequence[str] | None, int]:
        """Every feature of the log, or None if it takes reading all of it and no table asks for it;
        and the number of dense values."""

    @abstractmethod
    def _read(self, start: Position) -> Generator[Cut | None, None, None]:
        """Yields the batches after `start`, cut as `ReaderConfig.in_blocks` says, and None wherever
        `_epoch_files` does. Sets `_position` itself only at the end, for lines skipped after the
        last batch. Holds none that it has yielded."""

    @property
    def format(self) -> str:
        """Of the log, given or told by its files."""
        assert self.config.format is not None  # open_reader has seen to it
        return self.config.format

    @property
    @abstractmethod
    def raw_columns(self) -> list[ColumnUse]:
        """Every column of the log and what is made of it before a transform. Cost: as `schema`."""

    @property
    def columns(self) -> list[ColumnUse]:
        """Every column of the log and what is made of it, then features made of several. Cost: as
        `schema`."""
        uses = self.raw_columns
        return uses if self.transform is None else self.transform.columns(uses)

    def use(self, transform: BatchTransform) -> None:
        """Has every batch from here on pass a transform; `features`, `num_dense` and `columns` are
        then those after it, and `schema` what it was.

        Raises:
            ConfigError: a batch was already read without it.
        """
        if self._position != Position() or self._stream is not None:
            raise ConfigError("Reader.use: a batch was read already; give the transform before")
        self.transform = transform

    def _label(self, name: str, kind: str) -> ColumnUse:
        """Use of the column of labels; `kind` is the type of its values, here and below."""
        return ColumnUse(name, LABEL, kind, "0, 1 or -1")

    def _dense_value(self, name: str, kind: str, more: str = "") -> ColumnUse:
        """Use of a column of dense values; `more` is added to the rule in words."""
        return ColumnUse(name, DENSE, kind, f"{dense_rule(self.config.transform)}{more}")

    def _feature(
        self, name: str, kind: str, table: str, *, is_shared: bool, is_text: bool
    ) -> ColumnUse:
        """Use of a column that is a feature; the rest as `feature_rule` has it."""
        why = feature_rule(self.config.key_rule, is_shared, is_text=is_text)
        vocabularies = self.config.vocabularies or {}
        vocabulary = vocabularies.get(name, name)
        if vocabulary != name and why == HASHED_WITH_FEATURE:
            named = [vocabularies.get(one, one) for one in self._feature_names()]
            alone = ", which no other column is" if named.count(vocabulary) == 1 else ""
            why = f"hashed as values of {vocabulary!r}{alone}"
        if name == self.config.group:
            why = f"{why}; and the groups of gauc"
        return ColumnUse(name, FEATURE, kind, why, table)

    def _feature_names(self) -> list[str]:
        """Of the log, before a transform."""
        return [one.name for columns in self.schema.tables.values() for one in columns]

    def _unused(self, name: str, kind: str, why: str) -> ColumnUse:
        """A column of which nothing is made."""
        return ColumnUse(name, IGNORED, kind, why)

    @property
    def digit_texts(self) -> dict[str, str]:
        """Features whose first values are all whole numbers, some of them written otherwise, as 007
        or 785.0, and why each is text: what such a value is as a number is another text."""
        return {}

    @property
    def pointed_wholes(self) -> list[str]:
        """Dense columns that nobody has named, whose first numbers are all whole, and some of them
        written with a point, as 785.0."""
        return []

    @property
    def dense_columns(self) -> list[str] | None:
        """Names of the columns of dense values, in their order; None where they have no names."""
        return None

    def _order(self, epoch: int) -> list[LogFile]:
        """The files in the order in which an epoch reads them."""
        numbers = epoch_order(len(self.paths), self.config.shuffle_files, epoch)
        return [self.paths[number] for number in numbers]

    def _epoch_files(self, epoch: int, first: int) -> Iterator[tuple[int, LogFile] | None]:
        """The files of an epoch from a place on, each with its place; None wherever a log that is
        followed has no further file yet."""
        if not self.follows:
            yield from list(enumerate(self._order(epoch)))[first:]
            return
        place = first
        while place < self._first + len(self.paths) or not self._is_whole:
            if place < self._first + len(self.paths):
                yield place, self.paths[place - self._first]
                place += 1
            else:
                yield None

    def follow(self) -> None:
        """Has iterating end, with `is_dry`, at the end of the last file; it goes on once `extend`
        has added files, or `end` has said that none will come. Examples that do not fill a batch
        wait for more.

        Raises:
            ConfigError: the log is read in another order than that of its files, or several times.
        """
        if self.config.epochs > 1 or self.config.shuffle_files is not None:
            raise ConfigError(
                "Reader.follow: a log that is followed is read once, in the order of its files; "
                f"epochs={self.config.epochs} and shuffle_files={self.config.shuffle_files!r} are "
                "given"
            )
        self.follows = True

    def extend(self, paths: Sequence[LogFile]) -> None:
        """Adds files behind the others; to be called while nobody iterates.

        Raises:
            StoreError: one of them is not there.
        """
        added: list[list[str | int]] = [[path.name, size_of(path)] for path in paths]
        self._files = [*self._files, *added]
        self.paths = (*self.paths, *paths)

    def note_gone(self, names: Collection[str]) -> None:
        """Tells of those files that are not there now: positions leave out the ones that were read.

        Args:
            names: of all of them.
        """
        self._gone = names
        self._num_told_gone += 1

    def end(self) -> None:
        """No more files will come."""
        self._is_whole = True

    @property
    def schema(self) -> Schema:
        """The tables' columns in the log, before a transform. Cost: the first use may read the
        whole log (see docs/formats.md)."""
        if self._schema is None:
            known, num_dense = self._find_features()
            self._schema = self._schema_of(known, num_dense)
        return self._schema

    def _schema_of(self, known: Sequence[str] | None, num_dense: int) -> Schema:
        return make_schema(self._tables, known, num_dense, self.config.vocabularies)

    def settle(self) -> None:
        """Its rules of keys and dense values count as said, whether they were or are defaults."""
        config = self.config
        self.config = replace(
            config, hash_keys=config.hashes_numbers, dense_transform=config.transform
        )

    @property
    def features(self) -> dict[str, tuple[str, ...]]:
        """Table name -> its features, in the order of Ids.offsets."""
        return self.schema.features() if self.transform is None else dict(self.transform.features)

    @property
    def files(self) -> list[list[str | int]]:
        """Name and bytes of each file, in the order given, as they were when this was made."""
        return [list(file) for file in self._files]

    @property
    def position_files(self) -> PositionFiles:
        """The same, with what a position that was taken up tells of those before them."""
        return PositionFiles(self._files, self._first, self._read_files)

    @property
    def num_dense(self) -> int:
        """Dense columns of a batch."""
        return self.schema.num_dense if self.transform is None else self.transform.num_dense

    @property
    def counts(self) -> Counts:
        return Counts(examples=self._position.examples, skipped=self._position.skipped)

    def __iter__(self) -> Self:
        if self._finished:
            self._finished = False
            self._position = Position()
        return self

    def __next__(self) -> Batch:
        if self._finished:
            raise StopIteration
        if self._stream is None:
            self._threads = None  # a forked process has none of another's
            self._stream = self._batches(self._position)
        self.is_dry = False
        try:
            item = next(self._stream)
        except StopIteration:
            self._stream = self._threads = None
            self._finished = True
            raise
        except BaseException:
            self._stream = None  # the position stands; the next call tries again from there
            raise
        self.is_dry = item is None
        if item is None:
            raise StopIteration
        batch, self._position = item
        if self.transform is not None:
            batch = self.transform(batch, self._own_threads())
        batch = batch.with_ids_of(self.repeated)
        batch.position = self.state_dict()
        return batch

    def _own_threads(self) -> _C.ThreadPool:
        """What the batches of this pass over the log are parsed and transformed on."""
        if self._threads is None:
            self._threads = _C.ThreadPool(self.config.num_threads())
        return self._threads

    def _batches(self, start: Position) -> Generator[tuple[Batch, Position] | None, None, None]:
        """The batches after a position, as they are handed out, each with the position after it;
        None wherever a log that is followed has run dry."""
        from hps.reader.shuffle import shuffled  # torch takes its time to import

        with closing(self._read(replace(start, block=None))) as cuts:
            if not self.config.shuffle_buffer:
                for cut in cuts:
                    yield None if cut is None else (cut[0], cut[2])
                    del cut
                return
            num_examples = start.examples
            for item in shuffled(cuts, self.config, start):
                num_examples = num_examples if item is None else item[1].examples
                yield item
                del item
            # A last batch that is left out was read with its block.
            self._position = replace(self._position, examples=num_examples)

    def state_dict(self) -> Json:
        """The position after the last batch: numbers, strings, lists; also the files' names and
        sizes, so that it is not taken up in another log, and the features, so that a reader that
        takes it up needs no second look for them and cannot mix up columns."""
        return {
            "format": self.config.format,
            **self._position.to_dict(),
            "files": self._followed_files() if self.follows else self.files,
            **self._shuffle_state(),
            **buffer_state(self.config),
            **sample_state(self.config),
            "dense": self.schema.num_dense,
            **self._dense_state(),
            "keys": self.config.key_rule,
            **divided_state(self.config),
            "features": {name: list(names) for name, names in self.schema.features().items()},
            **({} if self.transform is None else {"transform": self.transform.name}),
        }

    def _followed_files(self) -> Json | list[list[str | int]]:
        """Of the position, made once for all batches of a file: there are many."""
        place = self._position.file
        of = place, len(self._files), self._num_told_gone
        if self._told is None or self._told[0] != of:
            self._told = of, self.position_files.without(self._gone, place).to_json()
        return self._told[1]

    def _dense_state(self) -> Json:
        named = self.dense_columns
        names = {} if named is None else {"dense_columns": named}
        return {"dense_transform": self.config.transform, **names}

    def load_state_dict(self, state: JsonView) -> None:
        """Makes the reader go on from a position; it then yields exactly the batches that remained.

        Raises:
            ConfigError: the position is of another format, of other files (names the first that
                differs), of other features, or not one at all.
        """
        position = Position.from_dict(state)
        if state.get("format") != self.config.format:
            raise ConfigError(
                f"the position is of format {state.get('format')!r}, not {self.config.format!r}"
            )
        if self.follows:
            position = self._take_files(state.get("files"), position)
        else:
            self._check_files(state.get("files"), position)
        self._check_order(state, position)
        check_buffer(self.config, state)
        check_sample(self.config, state)
        check_keys(self.config, state)
        check_divided(self.config, state)
        self._check_transform(state.get("transform"))
        config = self._with_transform_of(state)
        self._take_features(state)
        self.config = config
        self.close()
        self._position = position
        self._finished = False

    def _take_files(self, stored: object, position: Position) -> Position:
        """Has the files of a position, then those that are there and came later; returns it as one
        in these."""
        before = PositionFiles.of(stored)
        found = joined(before, self._files, position)
        self._first, self._read_files = before.first, before.read
        paths = {name: path for (name, _), path in zip(self._files, self.paths, strict=True)}
        # One that is gone is not read again; another stands for it where columns are looked at.
        self.paths = tuple(paths.get(name, self.paths[-1]) for name, _ in found.files)
        self._files = found.files
        return found.position

    def _check_files(self, given: object, position: Position) -> None:
        """Names and sizes must agree, folders may differ: a log may be moved."""
        before = PositionFiles.of(given)
        if before.first:
            raise ConfigError(
                f"the position is of a folder that was followed, of whose files {before.first:,} "
                "were read and some are gone; go on with it (--follow), or train on other data "
                "from its beginning (--new-data)"
            )
        stored = before.files
        for number, (name, size) in enumerate(stored):
            given = self._files[number] if number < len(self._files) else None
            if given is None:
                raise ConfigError(
                    f"the position is of a log whose file number {number} (from 0) is {name!r}, "
                    f"but only {len(self._files)} are given"
                )
            if given != [name, size]:
                raise ConfigError(
                    f"the position is of a log whose file number {number} (from 0) is {name!r} of "
                    f"{size} bytes, but {str(self.paths[number])!r} of {given[1]} bytes is given; "
                    "give the same files, or train on other data from its beginning (--new-data)"
                )
        if len(self._files) > len(stored) or position.file >= len(stored):
            raise ConfigError(
                f"the position is in file number {position.file} (from 0) of a log of "
                f"{len(stored)} files, but {len(self._files)} are given, the last of them "
                f"{str(self.paths[-1])!r}; give the same files, or train on other data from its "
                "beginning (--new-data)"
            )

    def _shuffle_state(self) -> Json:
        """The seed of the files' order, and the order of the position's epoch."""
        seed = self.config.shuffle_files
        if seed is None:
            return {}
        return {
            "shuffle_files": seed,
            "order": epoch_order(len(self.paths), seed, self._position.epoch),
        }

    def _check_order(self, state: JsonView, position: Position) -> None:
        """The files must come in the same order from here on."""
        stored, given = state.get("shuffle_files"), self.config.shuffle_files
        if stored != given:
            raise ConfigError(
                f"the position is of a log read with shuffle_files={stored!r}, this reader has "
                f"{given!r}; give the same, or train on other data from its beginning (--new-data)"
            )
        order = epoch_order(len(self.paths), given, position.epoch)
        if state.get("order", order) != order:
            raise ConfigError(
                f"the position's order of files {state.get('order')!r} is not the one that "
                f"shuffle_files={given!r} gives, {order!r}; it was written by another version"
            )

    def _check_transform(self, stored: object) -> None:
        """What is made of a batch must be what was made of those before."""
        own = None if self.transform is None else self.transform.name
        if stored != own:
            raise ConfigError(
                f"the position is of batches with the transform {stored!r}, this reader has "
                f"{own!r} (of a features file, --features): give the same, or read from the "
                "beginning"
            )

    def _with_transform_of(self, state: JsonView) -> ReaderConfig:
        """What was not said of dense values is as the position has it."""
        stored, given = stored_transform(state), self.config.dense_transform
        if given not in (None, stored):
            raise ConfigError(
                f"the position is of a log whose dense values are read as {stored!r}, this reader "
                f"has dense_transform={given!r}; leave it out, or read from the beginning"
            )
        named = self.dense_columns
        if named is not None and state.get("dense_columns", named) != named:
            raise ConfigError(
                f"the position is of the dense columns {state['dense_columns']!r}, this reader has "
                f"{named!r}; give the former as dense_columns"
            )
        return replace(self.config, dense_transform=stored)

    def _take_features(self, state: JsonView) -> None:
        stored = state.get("features")
        num_dense = state.get("dense")
        tables = [table.name for table in self._tables]
        if not isinstance(stored, Mapping) or list(stored) != tables:
            raise ConfigError(f"the position is of other tables than {tables}: {stored!r}")
        for table in self._tables:
            if table.features is not None and list(table.features) != list(stored[table.name]):
                raise ConfigError(
                    f"table {table.name!r} has features {list(table.features)}, "
                    f"but the position is of {list(stored[table.name])}"
                )
        if self.config.dense not in (None, num_dense):
            raise ConfigError(
                f"ReaderConfig.dense={self.config.dense}, but the position is of {num_dense!r}"
            )
        if self._schema is None and isinstance(num_dense, int):
            known = [str(name) for names in stored.values() for name in names]
            self._schema = self._schema_of(known, num_dense)
        own = self.schema.features()
        if {name: tuple(names) for name, names in stored.items()} != own or (
            self.schema.num_dense != num_dense
        ):
            raise ConfigError(
                f"the position is of features {dict(stored)!r} and {num_dense!r} dense values, "
                f"but the log has {own!r} and {self.schema.num_dense}"
            )

    def close(self) -> None:
        """Closes open files; the reader can be used again."""
        stream, self._stream = self._stream, None
        self._threads = None
        if stream is not None:
            stream.close()
