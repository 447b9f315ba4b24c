"""The training run and the evaluation behind `hps train` and `hps evaluate`."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli import evaluate as evaluate_command
from hps.cli import train as train_command
from hps.train import TrainOptions, evaluate_store, train
from hps.train.shape_rules import what_it_lacks
from tests.kinds import POOLING
from tests.logs import write_criteo

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def options(folder: Path, **changes: Any) -> TrainOptions:
    """A small run over `folder`/train.txt, written at first use."""
    log = folder / "train.txt"
    if not log.exists():
        write_criteo(log, 2000)
    values: dict[str, Any] = {
        "data": [log],
        "store": folder / "store",
        "dim": 4,
        "batch_size": 100,
        "hidden": (16, 8),
        "dropout": 0.2,
        "dram": "16MiB",
        "threads": 1,
        "scheduler": "warmup",
        "scheduler_steps": 8,
        "seed": 3,
    }
    return TrainOptions(**{**values, **changes})


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers(required=True)
    train_command.add_parsers(subparsers)
    evaluate_command.add_parsers(subparsers)
    return parser.parse_args(list(words))


@pytest.mark.parametrize("model", POOLING)
def test_training_learns_the_planted_model(tmp_path: Path, model: str) -> None:
    test_log = write_criteo(tmp_path / "test.txt", 1000, seed=1)
    lacks = dict.fromkeys(what_it_lacks(model))
    more = {"epochs": 4, "lr": 0.1, "scheduler": "constant", **lacks}
    figures = train(options(tmp_path, model=model, test=[test_log], **more))
    assert figures["examples"] == 8000
    assert figures["test_auc"] > 0.6
    assert figures["rows"] > 1000


def test_figures_hold_what_the_interface_promises(tmp_path: Path) -> None:
    figures = train(options(tmp_path))
    promised = {
        "examples",
        "seconds",
        "examples_per_second",
        "train_logloss",
        "test_auc",
        "test_logloss",
        "rows",
        "tiers",
        "stages",
        "peak_rss_bytes",
        "run_logloss",
        "model_logloss",
        "model_examples",
        "base_rate",
        "stopped",
        "test_error",
        "digests",
        "loss_digest",
    }
    assert promised <= figures.keys()
    for tier in figures["tiers"].values():
        assert {"hits", "misses", "bytes"} <= tier.keys()
    for stage in figures["stages"].values():
        assert {"busy_seconds", "wait_seconds"} <= stage.keys()
    assert {"stage", "busy_share", "cores_share", "text"} == figures["bound"].keys()


def test_skipped_lines_are_counted_in_figures_and_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = [write_criteo(tmp_path / name, 200, seed=seed) for seed, name in enumerate("ab")]
    for number, log in enumerate(logs):
        lines = log.read_text().splitlines()
        for place in range(3 + number):
            lines[7 * place] = "two\tcolumns"
        log.write_text("\n".join(lines) + "\n")
    small = ["--dim", "2", "--hidden", "4", "--batch-size", "50", "--dram", "8MiB"]
    store = ["--store", str(tmp_path / "store"), "--on-error", "skip"]
    out = tmp_path / "out.json"
    words = ["train", str(logs[0]), "--test", str(logs[1]), *small, *store, "--json", str(out)]
    arguments = parse(*words)
    assert arguments.run(arguments) == 0
    figures, text = json.loads(out.read_text()), capsys.readouterr().out
    assert (figures["skipped_lines"], figures["test_skipped_lines"]) == (3, 4)
    assert figures["examples"] == 197
    assert re.search(r"^skipped lines +3$", text, re.MULTILINE)
    assert re.search(r"^test skipped lines +4$", text, re.MULTILINE)
    arguments = parse("evaluate", str(logs[1]), *store, "--json", str(out))
    assert arguments.run(arguments) == 0
    assert json.loads(out.read_text())["skipped_lines"] == 4
    assert re.search(r"^skipped lines +4$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "it holds no line"),
        (("no label" + "\t1" * 39 + "\n") * 5, "all of its 5 lines were skipped as bad"),
    ],
    ids=["empty", "all bad"],
)
def test_a_run_on_nothing_is_refused_or_says_so_and_gives_no_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str, said: str
) -> None:
    log = tmp_path / "log.tsv"
    log.write_text(lines)
    words = ["train", str(log), "--store", str(tmp_path / "store"), "--on-error", "skip"]
    arguments = parse(*words, "--dim", "2", "--dram", "8MiB")
    with pytest.raises(hps.ConfigError, match=f"DATA has no example, {said}; --allow-empty"):
        arguments.run(arguments)
    assert not (tmp_path / "store").exists()
    arguments = parse(*words, "--dim", "2", "--dram", "8MiB", "--allow-empty")
    assert arguments.run(arguments) == 0
    text = capsys.readouterr().out
    assert "nothing was trained" in text and said in text
    assert "no batch was trained on, so nothing bounds this run" in text
    assert "--depth" not in text and "--dram" not in text


def test_a_run_of_few_batches_names_no_stage_that_bounds_it(tmp_path: Path) -> None:
    few = train(options(tmp_path, store=tmp_path / "few", batch_size=1000))
    assert few["bound"]["text"] == "2 batch(es) are too few to tell what bounds this run"
    many = train(options(tmp_path, store=tmp_path / "many"))
    assert "too few" not in many["bound"]["text"]


def test_equal_runs_are_equal_and_unequal_ones_are_not(tmp_path: Path) -> None:
    first = train(options(tmp_path, store=tmp_path / "first"))
    second = train(options(tmp_path, store=tmp_path / "second"))
    other = train(options(tmp_path, store=tmp_path / "other", seed=4))
    assert first["digests"] == second["digests"] != other["digests"]
    assert first["loss_digest"] == second["loss_digest"] != other["loss_digest"]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_run_stopped_at_a_checkpoint_resumes_to_the_same_bits(
    tmp_path: Path, accumulate: int
) -> None:
    whole = train(options(tmp_path, store=tmp_path / "whole", accumulate=accumulate, epochs=2))
    parts = options(tmp_path, accumulate=accumulate, epochs=2, limit=900)
    train(parts)
    resumed = train(options(tmp_path, accumulate=accumulate, epochs=2, resume=True))
    assert resumed["resumed_from"] == "'final'"
    assert resumed["examples"] == 3100 and resumed["total_examples"] == 4000
    for figure in ("digests", "loss_digest", "train_logloss"):
        assert resumed[figure] == whole[figure]


def test_finished_run_resumed_trains_nothing_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train(options(tmp_path))
    words = ["train", str(tmp_path / "train.txt"), "--store", str(tmp_path / "store"), "--resume"]
    words += ["--dim", "4", "--hidden", "16,8", "--dropout", "0.2", "--batch-size", "100"]
    words += ["--scheduler", "warmup", "--scheduler-steps", "8", "--seed", "3", "--dram", "16MiB"]
    out = tmp_path / "out.json"
    arguments = parse(*words, "--json", str(out))
    assert arguments.run(arguments) == 0
    assert (
        "'final' is at the end of the data, after 2,000 examples, and --epochs is 1: give a "
        "larger one, or other data with --new-data"
    ) in capsys.readouterr().out
    limited = parse(*words, "--limit", "1500")
    assert limited.run(limited) == 0
    assert "is after 2,000 examples, and --limit is 1,500: give" in capsys.readouterr().out
    figures = json.loads(out.read_text())
    assert figures["examples"] == 0 and figures["total_examples"] == 2000
    assert figures["digests"] == first["digests"] and figures["loss_digest"] == first["loss_digest"]


def test_evaluate_measures_what_train_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test_log = write_criteo(tmp_path / "test.txt", 500, seed=1)
    trained = train(options(tmp_path, test=[test_log]))
    words = ["evaluate", str(test_log), "--store", str(tmp_path / "store")]
    arguments = parse(*words, "--json", str(tmp_path / "out.json"))
    assert arguments.run(arguments) == 0
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["examples"] == 500
    assert figures["auc"] == trained["test_auc"] and figures["logloss"] == trained["test_logloss"]
    assert figures["rows"] == trained["rows"]
    assert "auc" in capsys.readouterr().out
    with pytest.raises(hps.ConfigError):
        evaluate_store([test_log], tmp_path / "store", "no-such-tag")


def test_three_tiers_train_and_evaluate_as_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_criteo(tmp_path / "train.txt", 2000)
    for name, flags in (("two", []), ("three", ["--gpu", "300KiB", "--device", "cpu"])):
        store, out = tmp_path / name, tmp_path / f"{name}.json"
        words = ["train", str(log), "--store", str(store), "--batch-size", "100", "--threads", "1"]
        words += ["--dim", "4", "--hidden", "16,8", "--dropout", "0.2"]
        words += ["--progress-seconds", "0.001"]
        arguments = parse(*words, "--json", str(out), *flags)
        assert arguments.run(arguments) == 0
        words = ["evaluate", str(log), "--store", str(store), "--json", str(tmp_path / "eval.json")]
        arguments = parse(*words, *flags)
        assert arguments.run(arguments) == 0
        assert ("gpu_cache" in capsys.readouterr().out) == bool(flags)
    two, three = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("two", "three"))
    assert set(three["tiers"]) == {"gpu_cache", "dram_cache", "ssd_store"}
    assert three["tiers"]["gpu_cache"]["evictions"] > 0 and "gpu_cache" not in two["tiers"]
    for figure in ("digests", "loss_digest", "train_logloss", "rows"):
        assert two[figure] == three[figure], figure
    arguments = parse("evaluate", str(log), "--store", str(tmp_path / "two"), "--device", "cpu")
    with pytest.raises(hps.ConfigError, match="--gpu"):
        arguments.run(arguments)
    measured = [
        evaluate_store([log], tmp_path / "two", gpu=gpu)
        for gpu in (None, hps.GpuCacheConfig(bytes="300KiB", device="cpu"))
    ]
    assert measured[0]["auc"] == measured[1]["auc"]
    assert measured[0]["logloss"] == measured[1]["logloss"]


def test_trained_store_is_not_overwritten(tmp_path: Path) -> None:
    train(options(tmp_path))
    with pytest.raises(hps.ConfigError, match="--resume"):
        train(options(tmp_path))


def test_store_of_other_tables_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path = options(tmp_path).store
    own = hps.Config(path=path, tables=[hps.TableConfig(name="ads", dim=4)])
    with hps.ParameterServer(own) as server:
        server.push("ads", np.arange(9, dtype=np.uint64), np.ones((9, 4), np.float32))
    with pytest.raises(hps.ConfigError, match="'ads'"):
        train(options(tmp_path))
    with hps.open(path) as stored:
        assert list(stored.tables) == ["ads"]


@pytest.mark.parametrize("engine", ["segments", "rocksdb"])
def test_another_dim_is_refused_in_the_words_of_the_flags(tmp_path: Path, engine: str) -> None:
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    hps.ParameterServer(options(tmp_path, engine=engine).server_config()).close()
    told = {
        ("deepfm", 8): "--dim 8: .* 5 columns, and .*deepfm wants 8 and 1 .*; give --dim 4,",
        ("dlrm", 4): "--dim 4: .* 5 columns, and --model dlrm wants 4; give --dim 5,",
        ("lr", None): "^the rows .* 5 columns, and --model lr wants 1; give another --model,",
    }
    for (model, dim), words in told.items():
        for goes_on in ({}, {"resume_if_any": True}):
            with pytest.raises(hps.ConfigError, match=words):
                shape = {"model": model, "dim": dim} | dict.fromkeys(what_it_lacks(model))
                train(options(tmp_path, engine=engine, **shape, **goes_on))


def test_empty_store_is_trained_on(tmp_path: Path) -> None:
    config = options(tmp_path).server_config()
    hps.ParameterServer(config).close()
    assert train(options(tmp_path))["examples"] > 0


def test_resume_of_another_model_is_refused(tmp_path: Path) -> None:
    train(options(tmp_path))
    with pytest.raises(hps.ConfigError, match="hidden"):
        train(options(tmp_path, hidden=(8,), resume=True))
    with pytest.raises(hps.ConfigError, match="scheduler"):
        train(options(tmp_path, scheduler="constant", resume=True))


def test_resume_with_other_settings_is_refused_by_name(tmp_path: Path) -> None:
    train(options(tmp_path, limit=500))
    for name, value in (
        ("scheduler_steps", 9),
        ("precision", "bfloat16"),
        ("accumulate", 2),
        ("lr", 0.5),
        ("dense_lr", 0.5),
    ):
        with pytest.raises(hps.ConfigError, match=f"with {name}="):
            train(options(tmp_path, resume=True, **{name: value}))


def test_given_learning_rate_wins_over_the_stored_one(tmp_path: Path) -> None:
    constant = {"scheduler": "constant", "scheduler_steps": 0}
    train(options(tmp_path, limit=500, lr=0.1, **constant))
    figures = train(options(tmp_path, resume=True, limit=1000, lr=0.05, **constant))
    assert figures["resumed_with"] == ["lr 0.1 of the checkpoint is now 0.05"]
    figures = train(options(tmp_path, resume=True, **constant))
    assert figures["resumed_with"] == []
    with hps.open(tmp_path / "store") as server:
        model, _ = server.checkpoint_state("final")
        assert model["row_optimizer"]["param_groups"][0]["lr"] == 0.05


@pytest.mark.parametrize("optimizer", ["adagrad", "ftrl"])
def test_cosine_ends_low_and_stays_there(tmp_path: Path, optimizer: str) -> None:
    cosine = {"scheduler": "cosine", "scheduler_steps": 5, "optimizer": optimizer, "lr": 0.1}
    figures = train(options(tmp_path, **cosine))
    assert figures["examples"] == 2000  # 20 steps, of which the schedule spans five
    with hps.open(tmp_path / "store") as server:
        model, _ = server.checkpoint_state("final")
        assert model["row_optimizer"]["param_groups"][0]["lr"] == pytest.approx(1e-4)
        _, rows = next(server.items("features"))
        assert np.isfinite(rows).all()


def test_resume_on_another_log_is_refused_unless_it_is_new_data(tmp_path: Path) -> None:
    train(options(tmp_path))
    other = write_criteo(tmp_path / "other.txt", 1500, seed=2)
    with pytest.raises(hps.ConfigError, match=r"'train\.txt' of .*other\.txt"):
        train(options(tmp_path, data=[other], resume=True))
    figures = train(options(tmp_path, data=[other], resume=True, new_data=True))
    assert figures["examples"] == 1500 and figures["total_examples"] == 3500
    assert train(options(tmp_path, data=[other], resume=True))["examples"] == 0
    with pytest.raises(hps.ConfigError, match="--resume"):
        options(tmp_path, new_data=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"depth": 9},
        {"trace": "missing/trace.json"},
        {"data": ["missing.txt"]},
        {"test": ["missing.txt"]},
        {"format": "libffm"},
        {"dropout": 1.0},
        {"hidden": (0,)},
        {"accumulate": 0},
    ],
)
def test_failed_first_run_makes_no_store(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(hps.HpsError):
        train(options(tmp_path, **changes))
    assert not (tmp_path / "store").exists()
    assert train(options(tmp_path, dim=8, seed=9))["examples"] == 2000


def test_json_in_a_missing_folder_is_refused_before_the_run(tmp_path: Path) -> None:
    words = ["train", str(options(tmp_path).data[0]), "--store", str(tmp_path / "store")]
    arguments = parse(*words, "--json", str(tmp_path / "none" / "out.json"))
    with pytest.raises(hps.ConfigError, match="--json"):
        arguments.run(arguments)
    assert not (tmp_path / "store").exists()


def test_json_to_standard_output_is_json_alone(tmp_path: Path, capsys: Any) -> None:
    log, store = str(options(tmp_path).data[0]), str(tmp_path / "store")
    words = ["train", log, "--store", store, "--dim", "4", "--hidden", "8"]
    arguments = parse(*words, "--json", "-", "--progress-seconds", "0")
    assert arguments.run(arguments) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["examples"] == 2000 and "examples per second" in captured.err
    arguments = parse("evaluate", log, "--store", store, "--json", "-", "--checkpoint", "id:1")
    assert arguments.run(arguments) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["checkpoint"] == 1 and "logloss" in captured.err


def test_reduced_precision_trains(tmp_path: Path) -> None:
    for precision in ("bfloat16", "float16"):
        figures = train(options(tmp_path, store=tmp_path / precision, precision=precision))
        assert figures["train_logloss"] < 0.8


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "svm"}, "model='svm'"),
        ({"optimizer": "lion"}, "optimizer='lion'"),
        ({"scheduler": "cosine", "scheduler_steps": 0}, "scheduler_steps"),
        ({"dense_lr": 0.0}, "dense_lr"),
        ({"limit": -1}, "limit"),
        ({"device": "cuda:0"}, "gpu"),
        ({"gpu": "1GiB", "device": "gpu"}, "device='gpu' must be cuda"),
        ({"gpu_batches": "1GiB"}, r"gpu_batches \(--gpu-batches\) is a part .*--gpu\) too"),
        ({"gpu": "1GiB", "gpu_batches": "2GiB"}, r"batch_bytes=2147483648 is a part"),
        ({"depth": 9}, "depth.*=9"),
        ({"depth": "deep"}, "depth='deep' must be .*, or auto"),
        ({"format": "tsv"}, "tsv"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(hps.ConfigError, match=reason):
        train(options(tmp_path, **changes))


def test_live_line_shows_loss_and_hit_rates(tmp_path: Path, capsys: Any) -> None:
    words = ["train", str(options(tmp_path).data[0]), "--store", str(tmp_path / "store")]
    words += ["--dim", "4", "--hidden", "8", "--batch-size", "500"]
    arguments = parse(*words, "--progress-seconds", "0.000001")
    assert arguments.run(arguments) == 0
    captured = capsys.readouterr()
    assert "examples" in captured.err and "auc" in captured.err and "dram_cache" in captured.err
    assert "examples per second" in captured.out


def test_a_run_that_goes_on_with_other_batches_says_so(tmp_path: Path) -> None:
    train(options(tmp_path, limit=500))
    same = train(options(tmp_path, resume=True, limit=1000))
    assert same["resumed_with"] == []
    other = train(options(tmp_path, resume=True, batch_size=50))
    assert other["resumed_with"] == ["batches of 100 examples (--batch-size) are now of 50"]
