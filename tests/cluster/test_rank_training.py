"""Training over ranks against training in one process: same table, same losses, same bits twice.

Above it: pytest. Below it: rank_nursery.py, which runs the real command as processes over gloo.
"""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cluster.parameter_server import ClusterParameterServer
from hps.cluster.world.local_world import local_worlds
from hps.config import RankEnvironment
from hps.train.ranks import restart_warning
from tests.cluster.rank_nursery import Job, Nursery
from tests.cluster.torchrun_lab import KILLED, stop_torchrun
from tests.logs import write_criteo

TABLE = "features"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whose last batch of 100 has 50 examples."""
    return write_criteo(tmp_path_factory.mktemp("log") / "log.tsv", 1250)


def words(log: Path, store: Path, *others: str) -> list[str]:
    """A small run without dropout, which is drawn by each rank for itself."""
    flags = {
        "--store": str(store),
        "--dim": "4",
        "--hidden": "16",
        "--batch-size": "100",
        "--dram": "2MiB",
        "--seed": "3",
        "--lr": "0.1",
        "--threads": "1",
        "--progress-seconds": "0",
    }
    return ["train", str(log), *(word for flag in flags.items() for word in flag), *others]


def rows_of(store: Path) -> dict[int, np.ndarray]:
    with hps.open(store) as server:
        return {
            int(key): row
            for keys, rows in server.items(TABLE)
            for key, row in zip(keys, rows, strict=True)
        }


def table_of(store: Path) -> hps.TableConfig:
    with hps.open(store) as server:
        return server.tables[TABLE]


def dense_of(store: Path) -> dict[str, Any]:
    with hps.open(store) as server:
        model, _ = server.checkpoint_state("final")
    return model["model"]


def largest_difference(one: Path, other: Path) -> float:
    left, right = rows_of(one), rows_of(other)
    assert left.keys() == right.keys() and len(left) > 500
    return max(float(np.abs(left[key] - right[key]).max()) for key in left)


def without_columns(text: str) -> str:
    """What was said beside how the columns are read and how rows learn."""
    lines = text.splitlines(keepends=True)
    told = ("hps: columns: ", "hps: rows learn at ")
    return "".join(line for line in lines if not line.startswith(told))


@pytest.mark.parametrize(("optimizer", "sizes"), [("sgd", (1, 2, 4)), ("adagrad", (3,))])
def test_one_step_of_any_number_of_ranks_is_the_step_of_one_process(
    tmp_path: Path, ranks: Nursery, log: Path, optimizer: str, sizes: tuple[int, ...]
) -> None:
    flags = ["--optimizer", optimizer, "--limit", "100"]
    ranks.figures(Job(words(log, tmp_path / "alone", *flags)))
    for size in sizes:
        store = tmp_path / f"of-{size}"
        figures = ranks.figures(Job(words(log, store, *flags), size))
        assert figures["total_batches"] == 1 and figures["ranks"]["size"] == size
        assert largest_difference(tmp_path / "alone", store) <= 1e-6
        alone, found = dense_of(tmp_path / "alone"), dense_of(store)
        assert max(float((alone[name] - found[name]).abs().max()) for name in alone) <= 1e-5


def test_ranks_validate_as_one_process_and_go_on_with_their_evaluations(
    tmp_path: Path, ranks: Nursery, log: Path
) -> None:
    valid = write_criteo(tmp_path / "valid.tsv", 333, seed=1)
    flags = ["--epochs", "2", "--valid", str(valid), "--eval-every", "9", "--patience", "9"]
    flags += ["--progressive"]
    alone = ranks.figures(Job(words(log, tmp_path / "alone", *flags)))
    both = ranks.figures(Job(words(log, tmp_path / "both", *flags), 2))
    assert [entry["batches"] for entry in both["evaluations"]] == [9, 18, 26]
    for one, two in zip(both["evaluations"], alone["evaluations"], strict=True):
        assert one["examples"] == two["examples"] and one["valid_examples"] == 333
        assert one["logloss"] == pytest.approx(two["logloss"], abs=1e-3)
    ranks.figures(Job(words(log, tmp_path / "part", *flags, "--limit", "1000"), 2))
    rest = ranks.figures(Job(words(log, tmp_path / "part", *flags, "--resume"), 2))
    assert [entry["batches"] for entry in rest["evaluations"]] == [9, 10, 18, 26]
    assert rest["evaluations"][2:] == both["evaluations"][1:]
    assert rest["progressive"] == both["progressive"]
    (scored,), (scored_alone,) = both["progressive"], alone["progressive"]
    assert scored["examples"] == scored_alone["examples"] == 1250
    assert scored["logloss"] == pytest.approx(scored_alone["logloss"], abs=1e-3)
    for store in ("alone", "both"):
        with hps.open(tmp_path / store) as server:
            assert {"best", "final"} <= {entry["tag"] for entry in server.checkpoints()}


@pytest.mark.parametrize(("optimizer", "sizes"), [("sgd", (3,)), ("adagrad", (1, 2, 4))])
def test_any_number_of_ranks_ends_with_the_logloss_of_one_process(
    tmp_path: Path, ranks: Nursery, log: Path, optimizer: str, sizes: tuple[int, ...]
) -> None:
    flags = ["--optimizer", optimizer, "--epochs", "2", "--test", str(log)]
    alone = ranks.figures(Job(words(log, tmp_path / "alone", *flags)))
    assert alone["total_examples"] == 2500
    for size in sizes:
        store = tmp_path / f"of-{size}"
        figures = ranks.figures(Job(words(log, store, *flags), size))
        for name in ("rows", "total_examples", "total_batches", "examples"):
            assert figures[name] == alone[name], name
        for name in ("train_logloss", "test_logloss"):
            assert abs(figures[name] - alone[name]) <= 1e-4, name
        assert abs(figures["test_auc"] - alone["test_auc"]) <= 1e-3
        if size == 1:
            assert figures["digests"] == alone["digests"]
            assert figures["loss_digest"] == alone["loss_digest"]
    out = tmp_path / "measured.json"
    measure = ["evaluate", str(log), "--store", str(store), "--json", str(out)]
    assert ranks.run(Job(measure)).statuses == [0]
    measured = json.loads(out.read_text())
    # The same model in batches of another size: torch rounds otherwise.
    assert measured["auc"] == pytest.approx(figures["test_auc"], abs=1e-5)
    assert measured["logloss"] == pytest.approx(figures["test_logloss"], abs=1e-8)


def test_ranks_begin_at_the_base_rate_of_the_whole_log(
    tmp_path: Path, ranks: Nursery, log: Path
) -> None:
    """Of which the parts of the ranks have different shares of clicks."""
    lines = log.read_text().splitlines()
    clicks = [f"{int(place % 100 < 20)}{line[1:]}" for place, line in enumerate(lines)]
    (tmp_path / "log.tsv").write_text("\n".join(clicks))
    flags = ["--limit", "100", "--dense-lr", "1e-12", "--lr", "1e-6"]
    found = {}
    for size in (0, 3):
        store = tmp_path / f"of-{size}"
        figures = ranks.figures(Job(words(tmp_path / "log.tsv", store, *flags), size))
        found[size] = (figures["base_rate"], float(dense_of(store)["bias"]))
    assert found[0] == found[3] and found[0][0] == 261 / 1252


def test_ranks_without_examples_take_part(tmp_path: Path, ranks: Nursery, log: Path) -> None:
    """Batches of three over four ranks: each has one that is empty on every rank once."""
    flags = ["--batch-size", "3", "--limit", "60", "--accumulate", "2"]
    alone = ranks.figures(Job(words(log, tmp_path / "alone", *flags)))
    found = ranks.figures(Job(words(log, tmp_path / "of-4", *flags), 4))
    assert found["total_batches"] == alone["total_batches"] == 20
    assert abs(found["train_logloss"] - alone["train_logloss"]) <= 1e-5


@pytest.mark.parametrize(
    "flags",
    [
        ["--dropout", "0.2", "--optimizer", "adam", "--depth", "2"],
        ["--precision", "float16", "--depth", "0", "--gpu", "300KiB", "--device", "cpu"],
    ],
)
def test_a_run_repeated_has_the_same_bits(
    tmp_path: Path, ranks: Nursery, log: Path, flags: list[str]
) -> None:
    first, second = (
        ranks.figures(Job(words(log, tmp_path / name, *flags), 3)) for name in ("first", "second")
    )
    for name in ("digests", "loss_digest", "train_logloss"):
        assert first[name] == second[name], name
    one, other = dense_of(tmp_path / "first"), dense_of(tmp_path / "second")
    assert all(one[name].equal(other[name]) for name in one)


def test_a_killed_run_goes_on_with_the_same_bits_and_on_other_numbers_of_ranks(
    tmp_path: Path, ranks: Nursery, log: Path
) -> None:
    flags = ["--epochs", "2", "--dropout", "0.1", "--checkpoint-every", "5", "--depth", "2"]
    flags += ["--scheduler", "cosine", "--scheduler-steps", "20"]
    flags += ["--row-wire", "bfloat16", "--gradient-wire", "int8", "--hot-rows", "64"]
    whole = ranks.figures(Job(words(log, tmp_path / "whole", *flags), 3))
    store = tmp_path / "killed"
    ended = ranks.run(Job(words(log, store, *flags), 3, dies_at={1: 13}))
    assert ended.statuses[1] == -9 and 0 not in ended.statuses
    (told,) = [text for text in map(without_columns, ended.err) if text]
    assert told.startswith("hps: error: rank ") and told.count("\n") == 1
    assert "gloo" not in told and "GLHF" not in told and len(re.findall(r"rank \d", told)) == 1
    # torchrun says that it has started the ranks anew; nobody says --resume.
    restarted = {"TORCHELASTIC_RESTART_COUNT": "1"}
    resumed = ranks.figures(Job(words(log, store, *flags), 3, variables=restarted))
    assert resumed["resumed_from"] is not None and resumed["examples"] == 2500 - 10 * 100
    for name in ("digests", "loss_digest", "train_logloss", "rows", "total_examples"):
        assert resumed[name] == whole[name], name
    store = tmp_path / "moved"
    ranks.figures(Job(words(log, store, *flags, "--limit", "700"), 2))
    for size, limit in ((3, 1300), (1, 0)):
        limits = ["--limit", str(limit), "--resume"]
        moved = ranks.figures(Job(words(log, store, *flags, *limits), size))
    assert moved["total_examples"] == 2500 and moved["rows"] == whole["rows"]
    assert abs(moved["train_logloss"] - whole["train_logloss"]) < 0.01


def test_restart_before_the_first_checkpoint_starts_anew(
    tmp_path: Path, ranks: Nursery, log: Path
) -> None:
    whole = ranks.figures(Job(words(log, tmp_path / "whole"), 2))
    ended = ranks.run(Job(words(log, tmp_path / "killed"), 2, dies_at={0: 4}))
    assert ended.statuses[0] == -9
    restarted = {"TORCHELASTIC_RESTART_COUNT": "1"}
    again = ranks.figures(Job(words(log, tmp_path / "killed"), 2, variables=restarted))
    assert again["resumed_from"] is None and again["digests"] == whole["digests"]


def test_a_run_that_is_refused_changes_nothing_nor_does_its_restart(
    tmp_path: Path, ranks: Nursery, log: Path
) -> None:
    """In a folder that holds a trained model, by other ranks, who would move its rows."""
    store = tmp_path / "store"
    ranks.figures(Job(words(log, store, "--limit", "200"), 2))
    catalog = (store / "CLUSTER").read_bytes()
    refused = {"continue it with --resume": [], "asks for 9 (--dim)": ["--resume", "--dim", "9"]}
    for reason, flags in refused.items():
        for count in ("0", "1"):
            variables = {"TORCHELASTIC_RESTART_COUNT": count}
            ended = ranks.run(Job(words(log, store, *flags), 3, variables=variables))
            assert ended.statuses == [1, 1, 1] and reason in "".join(ended.err), ended.err
    assert (store / "CLUSTER").read_bytes() == catalog


def test_ranks_that_go_on_have_the_models_shape_from_the_store(
    tmp_path: Path, ranks: Nursery, log: Path
) -> None:
    store = tmp_path / "store"
    ranks.figures(Job(words(log, store, "--model", "dlrm", "--optimizer", "adam"), 2))
    silent = words(log, store, "--resume", "--new-data")
    for flag in ("--dim", "--hidden"):
        at = silent.index(flag)
        del silent[at : at + 2]
    for size in (2, 3):
        figures = ranks.figures(Job(silent, size))
        assert figures["model"] == "dlrm" and figures["resumed_from"] is not None
    assert table_of(store).dim == 4 and table_of(store).optimizer.kind == "adam"


@pytest.mark.parametrize("kind", ["lr", "autoint", "mine.py:Mine"])
def test_ranks_train_every_sort_of_model_as_one_process_does(
    tmp_path: Path, ranks: Nursery, log: Path, kind: str
) -> None:
    if ":" in kind:
        kind = f"{tmp_path}/{kind}"
        (tmp_path / "mine.py").write_text(
            "from hps.models import FactorizationMachine\n\nclass Mine(FactorizationMachine):\n"
            "    has_deep_part = True\n"
        )
    flags = ["--optimizer", "sgd", "--limit", "1250", "--epochs", "2"]
    for store, size in (("alone", 1), ("ranks", 3)):
        asked = words(log, tmp_path / store, "--model", kind, *flags)
        for flag in ("--dim", "--hidden") if kind == "lr" else ():
            at = asked.index(flag)
            del asked[at : at + 2]
        figures = ranks.figures(Job(asked, size))
        assert figures["model"] == kind and figures["total_batches"] == 13
    assert largest_difference(tmp_path / "alone", tmp_path / "ranks") <= 1e-5
    assert table_of(tmp_path / "ranks").dim == {"lr": 1, "autoint": 4}.get(kind, 5)


def test_a_refused_resume_of_ranks_has_not_gone_back(
    tmp_path: Path, ranks: Nursery, log: Path
) -> None:
    store, empty = tmp_path / "store", tmp_path / "empty.tsv"
    empty.write_text("")
    ranks.figures(Job(words(log, store, "--limit", "600", "--checkpoint-every", "2"), 2))
    with hps.open(store) as server:
        named, digest = server.checkpoints()[0], server.digest(TABLE)
    assert named["tag"] is None and not named["current"]
    catalog = (store / "CLUSTER").read_bytes()
    back = ["--resume-from", f"id:{named['id']}"]
    # One process more would move the rows, and let go of the checkpoint that is named.
    for job, reason in (
        (Job(words(empty, store, *back, "--new-data"), 2), "DATA has no example"),
        (Job(words(log, store, *back, "--dropout", "0.5"), 2), "asks for 0.5"),
        (Job(words(log, store, *back), 1), "has no tag"),
    ):
        ended = ranks.run(job)
        assert set(ended.statuses) == {1} and reason in "".join(ended.err), ended.err
        assert (store / "CLUSTER").read_bytes() == catalog, reason
        with hps.open(store) as server:
            assert server.digest(TABLE) == digest, reason
    assert ranks.figures(Job(words(log, store, *back), 2))["examples"] > 650


def test_ranks_go_on_from_a_named_checkpoint_of_other_ranks(
    tmp_path: Path, ranks: Nursery, log: Path
) -> None:
    """Which is what the refusal to take the newest, of rows without a model, advises."""
    store = tmp_path / "store"
    ranks.figures(Job(words(log, store, "--limit", "200"), 2))
    config = hps.Config(path=store, tables=[table_of(store)], seed=3)
    (world,) = local_worlds(1)
    with ClusterParameterServer(config, world) as server:
        server.push(TABLE, np.array([5], np.uint64), np.ones((1, 5), np.float32))
        server.checkpoint(tag="pushed")
    catalog = (store / "CLUSTER").read_bytes()
    for job, reason in (
        (Job(["evaluate", str(log), "--store", str(store)]), "--resume-from final"),
        (Job(words(log, store, "--resume"), 2), "--resume-from final"),
        (Job(words(log, store), 2), "holds a trained model"),
        (Job(words(log, store, "--resume-from", "pushed"), 2), "holds no model and position"),
        (Job(words(log, store, "--resume-from", "no"), 2), "'no'"),
    ):
        ended = ranks.run(job)
        assert set(ended.statuses) == {1} and reason in "".join(ended.err), ended.err
        assert (store / "CLUSTER").read_bytes() == catalog, reason
    figures = ranks.figures(Job(words(log, store, "--resume-from", "final"), 1))
    assert figures["resumed_from"] == "'final'" and figures["examples"] == 1050


def test_restart_goes_on_in_the_new_data(tmp_path: Path, ranks: Nursery, log: Path) -> None:
    """Not from its beginning, which --new-data means, and not in the old data."""
    newer = write_criteo(tmp_path / "newer.tsv", 800, seed=2)
    flags = ["--checkpoint-every", "2", "--resume", "--new-data"]
    figures = {}
    for name, dies_at in (("whole", {}), ("killed", {1: 5})):
        store = tmp_path / name
        ranks.figures(Job(words(log, store, "--limit", "300"), 2))
        job = Job(words(newer, store, *flags), 2, dies_at=dies_at)
        if dies_at:
            assert -9 in ranks.run(job).statuses
            job = Job(job.words, 2, variables={"TORCHELASTIC_RESTART_COUNT": "1"})
        figures[name] = ranks.figures(job)
        assert figures[name]["total_examples"] == 1100
        assert figures[name]["digests"] == figures["whole"]["digests"]
    assert [figures[name]["examples"] for name in figures] == [800, 400]


@pytest.mark.parametrize("size", [0, 2])
def test_a_death_before_the_first_checkpoint_in_new_data_skips_and_repeats_nothing(
    tmp_path: Path, ranks: Nursery, log: Path, size: int
) -> None:
    """The new log has the old one's name and size: nothing but the checkpoint tells them apart."""
    (tmp_path / "new").mkdir()
    newer = tmp_path / "new" / log.name
    newer.write_text("".join(reversed(log.read_text().splitlines(keepends=True))))
    assert newer.stat().st_size == log.stat().st_size
    old = tmp_path / "old"
    ranks.figures(Job(words(log, old, "--limit", "300"), size))
    for name in ("whole", "killed"):
        shutil.copytree(old, tmp_path / name)
    flags = ["--resume", "--new-data"]
    whole = ranks.figures(Job(words(newer, tmp_path / "whole", *flags), size))
    assert whole["total_examples"] == 300 + 1250
    ended = ranks.run(Job(words(newer, tmp_path / "killed", *flags), size, dies_at={0: 1}))
    assert ended.statuses[0] == -9
    restarted = {"TORCHELASTIC_RESTART_COUNT": "1"}
    later = [(["--resume"], {}), (flags, restarted if size else {})]
    for number, (again, variables) in enumerate(later):
        store = tmp_path / f"again-{number}"
        shutil.copytree(tmp_path / "killed", store)
        figures = ranks.figures(Job(words(newer, store, *again), size, variables=variables))
        for name in ("digests", "loss_digest", "examples"):
            assert figures[name] == whole[name], name


