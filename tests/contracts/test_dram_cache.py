"""The native caches against their twin: random verbs on both agree, with room for all rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hps
from hps import _C
from hps.common.row_layout import RowLayout
from tests.lab import (
    DECAYING,
    OPTIMIZERS,
    make_gpu_cache,
    optimizer_id,
    random_floats,
    random_keys,
)
from tests.twins.dram_cache import TwinDramCache

DIM = 6
NUM_DISTINCT = 120
MAKERS: dict[str, Callable[..., Any]] = {"dram": _C.DramCache, "gpu": make_gpu_cache}


class Pair:
    """A native cache and its twin, asked the same things."""

    def __init__(
        self, make: Callable[..., Any], optimizer: hps.common.optimizers.Optimizer, seed: int
    ) -> None:
        self.generator = np.random.default_rng(seed)
        self.layout = RowLayout(optimizer.kind, DIM)
        options: dict[str, Any] = {
            "pool": _C.ThreadPool(2),
            "optimizer_kind": optimizer.kind,
            "hyperparameters": optimizer.hyperparameters(),
            "dim": DIM,
            "capacity_bytes": 2**20,
            "instruction_set": "auto",
            "initializer_kind": "normal",
            "initializer_numbers": (0.1, 0.0),
            "stream": 77,
        }
        self.caches: list[Any] = [make(**options), TwinDramCache(**options)]
        self.plans = [cache.make_plan(np.empty(0, np.uint64), None) for cache in self.caches]

    def keys(self, count: int) -> Any:
        return random_keys(self.generator, count, NUM_DISTINCT)

    def both(self, verb: str, *arguments: Any) -> Any:
        """The answer of both caches, which must be one."""
        answers = []
        for cache, plan in zip(self.caches, self.plans, strict=True):
            given = [plan if argument is Pair else argument for argument in arguments]
            answers.append(getattr(cache, verb)(*given))
        assert str(answers[0]) == str(answers[1]), (verb, answers)
        return answers[0]

    def gathered(self, count: int) -> Any:
        outs = [np.zeros((count, DIM), np.float32) for _ in self.caches]
        for cache, plan, out in zip(self.caches, self.plans, outs, strict=True):
            cache.gather(plan, out)
        np.testing.assert_array_equal(outs[0], outs[1])

    def fill(self) -> None:
        """Missing rows with an even key are found below; each cache has its own order of them."""
        for cache, plan in zip(self.caches, self.plans, strict=True):
            keys = np.array(cache.missing_keys(plan))
            rows = np.zeros((len(keys), self.layout.row_bytes), np.uint8)
            rows.view(np.uint64)[:, 0] = keys
            small = (keys % np.uint64(97)).astype(np.float32)[:, None]
            rows.view(np.float32)[:, 4 : 4 + DIM + self.layout.state_vectors * DIM] = small
            cache.fill(plan, rows, (keys % np.uint64(2) == 0).astype(np.uint8), 0.1, False)

    def work(self, lr: float) -> None:
        """One batch, from look-up to release."""
        keys = self.keys(int(self.generator.integers(1, 90)))
        for cache, plan in zip(self.caches, self.plans, strict=True):
            cache.make_plan(keys, plan)
            cache.find(plan, 0, int(self.generator.choice([-1, plan.num_unique])))
        assert self.plans[0].num_missing == self.plans[1].num_missing
        assert self.both("reserve", Pair) is True
        if self.generator.random() < 0.2:
            self.both("cancel", Pair)
            return
        self.fill()
        verb = self.generator.integers(4)
        if verb == 0:
            grads = random_floats(self.generator, len(keys), DIM)
            assert self.both("push", Pair, grads, lr) == -1
        elif verb == 1:
            rows = random_floats(self.generator, len(keys), DIM)
            state = random_floats(self.generator, len(keys), self.layout.state_floats)
            self.both("assign", Pair, rows, None if lr > 0.1 else np.abs(state), lr)
        elif verb == 2:
            self.both("create", Pair, lr)
        self.gathered(len(keys))
        self.both("release", Pair)

    def move_by_key(self) -> None:
        """Rows of distinct keys, some of which are to be left alone, up and down."""
        keys = self.generator.permutation(np.unique(self.keys(60)))
        flags = (self.generator.random(len(keys)) < 0.3).astype(np.uint8)
        images = np.zeros((len(keys), self.layout.row_bytes), np.uint8)
        found = [flags.copy(), flags.copy()]
        read = [images.copy(), images.copy()]
        counts = [
            cache.read_here(keys, *one)
            for cache, one in zip(self.caches, zip(read, found, strict=True), strict=True)
        ]
        assert counts[0] == counts[1] and counts[0][0] == int((found[0] != flags).sum())
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(read[0], read[1])
        images.view(np.uint64)[:, 0] = keys
        small = (keys % np.uint64(89)).astype(np.float32)[:, None]
        images.view(np.float32)[:, 4 : 4 + DIM + self.layout.state_vectors * DIM] = small
        done = [flags.copy(), flags.copy()]
        counts = [
            cache.write_here(images, one) for cache, one in zip(self.caches, done, strict=True)
        ]
        np.testing.assert_array_equal(done[0], done[1])
        assert counts[0] == counts[1] and np.array_equal(done[0], found[0])

    def compare(self) -> None:
        """Everything that can be seen from outside, but for the order of rows."""
        for name in ("num_rows", "num_fresh", "num_created", "num_dirty", "pins"):
            assert len({getattr(cache, name) for cache in self.caches}) == 1, name
        keys = np.unique(random_keys(self.generator, 500, NUM_DISTINCT))
        codes = [cache.contains(keys) for cache in self.caches]
        np.testing.assert_array_equal(codes[0], codes[1])
        self.scan("stored")
        self.scan("dirty")

    def scan(self, what: str) -> None:
        """Both hold the same rows of that kind."""
        scanned = []
        for cache in self.caches:
            rows = np.zeros((NUM_DISTINCT + 1, self.layout.row_bytes), np.uint8)
            count, cursor = cache.scan(0, what, rows)
            assert cursor == -1
            scanned.append({bytes(row) for row in rows[:count]})
        assert scanned[0] == scanned[1]


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, *DECAYING], ids=optimizer_id)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_random_verbs_agree(
    make: Callable[..., Any], optimizer: hps.common.optimizers.Optimizer
) -> None:
    pair = Pair(make, optimizer, seed=len(optimizer_id(optimizer)))
    for step in range(40):
        pair.work(lr=0.3 / (step + 1))
        if step % 4 == 0:
            pair.both("erase", np.unique(pair.keys(5)))
        if make is _C.DramCache and step % 3 == 0:
            pair.move_by_key()
        if step % 7 == 0:
            pair.scan("dirty")
            pair.both("mark_clean", 0, -1)
        pair.compare()
    out = [np.zeros((50, DIM), np.float32) for _ in range(2)]
    keys = pair.keys(50)
    for cache, rows in zip(pair.caches, out, strict=True):
        cache.initial_weights(keys, rows)
    np.testing.assert_array_equal(out[0], out[1])
    pair.both("clear")
    pair.compare()


def test_the_budget_is_never_exceeded_and_holds_what_it_should() -> None:
    for budget in (20_000, 10**6, 3 * 10**6 + 17):
        config = hps.Config(
            path="unused",
            tables=[hps.TableConfig(name="ads", dim=16, optimizer=hps.RowWiseAdagrad())],
            dram=hps.DramCacheConfig(bytes=budget),
        )
        cache = hps.dram_cache.make_dram_caches(config)["ads"]
        assert cache.memory_bytes <= budget
        assert cache.capacity_rows * cache.row_bytes > 0.5 * budget
