"""BatchSource: arrow's record batches as one "file" of a log.

Above it: files.py, batch_files.py, and whatever holds the files of a log. Below it: pyarrow, which
is imported where batches are given.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NoReturn

from hps.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

_STREAM, _ARRAY = "__arrow_c_stream__", "__arrow_c_array__"
_AHEAD_BATCHES = 1  # that a dataset reads ahead
_WANTED = "pyarrow.RecordBatch or pyarrow.Table"
# The columns that are wanted -> the batches; what has fewer is left as it is.
_Read = Callable[[Sequence[str]], Iterator[object]]


@dataclass(frozen=True)
class _Stat:
    """What `Path.stat` says of a file, as far as a log needs it."""

    st_size: int


class BatchSource:
    """Record batches, with the verbs of `Path` that readers use.

    Args:
        data: a callable that gives the batches anew at each call, or what has them: an iterable, a
            pyarrow Table, Dataset, Scanner or RecordBatchReader, or what exports an arrow stream.
        begun: an iterator that `data` was asked for already, and what it has given; the first pass
            takes both.

    >>> import pyarrow as pa
    >>> source = BatchSource(pa.table({"label": [0, 1]}))
    >>> str(source), source.is_once, [table.num_rows for table in source.tables(["label"])]
    ('record batches of Table', False, [2])
    """

    name = stem = "record batches"  # as a position has it
    suffix = ""

    def __init__(
        self, data: Any, begun: tuple[Iterator[object], Sequence[object]] | None = None
    ) -> None:
        self._data = data
        # An iterator that is held back is read by nobody else.
        held = data if isinstance(data, list | tuple) else [data]
        self.is_once = any(hasattr(one, "__next__") for one in held)
        self._is_begun = False
        self._ahead: tuple[pa.Schema | None, _Read] | None = None
        self._last: object = None  # the iterator of the last pass
        self._has_given = False
        self._schema: pa.Schema | None = None
        if begun is not None:
            given, first = begun
            self._is_begun = True
            self._last = given
            self._ahead = None, lambda names: chain(first, given)
        self._is_callable = callable(data) and not is_arrow(data)

    def __str__(self) -> str:
        kind = type(self._data).__name__
        return f"record batches of {getattr(self._data, '__name__', kind)}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._data!r})"

    def stat(self) -> _Stat:
        """Its size, which nothing tells."""
        return _Stat(0)

    def open(self, mode: str = "rb", *, ahead: int = 0) -> NoReturn:
        """There are no bytes.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{self}: record batches have no bytes and no lines; read them as parquet "
            '(ReaderConfig(format="parquet"), or None)'
        )

    def samefile(self, other: object) -> bool:
        """False: no file is record batches."""
        return False

    def check_resumable(self) -> None:
        """Refuses batches that nobody has read yet and that can be read once.

        Raises:
            ConfigError: says what to give instead.
        """
        if self.is_once and (self._ahead is not None or not self._is_begun):
            raise self._once("a position in it cannot be taken up")

    def check_rereadable(self, name: str) -> None:
        """Refuses what can be read once, where the log's beginning is looked at before it is read.

        Args:
            name: of the log.

        Raises:
            ConfigError: says what to give instead.
        """
        if self.is_once:
            raise self._once(f"{name} is looked at before it is read")

    def check_epochs(self, epochs: int) -> None:
        """Refuses to read several times what can be read once.

        Raises:
            ConfigError: says what to give instead.
        """
        if self.is_once and epochs > 1:
            raise self._once(f"it cannot be read in epochs={epochs}")

    def _once(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self}: it is an iterator, which gives its batches once, and {what}; pass a callable "
            "that makes a new iterator at each call, or a list"
        )

    def schema(self) -> "pa.Schema":
        """That of the first batch, or as the source says. Cost: the first use may read that batch,
        which the first pass then begins with.

        Raises:
            DataError: there is no batch, or something else is in its place.
        """
        if self._schema is None:
            schema, read = self._ahead or self._begin()
            if schema is None:
                rest = read([])
                first = next(self._checked(rest), None)
                if first is None:
                    raise DataError(
                        f"{self} gives no record batch, so that its columns are not known; give "
                        "at least one, which may have no row"
                    )
                schema, read = first.schema, _read_again(first, rest)
            self._ahead = schema, read
            self._schema = schema
        return self._schema

    def tables(self, names: Sequence[str]) -> Iterator["pa.Table"]:
        """A pass over all batches, each as a table that shares its memory.

        Args:
            names: columns that are wanted; there may be others.

        Raises:
            ConfigError: it can be read no other time. DataError: no batch, or damaged.
        """
        _ = self.schema()
        begun, self._ahead = self._ahead, None
        _, read = begun or self._begin()
        count = 0
        for table in self._checked(read(names)):
            count += 1
            yield table
            del table  # before the next one is asked for: a batch may be large
        if not count and self._has_given:
            raise ConfigError(
                f"{self} gave record batches before, and none this time; pass a callable that "
                "makes a new iterator at each call"
            )
        self._has_given = self._has_given or count > 0

    def _begin(self) -> "tuple[pa.Schema | None, _Read]":
        """Asks for the batches anew."""
        if self.is_once and self._is_begun:
            raise self._once("it was read already")
        self._is_begun = True
        made = self._data() if self._is_callable else self._data
        if made is None or isinstance(made, str | bytes | Mapping):
            raise ConfigError(f"{self}: it gave {made!r:.60}, not an iterator of {_WANTED}")
        if not is_arrow(made):
            try:
                made = iter(made)
            except TypeError:
                raise ConfigError(
                    f"{self}: it gave {made!r:.60}, not an iterator of {_WANTED}"
                ) from None
        if hasattr(made, "__next__"):
            if made is self._last:
                raise ConfigError(
                    f"{self}: it gave the iterator of the time before, which is read already; "
                    "make a new one at each call"
                )
            self._last = made
        return _opened(made)

    def _checked(self, given: Iterator[object]) -> Iterator["pa.Table"]:
        """Each as a table; errors say which batch, from 1, it was.

        Raises:
            DataError: something that is none, or arrow cannot read it.
        """
        import pyarrow as pa

        number = 0
        while True:
            number += 1
            try:
                item = next(given)
            except StopIteration:
                return
            except pa.ArrowInvalid as error:
                if "already scanned" in str(error):
                    raise self._once("it was read already") from error
                raise DataError(f"{self}, batch {number}: {error}") from error
            except pa.ArrowException as error:
                raise DataError(f"{self}, batch {number}: {error}") from error
            except Exception as error:
                error.add_note(f"{self}, batch {number}")
                raise
            table = _table(item)
            if table is None:
                raise DataError(
                    f"{self}, batch {number}: it is a {type(item).__name__}, not a {_WANTED}"
                )
            yield table
            del item, table