ENDLESS = ["--epochs", "1000", "--depth", "2", "--no-digest", "--progress-seconds", "0.1"]


@pytest.mark.parametrize(
    ("size", "signals", "status"),
    [
        (0, [(0, "SIGTERM")], 143),
        (0, [(0, "SIGINT")], 130),
        (2, [(1, "SIGTERM")], 143),
        # Ctrl-C reaches the ranks from the terminal, and once more from torchrun.
        (2, [(0, "SIGINT"), (1, "SIGINT"), (0, "SIGINT"), (1, "SIGINT")], 130),
    ],
)
def test_a_signal_ends_a_training_in_its_middle_with_a_checkpoint_on_all_ranks(
    tmp_path: Path, ranks: Nursery, log: Path, size: int, signals: list[Any], status: int
) -> None:
    """A signal to one rank is one to all; what was trained is trained no second time."""
    store, out = tmp_path / "store", tmp_path / "out.json"
    telling = words(log, store, *ENDLESS, "--dropout", "0.1", "--test", str(log))
    ended = ranks.run(Job([*telling, "--json", str(out)], size, signals=signals))
    assert set(ended.statuses) == {status}, ended
    figures = json.loads(out.read_text())
    name = signals[0][1]
    assert figures["stopped"] == name and figures["test_auc"] is None
    seen = figures["total_examples"]
    assert f"stopped by {name} after {seen:,} examples" in ended.out[0]
    said = [without_columns(text) for text in ended.err]
    told = [line for text in said for line in text.splitlines() if " examples " not in line]
    told = [line for line in told if " is trained on, too, " not in line]
    finishes = f"hps: {name}: finishes the step and saves a checkpoint; once more ends at once"
    assert told == ([] if size else [finishes])
    with hps.open(store) as server:
        assert server.checkpoint_state()[0]["totals"]["examples"] == seen > 0
    flags = ["--epochs", "1000", "--dropout", "0.1", "--limit", str(seen + 1000)]
    rest = ranks.figures(Job(words(log, store, *flags, "--resume"), size))
    whole = ranks.figures(Job(words(log, tmp_path / "whole", *flags), size))
    assert rest["examples"] + seen == whole["examples"]
    for figure in ("digests", "loss_digest", "model_logloss"):
        assert rest[figure] == whole[figure], figure


