"""Where a new model's output bias begins: at the share of clicks among the log's first examples.

Above it: pytest. Below it: `hps.train.base_rate`, `ClickModel.set_base_rate`, `hps train`.
"""

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hps
from hps.models import MODELS
from hps.reader.config import ReaderConfig
from hps.reader.open import open_reader
from hps.train import FirstLabels, TrainOptions, first_labels, train
from hps.train.shape_rules import what_it_lacks
from tests.kinds import POOLING
from tests.logs import write_criteo

BAD = "no label" + "\t1" * 39


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def rare(path: Path, num_examples: int, every: int) -> Path:
    """A log in which one example in `every` is a click, from the last of them on."""
    lines = write_criteo(path, num_examples).read_text().splitlines()
    labels = [number % every == every - 1 for number in range(num_examples)]
    text = [f"{int(label)}{line[1:]}" for label, line in zip(labels, lines, strict=True)]
    path.write_text("\n".join(text) + "\n")
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return rare(tmp_path / "log.tsv", 1000, 50)


def options(log: Path, store: Path, **changes: Any) -> TrainOptions:
    values: dict[str, Any] = {"data": [log], "store": store, "dim": 4, "hidden": (8,)}
    values |= {"batch_size": 100, "dram": "8MiB", "threads": 1, "digest": True}
    return TrainOptions(**{**values, **changes})


def reader_of(*paths: Path, **config: Any) -> Any:
    tables = [hps.TableConfig(name="features", dim=4)]
    settings = ReaderConfig(**{"format": "criteo", "batch_size": 100, **config})
    return open_reader(paths, tables=tables, config=settings)


@pytest.mark.parametrize("kind", POOLING)
@pytest.mark.parametrize("hidden", [(8, 4), ()])
def test_the_base_rate_moves_every_logit_and_nothing_else(
    tmp_path: Path, kind: str, hidden: tuple[int, ...]
) -> None:
    ids = hps.Ids(torch.arange(12), offsets=torch.arange(13))
    batch = hps.Batch({"ads": ids}, dense=torch.ones(4, 2), labels=torch.ones(4))
    kind_of = MODELS[kind]
    tables = [hps.TableConfig(name="ads", dim=kind_of.row_columns(4))]
    config = hps.Config(path=tmp_path / "store", tables=tables)
    with hps.ParameterServer(config) as server:
        torch.manual_seed(0)
        model = kind_of(server, {"ads": 3}, 2, hidden if kind_of.has_deep_part else ()).eval()
        model.output_bias.data.zero_()
        before, state = model(batch), {k: v.clone() for k, v in model.state_dict().items()}
        drawn = torch.get_rng_state()
        model.set_base_rate(-3.5)
        assert torch.equal(torch.get_rng_state(), drawn)
        assert torch.allclose(model(batch), before - 3.5, atol=1e-6)
        changed = [k for k, v in model.state_dict().items() if not torch.equal(v, state[k])]
        assert len(changed) == 1 and model.state_dict()[changed[0]].numel() == 1
        for wrong in (math.inf, math.nan):
            with pytest.raises(hps.ConfigError, match="not finite"):
                model.set_base_rate(wrong)


def test_the_first_ten_thousand_examples_of_the_whole_log_count(tmp_path: Path) -> None:
    """Across files, of whatever batch size and part, and the reader stays where it is."""
    paths = [rare(tmp_path / "a", 6000, 100), rare(tmp_path / "b", 6000, 10)]
    expected = FirstLabels(clicks=60 + 400, others=9540)
    for config in ({}, {"batch_size": 7}, {"part": (2, 3)}, {"epochs": 3}, {"threads": 3}):
        reader = reader_of(*paths, **config)
        place = reader.state_dict()
        assert first_labels(reader) == expected
        assert reader.state_dict() == place
    assert first_labels(reader_of(paths[0])) == FirstLabels(60, 5940)  # all of a shorter log
    assert first_labels(reader_of(paths[1]), 19) == FirstLabels(1, 18)


def test_keys_are_counted_and_those_that_come_once(tmp_path: Path) -> None:
    """The 1 of another feature is another key; an empty bag has none."""
    log = tmp_path / "log.parquet"
    bags: list[list[int]] = [[1, 2], [1], [3, 4, 5], []]
    pq.write_table(pa.table({"label": [0, 1, 0, 1], "f": bags, "g": [9, 1, 9, 8]}), log)
    first = first_labels(reader_of(log, format="parquet"))
    assert (first.keys, first.rare) == (10 / 4, 6 / 4)
    assert first_labels(reader_of(log, format="parquet"), 2).rare == 3 / 2
    empty = tmp_path / "empty.tsv"
    empty.write_text("")
    none = first_labels(reader_of(empty))
    assert (none.keys, none.rare) == (None, None)


