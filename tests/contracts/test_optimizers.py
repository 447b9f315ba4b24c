"""Optimizers against float64 references, against torch's own, and the twin against the native code.

Gradients are fixed, 100 steps, with duplicate keys; the caches are small enough that rows leave and
return all the time.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import hps
from hps import _C
from tests.lab import (
    DECAYING,
    OPTIMIZERS,
    Lab,
    dump,
    evictions,
    optimizer_id,
    random_floats,
    random_keys,
    table,
)
from tests.twins import row_math

STEPS = 100
DIM = 4
Doubles = NDArray[np.float64]


class ReferenceRows:
    """Rows in float64, updated by the textbook formula of their optimizer."""

    def __init__(self, optimizer: hps.common.optimizers.Optimizer, num_rows: int) -> None:
        self.optimizer = optimizer
        self.start = getattr(optimizer, "initial_accumulator_value", 0.0)
        self.is_known = np.zeros(num_rows, bool)
        self.t = np.zeros((num_rows, 1))
        self.w, self.m, self.v, self.z = (np.zeros((num_rows, DIM)) for _ in range(4))
        self.a = np.full((num_rows, DIM), self.start)

    def begin(self, at: NDArray[np.int64], weights: Doubles) -> None:
        """Takes up the weights of the rows among `at` that have none."""
        is_new = ~self.is_known[at]
        at, one = at[is_new], self.optimizer
        self.is_known[at] = True
        self.w[at] = weights[is_new]
        if isinstance(one, hps.FTRL):
            scale = (one.beta + np.sqrt(self.start)) / one.lr + one.l2
            self.z[at] = -self.w[at] * scale - np.sign(self.w[at]) * one.l1

    def update(self, at: NDArray[np.int64], g: Doubles) -> None:
        """One step of distinct rows."""
        one = self.optimizer
        self.t[at] += 1
        w, a, t = self.w[at] * (1 - one.lr * one.weight_decay), self.a[at], self.t[at]
        if isinstance(one, hps.SGD):
            w -= one.lr * g
        elif isinstance(one, hps.RowWiseAdagrad):
            a += (g * g).mean(axis=1, keepdims=True)
            w -= one.lr * g / (np.sqrt(a) + one.eps)
        elif isinstance(one, hps.Adagrad):
            a += g * g
            w -= one.lr * g / (np.sqrt(a) + one.eps)
        elif isinstance(one, hps.Adam):
            beta1, beta2 = one.betas
            self.m[at] = beta1 * self.m[at] + (1 - beta1) * g
            self.v[at] = beta2 * self.v[at] + (1 - beta2) * g * g
            first = self.m[at] / (1 - beta1**t)
            second = self.v[at] / (1 - beta2**t)
            w -= one.lr * first / (np.sqrt(second) + one.eps)
        elif isinstance(one, hps.FTRL):
            sigma = (np.sqrt(a + g * g) - np.sqrt(a)) / one.lr
            self.z[at] += g - sigma * w
            a += g * g
            shrunk = np.sign(self.z[at]) * one.l1 - self.z[at]
            w = np.where(
                np.abs(self.z[at]) <= one.l1,
                0.0,
                shrunk / ((one.beta + np.sqrt(a)) / one.lr + one.l2),
            )
        self.w[at], self.a[at] = w, a


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, *DECAYING], ids=optimizer_id)
def test_100_steps_equal_a_float64_reference(
    lab: Lab, optimizer: hps.common.optimizers.Optimizer
) -> None:
    generator = np.random.default_rng(17)
    distinct = 200 if lab.kind != "twins" else 30
    keys_of_rows = np.unique(random_keys(generator, 10 * distinct, distinct))
    with lab.server(table(optimizer)) as server:
        reference = ReferenceRows(optimizer, len(keys_of_rows))
        for _ in range(STEPS):
            keys = random_keys(generator, 60, distinct)
            grads = random_floats(generator, 60, DIM)
            rows = server.pull("ads", keys).astype(np.float64)
            of_step, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
            at = np.searchsorted(keys_of_rows, of_step)
            assert (keys_of_rows[at] == of_step).all()
            sums = np.zeros((len(at), DIM))
            np.add.at(sums, inverse, grads.astype(np.float64))
            reference.begin(at, rows[first])
            reference.update(at, sums)
            server.push("ads", keys, grads)
        assert evictions(server) > 0
        expected = reference.w[reference.is_known]
        found = server.pull("ads", keys_of_rows[reference.is_known])
    # Relative to the row: a weight that happens to pass through 0 has no digits of its own.
    error = np.abs(found - expected).max(axis=1) / np.abs(expected).max(axis=1)
    assert error.max() < 1e-5


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (hps.SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
        (
            hps.Adagrad(lr=0.1, initial_accumulator_value=0.1),
            lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
        ),
        (hps.Adam(lr=0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
        (
            hps.Adam(lr=0.01, weight_decay=2.0),
            lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=2.0),
        ),
        (hps.Adam(lr=0.01), lambda p: torch.optim.SparseAdam(p, lr=0.01)),
    ],
    ids=["sgd", "adagrad", "adam", "adamw", "sparse_adam"],
)
def test_100_steps_equal_torchs_own(
    lab: Lab, ours: hps.common.optimizers.Optimizer, theirs: Callable[..., torch.optim.Optimizer]
) -> None:
    """Every key occurs in each step, since torch counts Adam's steps globally."""
    generator = np.random.default_rng(23)
    num_rows = 40
    once = torch.arange(num_rows)
    with lab.server(table(ours)) as server:
        start = torch.from_numpy(server.pull("ads", once.numpy()).copy())
        embedding = torch.nn.Embedding.from_pretrained(
            start, freeze=False, sparse="Sparse" in str(theirs(torch.nn.Linear(1, 1).parameters()))
        )
        optimizer = theirs(embedding.parameters())
        for _ in range(STEPS):
            keys = torch.cat([once, torch.from_numpy(generator.integers(0, num_rows, 30))])
            grads = torch.from_numpy(random_floats(generator, len(keys), DIM))
            optimizer.zero_grad()
            embedding(keys).backward(grads)
            optimizer.step()
            server.push("ads", keys, grads)
        found = server.pull("ads", once)
    torch.testing.assert_close(found, embedding.weight.detach(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, *DECAYING], ids=optimizer_id)
