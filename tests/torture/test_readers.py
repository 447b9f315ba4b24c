"""Recipe C6, the short form: readers in threads of every kind of server, and the planted bug."""

from pathlib import Path

import pytest

from tests.torture.readers import KINDS, PLANT, ReadersReport, run_one, run_readers


@pytest.mark.parametrize("kind", KINDS)
def test_threads_read_what_one_alone_reads(tmp_path: Path, kind: str) -> None:
    if kind == "rocksdb":
        pytest.importorskip("rocksdict")
    report = ReadersReport()
    run_one(tmp_path, kind, 1, report)
    assert report.violations == [] and report.answers > 0
    assert report.changes > 0 or kind == "read-only"
    assert report.evictions > 0 or "shard" in kind


def test_a_buffer_that_calls_share_is_found() -> None:
    report = run_readers(1, 30, plant=PLANT)
    # To the thread that asked, or under the hand of another.
    assert any(" answer " in violation for violation in report.violations)
