"""About how many examples a log has, from the beginnings of its files.

Above it: `hps train`, which chooses a batch size by it. Below it: ByteSource, parquet's footers.
Of equal files it is the same on every machine.
"""

from collections.abc import Sequence
from contextlib import closing

from hps.reader.source import ByteSource
from hps.reader.urls import LogFile

_SAMPLE_BYTES = 1024 * 1024
_MOST_FILES = 8  # that are looked into; others are taken for like them


def estimate_examples(paths: Sequence[LogFile], format: str) -> int:
    """The number of lines or rows: exact of parquet and of small files of text.

    Args:
        paths: of the log's files; the first eight with anything in them are looked into.
        format: of the log.

    Raises:
        HpsError: a file that cannot be read.
    """
    sizes = [path.stat().st_size for path in paths]
    looked = [(path, size) for path, size in zip(paths, sizes, strict=True) if size][:_MOST_FILES]
    found = [
        _rows_of(path) if format == "parquet" else _lines_of(path, size, format)
        for path, size in looked
    ]
    bytes_looked = sum(size for _, size in looked)
    return round(sum(found) * sum(sizes) / bytes_looked) if bytes_looked else 0


def _rows_of(path: LogFile) -> float:
    from hps.reader.parquet_files import ParquetFiles  # pyarrow takes its time to import

    return float(ParquetFiles().num_rows(path))


def _lines_of(path: LogFile, size: int, format: str) -> float:
    """By the first MiB of its text; a header is no example."""
    buffer = bytearray(_SAMPLE_BYTES)
    with closing(ByteSource(path)) as source:
        count = source.fill(memoryview(buffer))
        taken = source.num_taken
    lines = buffer.count(b"\n", 0, count)
    if count < len(buffer):  # all of it
        lines += count > 0 and buffer[count - 1] != ord("\n")
        return float(max(0, lines - (format == "csv")))
    return lines * size / taken
