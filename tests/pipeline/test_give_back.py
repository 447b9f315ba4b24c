"""What the training loop needs for itself it gets: batches ahead give their pins back for a while.

Above it: pytest. Below it: hps.Pipeline.give_back_ahead, hps/pipeline/{stages,flow}.py.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import hps
from tests.front import around_pins, one_feature_batch, open_server, wait_until
from tests.lab import Lab, table
from tests.pipeline.scenario import Scenario, run


def log_of(num_batches: int) -> list[hps.Batch]:
    """Batches of two keys each that no other has."""
    return [one_feature_batch([2 * n, 2 * n + 1], n + 1) for n in range(num_batches)]


@pytest.mark.parametrize("kind", ["native", "gpu"])
@pytest.mark.parametrize("depth", [1, 4])
def test_rows_given_back_are_pinned_again_before_their_batch_is_handed_out(
    tmp_path: Path, kind: str, depth: int
) -> None:
    with Lab(kind, tmp_path).server(table(), scale=4.0) as server:
        embedding = hps.SparseEmbedding(server, "ads")
        positions = []
        with hps.Pipeline(log_of(12), server, depth) as batches:
            for batch in batches:
                positions.append(batch.position["batch"])
                assert batch.rows is not None and not batch.rows["ads"].is_released
                embedding(batch)
                if positions[-1] == 3:
                    wait_until(lambda: server.pins == 2 * (depth + 1))
                    assert batches.give_back_ahead()
                    assert server.pins == 2
                    assert not batches.give_back_ahead()  # there is no more
                    time.sleep(0.05)
                    assert server.pins == 2  # nobody pins until the next batch is asked for
                if positions[-1] == 3 + depth:
                    wait_until(lambda: server.pins == 2 * (depth + 1))  # it has gone on
        assert positions == list(range(1, 13)) and server.pins == 0


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_a_loop_that_looks_up_keys_of_its_own_finds_room_at_any_depth(
    tmp_path: Path, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lab("native", tmp_path).server(table()) as server:
        capacity = server.stats()["dram_cache"]["capacity_rows"]
        size = capacity // 5
        gave_back: list[bool] = []
        give_back = hps.Pipeline.give_back_ahead
        monkeypatch.setattr(
            hps.Pipeline,
            "give_back_ahead",
            lambda batches: gave_back.append(give_back(batches)) or gave_back[-1],
        )
        log = [one_feature_batch(list(range(100 * n, 100 * n + size)), n) for n in range(12)]
        embedding, optimizer = hps.SparseEmbedding(server, "ads"), hps.RowOptimizer(server)
        with hps.Pipeline(log, server, depth) as batches:
            for number, batch in enumerate(batches):
                time.sleep(0.01)
                own = torch.arange(50_000 + 2 * size * number, 50_000 + 2 * size * (number + 1))
                offsets = torch.arange(2 * size + 1)
                (embedding(batch).sum() + embedding(own, offsets).sum()).backward()
                optimizer.step()
        assert server.num_rows("ads") == 12 * 3 * size
        assert any(gave_back) == (depth == 4)


@pytest.mark.parametrize("kind", ["native", "gpu"])
@pytest.mark.parametrize("scale", [1.0, 1.5, 4.0])
def test_giving_back_changes_no_bit(tmp_path: Path, kind: str, scale: float) -> None:
    scenario = Scenario(seed=5, num_batches=40, num_keys=4000)
    sound = run(scenario, tmp_path / "in turn", 0, scale=20.0)
    scenario = replace(scenario, gives_back=True, loop_seconds=0.002)
    ahead = run(scenario, tmp_path / "ahead", 4, scale=scale, kind=kind, delays=7)
    assert ahead == sound and ahead.evictions > 100
    assert ahead.given_back > 0


def test_a_batch_that_is_being_pinned_is_waited_for_and_given_back_too(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        is_pinning, may_pin, numbers = threading.Event(), threading.Event(), []

        def slow_pin(pin: Callable[[], Any], keys: list[int]) -> Any:
            numbers.append(keys[0] // 2 + 1)
            if len(numbers) == 2:
                is_pinning.set()
                may_pin.wait(60)
            return pin()

        around_pins(server, slow_pin)
        with hps.Pipeline(log_of(6), server, 4) as batches:
            next(batches)
            assert is_pinning.wait(60) and server.pins == 2
            threading.Timer(0.1, may_pin.set).start()
            assert batches.give_back_ahead() and may_pin.is_set()
            assert server.pins == 2 and numbers == [1, 2]
            assert [batch.position["batch"] for batch in batches] == [2, 3, 4, 5, 6]
        assert numbers == [1, 2, 2, 3, 4, 5, 6]  # again in the loop, before the others


def test_batches_given_back_stand_before_the_failure_that_follows_them(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:

        def broken_pin(pin: Callable[[], Any], keys: list[int]) -> Any:
            if keys[0] == 6:
                raise hps.StoreError("no space")
            return pin()

        around_pins(server, broken_pin)
        with hps.Pipeline(log_of(6), server, 4) as batches:
            next(batches)
            wait_until(lambda: server.pins == 6)
            assert batches.give_back_ahead() and server.pins == 2
            assert [next(batches).position["batch"] for _ in range(2)] == [2, 3]
            for _ in range(2):
                with pytest.raises(hps.StoreError, match="no space"):
                    next(batches)
        assert server.pins == 0


def test_a_batch_given_back_that_finds_no_room_any_more_is_refused(tmp_path: Path) -> None:
    with Lab("native", tmp_path).server(table()) as server:
        capacity = server.stats()["dram_cache"]["capacity_rows"]
        embedding = hps.SparseEmbedding(server, "ads")
        with hps.Pipeline(log_of(6), server, 4, accumulate=2) as batches:
            embedding(next(batches)).sum().backward()  # its rows stay for the step
            wait_until(lambda: server.pins == 10)
            assert batches.give_back_ahead()
            own = []
            for key in range(1000, 1000 + 20 * capacity):
                with contextlib.suppress(hps.CapacityError):
                    own.append(server.pin("ads", torch.tensor([key])))
            assert server.pins == capacity
            for _ in range(2):
                with pytest.raises(hps.CapacityError, match=r"2 distinct.*accumulate") as raised:
                    next(batches)
            assert raised.value.__notes__ == ["raised in pipeline stage 'fetch', batch 2 (from 1)"]
            for rows in own:
                rows.release()
        assert server.pins == 0


def test_only_the_loop_takes_back_and_only_inside_the_block(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        with hps.Pipeline(log_of(6), server, 0) as batches:
            next(batches)
            assert not batches.give_back_ahead()
        batches = hps.Pipeline(log_of(6), server, 2)
        assert not batches.give_back_ahead()
        with batches:
            next(batches)
            wait_until(lambda: server.pins == 6)
            answers: list[bool] = []
            thread = threading.Thread(target=lambda: answers.append(batches.give_back_ahead()))
            thread.start()
            thread.join()
            assert answers == [False] and server.pins == 6
            assert batches.give_back_ahead() and server.pins == 2
        assert not batches.give_back_ahead() and server.pins == 0
