"""Ranks as threads: what is sent comes, in rank order, and who leaves is noticed.

Above it: pytest. Below it: hps.cluster.world.local_world.
"""

import time
from typing import Any

import pytest
import torch

import hps
from hps.cluster.world.local_world import LocalWorld
from tests.cluster.ranks import PATIENCE_SECONDS, Failure, run_ranks, successes


def test_what_ranks_send_comes_in_rank_order_and_is_counted() -> None:
    def body(world: LocalWorld) -> Any:
        rank = world.rank
        # To rank r go r + rank rows; all of a sender's rows hold 10 * rank + r.
        parts = [torch.full((to + rank, 2), 10.0 * rank + to) for to in range(3)]
        received = world.rows.all_to_all(parts)
        assert [tuple(part.shape) for part in received] == [(rank + of, 2) for of in range(3)]
        assert all((part == 10 * of + rank).all() for of, part in enumerate(received))
        return world.rows.bytes_sent

    # Rows of 8 bytes, and their number, 8 bytes, to each other rank.
    sizes = [8 * sum(to + rank for to in range(3) if to != rank) + 16 for rank in range(3)]
    assert successes(run_ranks(3, body)) == sizes


def test_what_was_sent_is_the_receivers_own() -> None:
    def body(world: LocalWorld) -> Any:
        for number in range(200):
            rows = torch.full((2 * 500,), float(number))
            received = world.rows.exchange(rows, [500, 500], [500, 500])
            rows.fill_(-1.0)  # while the other rank may still be about to look
            assert (received == number).all()

    successes(run_ranks(2, body))


def test_values_are_gathered_and_flags_agreed() -> None:
    def body(world: LocalWorld) -> Any:
        values = world.control.gather({"rank": world.rank, "text": "x" * world.rank})
        flags = [world.control.any(world.rank == 1), world.control.any(False)]
        return values, flags, world.control.exchange_counts([10 * world.rank + to for to in (0, 1)])

    expected = [{"rank": 0, "text": ""}, {"rank": 1, "text": "x"}]
    assert successes(run_ranks(2, body)) == [
        (expected, [True, False], [0, 10]),
        (expected, [True, False], [1, 11]),
    ]


def test_channels_go_on_beside_each_other() -> None:
    def body(world: LocalWorld) -> Any:
        if world.rank == 0:
            return [world.keys.gather(1), world.rows.gather(2)]
        return [world.rows.gather(2), world.keys.gather(1)][::-1]

    results = run_ranks(2, body, timeout_seconds=1.0)
    assert all(isinstance(result, Failure) for result in results)  # one thread cannot be in both

    def in_order(world: LocalWorld) -> Any:
        return [world.keys.gather(1), world.rows.gather(2), world.control.gather(3)]

    assert successes(run_ranks(2, in_order)) == [[[1, 1], [2, 2], [3, 3]]] * 2


def test_who_aborts_is_named_at_once() -> None:
    def body(world: LocalWorld) -> Any:
        if world.rank == 1:
            time.sleep(0.1)
            world.abort("its disk is full")
            with pytest.raises(hps.ClusterError, match="this rank has left"):
                world.rows.barrier()
        else:
            world.rows.barrier()

    started = time.monotonic()
    results = run_ranks(3, body)
    assert time.monotonic() - started < PATIENCE_SECONDS / 2
    for rank in (0, 2):
        assert isinstance(results[rank], Failure)
        told = str(results[rank].error)
        assert f"rank {rank}: rank 1 has left the training (its disk is full)" in told


def test_ranks_that_expect_other_sizes_are_told() -> None:
    def body(world: LocalWorld) -> Any:
        world.rows.exchange(torch.zeros(2), [1, 1], [1, 1 + world.rank])

    assert isinstance(run_ranks(2, body, timeout_seconds=2.0)[1].error, hps.ClusterError)
