"""What a job that nobody watches must not pass over: nothing to train on, to resume, to test on.

Above it: pytest. Below it: `hps train` and `hps evaluate`, as commands and as calls.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hps
from hps.cli.main import main
from hps.reader.config import ReaderConfig
from hps.reader.open import open_reader
from hps.train.course import Course
from hps.train.progress import format_time
from tests.logs import write_criteo
from tests.service.client.client_lab import service

SMALL = ["--dim", "4", "--hidden", "8", "--batch-size", "100", "--dram", "4MiB", "--threads", "1"]
BAD = "no label" + "\t1" * 39 + "\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_criteo(tmp_path / "log.tsv", 1000)


def run(log: object, store: object, *flags: str) -> int:
    return main(["train", str(log), "--store", str(store), *SMALL, *flags])


def figures_of(path: Path) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(path.read_text())
    return figures


# Nothing to resume.


@pytest.mark.parametrize("flags", [["--resume"], ["--resume", "--new-data"]])
def test_resume_needs_a_store_with_a_checkpoint(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    typo = tmp_path / "modle"
    assert run(log, typo, *flags) == 1
    assert f"there is no store in '{typo}'; correct --store, or leave" in capsys.readouterr().err
    assert not typo.exists()
    table = hps.TableConfig(name="features", dim=5, optimizer=hps.Adagrad(lr=0.02))
    with hps.ParameterServer(hps.Config(path=typo, tables=[table])):
        pass
    assert run(log, typo, *flags) == 1
    assert "has no checkpoint with a model and a position" in capsys.readouterr().err


def test_resume_if_any_begins_and_goes_on_by_the_same_command(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    for examples in (1000, 0):
        flags = ["--resume-if-any", "--test", str(log), "--json", str(out)]
        assert run(log, tmp_path / "store", *flags) == 0
        assert figures_of(out)["examples"] == examples
        assert (figures_of(out)["base_rate"] is None) == (examples == 0)
    assert run(log, tmp_path / "whole", "--json", str(tmp_path / "whole.json")) == 0
    assert figures_of(out)["digests"] == figures_of(tmp_path / "whole.json")["digests"]


def test_resume_needs_servers_with_a_checkpoint_and_makes_no_table_on_others(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with service(tmp_path, 1, tables=()) as servers:
        where = ["--server", ",".join(servers.addresses), *SMALL[:-4], "--threads", "1"]
        assert main(["train", str(log), *where, "--resume"]) == 1
        error = capsys.readouterr().err
        assert "has no checkpoint with a model and a position" in error
        assert "correct --server" in error
        assert not servers.shards[0].tables
        assert main(["train", str(log), *where, "--resume-if-any"]) == 0


# Nothing to train on.


def test_new_data_without_an_example_is_refused(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, empty = tmp_path / "store", tmp_path / "empty.tsv"
    empty.write_text("")
    assert run(log, store, "--limit", "300") == 0
    again = [empty, store, "--resume", "--new-data"]
    assert run(*again) == 1
    error = f"{empty}: DATA has no example, it holds no line; --allow-empty accepts it"
    assert error in capsys.readouterr().err
    assert run(*again, "--allow-empty") == 0
    text = capsys.readouterr().out
    assert f"nothing was trained: DATA has no example, it holds no line ({empty})" in text
    assert "the model is as in checkpoint 'final'" in text and "end of the data" not in text
    with hps.open(store) as server:
        assert server.checkpoint_state()[0]["totals"]["examples"] == 300


def test_bad_lines_alone_are_told_by_name_unless_they_are_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.tsv"
    bad.write_text(BAD * 3)
    assert run(bad, tmp_path / "store") == 1
    assert "bad.tsv, line 1: " in capsys.readouterr().err
    assert run(bad, tmp_path / "store", "--on-error", "skip") == 1
    assert "all of its 3 lines were skipped as bad" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_a_pattern_that_matches_nothing_is_refused(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = str(tmp_path / "day-*.tsv")
    assert run(nothing, tmp_path / "store") == 1
    assert run(log, tmp_path / "store", "--test", nothing) == 1
    assert capsys.readouterr().err.count(f"no file matches '{nothing}'") == 2
    assert not (tmp_path / "store").exists()


def test_an_empty_log_is_not_evaluated(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(log, tmp_path / "store") == 0
    empty = tmp_path / "empty.tsv"
    for text, why in (("", "it holds no line"), (BAD * 2, "all of its 2 lines were skipped")):
        empty.write_text(text)
        words = ["evaluate", str(empty), "--store", str(tmp_path / "store"), "--on-error", "skip"]
        assert main(words) == 1
        assert f"no example to measure the model on, {why}" in capsys.readouterr().err


# The test log.


def test_a_test_log_that_cannot_be_measured_is_refused_before_training(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = log.read_text().splitlines()
    cases = {
        "empty": ("", "--test has no example"),
        "bad": ("2" + lines[0][1:] + "\n", "line 1: label '2'"),
        "narrow": (
            "\n".join(line.rsplit("\t", 2)[0] for line in lines),
            "24 categories, the log trained on 26",
        ),
        "wide": ("\n".join(f"{line}\tx" for line in lines), "27 categories, the log .* 26"),
    }
    test = tmp_path / "test.tsv"
    for name, (text, reason) in cases.items():
        test.write_text(text)
        assert run(log, tmp_path / name, "--test", str(test)) == 1
        assert re.search(reason, capsys.readouterr().err), name
        assert not (tmp_path / name).exists()
    # A run that goes on has its features from the model.
    assert run(log, tmp_path / "store", "--limit", "300") == 0
    for name, (text, reason) in cases.items():
        test.write_text(text)
        assert run(log, tmp_path / "store", "--resume", "--test", str(test)) == 1
        assert re.search(reason, capsys.readouterr().err), name
    with hps.open(tmp_path / "store") as server:
        assert server.checkpoint_state()[0]["totals"]["examples"] == 300


def test_dense_columns_are_found_by_name_and_a_missing_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)

    def write(name: str, dense: list[str], *more: str) -> Path:
        columns: dict[str, Any] = {"label": random.integers(0, 2, 300)}
        columns |= {column: random.random(300).astype(np.float32) for column in dense}
        columns |= {column: random.integers(0, 50, 300).astype(str) for column in ("ad", *more)}
        pq.write_table(pa.table(columns), tmp_path / name)
        return tmp_path / name

    log = write("log.parquet", ["age", "price"])
    for dense in (["age", "hour"], ["age"]):
        test = write("test.parquet", dense)
        assert run(log, tmp_path / "store", "--format", "parquet", "--test", str(test)) == 1
        said = capsys.readouterr().err
        assert "['price']" in said and "dense values of the model" in said
    test = write("test.parquet", ["price", "age"], "day")
    assert run(log, tmp_path / "store", "--format", "parquet", "--test", str(test)) == 0
    assert "columns that the log trained on lacks, left out: ['day']" in capsys.readouterr().err


def test_a_bad_line_deep_in_the_test_log_loses_no_other_figure(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = log.read_text().splitlines()
    lines[700] = "2" + lines[700][1:]
    (tmp_path / "test.tsv").write_text("\n".join(lines))
    out, whole = tmp_path / "out.json", tmp_path / "whole.json"
    flags = ["--test", str(tmp_path / "test.tsv"), "--json"]
    assert run(log, tmp_path / "store", *flags, str(out)) == 1
    captured = capsys.readouterr()
    assert "trained and saved, but not measured on --test" in captured.err
    assert "test.tsv, line 701: label '2'" in captured.err
    assert run(log, tmp_path / "whole", "--json", str(whole)) == 0
    found, expected = figures_of(out), figures_of(whole)
    assert "test.tsv, line 701: label '2'" in found["test_error"]
    assert found["test_auc"] is None and expected["test_error"] is None
    assert found.keys() == expected.keys()
    for name in ("digests", "loss_digest", "rows", "examples", "checkpoints"):
        assert found[name] == expected[name], name
    assert run(log, tmp_path / "store", "--resume") == 0  # its last checkpoint is there


@pytest.mark.parametrize("path", ["/proc/out.json", "/dev/null/out.json"])
def test_json_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    assert run(log, tmp_path / "store", "--json", path) == 1
    assert f"--json {path}" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_a_check_of_the_json_path_leaves_no_file_and_changes_none(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert run(tmp_path / "none.tsv", tmp_path / "store", "--json", str(out)) == 1
    assert not out.exists()
    out.write_text("of the run before")
    assert run(tmp_path / "none.tsv", tmp_path / "store", "--json", str(out)) == 1
    assert out.read_text() == "of the run before"


# Figures of the run and of the model.


def test_losses_of_the_run_and_of_the_model_are_told_apart(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert run(log, tmp_path / "store", "--limit", "400", "--json", str(out)) == 0
    first = figures_of(out)
    assert first["train_logloss"] == first["run_logloss"] == first["model_logloss"]
    assert first["model_examples"] == first["examples"] == 400
    text = capsys.readouterr().out
    assert re.search(r"^train logloss +0\.", text, re.MULTILINE) and "model" not in text
    assert run(log, tmp_path / "store", "--resume", "--json", str(out)) == 0
    then = figures_of(out)
    assert (then["examples"], then["model_examples"]) == (600, 1000)
    parts = 400 * first["run_logloss"] + 600 * then["run_logloss"]
    assert then["model_logloss"] == then["train_logloss"] == pytest.approx(parts / 1000, abs=1e-9)
    assert then["run_logloss"] != then["model_logloss"]
    text = capsys.readouterr().out
    for name, figure in (("run logloss", 0), ("model examples", 1), ("model logloss", 0)):
        assert re.search(rf"^{name} +{figure}[.,]", text, re.MULTILINE), text


# How far it is.


def course(paths: list[Path], format: str, limit: int = 0, **config: Any) -> tuple[Course, Any]:
    tables = [hps.TableConfig(name="features", dim=4)]
    config = {"batch_size": 100, **config}
    reader = open_reader(paths, tables=tables, config=ReaderConfig(format=format, **config))
    return Course(reader, limit), reader


@pytest.mark.parametrize("shuffle", [None, 3])
def test_the_share_done_grows_from_nothing_to_all(tmp_path: Path, shuffle: int | None) -> None:
    paths = [write_criteo(tmp_path / name, count) for name, count in (("a", 900), ("b", 300))]
    way, reader = course(paths, "criteo", epochs=2, shuffle_files=shuffle)
    shares = [way.share(batch.position, 0) for batch in reader]
    assert len(shares) == 24
    assert shares == pytest.approx([(number + 1) / 24 for number in range(24)], abs=0.005)


def test_the_share_done_of_parquet_goes_by_rows(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    columns = {"label": random.integers(0, 2, 1000), "ad": random.integers(0, 9, 1000).astype(str)}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    way, reader = course([tmp_path / "log.parquet"], "parquet", batch_size=250)
    assert [way.share(batch.position, 0) for batch in reader] == [0.25, 0.5, 0.75, 1.0]


def test_the_length_of_a_packed_log_is_not_known_but_a_limit_is(tmp_path: Path, log: Path) -> None:
    import gzip

    packed = tmp_path / "log.tsv.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    way, reader = course([packed], "criteo")
    assert way.share(next(reader).position, 100) is None
    way, reader = course([packed], "criteo", limit=400)
    assert way.share(next(reader).position, 100) == 0.25


def test_live_lines_say_epoch_share_and_time_left(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--epochs", "2", "--progress-seconds", "0.000001"]
    assert run(log, tmp_path / "store", *flags) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if " examples " in line]
    assert len(lines) == 20
    assert re.match(r"epoch 1/2  (4|5)\.\d %  100 examples", lines[0])
    assert re.match(r"epoch 1/2  (9|10)\.\d %  \d+:\d\d left  200 examples", lines[1])
    assert re.match(r"epoch 2/2  100\.0 %  0:00 left  2,000 examples", lines[-1])


def test_times_are_told_in_hours_where_they_are_long() -> None:
    assert [format_time(seconds) for seconds in (0, 59.6, 3599, 3600, 86399)] == [
        "0:00",
        "1:00",
        "59:59",
        "1 h 00",
        "23 h 59",
    ]


def test_a_store_that_is_open_is_told_before_that_it_has_no_checkpoint(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    config = hps.Config(path=store, tables=[hps.TableConfig(name="features", dim=4)])
    with hps.ParameterServer(config):
        assert run(log, store, "--resume") == 1
        error = capsys.readouterr().err
        assert f"open for writing by process {os.getpid()} of host" in error
        assert "no checkpoint" not in error
    assert run(log, store, "--resume") == 1
    assert "no checkpoint with a model" in capsys.readouterr().err
