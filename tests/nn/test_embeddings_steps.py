"""What backward leaves of a look-up of several tables, and what a step makes of it.

Above it: pytest. Below it: embeddings_lab.py; each test runs also with a SparseEmbedding a table,
and both must come to the same bits.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hps
from hps.contracts.joint import JointUpdate
from hps.nn.gradients import pending_of
from tests.front import wait_until
from tests.nn.embeddings_lab import (
    DIMS,
    EXAMPLES,
    NAMES,
    ByTable,
    draw_batch,
    joint,
    open_tables,
    slope_of,
)

Act = Callable[[Any, torch.nn.Module, hps.RowOptimizer], object]


def backward(module: torch.nn.Module, seed: int, factor: float = 1.0) -> torch.Tensor:
    """A forward and its backward; the output."""
    output: torch.Tensor = module(draw_batch(seed))
    output.backward(factor * slope_of(output), retain_graph=True)
    return output


def both(folder: Path, act: Act) -> list[Any]:
    """What `act` returns and the tables come to, by a module a table and by one for all."""
    results = []
    for make in (ByTable, joint):
        with open_tables(folder / make.__name__) as server:
            module, optimizer = make(server), hps.RowOptimizer(server)
            backward(module, 1)
            optimizer.step()
            found = act(server, module, optimizer)
            assert pending_of(server).is_empty and server.pins == 0
            results.append((found, [server.digest(name) for name in NAMES]))
    return results


def two_backwards(server: Any, module: torch.nn.Module, optimizer: hps.RowOptimizer) -> None:
    output = backward(module, 2)
    output.backward(2 * slope_of(output))
    optimizer.step()


def backward_after_the_step(
    server: Any, module: torch.nn.Module, optimizer: hps.RowOptimizer
) -> None:
    output = backward(module, 2)
    optimizer.step()
    output.backward(2 * slope_of(output))
    optimizer.step()


def backward_after_a_look(
    server: Any, module: torch.nn.Module, optimizer: hps.RowOptimizer
) -> None:
    output = backward(module, 2)
    assert optimizer.param_groups[0]["params"][0].grad is not None
    output.backward(2 * slope_of(output))
    optimizer.step()


def kept_graph_in_a_pipeline(
    server: Any, module: torch.nn.Module, optimizer: hps.RowOptimizer
) -> None:
    with hps.Pipeline([draw_batch(2), draw_batch(3)], server, 1) as batches:
        output = module(next(batches))
        output.backward(slope_of(output), retain_graph=True)
        optimizer.step()
        next(batches)
        output.backward(2 * slope_of(output))  # its rows are released
        optimizer.step()


def accumulated(server: Any, module: torch.nn.Module, optimizer: hps.RowOptimizer) -> None:
    outputs = [module(draw_batch(seed)) for seed in (2, 3, 4)]
    for output in reversed(outputs):  # the order of the forwards counts
        output.backward(slope_of(output))
    optimizer.step()


def beside_a_module_of_one_table(
    server: Any, module: torch.nn.Module, optimizer: hps.RowOptimizer
) -> None:
    one = hps.SparseEmbedding(server, "four", "mean")
    later = one(draw_batch(5))
    backward(module, 2)
    later.sum().backward()
    optimizer.step()


def seen(server: Any, module: torch.nn.Module, optimizer: hps.RowOptimizer) -> list[Any]:
    backward(module, 2)
    backward(module, 3)
    grads = [group["params"][0].grad for group in optimizer.param_groups]
    shapes = [tuple(grad.shape) for grad in grads]
    bags = {name: len(NAMES[name]) * EXAMPLES * 2 for name in server.tables}
    assert shapes == [(bags[name], DIMS[name]) for name in server.tables]
    optimizer.step()
    return [grad.tolist() for grad in grads]


def clipped(server: Any, module: torch.nn.Module, optimizer: hps.RowOptimizer) -> float:
    backward(module, 2)
    parameters = [group["params"][0] for group in optimizer.param_groups]
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, 0.5))
    assert norm > 1
    optimizer.step()
    return norm


def replaced(server: Any, module: torch.nn.Module, optimizer: hps.RowOptimizer) -> None:
    backward(module, 2)
    parameter = optimizer.param_groups[1]["params"][0]
    parameter.grad = parameter.grad * 3
    optimizer.step()


def one_dropped(server: Any, module: torch.nn.Module, optimizer: hps.RowOptimizer) -> None:
    before = {name: server.digest(name) for name in NAMES}
    backward(module, 2)
    group = optimizer.param_groups[1]
    group["params"][0].grad = None
    optimizer.step()
    same = [name for name in NAMES if server.digest(name) == before[name]]
    assert same == [group["table"]]


def all_dropped(server: Any, module: torch.nn.Module, optimizer: hps.RowOptimizer) -> None:
    before = {name: server.digest(name) for name in NAMES}
    backward(module, 2)
    optimizer.zero_grad()
    assert pending_of(server).is_empty
    optimizer.step()
    assert before == {name: server.digest(name) for name in NAMES}
    backward(module, 3)  # into the memory that was given up
    optimizer.step()


def scaled(server: Any, module: torch.nn.Module, optimizer: hps.RowOptimizer) -> float:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    for seed, factor in ((2, 1.0), (3, float("inf")), (4, 1.0)):
        output = module(draw_batch(seed))
        scaler.scale((output * (factor * slope_of(output))).sum()).backward()
        if seed == 4:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    return float(scaler.get_scale())


def rates_change(server: Any, module: torch.nn.Module, optimizer: hps.RowOptimizer) -> None:
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for seed in (2, 3):
        backward(module, seed)
        optimizer.step()
        scheduler.step()


def larger_and_smaller(server: Any, module: torch.nn.Module, optimizer: hps.RowOptimizer) -> None:
    for number in (9, 40, 1, 0, 24):
        output = module(draw_batch(2, number))
        output.backward(slope_of(output))
        optimizer.step()


def strided_gradients(server: Any, module: torch.nn.Module, optimizer: hps.RowOptimizer) -> None:
    module(draw_batch(2)).sum().backward()  # one number, expanded
    optimizer.step()
    output = module(draw_batch(3))
    output.t().contiguous().backward(slope_of(output).t())
    optimizer.step()


def overwritten_arguments(
    server: Any, module: torch.nn.Module, optimizer: hps.RowOptimizer
) -> None:
    batch = draw_batch(2)
    output = module(batch)
    for ids in batch.features.values() if isinstance(module, hps.SparseEmbeddings) else ():
        ids.keys_L.zero_()
        ids.offsets.zero_()
        if ids.weights_L is not None:
            ids.weights_L.fill_(9)
    output.backward(slope_of(output))
    optimizer.step()


ACTS = [
    two_backwards,
    backward_after_the_step,
    backward_after_a_look,
    kept_graph_in_a_pipeline,
    accumulated,
    beside_a_module_of_one_table,
    seen,
    clipped,
    replaced,
    one_dropped,
    all_dropped,
    scaled,
    rates_change,
    larger_and_smaller,
    strided_gradients,
    overwritten_arguments,
]


@pytest.mark.parametrize("act", ACTS)
def test_a_step_does_what_it_does_by_table(tmp_path: Path, act: Act) -> None:
    by_table, together = both(tmp_path, act)
    assert together == by_table


def test_a_step_of_one_forward_is_one_call(tmp_path: Path) -> None:
    """And gradients lie in memory that later steps use again."""
    with open_tables(tmp_path) as server:
        module, optimizer = joint(server), hps.RowOptimizer(server)
        applied: list[JointUpdate] = []
        verbs: Any = server.joint
        apply = verbs.apply
        verbs.apply = lambda update, done: (applied.append(update), apply(update, done))
        server.apply = None  # type: ignore[method-assign,assignment]
        places = set()
        for seed in range(4):
            output = module(draw_batch(seed))
            output.backward(slope_of(output))
            optimizer.step()
            assert torch.equal(applied[-1].grads, slope_of(output))
            places.add(applied[-1].grads.data_ptr())
        assert len(applied) == 4 and len(places) == 1


def test_a_backward_that_ends_while_a_step_applies_counts_for_the_next(tmp_path: Path) -> None:
    digests = []
    for is_disturbed in (False, True):
        with open_tables(tmp_path / str(is_disturbed)) as server:
            module, optimizer = joint(server), hps.RowOptimizer(server)
            output = module(draw_batch(1))
            verbs: Any = server.joint
            apply, thread = verbs.apply, threading.Thread(target=backward, args=(module, 2))

            def slow_apply(
                update: Any, done: Any, thread: Any = thread, apply: Any = apply, verbs: Any = verbs
            ) -> None:
                verbs.apply = apply
                thread.start()
                thread.join(0.3)  # without the lock its backward ends here, and is forgotten below
                apply(update, done)

            if is_disturbed:
                verbs.apply = slow_apply
            output.backward(slope_of(output))
            optimizer.step()
            if not is_disturbed:
                thread.start()
            thread.join()
            wait_until(lambda server=server: not pending_of(server).is_empty)
            optimizer.step()
            digests.append([server.digest(name) for name in NAMES])
    assert digests[0] == digests[1]
