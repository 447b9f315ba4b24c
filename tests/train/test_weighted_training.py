"""`hps train --weight`: what a batch with weights teaches, and that one without is as it was.

Above it: pytest. Below it: `Trainer`, `Totals`, how a model stores its reading.
"""

import dataclasses
import hashlib
import math
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import hps
from hps.cli.main import main, make_parser
from hps.train import FirstLabels, TrainOptions, evaluate_store, first_labels, train
from hps.train.model_list import models_of
from hps.train.recipe import recipe_of
from hps.train.totals import Totals
from hps.train.trainer import Trainer

SMALL: dict[str, Any] = {"dim": 3, "hidden": (8,), "batch_size": 64, "dram": "8MiB"}
SMALL |= {"torch_threads": 1, "threads": 1, "depth": 0, "base_rate": False}


def columns(size: int = 500, seed: int = 0, **changes: Any) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    found: dict[str, Any] = {"label": random.integers(0, 2, size)}
    found |= {"user": random.integers(0, 40, size), "item": random.integers(0, 25, size)}
    found |= {"price": random.random(size), "w": random.random(size).astype(np.float32)}
    return {**found, **changes}


def write(path: Path, values: dict[str, Any]) -> Path:
    pq.write_table(pa.table(values), path)
    return path


def options(log: Path, store: Path, **changes: Any) -> TrainOptions:
    return TrainOptions(**{"data": [log], "store": store, **SMALL, **changes})


def run(log: Path, store: Path, **changes: Any) -> dict[str, Any]:
    return train(options(log, store, **changes))


@contextmanager
def trainer_of(asked: TrainOptions) -> Iterator[tuple[Trainer, Any, hps.ParameterServer]]:
    """A trainer of a new model, the reader of its log, and its server."""
    reader = hps.reader.open_reader(
        asked.data, tables=[asked.table()], config=asked.reader_config()
    )
    with hps.ParameterServer(asked.server_config()) as server:
        trainer = Trainer(server, recipe_of(asked, reader), asked)
        trainer.model.train()
        yield trainer, reader, server


def gradients(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: one.grad.clone() for name, one in trainer.model.named_parameters()}


def rows_of(server: hps.ParameterServer) -> dict[int, np.ndarray]:
    found = server.items("features", state=True)
    return {int(k): np.append(row, state) for keys, rows, states in found
            for k, row, state in zip(keys, rows, states, strict=True)}  # fmt: skip


def test_loss_and_gradients_are_those_of_torchs_weights(tmp_path: Path) -> None:
    asked = options(write(tmp_path / "log", columns()), tmp_path / "s", weight="w", dim=3)
    asked = dataclasses.replace(asked, format="parquet")
    with trainer_of(asked) as (trainer, reader, _):
        batch = next(reader)
        trainer.backward(batch)
        found = gradients(trainer)
        trainer.dense_optimizer.zero_grad()
        trainer.row_optimizer.zero_grad()
        logits = trainer.model(batch)
        loss = binary_cross_entropy_with_logits(
            logits, batch.labels, weight=batch.weights, reduction="sum"
        )
        (loss / batch.weights.sum()).backward()
        for name, wanted in gradients(trainer).items():
            torch.testing.assert_close(found[name], wanted, rtol=1e-5, atol=1e-7)
        trainer.row_optimizer.zero_grad()
        mean = float(loss.detach() / batch.weights.sum())
        assert trainer.totals.loss_sum / trainer.totals.weight_sum == pytest.approx(mean, rel=1e-6)
        plain = binary_cross_entropy_with_logits(logits, batch.labels)
        assert abs(mean - float(plain.detach())) > 1e-4  # the weights count


