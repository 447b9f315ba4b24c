"""Progressive validation: each file scored by the model as it was before it was trained on it.

Above it: pytest. Below it: `hps.train.progressive`, the training run.
"""

import signal
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.train import evaluate_store, train
from tests.logs import write_criteo
from tests.parity.test_resume import options, same_bits
from tests.train.test_stops import At
from tests.train.test_stops import run as run_until_signal

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("days")
    return [
        write_criteo(folder / f"day-{number}.txt", 640, num_keys=2000, seed=number)
        for number in range(3)
    ]


def run(days: list[Path], store: Path, **changes: Any) -> dict[str, Any]:
    return train(options(days[0], store, data=days, progressive=True, epochs=1, **changes))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_files_are_scored_before_they_are_trained_on_and_no_bit_changes(
    tmp_path: Path, days: list[Path], dropout: float
) -> None:
    large = {"batch_size": 640, "lr": 0.1, "dram": "16MiB"}
    found = run(days, tmp_path / "a", dropout=dropout, **large)
    entries = found["progressive"]
    assert [(entry["file"], entry["examples"]) for entry in entries] == [
        (day.name, 640) for day in days
    ]
    plain = train(options(days[0], tmp_path / "b", data=days, epochs=1, dropout=dropout, **large))
    assert same_bits(found) == same_bits(plain) and plain["progressive"] is None
    # With a batch a file the model that scores a file is the one after the file before it.
    for number in (1, 2):
        store = tmp_path / f"until-{number}"
        run(days, store, dropout=dropout, **large, limit=640 * number)
        measured = evaluate_store([days[number]], store)
        assert entries[number]["auc"] == measured["auc"]
        # Products of the dense part are rounded otherwise in training (training_ops.py).
        assert entries[number]["logloss"] == pytest.approx(measured["logloss"], rel=1e-6)


def test_later_epochs_count_nothing_and_new_data_begins_a_file(
    tmp_path: Path, days: list[Path]
) -> None:
    store = tmp_path / "store"
    once = run(days, tmp_path / "once", depth=2)
    twice = train(options(days[0], store, data=days, progressive=True, epochs=2, depth=2))
    assert twice["progressive"] == once["progressive"]
    again = run(days[:1], store, resume=True, new_data=True)
    assert [entry["file"] for entry in again["progressive"]] == [
        "day-0.txt", "day-1.txt", "day-2.txt", "day-0.txt"
    ]  # fmt: skip
    assert again["progressive"][:3] == once["progressive"]
    assert again["progressive"][3]["auc"] > again["progressive"][0]["auc"]  # it has seen that


@pytest.mark.parametrize("more", [{}, {"valid_share": 0.3}, {"negative_rate": 0.5}])
def test_a_new_log_is_scored_whole_before_the_first_step_and_no_bit_changes(
    tmp_path: Path, days: list[Path], more: dict[str, Any]
) -> None:
    stores = tmp_path / "a", tmp_path / "b"
    for store in stores:
        assert run(days[:1], store, **more)["new_data"] is None
    before = evaluate_store(days[1:], stores[0])
    goes_on = {"resume": True, "new_data": True, **more}
    found = run(days[1:], stores[0], **goes_on)
    assert found["new_data"]["examples"] == 1280
    for name in ("auc", "logloss", "calibration", "normalized_entropy"):
        assert found["new_data"][name] == before[name]
    plain = train(options(days[0], stores[1], data=days[1:], epochs=1, **goes_on))
    assert plain["new_data"] is None and same_bits(plain) == same_bits(found)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_stopped_run_goes_on_with_the_same_figures(
    tmp_path: Path, days: list[Path], shuffle: bool
) -> None:
    changes = {"depth": 2, "checkpoint_every": 0, "shuffle_files": shuffle, "seed": 6}
    whole = run(days, tmp_path / "whole", **changes)
    options_of = options(
        days[0], tmp_path / "part", data=days, progressive=True, epochs=1, **changes
    )
    stopped = run_until_signal(options_of, At(13, number=signal.SIGTERM))
    assert stopped["total_batches"] == 13 and len(stopped["progressive"]) == 2
    rest = run(days, tmp_path / "part", resume=True, **changes)
    assert rest["progressive"] == whole["progressive"] and same_bits(rest) == same_bits(whole)
    order = [entry["file"] for entry in whole["progressive"]]
    assert sorted(order) == [day.name for day in days] and (order != sorted(order)) == shuffle


def test_the_same_file_as_new_data_is_another_one(tmp_path: Path, days: list[Path]) -> None:
    first = run(days[:1], tmp_path / "store")
    again = run(days[:1], tmp_path / "store", resume=True, new_data=True)
    assert [entry["examples"] for entry in again["progressive"]] == [640, 640]
    assert again["progressive"][0] == first["progressive"][0]


def test_a_run_without_it_leaves_the_figures_of_whole_files(
    tmp_path: Path, days: list[Path]
) -> None:
    whole = run(days, tmp_path / "whole")
    part = {"data": days, "epochs": 1, "resume": True}
    run(days, tmp_path / "part", limit=900)  # in the second file
    train(options(days[0], tmp_path / "part", limit=1000, **part))
    rest = run(days, tmp_path / "part", resume=True)
    entries = rest["progressive"]
    assert entries[0] == whole["progressive"][0] and entries[-1] == whole["progressive"][-1]
    # What came of the second file after the gap is told with its number.
    assert [entry["file"] for entry in entries] == [day.name for day in days]
    assert 0 < entries[1]["examples"] < 640


@pytest.mark.parametrize("goes_back", [False, True])
def test_a_new_log_that_cannot_be_scored_leaves_the_store_as_it_was(
    tmp_path: Path, days: list[Path], goes_back: bool
) -> None:
    store, bad = tmp_path / "store", tmp_path / "bad.txt"
    run(days[:1], store)
    run(days[1:2], store, resume=True, new_data=True, tag="day-1")
    lines = days[2].read_text()
    bad.write_text(lines + "1\tnot a line\n")

    def seen() -> tuple[Any, ...]:
        with hps.open(store) as server:
            found = {one["id"]: (one["tag"], one["current"]) for one in server.checkpoints()}
            return found, {name: server.digest(name) for name in server.tables}

    before = seen()
    how: dict[str, Any] = {"resume": True, "new_data": True}
    if goes_back:
        how["resume_from"] = "final"
    for _ in range(3):
        with pytest.raises(hps.DataError, match=r"bad\.txt") as raised:
            run([bad], store, **how)
        assert any("scores before the first step" in note for note in raised.value.__notes__)
        assert seen() == before
    bad.write_text(lines)
    run([bad], store, **how, tag="day-2")
    with hps.open(store) as server:
        state, _ = server.checkpoint_state("day-2")
    parents = [one["checkpoint"] for one in state["lineage"]]
    assert parents == (["final"] if goes_back else ["final", "day-1"])