@pytest.mark.parametrize("dim", [1, 4, 16, 33])
def test_twin_and_native_rows_are_equal_bit_for_bit(
    tmp_path: Path, optimizer: hps.common.optimizers.Optimizer, dim: int
) -> None:
    """Also with hot keys, whose sums take more than one run of 32 occurrences."""
    digests, rows = [], []
    for kind in ("twins", "native_dram"):
        generator = np.random.default_rng(29)
        with Lab(kind, tmp_path / kind).server(table(optimizer, dim=dim)) as server:
            for step in range(6):
                server.learning_rates["ads"] = 0.1 / (1 + step)
                keys = np.concatenate(
                    [random_keys(generator, 60, 150), random_keys(generator, 200, 3)]
                )
                server.push("ads", keys, random_floats(generator, len(keys), dim))
                state_floats = _C.row_layout(optimizer.kind, dim)["state_floats"]
                some = random_keys(generator, 10, 150)
                state = np.abs(random_floats(generator, 10, state_floats))
                if optimizer.kind == "adam":
                    state[:, :2] = np.minimum(state[:, :2], 1.0)  # 1 - beta^t
                server.assign("ads", some, random_floats(generator, 10, dim), state)
                server.assign("ads", some[:3], random_floats(generator, 3, dim))
                server.pull("ads", random_keys(generator, 20, 300), create=True)
            assert evictions(server) > 0
            rows.append(dump(server))
            digests.append(server.digest("ads"))
    assert rows[0] == rows[1] and digests[0] == digests[1]


@pytest.mark.parametrize("optimizer", DECAYING, ids=optimizer_id)
@pytest.mark.parametrize("dim", [1, 8, 17, 24, 31, 32])
@pytest.mark.parametrize("instruction_set", ["avx512", "avx2", "plain"])
def test_every_instruction_set_decays_to_the_twins_bits(
    tmp_path: Path, optimizer: hps.common.optimizers.Optimizer, dim: int, instruction_set: str
) -> None:
    rows = []
    for kind in ("twins", "native_dram"):
        generator = np.random.default_rng(31)
        isa = instruction_set if kind == "native_dram" else "auto"
        lab = Lab(kind, tmp_path / kind)
        try:
            server = lab.server(table(optimizer, dim=dim), instruction_set=isa)
        except hps.ConfigError as refusal:
            pytest.skip(f"not of this processor: {refusal}")
        with server:
            for _ in range(4):
                keys = random_keys(generator, 60, 100)
                server.push("ads", keys, random_floats(generator, len(keys), dim))
            rows.append(dump(server))
    assert rows[0] == rows[1]