def repeated(times: np.ndarray, values: dict[str, Any]) -> dict[str, Any]:
    return {name: np.repeat(column, times) for name, column in values.items() if name != "w"}


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_a_weight_of_two_is_the_example_twice(tmp_path: Path, optimizer: str, scale: float) -> None:
    """And of 0 none, within one batch; whatever unit the weights have."""
    times = np.random.default_rng(3).integers(0, 4, 60)
    print("seed 3")
    values = columns(60, w=(times * scale).astype(np.float32))
    logs = {
        "weighted": write(tmp_path / "weighted", values),
        "repeated": write(tmp_path / "repeated", repeated(times, values)),
    }
    found = {}
    for name, log in logs.items():
        weight = "w" if name == "weighted" else None
        asked = options(log, tmp_path / f"{name} store", weight=weight, format="parquet")
        asked = dataclasses.replace(asked, batch_size=1000, optimizer=optimizer)
        with trainer_of(asked) as (trainer, reader, server):
            (batch,) = list(reader)
            trainer.backward(batch)
            dense = gradients(trainer)
            trainer.step()
            found[name] = dense, rows_of(server), trainer.totals
    dense, rows, totals = found["weighted"]
    for name, wanted in found["repeated"][0].items():
        torch.testing.assert_close(dense[name], wanted, rtol=2e-5, atol=1e-7)
    of_twice = found["repeated"][1]
    assert rows.keys() >= of_twice.keys() and len(of_twice) > 30
    for key, row in of_twice.items():
        np.testing.assert_allclose(rows[key], row, rtol=2e-5, atol=1e-7)
    assert totals.loss_sum / totals.weight_sum == pytest.approx(
        found["repeated"][2].loss_sum / times.sum(), rel=1e-6
    )


def test_a_run_without_weights_has_the_bits_of_a_plain_loop(tmp_path: Path) -> None:
    """Its losses are torch's mean, its steps those of the two optimizers, one after the other."""
    log = write(tmp_path / "log", columns())
    how = {"ignore": ["w"], "initial_accumulator": 0.0}
    figures = run(log, tmp_path / "run", base_rate=True, **how)
    asked = options(log, tmp_path / "loop", format="parquet", **how)
    digest = b""
    with trainer_of(asked) as (trainer, reader, server):
        trainer.model.set_base_rate(first_labels(reader).logit)
        rows, dense = trainer.row_optimizer, trainer.dense_optimizer
        for batch in reader:
            loss = binary_cross_entropy_with_logits(trainer.model(batch), batch.labels)
            loss.backward()
            rows.step()
            dense.step()
            dense.zero_grad()
            count = len(batch)
            mean = struct.pack("<f", float(loss.detach()) * count / count)
            digest = hashlib.sha256(digest + mean).digest()
        assert figures["digests"] == {"features": server.digest("features")}
    assert figures["loss_digest"] == digest.hex()


@pytest.mark.parametrize("optimizer", ["adam", "ftrl", "adagrad"])
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_batch_whose_weights_are_all_zero_changes_nothing(
    tmp_path: Path, optimizer: str, precision: str
) -> None:
    weights = np.ones(192, np.float32)
    weights[64:128] = 0  # the second batch of three
    log = write(tmp_path / "log", columns(192, w=weights))
    asked = options(log, tmp_path / "store", weight="w", format="parquet", optimizer=optimizer)
    asked = dataclasses.replace(asked, precision=precision, scheduler="warmup", scheduler_steps=9)
    with trainer_of(asked) as (trainer, reader, server):
        states = []
        for batch in reader:
            logits = trainer.backward(batch)
            assert len(logits) == 64 and bool(torch.isfinite(logits).all())
            assert not logits.requires_grad
            trainer.step()
            state = trainer.state()
            moments = state["dense_optimizer"]["state"]
            moved = [value.clone() for one in moments.values() for value in one.values()]
            dense = [value.clone() for value in state["model"].values()]
            told = (server.digest("features"), server.num_rows("features"))
            states.append((told, dense + moved, state["schedulers"], trainer.totals.to_dict()))
        (first, second, third) = states
        assert first[0] == second[0] != third[0]
        assert all(one.equal(other) for one, other in zip(first[1], second[1], strict=True))
        assert not all(one.equal(other) for one, other in zip(second[1], third[1], strict=True))
        assert first[2] == second[2] != third[2]
        before, after = first[3], second[3]
        assert after["loss_sum"] == before["loss_sum"] and after["weight_sum"] == 64.0
        assert after["examples"] == 128 and after["batches"] == 2
        chained = bytes.fromhex(before["loss_digest"]) + struct.pack("<f", 0.0)
        assert after["loss_digest"] == hashlib.sha256(chained).hexdigest()


