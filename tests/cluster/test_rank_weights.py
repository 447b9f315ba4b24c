"""Weights and groups over ranks: the loss and GAUC of one process, whatever the ranks' parts.

Above it: pytest. Below it: rank_nursery.py, which runs the real command as processes over gloo.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hps
from tests.cluster.rank_nursery import Job, Nursery
from tests.group_twin import by_definition

BATCH = 90


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each batch one rank's part has most of the weight; batch 3 has none, and of batch 4 and
    the last, of 2 examples, only some parts have any."""
    random = np.random.default_rng(11)
    print("seed 11")
    size = 6 * BATCH + 2
    weights = random.random(size).astype(np.float32)
    places = np.arange(size)
    weights[places % BATCH < BATCH // 3] *= 1000
    weights[2 * BATCH : 3 * BATCH] = 0
    weights[3 * BATCH : 3 * BATCH + 50] = 0
    weights[-1] = 0
    columns = {"label": random.integers(0, 2, size), "item": random.integers(0, 60, size)}
    columns |= {"user": random.geometric(0.05, size), "price": random.random(size), "w": weights}
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def words(log: Path, store: Path, *others: str) -> list[str]:
    flags = {"--store": str(store), "--dim": "4", "--hidden": "8", "--batch-size": str(BATCH)}
    flags |= {"--dram": "2MiB", "--seed": "3", "--lr": "0.1", "--threads": "1"}
    flags |= {"--progress-seconds": "0", "--weight": "w", "--group": "user"}
    return ["train", str(log), *(word for flag in flags.items() for word in flag), *others]


def rows_of(store: Path) -> dict[int, np.ndarray]:
    with hps.open(store) as server:
        return {
            int(key): row
            for keys, rows in server.items("features")
            for key, row in zip(keys, rows, strict=True)
        }


def dense_of(store: Path) -> dict[str, Any]:
    with hps.open(store) as server:
        return dict(server.checkpoint_state("final")[0]["model"])


def assert_alike(one: Path, other: Path, tolerance: float) -> None:
    left, right = rows_of(one), rows_of(other)
    assert left.keys() == right.keys() and len(left) > 30
    assert max(float(np.abs(left[key] - right[key]).max()) for key in left) <= tolerance
    dense, found = dense_of(one), dense_of(other)
    assert max(float((dense[name] - found[name]).abs().max()) for name in dense) <= 10 * tolerance


def test_one_step_is_that_of_one_process(tmp_path: Path, ranks: Nursery, log: Path) -> None:
    """The mean over the whole batch by its weights, not the mean of the ranks' means."""
    flags = ["--optimizer", "sgd", "--limit", str(BATCH)]
    alone = ranks.figures(Job(words(log, tmp_path / "alone", *flags)))
    for size in (2, 3):
        found = ranks.figures(Job(words(log, tmp_path / f"of-{size}", *flags), size))
        assert found["total_batches"] == 1 and found["base_rate"] == alone["base_rate"]
        assert abs(found["train_logloss"] - alone["train_logloss"]) <= 1e-6
        assert_alike(tmp_path / "alone", tmp_path / f"of-{size}", 1e-6)


@pytest.mark.parametrize(
    "flags",
    [
        ["--optimizer", "sgd"],
        ["--optimizer", "adagrad", "--accumulate", "2", "--depth", "2"],
        ["--optimizer", "adam", "--depth", "0"],
    ],
)
def test_a_whole_run_ends_as_that_of_one_process(
    tmp_path: Path, ranks: Nursery, log: Path, flags: list[str]
) -> None:
    """Over a batch without any weight, parts without weight and parts without examples."""
    flags = [*flags, "--test", str(log)]
    alone = ranks.figures(Job(words(log, tmp_path / "alone", *flags)))
    found = ranks.figures(Job(words(log, tmp_path / "of-3", *flags), 3))
    for name in ("rows", "total_examples", "total_batches", "test_groups"):
        assert found[name] == alone[name], name
    assert abs(found["train_logloss"] - alone["train_logloss"]) <= 1e-4
    assert abs(found["test_gauc"] - alone["test_gauc"]) <= 1e-2
    assert abs(found["test_normalized_entropy"] - alone["test_normalized_entropy"]) <= 1e-4
    if "adam" not in flags:  # which makes much of what rounding leaves of a gradient near 0
        assert_alike(tmp_path / "alone", tmp_path / "of-3", 1e-3)


def test_gauc_of_ranks_is_that_of_their_examples_together(
    tmp_path: Path, ranks: Nursery, log: Path
) -> None:
    """No mean of ranks' figures: most groups lie in the parts of several."""
    figures = ranks.figures(Job(words(log, tmp_path / "store", "--test", str(log)), 3))
    out = tmp_path / "scores.npy"
    job = Job(["predict", str(log), "--store", str(tmp_path / "store"), "--out", str(out)])
    assert ranks.run(job).statuses == [0]
    columns = pq.read_table(log).to_pydict()
    gauc, num_groups, _ = by_definition(np.load(out), columns["label"], columns["user"])
    assert figures["test_groups"] == num_groups > 10
    assert figures["test_gauc"] == pytest.approx(gauc, abs=1e-3)


def test_a_run_that_goes_on_has_the_bits_of_one_that_was_not_stopped(
    tmp_path: Path, ranks: Nursery, log: Path
) -> None:
    whole = ranks.figures(Job(words(log, tmp_path / "whole"), 2))
    ranks.figures(Job(words(log, tmp_path / "store", "--limit", str(4 * BATCH)), 2))
    resumed = ranks.figures(Job(words(log, tmp_path / "store", "--resume"), 2))
    for name in ("digests", "loss_digest", "train_logloss"):
        assert resumed[name] == whole[name], name
