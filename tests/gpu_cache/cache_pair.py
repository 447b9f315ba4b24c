"""CachePair: two gpu_caches that are asked the same things and must do the same, slot for slot.

Above it: test_launcher.py (the launcher over host memory) and test_cuda_cache.py (a GPU), both
beside the host build, hps._C.GpuCache. Small tables, so that rows give way and batches are refused.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hps import _C
from hps.common.optimizers import Optimizer
from hps.errors import ConfigError
from tests.lab import random_floats, random_keys

VERBS = ("push", "apply", "assign", "assign_state", "create", "read_rows")


def cache_options(optimizer: Optimizer, dim: int, capacity_bytes: int) -> dict[str, Any]:
    """Keyword arguments of a cache."""
    return {
        "optimizer_kind": optimizer.kind,
        "hyperparameters": optimizer.hyperparameters(),
        "dim": dim,
        "capacity_bytes": capacity_bytes,
        "initializer_kind": "normal",
        "initializer_numbers": (0.1, 0.0),
        "stream": 77,
    }


def capacity_of(optimizer: Optimizer, dim: int, num_buckets: int) -> int:
    """A budget for about that many buckets."""
    row_bytes = _C.row_layout(optimizer.kind, dim)["row_bytes"]
    return 16_384 + num_buckets * (64 * (row_bytes + 4) + 16)


class CachePair:
    """The host build and another cache.

    Args:
        optimizer: of the table.
        dim: of the table.
        num_buckets: of 64 slots.
        make: the other cache, from its options.
        seed: of everything that is drawn.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        dim: int,
        num_buckets: int,
        make: Callable[[dict[str, Any]], Any],
        seed: int,
    ) -> None:
        print(f"seed {seed}")
        options = cache_options(optimizer, dim, capacity_of(optimizer, dim, num_buckets))
        self.random = np.random.default_rng(seed)
        self.wishes = np.random.default_rng(seed + 1)  # of batches to come
        self.dim = dim
        self.caches = [_C.GpuCache(pool=_C.ThreadPool(1), **options), make(options)]
        assert self.caches[0].capacity_rows == self.caches[1].capacity_rows
        self.num_distinct = 2 * self.caches[0].capacity_rows
        self.open: list[list[Any]] = []  # plans of batches in flight, pinned
        self.idle: list[list[Any]] = []
        self.refusals = 0

    def keys(self, count: int) -> NDArray[np.uint64]:
        """Keys with repetitions, some of them hot."""
        keys = random_keys(self.random, count, self.num_distinct)
        if count > 200 and self.random.random() < 0.5:
            keys[:: int(self.random.integers(2, 4))] = keys[0]
        return keys

    def both(self, verb: str, *arguments: Any, plans: list[Any] | None = None) -> Any:
        """The answer of both caches to a verb, which must be one."""
        answers = []
        for i, cache in enumerate(self.caches):
            given = arguments if plans is None else (plans[i], *arguments)
            try:
                answers.append(getattr(cache, verb)(*given))
            except ConfigError as error:
                answers.append(str(error))
        self.same(*answers, verb)
        return answers[0]

    @staticmethod
    def same(mine: Any, theirs: Any, what: str) -> None:
        """Two answers are equal to the bit."""
        if isinstance(mine, np.ndarray):
            assert mine.dtype == theirs.dtype and mine.shape == theirs.shape, what
            assert mine.tobytes() == theirs.tobytes(), what
        else:
            assert mine == theirs, what

    def written(self, verb: str, shape: tuple[int, ...], dtype: Any, plans: list[Any]) -> Any:
        """What a verb writes into its last argument, the same from both."""
        outs = [np.zeros(shape, dtype) for _ in self.caches]
        for cache, plan, out in zip(self.caches, plans, outs, strict=True):
            getattr(cache, verb)(plan, out)
        self.same(*outs, verb)
        return outs[0]

    def begin(self) -> None:
        """A batch of random length from its keys to pinned rows, if it is not refused."""
        plans = self.idle.pop() if self.idle else [None, None]
        keys = self.keys(int(self.random.integers(1, 2 * self.caches[0].capacity_rows)))
        plans = [
            cache.make_plan(keys, plan) for cache, plan in zip(self.caches, plans, strict=True)
        ]
        self.same(plans[0].num_unique, plans[1].num_unique, "num_unique")
        num_unique = plans[0].num_unique
        first = int(self.random.integers(0, num_unique)) if self.random.random() < 0.2 else 0
        count = -1 if self.random.random() < 0.6 else int(num_unique - first + 1) // 2
        for cache, plan in zip(self.caches, plans, strict=True):
            cache.find(plan, first, count)
        self.same(plans[0].num_missing, plans[1].num_missing, "num_missing")
        self.both("is_current", plans=plans)
        granted = self.both("reserve", plans=plans)
        self.same(plans[0].unique_keys, plans[1].unique_keys, "unique_keys")
        window = slice(first, num_unique if count < 0 else first + count)
        self.same(plans[0].slots[window], plans[1].slots[window], "slots")
        if not granted:
            self.refusals += 1
            self.idle.append(plans)
            return
        for verb in ("victims", "missing_keys"):
            self.both(verb, plans=plans)
        if self.random.random() < 0.1:
            self.both("cancel", plans=plans)
            self.idle.append(plans)
            return
        self.fill(plans)
        self.open.append([*plans, len(keys), window.stop - window.start])

    def fill(self, plans: list[Any]) -> None:
        """Two of three missing rows are found below, with random contents."""
        keys = np.array(self.caches[0].missing_keys(plans[0]))
        rows = np.zeros((len(keys), self.caches[0].row_bytes), np.uint8)
        rows.view(np.uint64)[:, 0] = keys
        width = self.dim + (self.caches[0].state_floats // self.dim) * self.dim
        rows.view(np.float32)[:, 4 : 4 + width] = np.abs(
            random_floats(self.random, len(keys), width)
        )
        found = (keys % np.uint64(3) != 0).astype(np.uint8)
        create = self.random.random() < 0.2
        self.both("fill", rows, found, 0.1, create, plans=plans)

    def work(self, lr: float) -> None:
        """One verb on a batch in flight; then it may be released."""
        idx = int(self.random.integers(len(self.open)))
        *plans, length, window = self.open[idx]
        verb = VERBS[int(self.random.integers(len(VERBS)))]
        if verb in ("push", "apply"):
            grads = random_floats(self.random, length, self.dim)
            self.both("sum_gradients", grads, plans=plans)
            self.both("find_overflow", lr, plans=plans)
            self.both("apply", lr, plans=plans)
        elif verb.startswith("assign"):
            rows = random_floats(self.random, length, self.dim)
            state = np.abs(random_floats(self.random, length, self.caches[0].state_floats))
            self.both("assign", rows, state if verb == "assign_state" else None, lr, plans=plans)
        elif verb == "create":
            self.both("create", lr, plans=plans)
        else:
            shape = (window, self.caches[0].row_bytes)
            self.written("read_rows", shape, np.uint8, plans)
        self.written("gather", (length, self.dim), np.float32, plans)
        if window == plans[0].num_unique:
            self.pool(plans, length)
        if self.random.random() < 0.6:
            self.both("release", plans=plans)
            self.idle.append(plans)
            del self.open[idx]

    def pool(self, plans: list[Any], length: int) -> None:
        """Bags of random lengths, some empty, two features."""
        cuts = np.sort(self.random.integers(0, length + 1, 5))
        offsets = np.array([0, *cuts, length], np.int64)
        weights = random_floats(self.random, length) if self.random.random() < 0.5 else None
        mean = bool(self.random.random() < 0.5)
        outs = [np.zeros((3, 2 * self.dim), np.float32) for _ in self.caches]
        self.caches[0].pool(plans[0], offsets, weights, mean, outs[0])
        device = getattr(self.caches[1], "torch_device", torch.device("cpu"))
        given = [None if one is None else torch.from_numpy(one) for one in (offsets, weights)]
        given = [None if one is None else one.to(device) for one in given]
        out = torch.zeros(3, 2 * self.dim, device=device)
        self.caches[1].pool(plans[1], *given, mean, out)
        grads = random_floats(self.random, 6, self.dim)
        self.caches[0].sum_bag_gradients(plans[0], offsets, weights, mean, grads)
        self.caches[1].sum_bag_gradients(plans[1], *given, mean, torch.from_numpy(grads).to(device))
        self.both("find_overflow", 0.1, plans=plans)
        self.both("apply", 0.1, plans=plans)
        self.both("is_current", plans=plans)
        self.compare()  # waits for all that is queued
        self.same(outs[0], out.cpu().numpy(), "pool")

    def want(self) -> None:
        """A batch to come is marked."""
        count = int(self.wishes.integers(1, self.caches[0].capacity_rows))
        keys = random_keys(self.wishes, count, self.num_distinct)
        plans = [cache.make_plan(keys, None) for cache in self.caches]
        self.both("want", plans=plans)

    def rest(self) -> None:
        """Verbs outside of batches."""
        self.want()
        keys = self.keys(60)
        self.both("contains", keys)
        if self.random.random() < 0.5:
            # Pinned keys are refused in the same words.
            self.both("erase", np.unique(keys[:3]))
        for what in ("stored", "dirty"):
            cursor = 0
            while cursor >= 0:
                rows = [np.zeros((150, self.caches[0].row_bytes), np.uint8) for _ in self.caches]
                ends = [
                    cache.scan(cursor, what, images)
                    for cache, images in zip(self.caches, rows, strict=True)
                ]
                self.same(*ends, "scan")
                self.same(*rows, "scan")
                if what == "dirty" and self.random.random() < 0.5:
                    self.both("mark_clean", cursor, ends[0][1])
                cursor = ends[0][1]
        outs = [np.zeros((60, self.dim), np.float32) for _ in self.caches]
        for cache, out in zip(self.caches, outs, strict=True):
            cache.initial_weights(keys, out)
        self.same(*outs, "initial_weights")

    def compare(self) -> None:
        """Everything that can be counted."""
        mine, theirs = (cache.stats() for cache in self.caches)
        assert mine == {name: theirs[name] for name in mine}
        for name in ("epoch", "num_rows", "num_fresh", "num_created", "num_dirty", "pins"):
            assert getattr(self.caches[0], name) == getattr(self.caches[1], name), name

    def finish(self) -> None:
        """Lets all batches go and drops every row."""
        for *plans, _, _ in self.open:
            self.both("release", plans=plans)
        self.open.clear()
        self.compare()
        self.both("clear")
        self.compare()


def run_random(*pairs: CachePair, steps: int) -> None:
    """Random walks over all verbs, a step of each pair in turn; up to three batches in flight."""
    for step in range(steps):
        for pair in pairs:
            take_step(pair, step)
    for pair in pairs:
        check_end(pair)


def take_step(pair: CachePair, step: int) -> None:
    """A new batch, perhaps, and a verb or two."""
    if len(pair.open) < 3 and (not pair.open or pair.random.random() < 0.5):
        pair.begin()
    if pair.open:
        pair.work(lr=0.3 / (step + 1))
    if step % 5 == 0:
        pair.rest()
    pair.compare()


def check_end(pair: CachePair) -> None:
    """All that a walk should have met it has met."""
    stats = pair.caches[0].stats()
    counted = ("evictions", "write_backs", "second_bucket", "spared")
    assert all(stats[name] for name in counted), stats
    assert pair.refusals, "no batch was refused"
    pair.finish()
