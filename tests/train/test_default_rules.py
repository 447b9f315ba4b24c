"""What nobody says: batch size, rate and first accumulators by the log, or as the model has them.

Above it: pytest. Below it: hps/train/default_rules.py, the training run.
"""

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hps
from hps.options.declare import options_of
from hps.train import TrainOptions, train
from hps.train.base_rate import FirstLabels
from hps.train.default_rules import (
    accumulator_for,
    batch_size_for,
    row_rate_for,
    with_row_defaults,
)
from hps.train.options import ACCUMULATOR
from hps.train.progress import Progress
from tests.logs import write_criteo

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def run(log: Path, store: Path, **changes: Any) -> tuple[dict[str, Any], str]:
    said = StringIO()
    options = TrainOptions(
        data=[log], store=store, dim=2, hidden=(4,), dram="4MiB", depth=0, **changes
    )
    return train(options, Progress(0, said)), said.getvalue()


@pytest.mark.parametrize("examples", [0, 1, 6399, 12_799, 12_800, 20_000, 819_199, 819_200, 10**9])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_an_epoch_has_two_hundred_steps_unless_batches_are_the_least(
    examples: int, accumulate: int
) -> None:
    batch = batch_size_for(examples, accumulate)
    steps = examples / (batch * accumulate)
    assert 32 <= batch <= 4096 and batch & (batch - 1) == 0
    assert steps >= 200 or batch == 32
    assert steps < 400 or batch == 4096