def test_a_first_step_that_is_skipped_brings_no_warning_of_the_scheduler(tmp_path: Path) -> None:
    log = write(tmp_path / "log", columns(192))
    asked = options(log, tmp_path / "store", format="parquet", optimizer="adam")
    asked = dataclasses.replace(asked, precision="float16", scheduler="warmup", scheduler_steps=9)
    with warnings.catch_warnings(record=True) as said, trainer_of(asked) as (trainer, reader, _):
        warnings.simplefilter("always")
        for number, batch in enumerate(reader):
            trainer.backward(batch)
            if not number:
                for parameter in trainer.model.parameters():
                    if parameter.grad is not None:
                        parameter.grad.fill_(math.inf)
            trainer.step()
        assert trainer.state()["schedulers"][0]["last_epoch"] == 3
    assert not [one for one in said if "lr_scheduler" in str(one.message)]


@pytest.mark.parametrize("depth", [0, 2])
def test_a_step_of_several_batches_is_the_mean_of_their_means(tmp_path: Path, depth: int) -> None:
    """Whatever each weighs: heavy batches count as light ones; one without weight counts as 0."""
    weights = np.repeat([1.0, 1000.0, 0.0, 2.0, 0.0, 0.0], 64).astype(np.float32)
    log = write(tmp_path / "log", columns(384, w=weights))
    figures = run(log, tmp_path / "run", weight="w", accumulate=3, depth=depth, optimizer="sgd")
    asked = options(log, tmp_path / "loop", weight="w", format="parquet", optimizer="sgd")
    with trainer_of(asked) as (trainer, reader, server):
        rows, dense = trainer.row_optimizer, trainer.dense_optimizer
        for number, batch in enumerate(reader, 1):
            if batch.global_weight:
                loss = binary_cross_entropy_with_logits(
                    trainer.model(batch), batch.labels, batch.weights, reduction="sum"
                )
                (loss / batch.weights.sum() / 3).backward()
            if number % 3 == 0:
                rows.step()
                dense.step()
                dense.zero_grad()
        wanted = rows_of(server)
    with hps.open(tmp_path / "run") as server:
        found = rows_of(server)
    assert found.keys() == wanted.keys() and len(found) == figures["rows"] > 50
    for key, row in wanted.items():
        np.testing.assert_allclose(found[key], row, rtol=1e-4, atol=1e-6)


def test_a_log_without_any_weight_trains_nothing_and_has_no_logloss(tmp_path: Path) -> None:
    log = write(tmp_path / "log", columns(w=np.zeros(500, np.int64)))
    figures = run(log, tmp_path / "store", weight="w", base_rate=True, accumulate=2)
    assert figures["examples"] == 500 and figures["rows"] == 0
    assert figures["train_logloss"] is figures["run_logloss"] is None
    assert figures["base_rate"] == 0.5


@pytest.mark.parametrize("weight", [3.4028234e38, 1e-45, 1e-300])
def test_the_size_of_weights_makes_no_loss_infinite(tmp_path: Path, weight: float) -> None:
    log = write(tmp_path / "log", columns(w=np.full(500, weight)))
    one = write(tmp_path / "one", columns(w=np.ones(500)))
    found, wanted = (
        run(path, tmp_path / f"{path.name} store", weight="w")["train_logloss"]
        for path in (log, one)
    )
    # What float32 cannot tell from 0 is 0.
    assert found is None if weight == 1e-300 else found == pytest.approx(wanted, rel=1e-6)


