"""Training on a share of the negatives: what is read, what is corrected, what goes on."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.cli.main import main
from hps.models import MODELS
from hps.reader.config import ReaderConfig
from hps.train import TrainOptions, evaluate_model, evaluate_store, first_labels, train
from hps.train.predict import predict_log
from hps.train.recipe import ModelRecipe
from tests.kinds import POOLING
from tests.logs import write_criteo
from tests.twins import life

SMALL = {"dim": 4, "hidden": (8,), "batch_size": 64, "dram": "8MiB", "torch_threads": 1, "depth": 0}


def write_rare(path: Path, num_examples: int, seed: int = 0) -> Path:
    """A log in which about one example in twenty is a click, by a model that can be learned."""
    lines = write_criteo(path, num_examples, num_keys=20, seed=seed).read_text().splitlines()
    random = np.random.default_rng(seed + 1).random(num_examples)
    text = [
        f"{int(line[0] == '1' and draw < 0.1)}{line[1:]}\n"
        for line, draw in zip(lines, random, strict=True)
    ]
    path.write_text("".join(text))
    return path


def run(log: Path, store: Path, **changes: Any) -> dict[str, Any]:
    return train(TrainOptions(**{"data": [log], "store": store, **SMALL, **changes}))


def kept_labels(log: Path, rate: float) -> list[float]:
    """In the order of the log."""
    config = ReaderConfig(format="criteo", batch_size=10**6, negative_rate=rate)
    tables = [hps.TableConfig(name="features", dim=1)]
    reader = hps.reader.open_reader(log, tables=tables, config=config)
    return [label for batch in reader for label in batch.labels.tolist()]


def test_probabilities_are_those_of_the_whole_log(tmp_path: Path) -> None:
    log = write_rare(tmp_path / "log", 40_000)
    test = write_rare(tmp_path / "test", 20_000, seed=5)
    kept = kept_labels(log, 0.1)
    figures = run(log, tmp_path / "store", negative_rate=0.1, test=[test], model="wide_deep")
    assert figures["examples"] == len(kept) < 8_000
    assert 0.85 < figures["test_calibration"] < 1.15
    measured = evaluate_store([test], tmp_path / "store")
    assert measured["examples"] == 20_000
    assert measured["calibration"] == pytest.approx(figures["test_calibration"])
    # Its losses are those of the odds in the log that it was trained on.
    assert figures["train_logloss"] > 2 * measured["logloss"]
    with hps.Model.load(tmp_path / "store") as model:
        scored = predict_log(model, [test], tmp_path / "scores.npy")
        probabilities = np.load(tmp_path / "scores.npy")
        assert len(probabilities) == scored["examples"] == 20_000
        clicks = sum(line[0] == "1" for line in test.read_text().splitlines())
        assert probabilities.sum() / clicks == pytest.approx(measured["calibration"], rel=1e-4)
        model.module.negative_rate = 1.0
        uncorrected = evaluate_model(model.module, model.open_reader([test]))
    assert uncorrected["calibration"] > 4
    assert uncorrected["auc"] == pytest.approx(measured["auc"], abs=1e-6)
    assert uncorrected["logloss"] > 1.5 * measured["logloss"]


def test_all_clicks_and_some_others_are_trained_on(tmp_path: Path) -> None:
    log = write_rare(tmp_path / "log", 2_000)
    whole, kept = kept_labels(log, 1), kept_labels(log, 0.25)
    assert sum(kept) == sum(whole) and 350 < kept.count(0) < 590
    figures = run(log, tmp_path / "store", negative_rate=0.25)
    assert (figures["examples"], figures["negative_rate"]) == (len(kept), 0.25)
    assert figures["base_rate"] == pytest.approx((sum(kept) + 1) / (len(kept) + 2))
    plain = run(log, tmp_path / "plain")
    assert (plain["examples"], plain["negative_rate"]) == (2_000, 1)
    said = run(log, tmp_path / "said", negative_rate=1)
    assert said["digests"] == plain["digests"] and said["loss_digest"] == plain["loss_digest"]


def test_a_run_that_goes_on_keeps_the_rate(tmp_path: Path) -> None:
    log, store = write_rare(tmp_path / "log", 2_000), tmp_path / "store"
    whole = run(log, tmp_path / "whole", negative_rate=0.25, test=[log])
    run(log, store, negative_rate=0.25, limit=200)
    for other in (0.5, 1, 1.0):
        with pytest.raises(hps.ConfigError, match=r"negative_rate=0\.25, .*\(--negative-rate\)"):
            run(log, store, resume=True, negative_rate=other)
    resumed = run(log, store, resume=True, test=[log])
    assert resumed["total_examples"] == whole["examples"]
    for name in ("digests", "loss_digest", "test_calibration"):
        assert resumed[name] == whole[name]
    more = write_rare(tmp_path / "more", 1_000, seed=9)
    again = run(more, store, resume=True, new_data=True, negative_rate=0.25)
    assert again["examples"] == len(kept_labels(more, 0.25)) and again["negative_rate"] == 0.25


def shows_of(batches: list[hps.Batch], rate: float) -> dict[int, list[float]]:
    """Shows and clicks of each key, as the twin of the native core counts them."""
    found: dict[int, list[float]] = {}
    for batch in batches:
        ids = batch.features["features"]
        examples = np.repeat(
            np.arange(len(ids.offsets) - 1) % len(batch), np.diff(ids.offsets.numpy())
        )
        of_batch: dict[int, list[int]] = {}
        labels = batch.labels.numpy()[examples].astype(int)
        for key, label in zip(ids.keys_L.tolist(), labels.tolist(), strict=True):
            counts = of_batch.setdefault(key, [0, 0])
            counts[0] += 1
            counts[1] += label
        for key, (count, clicks) in of_batch.items():
            show, click = found.get(key, (0.0, 0.0))
            more = life.shows_of(count, clicks, 1 / rate - 1)
            found[key] = [float(np.float32(show) + more), click + clicks]
    return found


@pytest.mark.parametrize("two_level", [None, 1e-9])
def test_rows_count_what_is_kept_as_all_that_it_is_a_sample_of(
    tmp_path: Path, two_level: float | None
) -> None:
    log, store = write_rare(tmp_path / "log", 1_000), tmp_path / "store"
    rate, model = 0.3, "deepfm"
    more: dict[str, Any] = {"negative_rate": rate, "two_level": two_level, "model": model}
    run(log, store, statistics=True if two_level is None else None, limit=192, **more)
    run(log, store, resume=True)
    config = ReaderConfig(format="criteo", batch_size=64, negative_rate=rate)
    tables = [hps.TableConfig(name="features", dim=1)]
    batches = list(hps.reader.open_reader(log, tables=tables, config=config))
    expected = shows_of(batches, rate)
    assert sum(map(len, batches)) > 192
    with hps.open(store) as server:
        rates = {name: table.negative_rate for name, table in server.tables.items()}
        counts = "features" if two_level is None else "features.first_order"
        assert rates == {name: rate if name == counts else 1 for name in server.tables}
        found = server.statistics(counts, np.array(list(expected)))
    assert [found["show"].tolist(), found["click"].tolist()] == [
        list(each) for each in zip(*expected.values(), strict=True)
    ]


def test_a_model_that_was_stored_without_a_rate_has_all_negatives(tmp_path: Path) -> None:
    log, store = write_rare(tmp_path / "log", 500), tmp_path / "store"
    run(log, store, limit=100)
    with hps.open(store, read_only=False) as server:
        model, position = server.checkpoint_state(None)
        del model["recipe"]["reader"]["negative_rate"]
        server.checkpoint(tag="old", model=model, reader=position)
    with hps.Model.load(store, "old") as old:
        assert old.module.negative_rate == 1
    with pytest.raises(hps.ConfigError, match=r"negative_rate=1\.0, this run asks for 0\.5"):
        run(log, store, resume=True, negative_rate=0.5)
    assert run(log, store, resume=True, negative_rate=1)["total_examples"] == 500


def test_logs_that_are_not_trained_on_are_read_whole(tmp_path: Path) -> None:
    log = write_rare(tmp_path / "log", 500)
    run(log, tmp_path / "store", negative_rate=0.01)
    with hps.Model.load(tmp_path / "store") as model:
        assert model.recipe.reading()["negative_rate"] == 0.01
        assert model.recipe.reader_config().negative_rate == 1
        assert sum(map(len, model.open_reader([log]))) == 500
        assert sum(map(len, model.open_reader([log], needs_labels=False))) == 500
        part = model.open_reader([log], negative_rate=0.5)
        assert 0 < sum(map(len, part)) < 400
        rows = {f"I{number}": [1, None] for number in range(1, 14)}
        rows |= {f"C{number}": ["a", "b"] for number in range(1, 27)}
        assert model.predict(rows).shape == (2,)


@pytest.mark.parametrize("kind", POOLING)
def test_only_scores_are_corrected(tmp_path: Path, kind: str) -> None:
    recipe = ModelRecipe(
        kind=kind,
        features={"t": ["a", "b"]},
        num_dense=1,
        hidden=[4] if MODELS[kind].has_deep_part else [],
        dropout=0.0,
        reader={"negative_rate": 0.125},
    )
    ids = hps.Ids(torch.tensor([1, 2, 3, 4]), torch.arange(5))
    batch = hps.Batch({"t": ids}, torch.ones(2, 1), torch.ones(2))
    tables = [hps.TableConfig(name="t", dim=MODELS[kind].row_columns(4))]
    with hps.ParameterServer(hps.Config(path=tmp_path / "store", tables=tables)) as server:
        model = recipe.build(server)
        for mode in (True, False):
            model.train(mode)
            assert torch.allclose(model.score(batch), model(batch) - math.log(8), atol=1e-6)
        assert not [name for name in model.state_dict() if "rate" in name]
        model.negative_rate = 1.0
        assert torch.equal(model.score(batch), model(batch))


def test_a_log_of_which_nothing_is_kept_is_refused(tmp_path: Path) -> None:
    log = write_rare(tmp_path / "log", 200)
    log.write_text("".join(f"0{line[1:]}\n" for line in log.read_text().splitlines()))
    rate = 1e-9
    with pytest.raises(hps.ConfigError, match=r"DATA has no example, .* kept \(negative_rate"):
        run(log, tmp_path / "store", negative_rate=rate)
    assert not (tmp_path / "store").exists()
    figures = run(log, tmp_path / "store", negative_rate=rate, allow_empty=True, test=[log])
    assert figures["examples"] == 0 and figures["base_rate"] is None


def test_first_labels_are_of_the_examples_that_are_kept(tmp_path: Path) -> None:
    log = write_rare(tmp_path / "log", 1_000)
    config = ReaderConfig(format="criteo", negative_rate=0.3, hash_range=(0.2, 1), part=(1, 2))
    tables = [hps.TableConfig(name="features", dim=1)]
    reader = hps.reader.open_reader(log, tables=tables, config=config)
    labels = first_labels(reader)
    whole = hps.reader.open_reader(
        log, tables=tables, config=ReaderConfig(negative_rate=0.3, hash_range=(0.2, 1))
    )
    kept = torch.cat([batch.labels for batch in whole])
    assert (labels.clicks, labels.examples) == (int(kept.sum()), len(kept))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, math.nan, True, "0.5"])
def test_options_refuse_what_is_no_share(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(hps.ConfigError, match=r"negative_rate=.* at most 1"):
        TrainOptions(data=["log"], store=tmp_path, negative_rate=wrong)


def test_the_command_takes_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, out = write_rare(tmp_path / "log", 1_000), tmp_path / "out.json"
    command = ["train", str(log), "--store", str(tmp_path / "store"), "--dim", "2"]
    command += ["--hidden", "4", "--dram", "8MiB", "--torch-threads", "1", "--depth", "0"]
    for wrong in ("0", "1.1", "nan", "x", ""):
        with pytest.raises(SystemExit) as stopped:
            main([*command, "--negative-rate", wrong])
        assert stopped.value.code == 2 and "--negative-rate" in capsys.readouterr().err
    assert main([*command, "--negative-rate", "0.25", "--json", str(out)]) == 0
    assert "the share 0.25 is trained on (--negative-rate)" in capsys.readouterr().err
    figures = json.loads(out.read_text())
    assert figures["negative_rate"] == 0.25
    assert figures["examples"] == len(kept_labels(log, 0.25))
    assert main([*command, "--resume", "--new-data", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["negative_rate"] == 0.25
    nothing = tmp_path / "nothing"
    nothing.write_text(log.read_text().splitlines()[0] + "\n")
    assert nothing.read_text()[0] == "0"
    command[1] = str(nothing)
    command[3] = str(tmp_path / "empty")
    assert main([*command, "--negative-rate", "1e-9", "--allow-empty"]) == 0
    assert "it holds no line that is kept (negative_rate" in capsys.readouterr().out