def is_arrow(data: object) -> bool:
    """True of what holds record batches by itself.

    >>> is_arrow("day.parquet"), is_arrow([])
    (False, False)
    """
    return is_table(data) or hasattr(data, "to_batches") or hasattr(data, "read_next_batch")


def is_table(data: object) -> bool:
    """True of what can be one batch, also of another library."""
    return hasattr(data, _STREAM) or hasattr(data, _ARRAY)


def batches_in(data: Any) -> list[Any]:
    """The batches that were given as a log, as one source; or else what may be names of files.

    Raises:
        ConfigError: it is neither.

    >>> batches_in(["day.tsv"])
    ['day.tsv']
    """
    if isinstance(data, BatchSource):
        return [data]
    if is_arrow(data) or callable(data):
        return [BatchSource(data)]
    if isinstance(data, Sequence):
        return [BatchSource(data)] if data and is_table(data[0]) else list(data)
    if not isinstance(data, Iterable):
        return [source_of(data)]
    given = iter(data)
    first = list(islice(given, 1))
    if first and is_table(first[0]):
        return [BatchSource(data, (given, first))]
    return [*first, *given]


def source_of(data: Any) -> BatchSource:
    """One of several that were given as a log.

    Raises:
        ConfigError: it gives no batches.
    """
    if callable(data) or is_arrow(data):
        return BatchSource(data)
    raise ConfigError(
        f"{data!r:.60} is neither the name of a file nor what gives record batches: a callable or "
        f"an iterable of {_WANTED}"
    )


def _read_again(first: object, rest: Iterator[object]) -> _Read:
    """What begins with a batch that was looked at."""
    held = [first]

    def read(names: Sequence[str]) -> Iterator[object]:
        yield held.pop()  # which nothing else keeps
        yield from rest

    return read


def _opened(made: Any) -> "tuple[pa.Schema | None, _Read]":
    """Its schema, if it is told before the first batch, and what reads it."""
    import pyarrow as pa

    if hasattr(made, "scanner"):  # a dataset

        def scan(names: Sequence[str]) -> Iterator[object]:
            return iter(
                made.to_batches(
                    columns=list(names), batch_readahead=_AHEAD_BATCHES, fragment_readahead=1
                )
            )

        return made.schema, scan
    if hasattr(made, "projected_schema"):  # a scanner
        return made.projected_schema, lambda names: iter(made.to_batches())
    if isinstance(made, pa.RecordBatchReader):
        return made.schema, lambda names: made
    if isinstance(made, pa.RecordBatch | pa.Table):
        return made.schema, lambda names: iter([made])
    if hasattr(made, _STREAM):
        reader = pa.RecordBatchReader.from_stream(made)
        return reader.schema, lambda names: reader
    if hasattr(made, _ARRAY):
        batch = pa.record_batch(made)
        return batch.schema, lambda names: iter([batch])
    return None, lambda names: made


def _table(item: Any) -> "pa.Table | None":
    """One batch as a table, without a copy; None of what is no batch."""
    import pyarrow as pa

    if isinstance(item, pa.RecordBatch):
        return pa.Table.from_batches([item])
    if isinstance(item, pa.Table) or not is_table(item):
        return item if isinstance(item, pa.Table) else None
    try:
        return pa.table(item)
    except (TypeError, ValueError):  # a single column, or another thing of its kind
        return None
