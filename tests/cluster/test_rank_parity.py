"""Any number of ranks trains to the table that one rank trains to; any depth to the same bits.

Above it: pytest. Below it: ranks.py.
"""

from pathlib import Path

import pytest

import hps
from tests.cluster.ranks import (
    ADAGRAD,
    TABLES,
    Task,
    largest_difference,
    stage_threads,
    train_alone,
    train_ranks,
)

OPTIMIZERS = {
    "sgd": hps.SGD(lr=0.1),
    "adagrad": ADAGRAD,
    "decaying": hps.Adagrad(lr=0.1, initial_accumulator_value=0.1, weight_decay=0.2),
}


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_ranks_train_to_the_table_of_one_rank(tmp_path: Path, size: int, optimizer: str) -> None:
    one_step = Task(optimizer=OPTIMIZERS[optimizer], num_batches=1)
    alone = train_alone(one_step, tmp_path / "one-step")
    assert largest_difference(train_ranks(one_step, size, 0, tmp_path), alone) < 1e-6
    task = Task(optimizer=OPTIMIZERS[optimizer], num_batches=20)
    alone = train_alone(task, tmp_path / "alone")
    ranks = train_ranks(task, size, 2, tmp_path / "more")
    assert largest_difference(ranks, alone) < 1e-5
    assert min(len(alone.rows[name]) for name in TABLES) > 80  # premise: something was trained
    losses = [sum(of_batch) / size for of_batch in zip(*ranks.losses, strict=True)]
    assert losses == pytest.approx(alone.losses[0], abs=1e-4)
    if size == 1:
        assert ranks.digests == alone.digests  # it goes straight to the rank's own server


@pytest.mark.parametrize("size, kind", [(2, "gpu"), (3, "native")])
def test_any_depth_gives_the_same_bits(tmp_path: Path, size: int, kind: str) -> None:
    # The smallest caches: rows are evicted, and batches wait for each other's slots.
    task = Task(seed=3, num_batches=14, kind=kind, scale=1.0, num_keys=900, num_examples=70)
    first = train_ranks(task, size, 0, tmp_path / "first")
    assert first.evictions > 50
    for depth in (0, 1, 2, 4):
        again = train_ranks(task, size, depth, tmp_path / f"depth-{depth}")
        assert again.digests == first.digests and again.losses == first.losses
    assert stage_threads() == []


@pytest.mark.parametrize("depth", [0, 2])
def test_several_batches_make_one_step(tmp_path: Path, depth: int) -> None:
    task = Task(seed=4, num_batches=9, accumulate=2)
    alone = train_alone(task, tmp_path / "alone")
    ranks = train_ranks(task, 3, depth, tmp_path)
    assert largest_difference(ranks, alone) < 1e-5


def test_the_digest_of_all_parts_is_that_of_one_store(tmp_path: Path) -> None:
    # Powers of two and sums of few terms: every number of ranks rounds alike.
    task = Task(optimizer=hps.SGD(lr=0.25), num_batches=1, num_examples=2, seed=8)
    alone = train_alone(task, tmp_path / "alone")
    assert train_ranks(task, 2, 0, tmp_path).digests == alone.digests
