"""Validation while training: when it comes, that it changes nothing, what it keeps, how it ends.

Above it: pytest. Below it: `hps.train`, its parts in validation.py, pausing_log.py, evaluations.py.
"""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hps
from hps import GpuCacheConfig
from hps.cli.main import main
from hps.models import ClickModel
from hps.options.run import AUTO
from hps.parameter_server.server import ParameterServer
from hps.reader import Reader
from hps.reader.config import ReaderConfig
from hps.reader.open import open_reader
from hps.reader.text_reader import TextReader
from hps.stops import Stops
from hps.train import TrainOptions, evaluate, evaluate_store, final_figures, train, validation
from hps.train.absent_keys import AbsentKeys
from hps.train.depth import AHEAD, DepthChooser
from hps.train.evaluations import Evaluations
from hps.train.pausing_log import PausingLog
from hps.train.progress import Progress
from tests.logs import write_criteo
from tests.parity.test_resume import options, same_bits
from tests.train.killed_run import killed_after
from tests.train.test_stops import At
from tests.train.test_stops import run as run_until_signal

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 batches of 64, the last with 28; `options` reads it twice."""
    return write_criteo(tmp_path_factory.mktemp("log") / "log.txt", 1500, num_keys=2000)


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_criteo(tmp_path_factory.mktemp("valid") / "v.txt", 300, num_keys=2000, seed=9)


def batches_of(figures: dict[str, Any]) -> list[int]:
    return [entry["batches"] for entry in figures["evaluations"]]


def tags_of(store: Path) -> list[str | None]:
    with hps.open(store) as server:
        return [entry["tag"] for entry in server.checkpoints()]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"eval_every": 7, "depth": 0}, [7, 14, 21, 28, 35, 42, 48]),
        ({"eval_every": 7, "depth": 8}, [7, 14, 21, 28, 35, 42, 48]),
        ({"eval_every": 7, "depth": 2, "lookahead": 4}, [7, 14, 21, 28, 35, 42, 48]),
        ({"eval_every": 7, "depth": "auto"}, [7, 14, 21, 28, 35, 42, 48]),
        (
            {"eval_every": 7, "depth": 2, "accumulate": 3, "dram": "4MiB"},
            [9, 15, 21, 30, 36, 42, 48],
        ),
        ({"eval_every": 1000, "depth": 2}, [48]),
        ({"eval_every": "epoch", "depth": 2}, [24, 48]),
        ({"eval_every": "epoch", "depth": 0}, [24, 48]),
        # A step may take batches of two epochs: the validation waits for it.
        ({"eval_every": "epoch", "depth": 2, "accumulate": 5, "dram": "8MiB"}, [25, 48]),
        ({"eval_every": 7, "depth": 2, "limit": 640}, [7, 10]),
        (
            {"eval_every": 16, "gpu": "300KiB", "device": "cpu", "dram": "200KiB"},
            [16, 32, 48],
        ),
    ],
)
def test_it_comes_after_exact_batches_and_changes_no_bit(
    tmp_path: Path, log: Path, valid: Path, changes: dict[str, Any], expected: list[int]
) -> None:
    without = {name: value for name, value in changes.items() if name != "eval_every"}
    whole = train(options(log, tmp_path / "whole", checkpoint_every=0, **without))
    figures = train(options(log, tmp_path / "store", checkpoint_every=0, valid=[valid], **changes))
    assert batches_of(figures) == expected
    assert same_bits(figures) == same_bits(whole)
    assert all(entry["valid_examples"] == 300 for entry in figures["evaluations"])
    assert figures["evaluations"][-1]["examples"] == figures["total_examples"]


@pytest.mark.parametrize(
    ("size", "expected", "dram"),
    [
        (64, 512, "4MiB"),  # which does not hold the keys of 300 examples at once
        (512, 4096, "64MiB"),
        (600, 4096, "64MiB"),
        (8192, 8192, "64MiB"),
    ],
)
def test_more_examples_are_measured_at_a_time_than_trained_on(
    tmp_path: Path,
    log: Path,
    valid: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    expected: int,
    dram: str,
) -> None:
    """Unless rows are looked up table by table, as on a device."""
    seen: set[int] = set()

    evaluate_model = evaluate.evaluate_model

    def note(model: ClickModel, batches: Reader, *more: Any) -> dict[str, Any]:
        seen.add(batches.config.batch_size)
        return evaluate_model(model, batches, *more)

    for module in (validation, final_figures, evaluate):
        monkeypatch.setattr(module, "evaluate_model", note)
    monkeypatch.setattr(AbsentKeys, "watch", lambda _, reader: reader)  # else it is a generator
    store = tmp_path / "store"
    sizes = {"batch_size": size, "dram": dram, "limit": 64}
    train(options(log, store, valid=[valid], test=[valid], **sizes))
    evaluate_store([valid], store)
    assert seen == {expected}
    evaluate_store([valid], store, gpu=GpuCacheConfig(bytes="4MiB", device="cpu"))
    assert seen == {expected}
    with monkeypatch.context() as patch:
        patch.setattr(ParameterServer, "joint", None)
        evaluate_store([valid], store)
    evaluate_store([valid], store, batch_size=50)
    assert seen == {expected, size, 50}


def test_figures_are_those_of_hps_evaluate_and_the_best_model_is_kept(
    tmp_path: Path, log: Path, valid: Path
) -> None:
    store = tmp_path / "store"
    figures = train(options(log, store, valid=[valid], eval_every=5, lr=0.3, epochs=4))
    entries = figures["evaluations"]
    aucs = [entry["auc"] for entry in entries]
    assert figures["best"] == entries[aucs.index(max(aucs))] != entries[-1]
    for tag, entry in (("best", figures["best"]), ("final", entries[-1])):
        measured = evaluate_store([valid], store, tag)
        assert {name: measured[name] for name in ("auc", "logloss", "calibration")} == {
            name: entry[name] for name in ("auc", "logloss", "calibration")
        }
    assert sorted(filter(None, tags_of(store))) == ["best", "final"]
    assert figures["validation_seconds"] > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"eval_every": 5, "depth": 2},
        {"eval_every": "epoch", "depth": 0, "epochs": 3},
        {"eval_every": 4, "depth": 2, "accumulate": 3, "dram": "4MiB"},
        {"eval_every": "epoch", "depth": 2, "accumulate": 5, "dram": "8MiB", "epochs": 3},
    ],
)
def test_a_stopped_run_goes_on_with_the_same_evaluations(
    tmp_path: Path, log: Path, valid: Path, changes: dict[str, Any]
) -> None:
    changes = {"checkpoint_every": 0, "valid": [valid], **changes}
    whole = train(options(log, tmp_path / "whole", **changes))
    store, seen = tmp_path / "store", 0
    for place in (1, 4, 20, 2):  # after 1, 5, 25 and 27 batches: two of them where one is due
        stopped = run_until_signal(options(log, store, resume=seen > 0, **changes), At(place))
        assert stopped["stopped"] == "SIGTERM"
        seen += place
    rest = train(options(log, store, resume=True, **changes))
    assert same_bits(rest) == same_bits(whole)
    assert rest["evaluations"] == whole["evaluations"] and rest["best"] == whole["best"]


@pytest.mark.parametrize("kept", [1, 6, 10])
def test_a_killed_run_goes_on_with_the_same_evaluations(
    tmp_path: Path, log: Path, valid: Path, kept: int
) -> None:
    """Killed right after its checkpoint number `kept`, of best models and by number."""

    changes = {"checkpoint_every": 5, "valid": [valid], "eval_every": 4, "lr": 0.3}
    whole = train(options(log, tmp_path / "whole", **changes))
    with killed_after(kept):
        train(options(log, tmp_path / "store", **changes))
    rest = train(options(log, tmp_path / "store", resume=True, **changes))
    assert same_bits(rest) == same_bits(whole)
    assert rest["evaluations"] == whole["evaluations"]


def test_patience_ends_the_run_and_more_of_it_goes_on(
    tmp_path: Path, log: Path, valid: Path
) -> None:
    changes = {"valid": [valid], "eval_every": 4, "lr": 0.5, "epochs": 30, "checkpoint_every": 0}
    store = tmp_path / "store"
    figures = train(options(log, store, patience=3, **changes))
    entries = figures["evaluations"]
    assert figures["stopped_early"] and figures["stopped"] is None
    assert entries[-4] == figures["best"] and figures["total_batches"] == 4 * len(entries) < 720
    assert tags_of(store)[-1] == "final"
    again = train(options(log, store, patience=3, resume=True, **changes))
    assert (again["examples"], again["stopped_early"]) == (0, True)
    assert again["digests"] == figures["digests"] and again["evaluations"] == entries
    on = train(options(log, store, patience=6, resume=True, **changes))
    assert on["examples"] > 0 and on["evaluations"][: len(entries)] == entries
    whole = train(options(log, tmp_path / "whole", patience=6, **changes))
    assert same_bits(on) == same_bits(whole) and on["evaluations"] == whole["evaluations"]


def test_patience_is_the_reason_that_nothing_is_left(
    tmp_path: Path, log: Path, valid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(log), "--store", str(tmp_path / "store"), "--valid", str(valid)]
    words += ["--eval-every", "4", "--lr", "0.5", "--epochs", "30", "--patience", "2"]
    words += ["--dim", "2", "--hidden", "4", "--batch-size", "64", "--dram", "8MiB"]
    assert main(words) == 0
    assert "ended early: 2 validation(s) in a row" in capsys.readouterr().out
    assert main([*words, "--resume"]) == 0
    said = capsys.readouterr().out
    assert "nothing left to train: checkpoint 'final' is where --patience 2 ended the run" in said
    assert "give a larger --patience, or other data with --new-data" in said


def test_the_best_is_the_first_of_equal_ones_by_what_was_asked_for() -> None:
    nan = float("nan")
    done = Evaluations([{"auc": 0.6, "logloss": 0.3}, {"auc": 0.7, "logloss": 0.4}] * 2)
    assert (done.num_since_best("auc"), done.num_since_best("logloss")) == (2, 3)
    one_class = Evaluations([{"auc": nan, "logloss": 0.3}, {"auc": nan, "logloss": 0.2}])
    assert one_class.num_since_best("auc") == 0
    assert Evaluations().best("auc") is None and Evaluations().num_since_best("auc") == 0


def test_best_by_logloss_and_a_log_without_clicks(tmp_path: Path, log: Path, valid: Path) -> None:
    changes = {"eval_every": 5, "lr": 0.3, "epochs": 3}
    figures = train(options(log, tmp_path / "a", valid=[valid], best_by="logloss", **changes))
    losses = [entry["logloss"] for entry in figures["evaluations"]]
    assert figures["best"]["logloss"] == min(losses) != losses[-1]
    lines = [f"0{line[1:]}" for line in valid.read_text().splitlines()]
    (tmp_path / "none.txt").write_text("\n".join(lines) + "\n")
    figures = train(options(log, tmp_path / "b", valid=[tmp_path / "none.txt"], **changes))
    losses = [entry["logloss"] for entry in figures["evaluations"]]
    assert figures["best"]["logloss"] == min(losses)


def test_another_log_to_validate_on_is_counted_anew(
    tmp_path: Path, log: Path, valid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    train(options(log, store, valid=[valid], limit=640))
    without = train(options(log, store, resume=True, limit=1280))
    assert len(without["evaluations"]) == 1  # kept for the run after
    other = write_criteo(tmp_path / "other.txt", 200, num_keys=2000, seed=11)
    figures = train(options(log, store, valid=[other], resume=True, new_data=True), Progress(0.0))
    assert "another log than that of the 1 evaluation(s) so far" in capsys.readouterr().err
    # One at the end of each epoch of the new data; 20 batches came before.
    assert batches_of(figures) == [44, 68]
    assert {entry["valid_examples"] for entry in figures["evaluations"]} == {200}


def test_a_bad_line_deep_in_it_loses_no_step(tmp_path: Path, log: Path, valid: Path) -> None:
    lines = valid.read_text().splitlines()
    bad, store = tmp_path / "bad.txt", tmp_path / "store"
    bad.write_text("\n".join([*lines[:250], "2\tno label", *lines[250:]]) + "\n")
    changes = {"checkpoint_every": 0, "eval_every": 10}
    with pytest.raises(hps.DataError, match=r"bad\.txt, line 251") as raised:
        train(options(log, store, valid=[bad], **changes))
    notes = "\n".join(raised.value.__notes__)
    assert "--valid" in notes and "--resume goes on there" in notes
    rest = train(options(log, store, valid=[valid], resume=True, **changes))
    whole = train(options(log, tmp_path / "whole", valid=[valid], **changes))
    assert rest["examples"] == whole["examples"] - 640
    assert same_bits(rest) == same_bits(whole) and rest["evaluations"] == whole["evaluations"]


@pytest.mark.parametrize("text", ["", "2\tno label\n", "1\t2\t3\n"])
def test_a_log_that_cannot_be_measured_is_refused_before_training(
    tmp_path: Path, log: Path, text: str
) -> None:
    (tmp_path / "bad.txt").write_text(text)
    with pytest.raises(hps.HpsError, match=r"bad\.txt"):
        train(options(log, tmp_path / "store", valid=[tmp_path / "bad.txt"]))
    with pytest.raises(hps.HpsError, match="missing"):
        train(options(log, tmp_path / "store", valid=[tmp_path / "missing"]))
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"patience": 3}, r"patience=3 \(--patience\) is for validation"),
        ({"eval_every": 10}, r"eval_every=10 \(--eval-every\) is for validation"),
        ({"best_by": "logloss"}, r"--best-by"),
        ({"valid": ["v"], "eval_every": 0}, r"eval_every=0 must be .*, or epoch"),
        ({"valid": ["v"], "eval_every": "day"}, "eval_every"),
        ({"valid": ["v"], "patience": -1}, "patience"),
        ({"valid": ["v"], "best_by": "gauc"}, "best_by"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(hps.ConfigError, match=reason):
        TrainOptions(data=["log"], store=tmp_path, **changes)


def test_a_signal_while_it_is_measured_stops_the_run(
    tmp_path: Path, log: Path, valid: Path
) -> None:
    class Late(Stops):
        def next_of(self, items: Any) -> Any:
            if isinstance(items, TextReader):
                self.ask(signal.SIGTERM)
            return super().next_of(items)

    changes = {"valid": [valid], "eval_every": 10, "checkpoint_every": 0}
    store = tmp_path / "store"
    stopped = train(options(log, store, **changes), stops=Late())
    assert (stopped["stopped"], stopped["total_batches"]) == ("SIGTERM", 10)
    assert stopped["evaluations"] == []
    rest = train(options(log, store, resume=True, **changes))
    whole = train(options(log, tmp_path / "whole", **changes))
    assert same_bits(rest) == same_bits(whole) and rest["evaluations"] == whole["evaluations"]


@pytest.mark.parametrize("pause_every", [0, 5])
def test_depth_is_chosen_by_batches_between_pauses(
    pause_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch takes 2 s at depth 0 and 1 s ahead; a validation takes 1000."""
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    depths = DepthChooser(AUTO)
    for number in range(1, 400):
        now += 1.0 if depths.depth else 2.0
        if depths.batch_done():
            depths.next_span()
        elif pause_every and number % pause_every == 0:
            now += 1000.0
            depths.paused()
        if depths.trials:
            break
    (trial,) = depths.trials
    assert trial.seconds == {AHEAD: [1.0, 1.0], 0: [2.0, 2.0]}
    assert trial.chosen == AHEAD


