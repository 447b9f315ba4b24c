"""Tells a log's format by the names and first bytes of its files.

Above it: `open_reader`, where none was given. Below it: the first lines of the log (discover.py).
A format is told only where no other fits: what is read wrongly costs more than a flag.
"""

import re
from collections.abc import Callable, Sequence

from hps.errors import ConfigError, StoreError
from hps.reader.batch_source import BatchSource
from hps.reader.discover import sample_lines
from hps.reader.urls import LogFile

_SETTLE = "say which it is (format=, --format)"
_CRITEO_COLUMNS = 40
_CRITEO_NUMBERS = 13
_PARQUET_NAMES = (".parquet", ".parq", ".pq")
_MAGIC = {
    b"PAR1": "parquet",
    b"ARROW1": "an arrow file",
    b"ORC": "an ORC file",
    b"Obj\x01": "an avro file",
    b"PK\x03\x04": "a zip archive",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ": "an xz file",
    b"\x1f\x8b": "a gzip file",
    b"\x28\xb5\x2f\xfd": "a zstandard file",
}
_NAMES = {"a gzip file": ".gz", "a zstandard file": ".zst"}
_LABEL = re.compile(rb"[+-]?[01](\.0*)?")
_WHOLE = re.compile(rb"[+-]?\d*")
_NUMBER = rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_TOKENS = {
    "libsvm": re.compile(rb"[^:\s]+:" + _NUMBER),
    "libffm": re.compile(rb"[^:\s]+:[^:\s]+:" + _NUMBER),
    "slots": re.compile(rb"[^\s]+:[^:\s]+"),
}
_SLOTS_FIRST = re.compile(rb"(?:click|label):\S+|[01]:1")


def find_format(paths: Sequence[LogFile], dense: int | None = None) -> str:
    """The format of a log, one of `hps.reader.FORMATS`.

    A log without a line is criteo, as good as any.

    Args:
        paths: its files, in order.
        dense: numbers of a line after its label, if they were said.

    Raises:
        ConfigError: no format fits, several do, or the files are of several; names the flag.
        StoreError: a file that cannot be read. DataError: a damaged compressed file.
    """
    kinds = [_kind_of(path) for path in paths]
    for path, kind in zip(paths, kinds, strict=True):
        if kind != kinds[0]:
            raise ConfigError(
                f"{paths[0]} is {kinds[0] or 'text'}, and {path} is {kind or 'text'}; a log has "
                "one format: give its files alone"
            )
    if kinds[0] is not None:
        return kinds[0]
    lines = sample_lines(paths)
    if not lines:
        return "criteo"
    fitting = [name for name, fits in _fits(dense).items() if _most(lines, fits)]
    if len(fitting) == 1:
        return fitting[0]
    shown = lines[0][:60].decode("utf-8", "backslashreplace")
    if fitting:
        raise ConfigError(
            f"{paths[0]}: its lines, such as {shown!r}, can be {' or '.join(fitting)}; {_SETTLE}"
        )
    raise ConfigError(
        f"{paths[0]}: the format cannot be told by its lines, such as {shown!r}; if it is one of "
        f"criteo, csv, libsvm, libffm, slots, {_SETTLE}{_advice(lines)}"
    )


def _kind_of(path: LogFile) -> str | None:
    """ "parquet" or "csv", which goes by its name; None for other text.

    Raises:
        ConfigError: something that is not read at all.
    """
    if isinstance(path, BatchSource):
        return "parquet"  # whose rules are theirs
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error
    found = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
    names = path.name.lower()
    if found in _NAMES and path.suffix == _NAMES[found]:  # its lines are looked at unpacked
        found, head = None, b""
        names = path.stem.lower()
    if found == "parquet" or (found is None and names.endswith(_PARQUET_NAMES)):
        return "parquet"
    if found in _NAMES:
        raise ConfigError(
            f"{path} is {found}; it is unpacked if its name ends in {_NAMES[found]}: rename it"
        )
    if found is not None or b"\0" in head:
        raise ConfigError(
            f"{path} is {found or 'no text'}, which is not read; write the log as parquet, or as "
            f"text of one of the other formats, and if it is one of them, {_SETTLE}"
        )
    return "csv" if names.endswith(".csv") else None


def _most(lines: Sequence[bytes], fits: Callable[[bytes], bool]) -> bool:
    """True of more than half: a log may have bad lines."""
    return 2 * sum(map(fits, lines)) > len(lines)


def _fits(dense: int | None) -> dict[str, Callable[[bytes], bool]]:
    numbers = _CRITEO_NUMBERS if dense is None else dense

    def is_criteo(line: bytes) -> bool:
        fields = line.split(b"\t")
        if len(fields) == _CRITEO_COLUMNS and dense is None:
            return True
        is_long = len(fields) > max(numbers, 1)
        are_numbers = all(_WHOLE.fullmatch(field) for field in fields[1 : numbers + 1])
        return is_long and are_numbers and bool(_LABEL.fullmatch(fields[0]))

    def has_tokens(kind: str) -> Callable[[bytes], bool]:
        def fits(line: bytes) -> bool:
            tokens = line.split(b"#")[0].split() if kind != "slots" else line.split()
            first = _SLOTS_FIRST if kind == "slots" else _LABEL
            if not tokens or not first.fullmatch(tokens[0]):
                return False
            return all(_TOKENS[kind].fullmatch(token) for token in tokens[1:])

        return fits

    return {"criteo": is_criteo, **{kind: has_tokens(kind) for kind in _TOKENS}}


def _advice(lines: Sequence[bytes]) -> str:
    """What the lines look like that are none of the formats."""
    if all(line.count(b"\t") >= 1 and _LABEL.fullmatch(line.split(b"\t")[0]) for line in lines):
        return (
            "; of a label, numbers and categories between tabs it is criteo, and --dense says how "
            f"many numbers there are, if not {_CRITEO_NUMBERS}"
        )
    for separator, name in ((b",", "commas"), (b";", "semicolons"), (b"|", "bars")):
        if all(line.count(separator) >= 1 for line in lines):
            return f"; of columns separated by {name} under a header line, it is csv (--format csv)"
    return ""