def test_train_logloss_is_the_weighted_mean_over_examples(tmp_path: Path) -> None:
    """Not over batches: each example's loss by its weight, before the model was trained on it."""
    values = columns()
    log = write(tmp_path / "log", values)
    # Rates so small that the model stays as it begins.
    still: dict[str, Any] = {"weight": "w", "lr": 1e-12, "dense_lr": 1e-12, "ignore": None}
    figures = run(log, tmp_path / "store", **still)
    with hps.Model.load(tmp_path / "store") as model:
        scores = torch.cat([model.predict(batch) for batch in model.open_reader([log])])
    losses = torch.nn.functional.binary_cross_entropy(
        scores.double(), torch.tensor(values["label"]).double(), reduction="none"
    )
    weights = torch.from_numpy(values["w"]).double()
    wanted = float((losses * weights).sum() / weights.sum())
    assert figures["train_logloss"] == pytest.approx(wanted, abs=1e-7)
    assert abs(wanted - float(losses.mean())) > 1e-4
    assert figures["model_examples"] == 500


def test_totals_of_models_stored_before_weights_go_on_as_before() -> None:
    ids = hps.Ids(torch.tensor([1, 2]), torch.tensor([0, 1, 2]))
    batch = hps.Batch({"ads": ids}, torch.zeros(2, 0), torch.ones(2))
    old = Totals(examples=10, batches=5, loss_sum=4.0)
    old.add(torch.tensor(0.5), batch)
    assert old.to_dict()["weight_sum"] == 12.0 and old.to_dict()["loss_sum"] == 5.0


def test_a_stopped_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    weights = (10 ** np.random.default_rng(2).uniform(-5, 5, 500)).astype(np.float32)
    weights[64:128] = 0
    log = write(tmp_path / "log", columns(w=weights))
    asked: dict[str, Any] = {"weight": "w", "group": "user", "dropout": 0.2}
    whole = run(log, tmp_path / "whole", **asked)
    run(log, tmp_path / "store", limit=192, **asked)
    with hps.open(tmp_path / "store") as server:
        assert server.checkpoint_state("final")[0]["recipe"]["reader"]["weight"] == "w"
    resumed = run(log, tmp_path / "store", resume=True)  # the flags come from the model
    for name in ("loss_digest", "digests", "train_logloss", "total_examples"):
        assert resumed[name] == whole[name], name
    assert resumed["examples"] == 308
    assert resumed["run_logloss"] != whole["run_logloss"]


def test_weight_and_group_are_part_of_the_model(tmp_path: Path) -> None:
    log = write(tmp_path / "log", columns(v=np.ones(500)))
    run(log, tmp_path / "store", weight="w", group="user", ignore=["v"])
    for changes, said in (
        ({"weight": "v"}, r"trained with weight='w', this run asks for 'v' \(--weight\)"),
        ({"group": "item"}, r"trained with group='user', this run asks for 'item' \(--group\)"),
    ):
        with pytest.raises(hps.ConfigError, match=said):
            run(log, tmp_path / "store", resume=True, new_data=True, **changes)
    run(log, tmp_path / "plain", ignore=["v", "w"])
    with hps.open(tmp_path / "plain", read_only=False) as server:
        model, position = server.checkpoint_state("final")
        for name in ("weight", "group"):  # as a version before them stored it
            assert model["recipe"]["reader"].pop(name) is None
        del model["totals"]["weight_sum"]
        server.checkpoint(tag="old", model=model, reader=position)
    with pytest.raises(hps.ConfigError, match=r"trained with weight=None, this run asks for 'w'"):
        run(log, tmp_path / "plain", resume=True, new_data=True, weight="w")
    figures = run(log, tmp_path / "plain", resume=True, new_data=True)
    assert figures["model_examples"] == 1000 and figures["train_logloss"] > 0


def test_new_data_without_the_columns_is_refused(tmp_path: Path) -> None:
    run(write(tmp_path / "log", columns()), tmp_path / "store", weight="w", group="user")
    other = {name: values for name, values in columns().items() if name != "w"}
    with pytest.raises(hps.ConfigError, match="has no column 'w' for the weight"):
        run(write(tmp_path / "b", other), tmp_path / "store", resume=True, new_data=True)