def test_a_second_signal_ends_a_training_at_once(tmp_path: Path, ranks: Nursery, log: Path) -> None:
    """A step of a million batches would not be finished for hours."""
    flags = [*ENDLESS, "--accumulate", "1000000", "--dram", "64MiB"]
    flags[flags.index("--depth") + 1] = "0"
    flags += ["--batch-size", "2"]
    twice = [(0, "SIGTERM"), (0, "SIGTERM")]
    ended = ranks.run(Job(words(log, tmp_path / "store", *flags), 0, signals=twice))
    assert ended.statuses == [143]
    assert "hps: SIGTERM once more: ended at once; --resume goes on from" in ended.err[0]


@pytest.mark.parametrize(
    ("planted", "reason"),
    [
        ({"of_rank": {1: ["--seed", "4"]}}, "rank 1 has seed=4, rank 0 has 3"),
        ({"of_rank": {2: ["--hidden", "8,8"]}}, r"rank 2 has hidden=\[8, 8\], rank 0 has \[16\]"),
        ({"version": {1: "9.9"}}, r"rank 1 has hps version='9\.9', rank 0 has '"),
    ],
)
def test_ranks_that_differ_are_refused_by_name(
    tmp_path: Path, ranks: Nursery, log: Path, planted: dict[str, Any], reason: str
) -> None:
    ended = ranks.run(Job(words(log, tmp_path / "store"), 3, **planted))
    assert ended.statuses == [1, 1, 1]
    assert re.search(f"hps: error: {reason}", ended.err[0]) and ended.err[0].count("\n") == 1
    assert ended.err[1:] == ["", ""]
    assert not (tmp_path / "store").exists()


