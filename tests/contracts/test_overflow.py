"""A step that would make a weight or a state that is not finite is refused, and changes nothing.

Above it: pytest. Below it: every kind of tiers, against the readable twin of the arithmetic, which
says for each step whether it holds and what it gives. Gradients, learning rates, states and the
optimizers' numbers are drawn from all of float32. csrc/optimizer/safe_gradient.h lets most steps go
without a trial: a bound that were wrong there would show here as NaN.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.common.row_layout import RowLayout
from hps.contracts.updates import RowUpdate
from hps.update_log import Kind, Mutation, encode
from tests.lab import DECAYING, OPTIMIZERS, Lab
from tests.service.client.client_lab import service
from tests.service.shard.shard_lab import ShardLab
from tests.service.shard.shard_session import Session
from tests.twins import row_math

KINDS = ("twins", "native", "native_gpu", "launched_gpu", "gpu")
DIM = 5
NUM_KEYS = 24
LARGEST = float(np.finfo(np.float32).max)
EXTREMES = [
    *OPTIMIZERS,
    *DECAYING,
    hps.SGD(lr=3e38),
    hps.SGD(lr=1e-38, weight_decay=1e38),
    hps.Adagrad(lr=1.0, eps=0.0),
    hps.Adagrad(lr=1e30, eps=1e-37),
    hps.RowWiseAdagrad(lr=1e-3, eps=0.0, initial_accumulator_value=3e38),
    hps.Adam(lr=1.0, eps=0.0),
    hps.Adam(lr=1e3, betas=(0.0, 1 - 2**-30), eps=1e-30),
    hps.FTRL(lr=1e-30, beta=0.0),
    hps.FTRL(lr=1e20, beta=1e-10, l1=1e30, l2=1e-20),
]


def table_of(optimizer: hps.common.optimizers.Optimizer) -> hps.TableConfig:
    return hps.TableConfig(name="ads", dim=DIM, optimizer=optimizer)


def magnitudes(generator: np.random.Generator, *shape: int) -> Any:
    """Floats of either sign, their magnitudes drawn alike from all exponents; some are 0."""
    calm = generator.random() < 0.5
    exponents = generator.uniform(-30, 5, shape) if calm else generator.uniform(-46, 38.5, shape)
    values = np.minimum(10.0**exponents, LARGEST) * generator.choice([-1, 0, 1, 1], shape)
    return values.astype(np.float32)


def random_state(generator: np.random.Generator, kind: str, count: int) -> Any:
    """A state that may be assigned, [count, S]."""
    state = magnitudes(generator, count, RowLayout(kind, DIM).state_floats)
    if kind in ("adagrad", "rowwise_adagrad"):
        return np.abs(state)
    if kind == "adam":
        state[:, :2] = generator.random((count, 2))
        state[:, 2 + DIM :] = np.abs(state[:, 2 + DIM :])
    elif kind == "ftrl":
        state[:, DIM:] = np.abs(state[:, DIM:])
    return state


def rows_of(server: hps.ParameterServer, keys: Any, optimizer: Any, lr: float) -> Any:
    """The rows of distinct keys as the twin has them, those of absent ones started."""
    layout = RowLayout(optimizer.kind, DIM)
    rows = np.zeros((len(keys), layout.row_bytes // 4), np.float32)
    rows[:, 4 : 4 + DIM] = server.pull("ads", keys)
    numbers = optimizer.hyperparameters()
    row_math.start_state(optimizer.kind, rows, DIM, lr, numbers)
    scalars = layout.header_scalars
    for stored, weights, state in server.items("ads", state=True):
        for key, weight, one in zip(stored, weights, state, strict=True):
            for i in np.flatnonzero(keys == key):
                rows[i, 2:4] = 0
                rows[i, 2 : 2 + scalars] = one[:scalars]
                rows[i, 4 : 4 + DIM] = weight
                rows[i, 4 + DIM : 4 + DIM + len(one) - scalars] = one[scalars:]
    return rows


def step(server: hps.ParameterServer, generator: np.random.Generator, optimizer: Any) -> bool:
    """One step that the twin foretells, to the bit; True if it was refused."""
    lr = server.learning_rates["ads"]
    keys = generator.integers(0, NUM_KEYS, 12).astype(np.uint64)
    grads = magnitudes(generator, 12, DIM)
    _, first = np.unique(keys, return_index=True)
    unique = keys[np.sort(first)]
    with np.errstate(all="ignore"):
        expected = rows_of(server, unique, optimizer, lr)
        sums = np.stack([row_math.sum_occurrences(grads[keys == key]) for key in unique])
        numbers = optimizer.hyperparameters()
        row_math.update_rows(optimizer.kind, expected, sums, DIM, lr, numbers)
    of_sums = np.flatnonzero(~np.isfinite(sums).all(axis=1))
    of_rows = np.flatnonzero(~np.isfinite(expected).all(axis=1))
    bad = of_sums if len(of_sums) else of_rows
    before = server.digest("ads")
    apply = generator.random() < 0.5
    try:
        if apply:
            server.apply([RowUpdate("ads", keys, grads)])
            server.stats()
            for stack in server.parts.tables.stacks.values():
                stack.raise_failed(wait=True)
        else:
            server.push("ads", keys, grads)
    except hps.NonFiniteError as refusal:
        assert len(bad), f"refused without need: {refusal}"
        assert f"table 'ads', key {unique[bad[0]]}:" in str(refusal)
        assert server.digest("ads") == before
        return True
    assert not len(bad), f"key {unique[bad[0]]} has overflowed unseen"
    found = rows_of(server, unique, optimizer, lr)
    # +0 and -0 are one number; the twin's sums may differ in that alone.
    assert (found + 0.0).tobytes() == (expected + 0.0).tobytes()
    return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(len(EXTREMES)))
def test_steps_hold_or_are_refused_as_the_twin_foretells(
    tmp_path: Path, kind: str, number: int
) -> None:
    optimizer = EXTREMES[number]
    generator = np.random.default_rng([number, 5])
    refused = 0
    rounds = 12 if kind == "twins" else 40
    with Lab(kind, tmp_path).server(table_of(optimizer)) as server:
        for turn in range(rounds):
            if turn % 5 == 4:
                keys = generator.integers(0, NUM_KEYS, 3).astype(np.uint64)
                rows = magnitudes(generator, 3, DIM)
                server.assign("ads", keys, rows, random_state(generator, optimizer.kind, 3))
            if turn % 4 == 3 and optimizer in (*OPTIMIZERS, *DECAYING):
                server.learning_rates["ads"] = float(generator.choice([1e-3, 1.0, 1e5, 1e20]))
            refused += step(server, generator, optimizer)
        for _, rows, state in server.items("ads", state=True):
            assert np.isfinite(rows).all() and np.isfinite(state).all()
    print(f"{refused} of {rounds} steps were refused")


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_overflows_leaves_the_others_as_they_were(tmp_path: Path, kind: str) -> None:
    tables = [
        hps.TableConfig(name=name, dim=DIM, optimizer=hps.Adagrad(lr=0.1), features=[name])
        for name in ("ads", "zoo")
    ]
    keys = np.arange(6, dtype=np.uint64)
    with Lab(kind, tmp_path).server(*tables) as server:
        for name in ("ads", "zoo"):
            server.push(name, keys, np.ones((6, DIM), np.float32))
        before = [server.digest(name) for name in ("ads", "zoo")]
        grads = np.ones((6, DIM), np.float32)
        bad = grads.copy()
        bad[4, 2] = 2e19  # finite; its square is not
        with pytest.raises(hps.NonFiniteError, match="table 'zoo', key 4"):
            server.apply([RowUpdate("ads", keys, grads), RowUpdate("zoo", keys, bad)])
            for name in ("ads", "zoo"):
                server.parts.tables.stacks[name].raise_failed(wait=True)
        assert [server.digest(name) for name in ("ads", "zoo")] == before
        server.apply([RowUpdate("ads", keys, grads), RowUpdate("zoo", keys, grads)])
        assert server.digest("ads") != before[0] and server.digest("zoo") != before[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_push_that_the_cache_cannot_hold_at_once_is_refused_whole(
    tmp_path: Path, kind: str
) -> None:
    with Lab(kind, tmp_path).server(table_of(hps.Adagrad(lr=0.1))) as server:
        keys = np.arange(4000 if kind != "twins" else 100, dtype=np.uint64)
        assert len(keys) > server.parts.tables.stacks["ads"].cache.capacity_rows
        grads = np.ones((len(keys), DIM), np.float32)
        server.push("ads", keys, grads)
        before = server.digest("ads")
        grads[-3, 1] = -2e19
        with pytest.raises(hps.NonFiniteError, match=f"key {len(keys) - 3}:"):
            server.push("ads", keys, grads)
        assert server.digest("ads") == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_row_that_an_ordinary_gradient_overflows_refuses_a_push_in_pieces_whole(
    tmp_path: Path, kind: str
) -> None:
    """The row is of an earlier opening, and comes up with the last piece."""
    table = table_of(hps.Adam(lr=0.1))
    keys = np.arange(4000 if kind != "twins" else 100, dtype=np.uint64)
    ones = np.ones((len(keys), DIM), np.float32)
    state = np.zeros((1, 2 + 2 * DIM), np.float32)
    state[:, :2], state[:, 2 : 2 + DIM] = 0.5, 3e38
    lab = Lab(kind, tmp_path)
    with lab.server(table) as server:
        server.push("ads", keys, ones)
        server.assign("ads", keys[-1:], ones[-1:], state)
        before = server.digest("ads")
    with lab.server(table) as server:
        with pytest.raises(hps.NonFiniteError, match=f"key {len(keys) - 1}:"):
            server.push("ads", keys, ones)
        assert server.digest("ads") == before


def test_a_row_of_before_that_holds_nan_is_named_by_the_step_that_meets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab("native", tmp_path)
    keys, ones = np.arange(6, dtype=np.uint64), np.ones((6, DIM), np.float32)
    with monkeypatch.context() as patched, lab.server(table_of(hps.Adagrad())) as server:
        patched.setattr("hps.parameter_server.rows.refuse_impossible_rows", lambda *_: None)
        rows = ones.copy()
        rows[2, 3] = np.nan
        server.assign("ads", keys, rows, ones)
        rows[2, 3] = 1.0
        state = ones.copy()
        state[5, 0] = -9.0
        server.assign("ads", keys[5:], rows[5:], state[5:])
    with lab.server(table_of(hps.Adagrad())) as server:
        before = server.digest("ads")
        for culprit in (2, 5):
            with pytest.raises(hps.NonFiniteError, match=f"key {culprit}:"):
                server.push("ads", keys[[0, culprit]], ones[:2])
        assert server.digest("ads") == before
        server.push("ads", keys[:2], ones[:2])
        server.erase("ads", keys[[2, 5]])
        server.push("ads", keys, ones)


def test_an_optimizer_that_is_refused_keeps_what_is_pending(tmp_path: Path) -> None:
    with Lab("native", tmp_path).server(table_of(hps.Adam(lr=0.1))) as server:
        module, optimizer = hps.SparseEmbedding(server, "ads"), hps.RowOptimizer(server)
        keys, offsets = torch.tensor([3, 4]), torch.tensor([0, 1, 2])
        module(keys, offsets).sum().backward()
        optimizer.step()
        before = server.digest("ads")
        (module(keys, offsets) * torch.tensor([[1.0], [2e19]])).sum().backward()
        with pytest.raises(hps.NonFiniteError, match="table 'ads', key 4"):
            optimizer.step()
        assert (
            server.digest("ads") == before
            and optimizer.param_groups[0]["params"][0].grad is not None
        )
        optimizer.zero_grad()
        module(keys, offsets).sum().backward()
        optimizer.step()
        assert server.digest("ads") != before


@pytest.mark.parametrize("table", [hps.FTRL(lr=0.1), hps.Adagrad(lr=0.1)], ids=lambda one: one.kind)
def test_a_service_refuses_the_push_and_logs_nothing(
    tmp_path: Path, table: hps.common.optimizers.Optimizer
) -> None:
    keys, ones = np.arange(6, dtype=np.uint64), np.ones((6, DIM), np.float32)
    with service(tmp_path, 1, [table_of(table)]) as made, made.client() as client:
        client.push("ads", keys, ones)
        before, logged = client.digest("ads"), made.shards[0].parts.store.log.appended
        grads = ones.copy()
        grads[2, 1] = 3e38
        for given in (keys, np.append(keys, keys)):  # as they are, and summed here
            with pytest.raises(hps.NonFiniteError, match="table 'ads', key 2:"):
                client.push("ads", given, np.resize(grads, (len(given), DIM)))
        assert client.digest("ads") == before and made.shards[0].parts.store.log.appended == logged
        client.push("ads", keys, ones)
        assert client.digest("ads") != before


def test_a_step_that_an_older_version_logged_is_refused_by_the_replay(tmp_path: Path) -> None:
    lab = ShardLab(tmp_path, 1)
    shard = lab.open()
    name = next(table.name for table in lab.config.tables if table.optimizer.kind != "sgd")
    config = next(table for table in lab.config.tables if table.name == name)
    keys, ones = np.arange(4, dtype=np.uint64), np.ones((4, config.dim), np.float32)
    session = Session(shard)
    shard.push(session.next(), name, keys, ones)
    digest = shard.digest(name)
    bad = Mutation(Kind.PUSH, session.next(), name, config.optimizer.lr, keys, 3e38 * ones)
    shard.parts.store.log.wait(shard.parts.store.log.append(encode(bad)), True, 60.0)
    lab.kill()
    shard = lab.open()
    assert shard.stats()["service"]["records_replayed"] >= 2
    assert shard.digest(name) == digest
    shard.close()