def test_the_base_rate_is_that_of_the_weights(tmp_path: Path) -> None:
    values = columns()
    log = write(tmp_path / "log", values)
    asked = options(log, tmp_path / "store", weight="w", format="parquet")
    reader = hps.reader.open_reader([log], tables=[asked.table()], config=asked.reader_config())
    found = first_labels(reader)
    weights, clicks = values["w"].astype(np.float64), values["label"] == 1
    share = math.fsum(weights[clicks]) / math.fsum(weights)
    assert found == FirstLabels(int(clicks.sum()), int((~clicks).sum()), 0, share)
    assert found.rate == (500 * share + 1) / 502
    assert found.logit == pytest.approx(math.log(found.rate / (1 - found.rate)), rel=1e-12)
    assert found.rate != FirstLabels(found.clicks, found.others).rate
    assert run(log, tmp_path / "s", weight="w", base_rate=True)["base_rate"] == found.rate
    # The unit of the weights is nobody's concern.
    heavy = write(tmp_path / "heavy", {**values, "w": values["w"] * np.float32(2.0**40)})
    reader = hps.reader.open_reader([heavy], tables=[asked.table()], config=asked.reader_config())
    assert first_labels(reader).rate == found.rate


def test_the_command_has_the_flags(tmp_path: Path) -> None:
    parse = make_parser("train").parse_args
    given = parse(["train", "log", "--store", "s", "--weight", "w", "--group", "user"])
    assert (given.weight, given.group) == ("w", "user")
    assert parse(["train", "log", "--store", "s"]).weight is None
    for words in (["--weight", ""], ["--group", ""]):
        with pytest.raises(SystemExit):
            parse(["train", "log", "--store", "s", *words])
    tsv = tmp_path / "log.libsvm"
    tsv.write_text("1 7:1\n0 8:1\n")
    assert main(["train", str(tsv), "--store", str(tmp_path / "s"), "--weight", "w"]) != 0
    assert not (tmp_path / "s").exists()


def test_an_evaluation_counts_all_examples_alike(tmp_path: Path) -> None:
    """So that a log without weights, or with bad ones, is measured, too."""
    log = write(tmp_path / "log", columns())
    run(log, tmp_path / "store", weight="w")
    found = evaluate_store([log], tmp_path / "store")
    for weights in (None, np.full(500, -1.0)):
        values = {name: column for name, column in columns().items() if name != "w"}
        other = write(tmp_path / "b", values if weights is None else {**values, "w": weights})
        again = evaluate_store([other], tmp_path / "store")
        for name in ("auc", "logloss", "normalized_entropy", "examples", "skipped_lines"):
            assert again[name] == found[name], name


def test_commands_say_which_figures_are_weighted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, store = str(write(tmp_path / "log.parquet", columns())), str(tmp_path / "s")
    sizes = ["--dim", "2", "--hidden", "4", "--dram", "8MiB"]
    assert main(["train", log, "--store", store, "--weight", "w", "--test", log, *sizes]) == 0
    said = "train, run and model logloss are weighted by 'w'; in figures of --test and --valid"
    assert said in capsys.readouterr().out
    assert main(["evaluate", log, "--store", store]) == 0
    assert "examples count alike in these figures; the training weighs them by 'w'" in (
        capsys.readouterr().out
    )
    plain = str(tmp_path / "plain")
    assert main(["train", log, "--store", plain, "--ignore", "w", *sizes]) == 0
    assert main(["evaluate", log, "--store", plain]) == 0
    assert "alike" not in capsys.readouterr().out


def test_the_list_of_models_has_the_weighted_logloss(tmp_path: Path) -> None:
    log = write(tmp_path / "log", columns())
    figures = run(log, tmp_path / "s", weight="w", format="parquet")
    assert figures["examples"] != pytest.approx(columns()["w"].sum())
    (model,) = models_of(tmp_path / "s").models
    assert model["train_logloss"] == pytest.approx(figures["model_logloss"], rel=1e-12)