def test_a_log_pauses_and_goes_back_to_where_it_paused(log: Path) -> None:
    tables = [hps.TableConfig(name="ads", dim=1)]

    config = ReaderConfig(format="criteo", batch_size=500, epochs=3)

    def open_log() -> Any:
        return open_reader([log], tables=tables, config=config)

    plain = [batch.position for batch in open_log()]
    pausing = PausingLog(open_log())
    pausing.go_on(num_batches=2)
    found = [batch.position for batch in pausing]
    assert len(found) == 2 and pausing.is_paused and not pausing.is_finished
    assert pausing.state_dict() == plain[1] and next(pausing, None) is None
    pausing.go_on(num_epochs=0)
    found += [batch.position for batch in pausing]
    # It has read a batch of the next epoch, and holds it.
    assert len(found) == 3 and pausing.num_epochs == 1 and pausing.state_dict() == plain[2]
    pausing.load_state_dict(pausing.state_dict())
    pausing.go_on()
    found += [batch.position for batch in pausing]
    assert found == plain and pausing.is_finished


def test_it_is_no_part_of_the_run_s_time(
    tmp_path: Path, log: Path, valid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = TextReader._read

    def slow(self: TextReader, start: Any) -> Iterator[Any]:
        if self.paths[0] == valid:
            time.sleep(1.0)  # what is measured below, not waited for
        return read(self, start)

    monkeypatch.setattr(TextReader, "_read", slow)
    figures = train(options(log, tmp_path / "store", valid=[valid], eval_every=24))
    assert figures["validation_seconds"] >= 2.0
    assert figures["seconds"] < figures["validation_seconds"]


def test_epochs_of_new_data_are_counted_from_its_beginning(
    tmp_path: Path, log: Path, valid: Path
) -> None:
    store = tmp_path / "store"
    train(options(log, store, valid=[valid]))
    figures = train(options(log, store, valid=[valid], resume=True, new_data=True))
    assert batches_of(figures) == [24, 48, 72, 96]


def test_lines_skipped_after_the_end_of_a_run_are_not_counted(
    tmp_path: Path, log: Path, valid: Path
) -> None:
    """The run ends by --patience; the next epoch's first batch, read ahead, has a bad line."""
    bad = tmp_path / "bad.txt"
    bad.write_text("no\tlabel\n" + log.read_text())
    changes = {"eval_every": "epoch", "patience": 1, "lr": 0.5, "epochs": 50, "on_error": "skip"}
    figures = train(options(bad, tmp_path / "store", valid=[valid], **changes))
    assert figures["stopped_early"]
    assert figures["skipped_lines"] == len(figures["evaluations"]) < 50


@pytest.mark.parametrize("depth", [0, 2])
def test_a_share_of_the_log_is_held_out_and_validated_on(
    tmp_path: Path, log: Path, depth: int
) -> None:
    changes: dict[str, Any] = {"valid_share": 0.2, "depth": depth, "checkpoint_every": 0}
    whole = train(options(log, tmp_path / "whole", **changes))
    (held_out,) = {entry["valid_examples"] for entry in whole["evaluations"]}
    assert 220 < held_out < 380  # of 1500, by a hash
    assert whole["examples"] == 2 * (1500 - held_out)
    # The parts are those that readers give, and nothing of one is in the other.
    tables = [hps.TableConfig(name="ads", dim=1)]
    parts = []
    for place in ((0.0, 0.2), (0.2, 1.0)):
        config = ReaderConfig(format="criteo", batch_size=4000, hash_range=place)
        (batch,) = open_reader([log], tables=tables, config=config)
        parts.append({tuple(row.tolist()) for row in batch.dense})
    assert len(parts[0]) == held_out and not parts[0] & parts[1]
    stopped = run_until_signal(options(log, tmp_path / "part", **changes), At(7))
    assert stopped["stopped"] is not None
    rest = train(options(log, tmp_path / "part", resume=True, **changes))
    assert same_bits(rest) == same_bits(whole) and rest["evaluations"] == whole["evaluations"]
    for other in ({}, {"valid_share": 0.3}):
        with pytest.raises(hps.ConfigError, match=r"hash_range=\[0\.2, 1\.0\].*--valid-share"):
            train(options(log, tmp_path / "part", resume=True, epochs=3, **other))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"valid_share": 0.2, "valid": ["v"]}, "both name what to validate on"),
        ({"valid_share": 0.0}, "valid_share"),
        ({"valid_share": 1.0}, "must be .* less than 1"),
        ({"valid_share": 1e-12}, "--valid-share has no example, it holds no line that is kept"),
        ({"valid_share": 1 - 1e-12}, "DATA has no example, it holds no line that is kept"),
    ],
)
def test_a_share_that_leaves_nothing_is_refused(
    tmp_path: Path, log: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(hps.ConfigError, match=reason):
        train(options(log, tmp_path / "store", **changes))
    assert not (tmp_path / "store").exists()


def _early() -> Stops:
    class Early(Stops):
        def defer(self) -> None:
            super().defer()
            self.ask(signal.SIGTERM)

    return Early()


def test_new_data_has_its_own_best_model_and_patience(
    tmp_path: Path, log: Path, valid: Path
) -> None:
    store = tmp_path / "store"
    changes = {"valid": [valid], "eval_every": 4, "lr": 0.5, "epochs": 30, "patience": 2}
    first = train(options(log, store, **changes))
    assert first["stopped_early"]
    # Killed before its first step, it goes on so, too.
    stopped = train(options(log, store, resume=True, new_data=True, **changes), stops=_early())
    assert stopped["total_batches"] == first["total_batches"]
    again = train(options(log, store, resume=True, **changes))
    count = len(first["evaluations"])
    assert again["examples"] > 0 and again["evaluations"][:count] == first["evaluations"]
    assert again["best"] in again["evaluations"][count:]
    measured = evaluate_store([valid], store, "best")
    assert measured["auc"] == again["best"]["auc"]


def test_a_tag_that_is_not_the_best_model_does_not_count(
    tmp_path: Path, log: Path, valid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run goes back to before its best model; another one calls another model the best."""
    changes = {"valid": [valid], "eval_every": 4, "lr": 0.3, "checkpoint_every": 0}
    for store, limit, more in (
        (tmp_path / "back", 768, {"resume_from": "early"}),
        (tmp_path / "by", 2048, {"best_by": "logloss"}),
    ):
        train(options(log, store, limit=512, **{**changes, "eval_every": 8}))
        with hps.open(store, read_only=False) as server:
            model, reader = server.checkpoint_state("final")
            server.checkpoint(tag="early", model=model, reader=reader)
        train(options(log, store, resume=True, limit=limit, **changes))
        capsys.readouterr()
        rest = train(options(log, store, resume=True, **{**changes, **more}), Progress(0.0))
        by = more.get("best_by", "auc")
        measured = evaluate_store([valid], store, "best")
        assert measured[by] == rest["best"][by], store
