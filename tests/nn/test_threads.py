"""Threads that read, or collect gradients, through the same objects at the same time.

Above it: pytest. The long form, over every kind of server, is tests/torture/readers.py.
"""

import copy
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps import _C
from hps.common.arrays import OutputPool
from hps.common.plan_pool import PlanPool
from hps.nn.gradients import pending_of
from hps.service.client.plans import RemoteRows
from tests.front import open_server

THREADS = 8


@pytest.fixture
def _quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """What each thread returns; raises what one raised."""
    results: list[Any] = [None] * count
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait()
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


@pytest.mark.usefixtures("_quick_switches")
def test_threads_of_one_module_get_their_own_rows(tmp_path: Path) -> None:
    with open_server(tmp_path, dim=16) as server:
        module = hps.SparseEmbedding(server, "ads").eval()
        asked = [torch.randint(0, 5000, (400,)) for _ in range(THREADS)]
        offsets = torch.arange(0, 401, 4)
        alone = [module(keys, offsets, num_features=4) for keys in asked]

        def read(number: int) -> int:
            outputs = (module(asked[number], offsets, num_features=4) for _ in range(100))
            return sum(not torch.equal(output, alone[number]) for output in outputs)

        assert in_threads(read) == [0] * THREADS


def test_a_look_up_in_inference_mode_changes_nothing_for_later_ones(
    tmp_path: Path,
) -> None:
    with open_server(tmp_path) as server:
        module = hps.SparseEmbedding(server, "ads").eval()
        keys, offsets, weights = torch.arange(6), torch.tensor([0, 2, 6]), torch.rand(6)
        with torch.inference_mode():
            first = module(keys, offsets, weights).clone()
        assert torch.equal(module(keys, offsets, weights), first)


def test_threads_take_different_buffers_of_one_pool() -> None:
    """Another thread asks between a look at a buffer's references and its use."""

    class Interrupted(OutputPool):
        between: Callable[[], None] | None = None

        def _references(self, idx: int) -> int:
            count = super()._references(idx)
            if self.between is not None and self._buffers[idx].size >= 2 * 8:  # the one to reuse
                hook, self.between = self.between, None
                hook()
            return count

    pool = Interrupted()
    pool.take(2, 8)
    others: list[Any] = []
    thread = threading.Thread(target=lambda: others.append(pool.take(2, 8)))

    def other_takes() -> None:
        thread.start()
        thread.join(0.2)  # it waits for the one that is asking

    pool.between = other_takes
    mine = pool.take(2, 8)
    assert pool.between is None
    thread.join()
    assert not np.shares_memory(mine, others[0])


@pytest.mark.usefixtures("_quick_switches")
def test_threads_that_begin_together_share_one_set_of_gradients() -> None:
    class Server:
        pending_gradients: Any = None
        joint: Any = None

    servers: list[Any] = [Server() for _ in range(200)]
    found = in_threads(lambda _: [id(pending_of(server)) for server in servers], 4)
    assert all(part == found[0] for part in found)


def test_threads_share_a_pool_of_native_ones() -> None:
    """Who finds the pool busy with another's job does its own by itself."""
    pool = _C.ThreadPool(3)
    grads = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)
    expected = grads.reshape(1024, 64, 16).transpose(1, 0, 2).reshape(-1, 16)

    def copy(_: int) -> bool:
        are_right = []
        for _ in range(30):
            out = np.zeros_like(expected)
            _C.copy_by_bag(pool, grads, out)
            are_right.append(bool(np.array_equal(out, expected)))
        return all(are_right)

    assert all(in_threads(copy, 4))


