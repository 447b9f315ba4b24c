"""Training with a shuffle buffer: exact from any batch on, the same beside validation, and of use.

Above it: pytest. Below it: `hps.train`, hps/reader/shuffle.py; the readers alone:
reader/test_shuffle.py.
"""

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.features.measure import first_examples
from hps.reader.config import ReaderConfig
from hps.reader.open import open_reader
from hps.train import FirstLabels, evaluate_store, first_labels, train
from hps.train.course import Course
from hps.train.predict import predict_log
from tests.logs import write_criteo
from tests.parity.test_resume import options, same_bits
from tests.train.killed_run import killed_after
from tests.train.test_stops import At
from tests.train.test_stops import run as run_until_signal

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """24 batches of 64, the last with 28; `options` reads them twice."""
    folder = tmp_path_factory.mktemp("days")
    return [
        write_criteo(folder / f"day-{number}.txt", count, num_keys=2000, seed=number)
        for number, count in enumerate((700, 500, 300))
    ]


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_criteo(tmp_path_factory.mktemp("valid") / "v.txt", 300, num_keys=2000, seed=9)


def shuffled(days: list[Path], store: Path, **changes: Any) -> Any:
    return options(days[0], store, **{"data": days, "shuffle_buffer": 300, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"eval_every": 7, "depth": 0},
        {"eval_every": 7, "depth": "auto", "shuffle_buffer": 10_000},
        {"eval_every": 5, "depth": 2, "lookahead": 4, "shuffle_files": True},
        {"eval_every": "epoch", "depth": 2, "epochs": 3},
        {"eval_every": 4, "depth": 2, "accumulate": 3, "dram": "4MiB"},
    ],
)
def test_a_stopped_run_goes_on_with_the_same_bits_and_evaluations(
    tmp_path: Path, days: list[Path], valid: Path, changes: dict[str, Any]
) -> None:
    changes = {"checkpoint_every": 0, "valid": [valid], **changes}
    without = {name: value for name, value in changes.items() if name != "eval_every"}
    alone = train(shuffled(days, tmp_path / "alone", **{**without, "valid": []}))
    whole = train(shuffled(days, tmp_path / "whole", **changes))
    assert same_bits(alone) == same_bits(whole)
    in_order = train(shuffled(days, tmp_path / "in order", **{**changes, "shuffle_buffer": 0}))
    assert in_order["total_examples"] == whole["total_examples"]
    assert in_order["loss_digest"] != whole["loss_digest"]
    store, seen = tmp_path / "store", 0
    for place in (1, 2, 5, 18, 3):  # within blocks, at their ends, over the end of an epoch
        stopped = run_until_signal(shuffled(days, store, resume=seen > 0, **changes), At(place))
        assert stopped["stopped"] == "SIGTERM"
        seen += place
    rest = train(shuffled(days, store, resume=True, **changes))
    assert same_bits(rest) == same_bits(whole)
    assert rest["evaluations"] == whole["evaluations"] and rest["best"] == whole["best"]


@pytest.mark.parametrize("kept", [1, 4, 7])
def test_a_killed_run_goes_on_with_the_same_evaluations(
    tmp_path: Path, days: list[Path], valid: Path, kept: int
) -> None:
    """Killed right after its checkpoint number `kept`."""

    changes = {"checkpoint_every": 3, "valid": [valid], "eval_every": 4, "lr": 0.3}
    whole = train(shuffled(days, tmp_path / "whole", **changes))
    with killed_after(kept):
        train(shuffled(days, tmp_path / "store", **changes))
    rest = train(shuffled(days, tmp_path / "store", resume=True, **changes))
    assert same_bits(rest) == same_bits(whole)
    assert rest["evaluations"] == whole["evaluations"]


def test_another_order_is_refused_and_new_data_may_have_it(
    tmp_path: Path, days: list[Path]
) -> None:
    store = tmp_path / "store"
    train(shuffled(days, store, limit=640))
    for changes, message in (
        ({"shuffle_buffer": 0}, "shuffle_buffer=300, this reader has 0"),
        ({"shuffle_buffer": 301}, "shuffle_buffer=300, this reader has 301 .*--new-data"),
        ({"batch_size": 32}, "batch_size=64 with a shuffle buffer, this reader has 32"),
    ):
        with pytest.raises(hps.ConfigError, match=message):
            train(shuffled(days, store, resume=True, **changes))
    # A refused run has not gone back: it still goes on.
    again = train(shuffled(days, store, resume=True, new_data=True, shuffle_buffer=100))
    assert again["examples"] == 3000


def test_what_measures_and_predicts_reads_in_the_logs_order(
    tmp_path: Path, days: list[Path], valid: Path
) -> None:
    store, scores = tmp_path / "store", tmp_path / "scores.npy"
    figures = train(shuffled(days, store, test=[valid], shuffle_buffer=10_000))
    measured = evaluate_store([valid], store)
    assert (figures["test_auc"], figures["test_logloss"]) == (measured["auc"], measured["logloss"])
    with hps.Model.load(store) as model:
        predict_log(model, [valid], scores)
    labels = np.array([int(line[0]) for line in valid.read_text().splitlines()])
    probabilities = np.load(scores).astype(np.float64)
    chosen = np.where(labels == 1, probabilities, 1 - probabilities)
    assert -np.log(chosen).mean() == pytest.approx(measured["logloss"], abs=1e-6)


