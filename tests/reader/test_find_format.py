"""Logs whose format nobody says: told by names and first bytes, or refused with the flag."""

import gzip
from pathlib import Path

import pytest
import zstandard
from reader_twin import LINES, NAMED_SLOT_LINES, TEXT_FORMATS, tables_of

import hps
from hps.reader import ReaderConfig, open_reader
from hps.reader.find_format import find_format

TEXTS = {**LINES, "named slots": NAMED_SLOT_LINES}


def write(path: Path, text: str | bytes) -> Path:
    data = text.encode() if isinstance(text, str) else text
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        data = zstandard.compress(data)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["log", "log.txt", "log.gz", "log.tsv.zst"])
@pytest.mark.parametrize("kind", TEXTS)
def test_text_is_told_by_its_lines(tmp_path: Path, kind: str, name: str) -> None:
    log = write(tmp_path / name, "\n".join(TEXTS[kind]) + "\n")
    assert find_format([log]) == kind.split()[-1]


@pytest.mark.parametrize("kind", TEXT_FORMATS)
def test_a_reader_without_a_format_reads_what_one_with_it_does(tmp_path: Path, kind: str) -> None:
    log = write(tmp_path / "log", "\n".join(LINES[kind]) + "\n")
    told, said = (
        open_reader(log, tables=tables_of(None), config=ReaderConfig(format=name, batch_size=4))
        for name in (None, kind)
    )
    assert [batch.position for batch in told] == [batch.position for batch in said]
    assert told.state_dict()["format"] == kind


def test_parquet_is_told_by_its_bytes_whatever_its_name(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"label": [0, 1], "ad": [3, 4]}), tmp_path / "log.tsv")
    config = ReaderConfig(batch_size=2)
    reader = open_reader(tmp_path / "log.tsv", tables=tables_of(None), config=config)
    assert reader.format == "parquet" and len(next(reader)) == 2
    cut = write(tmp_path / "cut.parquet", b"")
    with pytest.raises(hps.DataError, match=r"cut\.parquet is not a parquet file"):
        open_reader(cut, tables=tables_of(None), config=config)
    text = write(tmp_path / "log.txt", "1 3:0.5\n")
    with pytest.raises(hps.ConfigError, match=r"log\.tsv is parquet, and .*log\.txt is text"):
        find_format([tmp_path / "log.tsv", text])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("log", "label,ad\n1,2\n", r"separated by commas under a header line.*--format csv"),
        ("log", "1\n0\n1\n", r"can be libsvm or libffm.*--format"),
        ("log", "nonsense\n", r"cannot be told.*--format"),
        ("log", b"ORC\0\0\0", "an ORC file, which is not read"),
        ("log", b"\0\1\2\3", "no text, which is not read"),
        ("log.bz2", b"BZh9abc", "a bzip2 file, which is not read"),
        ("log.tsv", gzip.compress(b"1 3:0.5\n", mtime=0), r"a gzip file; .* ends in \.gz: rename"),
        ("log.tsv", zstandard.compress(b"1 3:0.5\n"), r"zstandard file; .* in \.zst: rename"),
    ],
)
def test_what_cannot_be_told_is_refused_with_the_way_out(
    tmp_path: Path, name: str, text: str | bytes, said: str
) -> None:
    with pytest.raises(hps.ConfigError, match=said):
        find_format([write(tmp_path / name, text)])


def test_lines_that_fit_two_formats_name_both(tmp_path: Path) -> None:
    log = write(tmp_path / "log", "1\t3:0.5\t4:1\n0\t3:1\t5:1\n")
    assert find_format([log]) == "libsvm"
    with pytest.raises(hps.ConfigError, match="criteo or libsvm"):
        find_format([log], dense=0)


def test_a_few_bad_lines_change_nothing_and_a_format_that_is_said_wins(tmp_path: Path) -> None:
    lines = [*LINES["libsvm"], "nonsense", "1 1:2:3"]
    log = write(tmp_path / "log", "\n".join(lines) + "\n")
    assert find_format([log]) == "libsvm"
    config = ReaderConfig(format="libffm", on_error="skip")
    reader = open_reader(log, tables=tables_of(None), config=config)
    assert sum(map(len, reader)) == 2  # the lines that libffm's parser takes
    assert find_format([write(tmp_path / "empty", "")]) == "criteo"
