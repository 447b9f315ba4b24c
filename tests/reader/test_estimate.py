"""About how many examples a log has: near the number there is, of every format, also packed.

Above it: pytest. Below it: hps/reader/estimate.py.
"""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from hps.reader.estimate import estimate_examples
from tests.logs import write_criteo


def pack(path: Path, suffix: str) -> Path:
    data = path.read_bytes()
    packed = path.with_name(path.name + suffix)
    if suffix == ".gz":
        packed.write_bytes(gzip.compress(data, 5))
    else:
        packed.write_bytes(zstandard.compress(data))
    return packed


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("count", [1, 300, 30_000])
def test_lines_are_counted_or_nearly_so(tmp_path: Path, suffix: str, count: int) -> None:
    path = write_criteo(tmp_path / "log.tsv", count)
    path = pack(path, suffix) if suffix else path
    found = estimate_examples([path], "criteo")
    # The first MiB of the text has all lines of the shorter logs.
    assert found == pytest.approx(count, rel=0 if count <= 300 else 0.15)


def test_what_is_no_line_is_not_counted(tmp_path: Path) -> None:
    empty, text = tmp_path / "empty", tmp_path / "text"
    empty.write_bytes(b"")
    text.write_bytes(b"a,b\n1,2\n3,4")  # a header, and no newline at the end
    assert estimate_examples([empty], "criteo") == 0
    assert estimate_examples([text], "csv") == 2
    assert estimate_examples([empty, text, text], "csv") == 4
    assert estimate_examples([text], "libsvm") == 3


def test_rows_of_parquet_are_those_of_its_footer(tmp_path: Path) -> None:
    for number, count in enumerate((1000, 70_000)):
        table = pa.table({"label": np.zeros(count, np.int8), "C1": np.arange(count)})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    files = sorted(tmp_path.glob("*.parquet"))
    assert estimate_examples(files, "parquet") == 71_000


def test_many_files_are_taken_for_like_the_first_ones(tmp_path: Path) -> None:
    files = [write_criteo(tmp_path / f"{number}.tsv", 50, seed=number) for number in range(40)]
    assert estimate_examples(files, "criteo") == pytest.approx(2000, rel=0.05)
