"""Random sequences of every public verb against a dict; tiny tiers, so that each step moves rows.

Hypothesis prints the failing sequence and shrinks it. The dict holds what the store should hold:
weights of SGD with learning rate 1 over integer gradients, which float32 adds exactly in any order.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import hps
from hps.contracts.updates import RowUpdate
from hps.tiers.batch_rows import BatchRows
from tests.lab import KINDS, Lab, evictions
from tests.parameter_server.machines import end, run_machine

DIM = 4
INITIAL = 0.5
EDGE_KEYS = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
ONE_KEY = st.one_of(st.sampled_from(EDGE_KEYS), st.integers(0, 250))
FEW_KEYS = st.lists(ONE_KEY, min_size=0, max_size=40)
# A range is cheap to draw and larger than any cache of the test.
MANY_KEYS = st.tuples(st.integers(0, 200), st.integers(1, 400)).map(
    lambda span: list(range(span[0], span[0] + span[1]))
)
KEYS = st.one_of(FEW_KEYS, FEW_KEYS, MANY_KEYS)
TAGS = ("a", "b")

Model = dict[int, tuple[float, ...]]


class ServerMachine(RuleBasedStateMachine):
    """A server over tiers of `kind`, and the dict that says what it should hold."""

    kind = "twins"
    num_evictions = 0

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.lab = Lab(self.kind, self.folder)
        self.model: Model = {}
        self.checkpoints: dict[str, Model] = {}
        self.newest: Model = {}
        self.pinned: tuple[list[int], BatchRows] | None = None
        self.table = hps.TableConfig(
            name="ads", dim=DIM, optimizer=hps.SGD(lr=1.0), initializer=hps.Constant(INITIAL)
        )

    @initialize()
    def start(self) -> None:
        self.server = self.lab.server(self.table)

    def row(self, key: int) -> tuple[float, ...]:
        return self.model.get(key, (INITIAL,) * DIM)

    def expect_rows(self, keys: list[int], rows: Any) -> None:
        expected = np.array([self.row(key) for key in keys], np.float32).reshape(-1, DIM)
        np.testing.assert_array_equal(rows, expected)

    def add(self, keys: list[int], grads: Any) -> None:
        for key, grad in zip(keys, grads.tolist(), strict=True):
            self.model[key] = tuple(a - b for a, b in zip(self.row(key), grad, strict=True))

    def grads(self, keys: list[int], seed: int) -> Any:
        generator = np.random.default_rng(seed)
        return generator.integers(-3, 4, (len(keys), DIM)).astype(np.float32)

    @rule(keys=KEYS)
    def pull(self, keys: list[int]) -> None:
        self.expect_rows(keys, self.server.pull("ads", np.array(keys, np.uint64)))

    @rule(keys=FEW_KEYS)
    def create(self, keys: list[int]) -> None:
        self.expect_rows(keys, self.server.pull("ads", np.array(keys, np.uint64), create=True))
        for key in keys:
            self.model.setdefault(key, (INITIAL,) * DIM)

    @rule(keys=KEYS, seed=st.integers(0, 1000), reads_first=st.booleans())
    def push(self, keys: list[int], seed: int, reads_first: bool) -> None:
        array, grads = np.array(keys, np.uint64), self.grads(keys, seed)
        if reads_first:
            self.expect_rows(keys, self.server.pull("ads", array))
        self.server.push("ads", array, grads)
        self.add(keys, grads)

    @rule(keys=FEW_KEYS.filter(bool), at=st.integers(0, 39))
    def push_not_a_number(self, keys: list[int], at: int) -> None:
        grads = self.grads(keys, at)
        grads[at % len(keys), at % DIM] = np.nan
        with pytest.raises(hps.NonFiniteError):
            self.server.push("ads", np.array(keys, np.uint64), grads)

    @rule(keys=FEW_KEYS, seed=st.integers(0, 1000))
    def assign(self, keys: list[int], seed: int) -> None:
        rows = self.grads(keys, seed)
        self.server.assign("ads", np.array(keys, np.uint64), rows)
        self.model.update(zip(keys, (tuple(row) for row in rows.tolist()), strict=True))

    @rule(keys=KEYS)
    def erase(self, keys: list[int]) -> None:
        array = np.array(keys, np.uint64)
        if self.pinned is not None and set(keys) & set(self.pinned[0]):
            with pytest.raises(hps.ConfigError, match="pinned"):
                self.server.erase("ads", array)
            return
        stored = [key in self.model for key in keys]
        assert self.server.erase("ads", array).tolist() == stored
        for key in keys:
            self.model.pop(key, None)

    @rule(keys=FEW_KEYS)
    def contains(self, keys: list[int]) -> None:
        found = self.server.contains("ads", np.array(keys, np.uint64)).tolist()
        assert found == [key in self.model for key in keys]

    @precondition(lambda self: self.pinned is None)
    @rule(keys=st.lists(ONE_KEY, min_size=1, max_size=6))
    def pin(self, keys: list[int]) -> None:
        rows = self.server.pin("ads", np.array(keys, np.uint64))
        self.expect_rows(keys, rows.gather())
        self.pinned = (keys, rows)

    @rule(keys=MANY_KEYS)
    def warm(self, keys: list[int]) -> None:
        with self.server.warm("ads", np.array(keys, np.uint64)) as warm:
            few = keys[:8]
            self.expect_rows(few, self.server.pull("ads", np.array(few, np.uint64)))
            assert warm.num_rows <= len(keys)

    @precondition(lambda self: self.pinned is not None)
    @rule(seed=st.integers(0, 1000), is_trained=st.booleans())
    def step_and_release(self, seed: int, is_trained: bool) -> None:
        assert self.pinned is not None
        keys, rows = self.pinned
        self.expect_rows(keys, rows.gather())
        if is_trained:
            grads = self.grads(keys, seed)
            self.server.apply([RowUpdate("ads", np.array(keys, np.uint64), grads, rows)])
            self.add(keys, grads)
        rows.release()
        self.pinned = None
        assert self.server.pins == 0

    @rule(tag=st.sampled_from((*TAGS, None)))
    def checkpoint(self, tag: str | None) -> None:
        self.server.checkpoint(tag, reader={"rows": len(self.model)})
        self.newest = dict(self.model)
        if tag is not None:
            self.checkpoints[tag] = dict(self.model)

    @precondition(lambda self: self.pinned is None)
    @rule(tag=st.sampled_from(TAGS))
    def restore(self, tag: str) -> None:
        if tag not in self.checkpoints:
            with pytest.raises(hps.ConfigError):
                self.server.restore(tag)
            return
        _, reader = self.server.restore(tag)
        self.model = dict(self.checkpoints[tag])
        self.newest = dict(self.model)
        assert reader == {"rows": len(self.model)}

    @precondition(lambda self: self.pinned is None)
    @rule(saves=st.booleans())
    def reopen(self, saves: bool) -> None:
        type(self).num_evictions += evictions(self.server)
        if saves:
            self.server.checkpoint()
            self.newest = dict(self.model)
        self.server.close()
        self.model = dict(self.newest)
        self.server = self.lab.server(self.table)

    @rule()
    def look_at_every_row(self) -> None:
        found: Model = {}
        for keys, rows in self.server.items("ads", batch=37):
            for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
                assert key not in found
                found[key] = tuple(row)
        assert found == self.model
        digest = self.server.digest("ads")
        if self.pinned is None:
            self.server.pull("ads", np.arange(300, dtype=np.uint64))
            assert self.server.digest("ads") == digest

    @invariant()
    def the_count_is_exact(self) -> None:
        if hasattr(self, "server"):
            assert self.server.num_rows("ads") == len(self.model)

    def teardown(self) -> None:
        end(self)


@pytest.mark.parametrize("kind", KINDS)
def test_server_agrees_with_a_dict(kind: str) -> None:
    # each syncs many files
    run_machine(ServerMachine, kind, max_examples=8 if kind == "rocksdb" else 15)
