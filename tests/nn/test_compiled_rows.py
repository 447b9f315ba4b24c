"""torch.compile over SparseEmbeddings: which rows a look-up reads, and who gets its gradient.

Above it: pytest. Below it: test_embeddings_pinned.py, whose batches these are. Whole trainings:
test_compiled.py.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hps
from tests.front import open_server
from tests.nn.embeddings_lab import slope_of
from tests.nn.test_embeddings_pinned import (
    CHANGED,
    OF_THEIR_OWN,
    TABLES,
    Change,
    all_tables,
    batch_of,
    drawn,
    ids_of,
    outcome,
    prefix,
)

Twice = Callable[[Any, Any, Any], tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Python's threads take turns a hundred times as often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def one_graph(module: Any) -> Any:
    return torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")


def some_graphs(module: Any) -> Any:
    return torch.compile(module, dynamic=True, backend="aot_eager")


def two_batches(module: Any, first: Any, second: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return module(first), module(second)


def one_batch_twice(module: Any, first: Any, second: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return module(first), module(first)


def learnt_twice(
    folder: Path, twice: Twice, wrap: Callable[[Any], Any]
) -> tuple[list[list[float]], str]:
    """How far the rows of keys 7 and 9 move by gradients of ones and of twos, and the digest."""
    with open_server(folder, hps.SGD(lr=1.0)) as server:
        module, optimizer = hps.SparseEmbeddings(server, {"ads": 1}), hps.RowOptimizer(server)
        keys = torch.tensor([7, 9])
        before = torch.as_tensor(server.pull("ads", keys)).clone()
        forward = wrap(lambda first, second: twice(module, first, second))
        first, second = forward(batch_of(1, ads=ids_of([7])), batch_of(1, ads=ids_of([9])))
        (first.sum() + 2 * second.sum()).backward()
        optimizer.step()
        moved = before - torch.as_tensor(server.pull("ads", keys))
        return moved.round(decimals=3).tolist(), server.digest("ads")


@pytest.mark.parametrize(
    ("twice", "expected", "backend"),
    [
        (two_batches, [1.0, 2.0], "aot_eager"),
        (one_batch_twice, [3.0, 0.0], "aot_eager"),
        # Which, as inductor, makes one of what is asked for twice.
        (one_batch_twice, [3.0, 0.0], "aot_eager_decomp_partition"),
    ],
)
def test_a_module_that_is_called_twice_in_a_graph_learns_both_gradients(
    tmp_path: Path, twice: Twice, expected: list[float], backend: str
) -> None:
    # What another version of the operator has compiled does not count.
    with (
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        moved, digest = learnt_twice(
            tmp_path / "compiled",
            twice,
            lambda function: torch.compile(function, fullgraph=True, backend=backend),
        )
    assert moved == [[one] * 4 for one in expected]
    assert digest == learnt_twice(tmp_path / "eager", twice, lambda function: function)[1]


def learnt_weights(folder: Path, wrap: Callable[[Any], Any]) -> tuple[list[Any], list[str]]:
    """The gradients of the weights of both tables' bags, and the digests after a step."""
    with open_server(folder, hps.SGD(lr=1.0), names=TABLES) as server:
        forward, optimizer = wrap(all_tables(server)), hps.RowOptimizer(server)
        grads = []
        for _ in range(2):
            batch = drawn()
            weights = [ids.weights_L for ids in batch.features.values()]
            for own in weights:
                assert own is not None
                own.requires_grad_()
            output = forward(batch)
            output.backward(slope_of(output))
            optimizer.step()
            for own in weights:
                assert own is not None and own.grad is not None
                grads.append(own.grad.tolist())
        return grads, [server.digest(table) for table in TABLES]


def test_weights_that_learn_get_the_gradients_of_eager_code(tmp_path: Path) -> None:
    expected = learnt_weights(tmp_path / "eager", lambda module: module)
    assert learnt_weights(tmp_path / "compiled", some_graphs) == expected


def test_weights_that_learn_are_refused_in_one_graph(tmp_path: Path) -> None:
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"(?i)graph.break"):
        learnt_weights(tmp_path, one_graph)


@pytest.mark.parametrize("change", [*OF_THEIR_OWN, *CHANGED])
def test_a_batch_that_is_not_the_pinned_one_is_looked_up_as_it_is(
    tmp_path: Path, change: Change
) -> None:
    expected = outcome(tmp_path / "eager", change, is_pinned=False)
    assert outcome(tmp_path / "compiled", change, is_pinned=True, wrap=one_graph) == expected


def test_fewer_examples_with_pinned_rows_never_get_the_output_of_all(tmp_path: Path) -> None:
    expected = outcome(tmp_path / "eager", prefix, is_pinned=False)
    with contextlib.suppress(hps.ConfigError):  # it may be refused
        path = tmp_path / "compiled"
        found = outcome(path, prefix, is_pinned=True, wrap=one_graph, keeps_rows=True)
        assert found == expected


@pytest.mark.usefixtures("impatient_threads")
def test_another_thread_may_pin_and_release_the_same_keys_meanwhile(tmp_path: Path) -> None:
    """A forward finds rows by their keys, and these come and go."""
    batch, is_over = drawn(), threading.Event()
    with open_server(tmp_path, names=TABLES) as server:
        module = all_tables(server)
        forward, wanted = one_graph(module), module(batch).detach()
        joint: Any = server.joint
        held = [joint.pin(drawn().features, len(batch)) for _ in range(3)]
        forward(batch)  # is compiled by now

        def pin_and_release() -> None:
            while not is_over.is_set():
                joint.pin(batch.features, len(batch)).release()

        thread = threading.Thread(target=pin_and_release)
        thread.start()
        try:
            until = time.monotonic() + 2
            while time.monotonic() < until:
                assert torch.equal(forward(batch), wanted)
        finally:
            is_over.set()
            thread.join()
        for rows in held:
            rows.release()
        assert server.pins == 0


def test_rows_that_are_released_once_they_are_found_are_looked_up_by_their_keys(
    tmp_path: Path,
) -> None:
    """What the thread above meets by chance, at every forward."""
    batch = drawn()
    with open_server(tmp_path, hps.SGD(lr=1.0), names=TABLES) as server:
        module, optimizer = all_tables(server), hps.RowOptimizer(server)
        forward, wanted = one_graph(module), module(batch).detach()
        joint: Any = server.joint
        find, found = joint.pinned, []

        def find_and_release(*features: Any) -> Any:
            rows = find(*features)
            found.append(rows)
            rows.release()
            return rows

        joint.pinned = find_and_release
        for _ in range(2):
            rows = joint.pin(batch.features, len(batch))
            output = forward(batch)
            assert torch.equal(output, wanted) and found[-1] is rows
        output.sum().backward()
        optimizer.step()
        assert server.num_rows("a") == 3 and server.pins == 0
