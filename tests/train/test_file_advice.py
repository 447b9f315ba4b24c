"""Files that a run is given twice, and what says nothing."""

from pathlib import Path
from typing import Any

import pytest

from hps.cli.main import main
from hps.train.file_advice import advice_on_files
from tests.logs import write_criteo

WORDS = ["--dim", "2", "--hidden", "4", "--batch-size", "64", "--dram", "8MiB"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["{0}", "--valid", "{0}"], "--valid: '{0}' is trained on, too"),
        (["{0}", "{1}", "--test", "{link}"], "--test: '{0}' is trained on, too"),
        (["{0}", "--test", "{folder}/*.tsv"], "--test: '{0}' is trained on, too"),
        (["{0}", "{1}", "{0}"], "DATA has '{0}' 2 times"),
        (["{0}", "--valid", "{1}", "--test", "{1}"], None),
        (["{0}", "{1}"], None),
    ],
)
def test_a_file_with_two_uses_is_told(
    tmp_path: Path, words: list[str], told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = [write_criteo(tmp_path / f"day{day}.tsv", 300, seed=day) for day in range(2)]
    link = tmp_path / "link"
    link.symlink_to(logs[0])
    names: Any = [str(log.resolve()) for log in logs]

    def fill(text: str) -> str:
        return text.format(*names, link=link, folder=tmp_path)

    options = ["--store", str(tmp_path / "store"), "--scheduler-steps", "9", *WORDS]
    assert main(["train", *map(fill, words), *options]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "warning: " in line]
    found = [line for line in said if " is trained on, too" in line or " times: " in line]
    assert len(found) == (told is not None)
    assert "hps: warning: --scheduler-steps says nothing without a --scheduler" in said
    if told is not None:
        assert fill(told) in found[0]


def test_steps_of_a_scheduler_that_was_named_are_no_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_criteo(tmp_path / "day.tsv", 300, seed=0)
    options = ["--store", str(tmp_path / "store"), "--scheduler", "warmup", *WORDS]
    assert main(["train", str(log), *options, "--scheduler-steps", "9"]) == 0
    assert "warning: --scheduler-steps" not in capsys.readouterr().err


def test_files_that_cannot_be_found_are_told_by_who_reads_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, missing = write_criteo(tmp_path / "day.tsv", 300, seed=0), str(tmp_path / "away*.tsv")
    assert advice_on_files([missing], [missing], [missing]) == []
    options = ["--store", str(tmp_path / "store"), *WORDS]
    assert main(["train", str(log), *options, "--valid", missing]) != 0
    assert f"no file matches {missing!r}" in capsys.readouterr().err


def test_a_url_is_told_without_what_lets_others_in() -> None:
    url = "s3://me:secret@bucket/day.csv?signature=12ab"
    lines = advice_on_files([url, url], [url], [url])
    assert [line.split(" ", 2)[1] for line in lines] == ["DATA", "--valid:", "--test:"]
    assert all("s3://bucket/day.csv" in line for line in lines)
    assert not any("secret" in line or "12ab" in line for line in lines)