def test_lines_that_are_skipped_count_neither_as_examples_nor_twice(
    tmp_path: Path, log: Path
) -> None:
    lines = log.read_text().splitlines()
    log.write_text("\n".join([BAD, *lines[:500], BAD, *lines[500:]]) + "\n")
    reader = reader_of(log, on_error="skip")
    assert first_labels(reader) == FirstLabels(20, 980, skipped=2)
    assert reader.counts.skipped == 0
    figures = train(options(log, tmp_path / "store", on_error="skip"))
    assert (figures["skipped_lines"], figures["examples"]) == (2, 1000)


def test_a_bad_line_is_told_when_training_comes_to_it(tmp_path: Path, log: Path) -> None:
    lines = log.read_text().splitlines()
    lines[400] = BAD
    log.write_text("\n".join(lines))
    assert train(options(log, tmp_path / "store", limit=300))["examples"] == 300
    with pytest.raises(hps.HpsError, match="line 401"):
        train(options(log, tmp_path / "all"))


@pytest.mark.parametrize("kind", POOLING)
def test_a_new_model_is_calibrated_from_its_first_batch(
    tmp_path: Path, log: Path, kind: str
) -> None:
    """One click in 50: without a base rate the first batch costs log 2."""
    calibration = {}
    for base_rate in (True, False):
        store = tmp_path / f"{kind}-{base_rate}"
        rate = {"base_rate": base_rate, "dense_lr": 1e-6, "lr": 1e-6, "limit": 100, "test": [log]}
        lacks = dict.fromkeys(what_it_lacks(kind))
        figures = train(options(log, store, model=kind, dense=0, **rate, **lacks))
        calibration[base_rate] = figures["test_calibration"]
        told = figures["base_rate"]
        assert told == (pytest.approx(21 / 1002) if base_rate else None)
    assert 0.6 < calibration[True] < 1.7 and calibration[False] > 15


def test_the_bias_of_a_run_is_that_of_the_formula(tmp_path: Path, log: Path) -> None:
    train(options(log, tmp_path / "store", limit=100, dense_lr=1e-12))
    with hps.open(tmp_path / "store") as server:
        bias = server.checkpoint_state("final")[0]["model"]["bias"]
    assert float(bias) == pytest.approx(math.log(21 / 981), abs=1e-5)


def test_depth_changes_no_bit_and_a_resumed_run_keeps_its_bias(tmp_path: Path, log: Path) -> None:
    whole = train(options(log, tmp_path / "whole", depth=0))
    train(options(log, tmp_path / "store", depth=2, limit=300))
    rest = train(options(log, tmp_path / "store", depth=2, resume=True))
    assert rest["base_rate"] is None and whole["base_rate"] is not None
    for name in ("digests", "loss_digest", "train_logloss"):
        assert rest[name] == whole[name], name
    newer = rare(tmp_path / "newer.tsv", 500, 2)
    train(options(log, tmp_path / "kept", limit=300, dense_lr=1e-12))
    more = options(newer, tmp_path / "kept", resume=True, new_data=True, dense_lr=1e-12)
    assert train(more)["base_rate"] is None
    with hps.open(tmp_path / "kept") as server:
        bias = server.checkpoint_state("final")[0]["model"]["bias"]
    assert float(bias) == pytest.approx(math.log(21 / 981), abs=1e-5)


def test_without_a_base_rate_a_model_begins_as_it_was_drawn(tmp_path: Path, log: Path) -> None:
    rate = {"dense_lr": 1e-30, "lr": 1e-30, "limit": 100, "seed": 7}
    train(options(log, tmp_path / "store", base_rate=False, **rate))
    with hps.open(tmp_path / "store") as server:
        stored = server.checkpoint_state("final")[0]["model"]
        torch.manual_seed(7)
        drawn = MODELS["deepfm"](server, {"features": 26}, 13, (8,)).state_dict()
    assert drawn.keys() == stored.keys()
    for name in drawn:
        assert torch.allclose(drawn[name], stored[name], rtol=0, atol=1e-20), name


def test_a_log_without_clicks_has_a_finite_base_rate(tmp_path: Path) -> None:
    log = rare(tmp_path / "log.tsv", 300, 1000)
    figures = train(options(log, tmp_path / "store"))
    assert figures["base_rate"] == pytest.approx(1 / 302)
    assert figures["train_logloss"] < 0.1