def test_what_strikes_one_rank_is_told_once_by_that_rank(
    tmp_path: Path, ranks: Nursery, log: Path
) -> None:
    lines = log.read_text().splitlines()
    lines[180] = "2" + lines[180][1:]  # the second batch, whose last third is rank 2's
    (tmp_path / "bad.tsv").write_text("\n".join(lines))
    many = [line for _ in range(9) for line in log.read_text().splitlines()]
    many[10_080] = "2" + many[10_080][1:]  # after the first examples, which are looked at before
    (tmp_path / "late.tsv").write_text("\n".join(many))
    missing = {1: ["--test", str(tmp_path / "missing.tsv")]}
    diverges = words(log, tmp_path / "three", "--lr", "1e30", "--optimizer", "sgd")
    late = words(tmp_path / "late.tsv", tmp_path / "one")
    for job, rank, reason in (
        (Job(words(tmp_path / "bad.tsv", tmp_path / "zero"), 3), 0, "bad.tsv, line 181: label '2'"),
        (Job(late, 3), 2, "late.tsv, line 10081: label '2'"),
        (Job(words(log, tmp_path / "two"), 3, of_rank=missing), 1, "missing.tsv"),
        (Job(diverges, 3), 0, "rank 0, table 'features', key"),
    ):
        ended = ranks.run(job)
        assert ended.statuses == [1, 1, 1] and not (tmp_path / "zero").exists()
        err = [without_columns(text) for text in ended.err]
        assert reason in err[rank] and err[rank].count("\n") == 1
        assert err[rank].count(f"rank {rank}") == 1
        assert [text for text in err if text] == [err[rank]]


