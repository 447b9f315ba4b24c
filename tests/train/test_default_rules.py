"""The batch size that nobody says: by the log's size, and that of the model when a run goes on.

Above it: pytest. Below it: hps/train/default_rules.py, the training run.
"""

from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hps
from hps.options.declare import options_of
from hps.train import TrainOptions, train
from hps.train.default_rules import batch_size_for
from hps.train.progress import Progress
from tests.logs import write_criteo

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def run(log: Path, store: Path, **changes: Any) -> tuple[dict[str, Any], str]:
    said = StringIO()
    options = TrainOptions(
        data=[log], store=store, dim=2, hidden=(4,), dram="4MiB", depth=0, **changes
    )
    return train(options, Progress(0, said)), said.getvalue()


@pytest.mark.parametrize("examples", [0, 1, 3199, 6399, 6400, 10_000, 409_599, 409_600, 10**9])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_an_epoch_has_a_hundred_steps_unless_batches_are_the_least(
    examples: int, accumulate: int
) -> None:
    batch = batch_size_for(examples, accumulate)
    steps = examples / (batch * accumulate)
    assert 32 <= batch <= 4096 and batch & (batch - 1) == 0
    assert steps >= 100 or batch == 32
    assert steps < 200 or batch == 4096


def test_a_new_run_takes_the_rule_and_says_so(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log.tsv", 7000)
    figures, said = run(log, tmp_path / "a")
    assert figures["total_batches"] == -(-7000 // 64)
    assert "batches of 64 examples, as about 7,000 are trained on (--batch-size)" in said
    given, said = run(log, tmp_path / "b", batch_size=1000)
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
    log = write_criteo(tmp_path / "log.tsv", 7000)
    _, said = run(log, tmp_path / "a", **more)
    assert f"batches of {batch} examples" in said


def test_a_run_that_a_limit_ends_goes_on_to_the_bits_of_one_without(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log.tsv", 13_000)
    whole, _ = run(log, tmp_path / "whole")
    run(log, tmp_path / "parts", limit=1000)
    parts, _ = run(log, tmp_path / "parts", resume=True)
    for name in ("digests", "loss_digest", "total_batches"):
        assert parts[name] == whole[name]


def test_a_run_that_goes_on_keeps_the_models_batches_whatever_the_log(tmp_path: Path) -> None:
    small = write_criteo(tmp_path / "small.tsv", 3300)
    large = write_criteo(tmp_path / "large.tsv", 13_000, seed=1)
    store = tmp_path / "store"
    run(large, store)  # batches of 128
    of_large = -(-13_000 // 128)
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


def bags(path: Path, lengths: list[int]) -> Path:
    """A log of parquet with bags of these lengths, of every example."""
    count = 200
    table: dict[str, Any] = {"label": [row % 2 for row in range(count)]}
    for place, length in enumerate(lengths):
        table[f"f{place}"] = [[row + key for key in range(length)] for row in range(count)]
    pq.write_table(pa.table(table), path)
    return path


def rate_of(store: Path) -> float:
    with hps.open(store) as server:
        state, _ = server.checkpoint_state("final")
    (group,) = state["row_optimizer"]["param_groups"]
    return float(group["lr"])


@pytest.mark.parametrize(
    ("lengths", "optimizer", "rate"),
    [
        ([1, 1], "adagrad", 0.02),
        ([20, 6], "adagrad", 0.02),
        ([20, 32], "adagrad", 0.01),
        ([50, 54], "rowwise_adagrad", 0.005),
        ([50, 54], "adam", 0.001),
        ([50, 54], "sgd", 0.02),
    ],
)
def test_rows_learn_slower_where_an_example_sums_more_keys(
    tmp_path: Path, lengths: list[int], optimizer: str, rate: float
) -> None:
    log = bags(tmp_path / "log.parquet", lengths)
    _, said = run(log, tmp_path / "store", optimizer=optimizer)
    assert rate_of(tmp_path / "store") == rate
    assert (f"rows learn at {rate:g}, as an example has about" in said) == (
        rate not in (0.02, 0.001)
    )


def test_a_rate_that_is_given_or_stored_is_taken(tmp_path: Path) -> None:
    log, store = bags(tmp_path / "log.parquet", [52, 52]), tmp_path / "store"
    run(log, store, lr=0.05)
    assert rate_of(store) == 0.05
    run(log, store, resume=True, new_data=True)
    assert rate_of(store) == 0.05
    run(log, tmp_path / "other", resume_if_any=True)  # there is none: as a new one
    assert rate_of(tmp_path / "other") == 0.005


def test_a_mean_of_keys_counts_as_one(tmp_path: Path) -> None:
    text = '[columns.f0]\nkind = "sequence"\npooling = "mean"\n[columns.f1]\nkind = "sequence"\n'
    log = bags(tmp_path / "log.parquet", [100, 51])
    run(log, tmp_path / "store", features=hps.Features.from_toml(text))
    assert rate_of(tmp_path / "store") == 0.01