def test_a_new_run_takes_the_rule_and_says_so(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log.tsv", 14_000)
    figures, said = run(log, tmp_path / "a")
    assert figures["total_batches"] == -(-14_000 // 64)
    assert "batches of 64 examples, as about 13,999 are trained on (--batch-size)" in said
    given, said = run(log, tmp_path / "b", batch_size=2000)
    assert given["total_batches"] == 7 and "batches of" not in said


@pytest.mark.parametrize(
    ("more", "batch"),
    [
        ({"valid_share": 0.6}, 32),
        ({"negative_rate": 0.4}, 32),
        ({"limit": 3300}, 64),
        ({"valid_share": 0.05}, 64),
    ],
)
def test_examples_that_are_not_trained_on_do_not_count(
    tmp_path: Path, more: dict[str, Any], batch: int
) -> None:
    log = write_criteo(tmp_path / "log.tsv", 14_000)
    _, said = run(log, tmp_path / "a", **more)
    assert f"batches of {batch} examples" in said


def test_a_run_that_a_limit_ends_goes_on_to_the_bits_of_one_without(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log.tsv", 26_000)
    whole, _ = run(log, tmp_path / "whole")
    run(log, tmp_path / "parts", limit=1000)
    parts, _ = run(log, tmp_path / "parts", resume=True)
    for name in ("digests", "loss_digest", "total_batches"):
        assert parts[name] == whole[name]


def test_a_run_that_goes_on_keeps_the_models_batches_whatever_the_log(tmp_path: Path) -> None:
    small = write_criteo(tmp_path / "small.tsv", 3300)
    large = write_criteo(tmp_path / "large.tsv", 26_000, seed=1)
    store = tmp_path / "store"
    run(large, store)  # batches of 128
    of_large = -(-26_000 // 128)
    figures, said = run(small, store, resume=True, new_data=True)
    assert figures["total_batches"] == of_large + -(-3300 // 128) and "batches of" not in said
    changed, said = run(small, store, resume=True, new_data=True, batch_size=330)
    assert changed["total_batches"] == figures["total_batches"] + 10
    assert "batches of 128 examples (--batch-size) are now of 330" in changed["resumed_with"]


def test_new_rows_of_a_run_that_goes_on_begin_as_the_models_do(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log.tsv", 640)
    store = tmp_path / "store"
    run(log, store, init_std=0.25, limit=320)
    figures, _ = run(log, store, resume=True)
    whole, _ = run(log, tmp_path / "whole", init_std=0.25)
    assert figures["digests"] == whole["digests"]
    with pytest.raises(hps.ConfigError, match="initializer"):
        run(log, store, resume=True, new_data=True, init_std=0.5)


def test_a_log_that_cannot_be_read_is_told_by_who_opens_it(tmp_path: Path) -> None:
    with pytest.raises(hps.StoreError, match=r"cannot read .*none\.tsv"):
        run(tmp_path / "none.tsv", tmp_path / "store")
    assert (
        dict((name, default) for name, default, _ in options_of(TrainOptions))["batch_size"] is None
    )


def bags(path: Path, lengths: list[int], rare: int = 0) -> Path:
    """A log of parquet with bags of these lengths, of every example, whose keys come again; and as
    many features as `rare` whose keys do not."""
    count = 400
    table: dict[str, Any] = {"label": [row % 2 for row in range(count)]}
    for place, length in enumerate(lengths):
        table[f"f{place}"] = [[(row + key) % 130 for key in range(length)] for row in range(count)]
    for place in range(rare):
        table[f"rare{place}"] = list(range(1000, 1000 + count))
    pq.write_table(pa.table(table), path)
    return path


def rate_of(store: Path) -> float:
    with hps.open(store) as server:
        state, _ = server.checkpoint_state("final")
    (group,) = state["row_optimizer"]["param_groups"]
    return float(group["lr"])


def start_of(store: Path) -> float:
    """At which new rows of the model begin, as its checkpoint describes it."""
    with hps.open(store) as server:
        return float(getattr(server.tables["features"].optimizer, ACCUMULATOR))


def least_accumulator(store: Path) -> float:
    """Of all rows; each has the first-order column, so that no gradient is 0."""
    with hps.open(store) as server:
        states = [state for _, _, state in server.items("features", state=True)]
    return min(float(state.min()) for state in states)


@pytest.mark.parametrize(
    ("lengths", "optimizer", "rate"),
    [
        ([1, 1], "adagrad", 0.05),
        ([10, 6], "adagrad", 0.05),
        ([10, 22], "adagrad", 0.025),
        ([50, 30], "rowwise_adagrad", 0.01),
        ([50, 30], "adam", 0.001),
        ([50, 30], "sgd", 0.02),
        ([50, 30], "ftrl", 0.05),
    ],
)
def test_rows_learn_slower_where_an_example_sums_more_keys(
    tmp_path: Path, lengths: list[int], optimizer: str, rate: float
) -> None:
    log = bags(tmp_path / "log.parquet", lengths)
    _, said = run(log, tmp_path / "store", optimizer=optimizer)
    assert rate_of(tmp_path / "store") == rate
    wanted = f"rows learn at {rate:g} (--lr), new ones from squared gradients of 8.8e-05"
    assert (wanted in said) == optimizer.endswith("adagrad")
    assert (f"about {sum(lengths)} keys, 0.0 of them rare" in said) == (wanted in said)


@pytest.mark.parametrize(("rare", "held_back"), [(0, 0.3), (1, 0.34), (5, 0.5)])
def test_rows_begin_slower_where_more_keys_of_an_example_are_rare(
    tmp_path: Path, rare: int, held_back: float
) -> None:
    """A log of 400 examples tells a 25th of what one of 10,000 does."""
    log = bags(tmp_path / "log.parquet", [3], rare)
    _, said = run(log, tmp_path / "store", accumulate=2)
    assert f"{3 + rare} keys, {rare / 25:.1f} of them rare" in said
    start = start_of(tmp_path / "store")
    assert start == float(f"{(held_back / 64) ** 2:.2g}")  # 2 batches of 32 a step
    assert least_accumulator(tmp_path / "store") >= np.float32(start)


@pytest.mark.parametrize(("rare", "held_back"), [(0.0, 0.3), (1.0, 1.3), (9.0, 3.0)])
def test_a_log_of_ten_thousand_examples_tells_what_is_rare(rare: float, held_back: float) -> None:
    options = TrainOptions(data=["log"], store="store", batch_size=100)
    first = FirstLabels(4000, 6000, keys=10.0, rare=rare)
    found = with_row_defaults(options, first, Progress(0, StringIO()))
    assert found.initial_accumulator == float(f"{(held_back / 100) ** 2:.2g}")


def test_accumulators_that_are_given_or_stored_are_taken(tmp_path: Path) -> None:
    log, store = bags(tmp_path / "log.parquet", [2], rare=1), tmp_path / "store"
    _, said = run(log, store, initial_accumulator=0.25, optimizer="rowwise_adagrad")
    assert start_of(store) == 0.25 and least_accumulator(store) >= 0.25
    assert "squared gradients of 0.25 " in said
    # Rows that come later begin as the model's first did, whatever the batch size.
    other = bags(tmp_path / "other.parquet", [3, 1], rare=2)
    _, said = run(other, store, resume=True, new_data=True, change_features=True, batch_size=7)
    assert start_of(store) == 0.25 and least_accumulator(store) >= 0.25
    assert "squared gradients" not in said
    run(other, store, resume=True, new_data=True, initial_accumulator=0.0)
    assert start_of(store) == 0.0
    both, _ = run(log, tmp_path / "both", initial_accumulator=0, lr=0.05)
    with hps.open(tmp_path / "both") as server:
        assert server.tables["features"].optimizer == hps.Adagrad(lr=0.05)
    assert both["examples"] == 400
    run(log, tmp_path / "ftrl", optimizer="ftrl", initial_accumulator=0.5)
    assert start_of(tmp_path / "ftrl") == 0.5


def test_a_run_in_parts_has_the_bits_of_one_also_if_its_rule_would_differ(tmp_path: Path) -> None:
    """The second part's log has no rare key at its beginning and another batch size by the rule."""
    log = bags(tmp_path / "log.parquet", [2], rare=1)
    whole, _ = run(log, tmp_path / "whole")
    run(log, tmp_path / "parts", limit=96)
    assert run(log, tmp_path / "parts", resume=True)[0]["digests"] == whole["digests"]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_optimizer_without_accumulators_refuses_them(tmp_path: Path, optimizer: str) -> None:
    log = bags(tmp_path / "log.parquet", [2])
    asked = re.escape(f"(--initial-accumulator): optimizer {optimizer} has no sum of squared")
    with pytest.raises(hps.ConfigError, match=asked):
        run(log, tmp_path / "store", optimizer=optimizer, initial_accumulator=0.1)
    run(log, tmp_path / "store", optimizer=optimizer)
    with pytest.raises(hps.ConfigError, match=asked):
        run(log, tmp_path / "store", resume=True, new_data=True, initial_accumulator=0.1)


@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf"), "much"])
def test_bad_accumulators_are_refused(tmp_path: Path, value: Any) -> None:
    log = bags(tmp_path / "log.parquet", [2])
    with pytest.raises(hps.ConfigError, match="initial_accumulator"):
        run(log, tmp_path / "store", initial_accumulator=value)


@pytest.mark.parametrize("keys", [0, 1e-9, 450, 1e6])
def test_a_rate_is_above_0_whatever_the_log(keys: float) -> None:
    assert 0 < row_rate_for(keys) <= 0.05


@pytest.mark.parametrize(("examples", "rare"), [(1, 0), (1, 1e6), (4096, 0), (2**40, 26)])
def test_accumulators_are_numbers_of_float32_above_0(examples: int, rare: float) -> None:
    assert 0 < np.float32(accumulator_for(examples, rare)) <= 16


@pytest.mark.parametrize(("model", "held_back"), [("dlrm", 0.075), ("fm", 0.3)])
def test_rows_that_are_embeddings_alone_are_held_back_less(
    tmp_path: Path, model: str, held_back: float
) -> None:
    log = bags(tmp_path / "log.parquet", [2])
    options = TrainOptions(data=[log], store=tmp_path / "store", model=model, dim=2, hidden=None)
    train(replace(options, dram="4MiB", depth=0))
    assert start_of(tmp_path / "store") == float(f"{(held_back / 32) ** 2:.2g}")


@pytest.mark.parametrize("first", [None, FirstLabels(0, 0)])
def test_a_log_without_examples_has_the_numbers_of_frequent_keys(first: FirstLabels | None) -> None:
    said = StringIO()
    options = TrainOptions(data=["log"], store="store", batch_size=100)
    options = with_row_defaults(options, first, Progress(0, said))
    assert (options.row_rate(), options.initial_accumulator) == (0.05, 9e-06)
    assert not said.getvalue()


def test_a_rate_that_is_given_or_stored_is_taken(tmp_path: Path) -> None:
    log, store = bags(tmp_path / "log.parquet", [52, 52], rare=5), tmp_path / "store"
    run(log, store, lr=0.07)
    assert rate_of(store) == 0.07
    _, said = run(log, store, resume=True, new_data=True)
    assert rate_of(store) == 0.07 and "rows learn" not in said
    run(log, tmp_path / "other", resume_if_any=True)  # there is none: as a new one
    assert rate_of(tmp_path / "other") == row_rate_for(109) < 0.01
    frequent = bags(tmp_path / "frequent.parquet", [3, 3], rare=5)
    run(frequent, tmp_path / "other", resume=True, new_data=True)
    assert rate_of(tmp_path / "other") == row_rate_for(109)


def test_a_mean_of_keys_counts_as_one(tmp_path: Path) -> None:
    text = '[columns.f0]\nkind = "sequence"\npooling = "mean"\n[columns.f1]\nkind = "sequence"\n'
    log = bags(tmp_path / "log.parquet", [100, 79])
    run(log, tmp_path / "store", features=hps.Features.from_toml(text))
    assert rate_of(tmp_path / "store") == 0.01
    own = {"label": [0, 1] * 200, "f0": [[4 * row + key for key in range(4)] for row in range(400)]}
    pq.write_table(pa.table({**own, "f1": [[1]] * 400}), log)
    _, said = run(log, tmp_path / "rare", features=hps.Features.from_toml(text))
    assert "about 2 keys, 0.0 of them rare" in said


def test_a_run_that_goes_on_keeps_the_rates_its_model_began_with(tmp_path: Path) -> None:
    """Also twice, and where a schedule checks the rate that is given."""
    log, store = bags(tmp_path / "log.parquet", [2]), tmp_path / "store"
    how = {"scheduler": "cosine", "scheduler_steps": 50}
    run(log, store, lr=0.02, dense_lr=0.003, limit=64, **how)
    run(log, store, resume=True, limit=128, **how)
    run(log, store, resume=True, lr=0.02, dense_lr=0.003, **how)
    with hps.open(store) as server:
        settings = server.checkpoint_state("final")[0]["settings"]
    assert (settings["lr"], settings["dense_lr"]) == (0.02, 0.003)
    with pytest.raises(hps.ConfigError, match=r"written with lr=0\.02"):
        run(log, store, resume=True, new_data=True, lr=0.05, **how)