def test_a_test_log_that_one_rank_cannot_read_loses_no_figure_of_the_training(
    tmp_path: Path, ranks: Nursery, log: Path
) -> None:
    lines = log.read_text().splitlines()
    lines[280] = "2" + lines[280][1:]  # the third batch, whose last third is rank 2's
    (tmp_path / "test.tsv").write_text("\n".join(lines))
    out = tmp_path / "out.json"
    flags = ["--test", str(tmp_path / "test.tsv"), "--json", str(out)]
    ended = ranks.run(Job(words(log, tmp_path / "store", *flags), 3))
    assert ended.statuses == [1, 1, 1] and ended.err[1:] == ["", ""]
    assert without_columns(ended.err[0]).count("\n") == 1
    figures = json.loads(out.read_text())
    for text in (ended.err[0], figures["test_error"]):
        assert "rank 2: " in text and "test.tsv, line 281: label '2'" in text
    whole = ranks.figures(Job(words(log, tmp_path / "whole"), 3))
    for name in ("digests", "loss_digest", "rows", "examples"):
        assert figures[name] == whole[name], name


def test_ranks_refuse_a_log_without_examples_and_a_store_without_a_checkpoint(
    tmp_path: Path, ranks: Nursery, log: Path
) -> None:
    empty = tmp_path / "empty.tsv"
    empty.write_text("")
    store = tmp_path / "store"
    for job, reason in (
        (Job(words(empty, store), 2), "DATA has no example"),
        (Job(words(log, store, "--resume"), 2), "there is no store in"),
        (Job(words(log, store, "--test", str(empty)), 2), "--test has no example"),
    ):
        ended = ranks.run(job)
        assert ended.statuses == [1, 1]
        (told,) = [line for text in ended.err for line in text.splitlines()]
        assert reason in told and not store.exists()
    few = tmp_path / "few.tsv"
    few.write_text(log.read_text().splitlines(keepends=True)[0])
    figures = ranks.figures(Job(words(few, store), 3))  # two of whose parts are empty
    assert figures["examples"] == 1