def test_a_log_sorted_by_label_trains_well_only_with_a_buffer(tmp_path: Path) -> None:
    lines = write_criteo(tmp_path / "log.txt", 4000, num_keys=40).read_text().splitlines(True)
    log = tmp_path / "sorted.txt"
    log.write_text("".join(sorted(lines, key=lambda line: line[0], reverse=True)))
    test = write_criteo(tmp_path / "test.txt", 2000, num_keys=40, seed=1)

    def auc(buffer: int) -> float:
        changes = {"shuffle_buffer": buffer, "test": [test], "model": "lr", "hidden": None}
        changes |= {"dim": None, "dropout": None, "optimizer": "adagrad", "scheduler": "constant"}
        changes |= {"epochs": 2, "lr": 0.1, "checkpoint_every": 0}
        return float(train(options(log, tmp_path / str(buffer), **changes))["test_auc"])

    without, part, whole = auc(0), auc(100), auc(4000)
    assert whole > 0.75
    assert without < whole - 0.04 and part < whole - 0.04


def test_what_is_measured_first_is_of_the_logs_first_examples(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log.txt", 600)
    lines = log.read_text().splitlines()
    text = [f"{int(number < 100)}{line[1:]}" for number, line in enumerate(lines)]
    log.write_text("\n".join(text) + "\n")
    config = ReaderConfig(format="criteo", batch_size=50, shuffle_buffer=600)
    tables = [hps.TableConfig(name="features", dim=4)]
    reader = open_reader(log, tables=tables, config=config)
    assert first_labels(reader, 100) == FirstLabels(100, 0)
    first = first_examples(reader, 100)
    assert first is not None and first.labels.tolist() == [1] * 100
    assert 0 < next(reader).labels.sum() < 50
    figures = train(options(log, tmp_path / "store", shuffle_buffer=600, epochs=1))
    assert figures["base_rate"] == 101 / 602


def test_progressive_counts_a_block_to_the_file_that_it_ends_in(
    tmp_path: Path, days: list[Path]
) -> None:
    def run(store: str, **changes: Any) -> list[Any]:
        changes = {"progressive": True, "epochs": 1, "depth": 2, **changes}
        figures = train(shuffled(days, tmp_path / store, **changes))
        return [(entry["file"], entry["examples"]) for entry in figures["progressive"]]

    # 300 examples are five batches: blocks end at 320, 640, 960, 1280 and 1500, files at 700, 1200
    # and 1500.
    assert run("blocks") == [("day-0.txt", 640), ("day-1.txt", 320), ("day-2.txt", 540)]
    assert run("one", shuffle_buffer=5000) == [("day-2.txt", 1500)]
    store, changes = tmp_path / "part", {"progressive": True, "epochs": 1, "checkpoint_every": 0}
    whole = train(shuffled(days, tmp_path / "whole", **changes))["progressive"]
    run_until_signal(shuffled(days, store, **changes), At(12, number=signal.SIGTERM))
    assert train(shuffled(days, store, resume=True, **changes))["progressive"] == whole


@pytest.mark.parametrize("buffer", [300, 5000])
@pytest.mark.parametrize("shuffle_files", [None, 3])
def test_the_share_done_grows_batch_by_batch(
    days: list[Path], buffer: int, shuffle_files: int | None
) -> None:
    config = ReaderConfig(
        format="criteo",
        batch_size=50,
        epochs=2,
        shuffle_buffer=buffer,
        shuffle_files=shuffle_files,
    )
    tables = [hps.TableConfig(name="features", dim=4)]
    reader = open_reader(days, tables=tables, config=config)
    way = Course(reader)
    shares = [way.share(batch.position, 0) for batch in reader]
    assert shares == pytest.approx([(number + 1) / 60 for number in range(60)], abs=0.005)


def test_the_flag_shuffles_by_the_seed(
    tmp_path: Path, days: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    def run(store: str, *flags: str) -> Any:
        out = tmp_path / f"{store}.json"
        words = ["train", *map(str, days), "--store", str(tmp_path / store), "--dim", "4"]
        words += ["--hidden", "8", "--batch-size", "64", "--dram", "8MiB", "--threads", "1"]
        assert main([*words, "--json", str(out), *flags]) == 0
        return json.loads(out.read_text())["loss_digest"]

    first = run("a", "--shuffle-buffer", "500", "--seed", "1")
    assert first == run("b", "--shuffle-buffer", "500", "--seed", "1")
    assert first != run("c", "--seed", "1")
    asked = options(days[0], tmp_path / "never", shuffle_buffer=500, seed=7).reader_config()
    assert (asked.shuffle_buffer, asked.shuffle_seed, asked.shuffle_files) == (500, 7, None)
    for value in ("-1", "8388609", "some", "1.5"):
        with pytest.raises(SystemExit):
            main(["train", str(days[0]), "--store", "never", "--shuffle-buffer", value])
        assert "--shuffle-buffer" in capsys.readouterr().err
    with pytest.raises(hps.ConfigError, match="shuffle_buffer=8388609"):
        options(days[0], tmp_path / "never", shuffle_buffer=2**23 + 1)
