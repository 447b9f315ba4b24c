"""What SparseEmbeddings keeps, for how long, and that what goes on around a call is none of it.

Above it: pytest. Below it: embeddings_lab.py, tests/front.py; a process whose first backward is
traced.
"""

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hps
from hps import _C
from hps.tiers.joint_rows import _MAX_IDLE
from tests.front import open_server
from tests.nn.embeddings_lab import ByTable, draw_batch, joint, open_tables, slope_of, train
from tests.nn.test_embeddings_pinned import TABLES, all_tables, drawn

FORWARDS = 40


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def native_batches(monkeypatch: pytest.MonkeyPatch) -> "weakref.WeakSet[Any]":
    """Those that were made and live."""

    class Counted(_C.TableBatch):
        """One that can be referred to weakly."""

    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    def make(*args: Any) -> Counted:
        batch = Counted(*args)
        alive.add(batch)
        return batch

    monkeypatch.setattr(_C, "TableBatch", make)
    return alive


def test_native_batches_of_many_forwards_a_step_are_given_back(
    tmp_path: Path, native_batches: "weakref.WeakSet[Any]"
) -> None:
    with open_server(tmp_path, names=TABLES) as server:
        module, optimizer = all_tables(server), hps.RowOptimizer(server)
        for _ in range(3):
            for _ in range(FORWARDS):
                module(drawn()).sum().backward()
            assert len(native_batches) >= FORWARDS
            optimizer.step()
            gc.collect()
            assert 1 <= len(native_batches) <= _MAX_IDLE


def test_native_batches_of_graphs_without_backward_are_given_back(
    tmp_path: Path, native_batches: "weakref.WeakSet[Any]"
) -> None:
    with open_server(tmp_path, names=TABLES) as server:
        module = all_tables(server)
        for _ in range(3):
            outputs = [module(drawn()) for _ in range(FORWARDS)]
            assert len(native_batches) >= FORWARDS
            outputs.clear()
            gc.collect()
            assert 1 <= len(native_batches) <= _MAX_IDLE


def test_what_native_batches_have_counted_outlives_them(tmp_path: Path) -> None:
    """Of many that live at once most are given up, and their rows were found all the same."""
    counts = []
    for num_at_once in (1, FORWARDS):
        with open_server(tmp_path / str(num_at_once), names=TABLES) as server:
            module = all_tables(server)
            for table, ids in drawn().features.items():
                server.pull(table, ids.keys_L, create=True)
            before = server.stats()["tables"]
            for _ in range(FORWARDS // num_at_once):
                outputs = [module(drawn()) for _ in range(num_at_once)]
                outputs.clear()
            after = server.stats()["tables"]
            counts.append(
                [
                    after[table]["dram_cache"]["hits"] - before[table]["dram_cache"]["hits"]
                    for table in TABLES
                ]
            )
    assert counts == [[3 * FORWARDS] * len(TABLES)] * 2  # 3 distinct keys of each table


def used_and_closed(folder: Path, is_stepped: bool) -> "list[weakref.ref[Any]]":
    """A server that compiled code has used, and its tables."""
    server = open_server(folder, names=TABLES)
    forward = torch.compile(all_tables(server), fullgraph=True, backend="aot_eager")
    output = forward(drawn())
    if is_stepped:
        output.backward(slope_of(output))
        hps.RowOptimizer(server).step()
    server.close()
    stacks = list(server.parts.tables.stacks.values())
    assert len(stacks) == len(TABLES)
    return [weakref.ref(one) for one in (server, server.joint, *stacks)]


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("is_stepped", [True, False])
def test_nothing_keeps_the_tables_that_compiled_code_has_read(
    tmp_path: Path, is_stepped: bool
) -> None:
    kept = used_and_closed(tmp_path, is_stepped)
    gc.collect()
    assert [one() for one in kept] == [None] * (2 + len(TABLES))


FIRST_BACKWARD_IS_TRACED = """
import sys
import torch
import hps

torch.set_num_threads(1)
ids = hps.Ids(torch.tensor([7, 8]), torch.tensor([0, 1, 2]))
batch = hps.Batch({"a": ids}, torch.zeros(2, 0), torch.ones(2))
factors = torch.arange(8.0).view(2, 4)


def look(frame, event, argument):
    frame.f_locals
    return look


def run(folder, factor, trace):
    table = hps.TableConfig(name="a", dim=4, optimizer=hps.SGD(lr=0.5))
    with hps.ParameterServer(hps.Config(path=folder, tables=[table], threads=1)) as server:
        module, optimizer = hps.SparseEmbeddings(server, {"a": 1}), hps.RowOptimizer(server)
        for count in (1, 0, 1, 2, 3, 4):
            kept = []
            output = module(batch)
            output.register_hook(lambda grad: kept.extend([grad] * count))
            loss = (output * factors).sum()
            sys.settrace(trace)
            loss.backward()
            sys.settrace(None)
            trace = None
            for grad in kept[:1]:
                grad.mul_(factor)
            optimizer.step()
        return server.digest("a")


changed = run(sys.argv[1] + "/changed", 100.0, look)
kept = run(sys.argv[1] + "/kept", 1.0, None)
print(changed == kept)
"""


def test_a_debugger_at_the_first_backward_shares_no_later_gradient(tmp_path: Path) -> None:
    """Hooks keep one, and change it after backward; none of that is in the rows."""
    command = [sys.executable, "-c", FIRST_BACKWARD_IS_TRACED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True"], done.stderr


# What goes on around a call.

Make = Callable[[Any], torch.nn.Module]
Result = tuple[tuple[list[bytes], dict[str, str]], list[Any]]


def trained(folder: Path, make: Make, depth: int | None, weights_learn: bool) -> Result:
    """As train, and the gradients of the weights."""
    with open_tables(folder) as server:
        batches = [draw_batch(seed) for seed in range(3)]
        weights = [ids.weights_L for batch in batches for ids in batch.features.values()]
        given = [own.requires_grad_(weights_learn) for own in weights if own is not None]
        found = train(server, make(server), batches, depth=depth)
        grads = [None if own.grad is None else own.grad.tolist() for own in given]
        assert all((own is not None) == weights_learn for own in grads)
        return found, grads


@pytest.mark.parametrize("weights_learn", [False, True])
@pytest.mark.parametrize("depth", [None, 1])
@pytest.mark.parametrize("make", [joint, ByTable])
def test_torchs_default_dtype_changes_no_bit(
    tmp_path: Path, make: Make, depth: int | None, weights_learn: bool
) -> None:
    expected = trained(tmp_path / "float32", make, depth, weights_learn)
    torch.set_default_dtype(torch.float64)
    try:
        assert trained(tmp_path / "float64", make, depth, weights_learn) == expected
    finally:
        torch.set_default_dtype(torch.float32)


class Elsewhere(torch.nn.Module):
    """Calls a module where new tensors have no memory."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: hps.Batch) -> torch.Tensor:
        with torch.device("meta"):
            output: torch.Tensor = self.module(batch)
        return output


@pytest.mark.parametrize("weights_learn", [False, True])
@pytest.mark.parametrize("depth", [None, 1])
@pytest.mark.parametrize("make", [joint, ByTable])
def test_torchs_default_device_changes_no_bit(
    tmp_path: Path, make: Make, depth: int | None, weights_learn: bool
) -> None:
    expected = trained(tmp_path / "here", make, depth, weights_learn)
    found = trained(tmp_path / "meta", lambda server: Elsewhere(make(server)), depth, weights_learn)
    assert found == expected