def test_what_strikes_several_ranks_is_told_once(tmp_path: Path, ranks: Nursery, log: Path) -> None:
    store = tmp_path / "store"
    ranks.figures(Job(words(log, store, "--limit", "100"), 3))
    for flags, reason in (
        ([], "holds a trained model"),
        (["--resume", "--dram", "64KiB", "--batch-size", "400"], "cannot be pinned at once"),
        (["--resume", "--dim", "9"], "this run asks for 9 (--dim)"),
    ):
        ended = ranks.run(Job(words(log, store, *flags), 2))
        assert ended.statuses == [1, 1]
        err = [without_columns(text) for text in ended.err]
        *began, told = [line for text in err for line in text.splitlines()]
        assert reason in told and told.startswith("hps: error: ")
        if "64KiB" in flags:
            moved, resumed, batches = began
            assert re.search(r"its [1-9][\d,]* rows, of 3 rank\(s\), move to 2 rank\(s\)", moved)
            assert "goes on from checkpoint 'final', after 1 batches and 100 examples" in resumed
            assert "batches of 100 examples (--batch-size) are now of 400" in batches
        else:
            assert not began


def test_rank_zero_alone_reports_and_names_who_was_slow(
    tmp_path: Path, ranks: Nursery, log: Path
) -> None:
    ended = ranks.run(Job(words(log, tmp_path / "store", "--json", "-"), 2))
    assert ended.statuses == [0, 0] and ended.out[1] == ended.err[1] == ""
    figures = json.loads(ended.out[0])
    assert figures["depth"] in (0, 2) and figures["depth_trials"] == []
    assert figures["ranks"]["stragglers"]["compute"]["rank"] in (0, 1)
    assert figures["ranks"]["stragglers"]["compute"]["ratio"] >= 1
    assert len(figures["ranks"]["stages"]) == 2 and min(figures["ranks"]["bytes_sent"]) > 0
    assert figures["tiers"]["dram_cache"]["rows"] >= figures["rows"] > 0
    assert "slowest rank" in ended.err[0] and "examples per second" in ended.err[0]