@pytest.mark.parametrize("optimizer", DECAYING, ids=optimizer_id)
def test_rows_that_a_step_does_not_touch_do_not_decay(
    tmp_path: Path, optimizer: hps.common.optimizers.Optimizer
) -> None:
    """And a key that occurs twice in a step decays once: without gradients that is all it does."""
    one = hps.TableConfig(
        name="ads", dim=3, optimizer=optimizer, initializer=hps.Constant(2.0), features=["ads"]
    )
    with Lab("native", tmp_path).server(one, scale=4) as server:
        server.pull("ads", np.array([7, 8], np.uint64), create=True)
        server.push("ads", np.array([7, 7], np.uint64), np.zeros((2, 3), np.float32))
        found = server.pull("ads", np.array([7, 8], np.uint64))
    kept = np.float32(1) - np.float32(optimizer.lr) * np.float32(optimizer.weight_decay)
    np.testing.assert_array_equal(found[0], np.full(3, np.float32(2) * kept))
    np.testing.assert_array_equal(found[1], np.full(3, 2, np.float32))


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"weight_decay": -1.0}, "weight_decay=-1.0 must be"),
        ({"weight_decay": float("inf")}, "weight_decay=inf must be"),
        ({"weight_decay": "1"}, "weight_decay='1' must be"),
        ({"weight_decay": 2.5, "lr": 0.5}, r"lr=0.5 times weight_decay=2.5 is 1.25; .* at most 1"),
    ],
)
@pytest.mark.parametrize("kind", [hps.SGD, hps.Adagrad, hps.RowWiseAdagrad, hps.Adam])
def test_a_decay_outside_its_limits_is_refused(kind: Any, numbers: Any, words: str) -> None:
    with pytest.raises(hps.ConfigError, match=words):
        kind(**numbers)
    assert kind(lr=0.5, weight_decay=2.0).weight_decay == 2.0


def test_ftrl_takes_no_decay() -> None:
    assert hps.FTRL(weight_decay=0.0) == hps.FTRL()
    with pytest.raises(hps.ConfigError, match=r"FTRL: weight_decay=0.1: .* it has l2"):
        hps.FTRL(weight_decay=0.1)


def test_a_rate_that_does_not_go_with_the_decay_is_refused_before_a_step(tmp_path: Path) -> None:
    with Lab("native", tmp_path).server(table(hps.SGD(lr=0.1, weight_decay=2.0))) as server:
        optimizer = hps.RowOptimizer(server)
        optimizer.param_groups[0]["lr"] = 0.75
        with pytest.raises(hps.ConfigError, match=r"'ads': lr=0.75 times weight_decay=2.0"):
            optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.5
        optimizer.step()


@pytest.mark.parametrize(
    "initializer", [hps.Constant(0.5), hps.Uniform(-0.1, 0.2), hps.Normal(std=0.01, mean=0.5)]
)
def test_initial_weights_of_twin_and_native_are_equal(
    tmp_path: Path, initializer: hps.common.initializers.Initializer
) -> None:
    one = hps.TableConfig(name="ads", dim=19, initializer=initializer)
    keys = np.array([0, 1, 2**63, 2**64 - 1, *range(500)], np.uint64)
    stream = _C.xxh64(b"ads", 3)
    expected = row_math.initial_weights(initializer.kind, initializer.numbers(), stream, keys, 19)
    for kind in ("twins", "native_dram"):
        with Lab(kind, tmp_path / kind).server(one, seed=3) as server:
            np.testing.assert_array_equal(server.pull("ads", keys), expected)
    assert abs(float(expected.mean()) - {"constant": 0.5, "uniform": 0.05}.get(
        initializer.kind, 0.5
    )) < 0.01  # fmt: skip