def test_gradients_are_copied_by_the_servers_threads(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        assert server.joint is not None
        assert pending_of(server)._threads is server.joint.threads


@pytest.mark.usefixtures("_quick_switches")
def test_training_in_several_threads_sums_all_gradients(tmp_path: Path) -> None:
    """Gradients of whole numbers, whose sums are exact in any order."""
    with open_server(tmp_path, optimizer=hps.SGD(lr=1.0)) as server:
        module, optimizer = hps.SparseEmbedding(server, "ads"), hps.RowOptimizer(server)
        keys = torch.arange(50)
        before = torch.as_tensor(server.pull("ads", keys)).clone()
        rounds = 10

        def train(number: int) -> None:
            for _ in range(rounds):
                own = keys[number % 5 :: 5]
                module(own, torch.arange(len(own) + 1)).sum().backward()

        in_threads(train)
        optimizer.step()
        expected = np.zeros(50, np.float32)
        for number in range(THREADS):
            expected[number % 5 :: 5] += rounds
        after = torch.as_tensor(server.pull("ads", keys))
        torch.testing.assert_close(
            before - after, torch.from_numpy(expected)[:, None].expand(50, 4)
        )


@pytest.mark.parametrize("pooling", ["sum", None])
def test_a_backward_that_ends_while_a_step_applies_counts_for_the_next(
    pooling: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_server(tmp_path, optimizer=hps.SGD(lr=1.0)) as server:
        module = hps.SparseEmbedding(server, "ads", pooling)
        optimizer = hps.RowOptimizer(server)
        # Of bags a step's only forward is applied as one of several tables.
        applies: Any = server if pooling is None else server.joint
        keys, offsets = torch.tensor([7]), torch.tensor([0, 1])
        before = torch.as_tensor(server.pull("ads", keys)).clone()
        started = threading.Event()

        def late() -> None:
            loss = module(keys, offsets).sum()
            started.set()
            loss.backward()

        thread = threading.Thread(target=late)
        apply = applies.apply

        def slow_apply(updates: Any, applied: Any = None) -> None:
            thread.start()
            assert started.wait(30)
            thread.join(0.2)  # without the lock its backward ends here, and is forgotten below
            apply(updates, applied)

        with monkeypatch.context() as patched:
            patched.setattr(applies, "apply", slow_apply)
            module(keys, offsets).sum().backward()
            optimizer.step()
            thread.join()
        optimizer.step()
        after = torch.as_tensor(server.pull("ads", keys))
        torch.testing.assert_close(before - after, torch.full((1, 4), 2.0))


def test_rows_that_are_released_while_they_are_asked_for_are_refused() -> None:
    """A released plan is the next call's: reading on by it would give that call's rows."""
    pool = PlanPool([0], 8)

    class Reader:
        def new_rows(self, table: str, num_rows: int) -> Any:
            rows.release()  # as a pipeline does that closes in another thread
            return np.zeros((num_rows, 2), np.float32)

        def read_planned(self, table: str, plan: Any, out: Any) -> None:
            raise AssertionError("a plan was used after its release")

    rows = RemoteRows(Reader(), pool, "ads", np.arange(3, dtype=np.uint64))
    with pytest.raises(hps.ConfigError, match="released"):
        rows.gather()


def test_a_push_after_another_threads_pull_updates_its_own_keys(tmp_path: Path) -> None:
    """The look-up that a push reuses is the table's, not the thread's."""
    with open_server(tmp_path, optimizer=hps.SGD(lr=1.0)) as server:
        mine, others = np.arange(5, dtype=np.uint64), np.arange(100, 105, dtype=np.uint64)
        before = server.pull("ads", mine).copy()
        thread = threading.Thread(target=lambda: server.pull("ads", others))
        thread.start()
        thread.join()
        server.push("ads", mine, np.ones((5, 4), np.float32))
        assert np.array_equal(server.pull("ads", mine), before - 1)
        assert server.contains("ads", others).sum() == 0


def test_a_module_is_copied_over_the_same_rows_and_not_pickled(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        module = hps.SparseEmbedding(server, "ads")
        module(torch.arange(4), torch.tensor([0, 1, 4])).sum().backward()
        for other in (copy.deepcopy(module), copy.copy(module)):
            assert other._server is server and other is not module
            assert torch.equal(
                other(torch.arange(4), torch.tensor([0, 4])),
                module(torch.arange(4), torch.tensor([0, 4])),
            )
        with pytest.raises(TypeError, match=r"cannot be pickled.*state_dict"):
            pickle.dumps(module)