@pytest.mark.timeout(900)  # torchrun and every rank import torch
def test_torchrun_restarts_a_killed_rank_and_is_terminated_with_a_checkpoint_of_all_ranks(
    tmp_path: Path, ranks: Nursery, log: Path
) -> None:
    """The bits of ranks that nothing has happened to."""
    out, store = tmp_path / "out.json", tmp_path / "store"
    telling = words(log, store, *ENDLESS, "--checkpoint-every", "3", "--json", str(out))
    status, said, errors = stop_torchrun(telling, 2, [(1, 7)], signal.SIGTERM)
    figures = json.loads(out.read_text())
    assert status == 1 and figures["stopped"] == "SIGTERM", errors
    assert "stopped by SIGTERM after" in said and errors.count(KILLED) == 1
    seen = figures["total_examples"]
    assert figures["resumed_from"] is not None and figures["examples"] == seen - 600
    goes_on = ["--epochs", "1000", "--limit", str(seen + 100)]
    rest = ranks.figures(Job(words(log, store, *goes_on, "--resume"), 2))
    assert rest["examples"] == 100
    whole = ranks.figures(Job(words(log, tmp_path / "whole", *goes_on), 2))
    for name in ("digests", "loss_digest"):
        assert rest[name] == whole[name], name


def test_what_restarts_over_several_hosts_need_is_said() -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    shared = {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    hosts = {**alone, **shared, "LOCAL_WORLD_SIZE": "1"}
    cured = {**hosts, "TORCHELASTIC_USE_AGENT_STORE": "False"}
    for variables, lines in ((alone, 0), ({**alone, **shared}, 0), (hosts, 1), (cured, 0)):
        place = RankEnvironment.of(variables)
        assert place is not None
        warning = restart_warning(place)
        assert len(warning) == lines
        assert all("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in line for line in warning)
