"""Rows that a cache above fetches from a dram_cache, and writes back to it, by their keys.

Above it: pytest. Below it: DramCache.read_here and write_here; test_dram_cache.py compares them
with the twin.
"""

from typing import Any

import numpy as np
import pytest

import hps
from hps import _C
from hps.contracts.row_cache import DIRTY, FRESH, PENDING, STORED
from tests.lab import random_floats

DIM = 4
MANY = 7001  # several pieces, which threads share


class Filled:
    """A cache of rows that are stored below, whose weights are random."""

    def __init__(self, num_rows: int, capacity_bytes: int = 2**21, threads: int = 3) -> None:
        sgd = hps.SGD()
        self.cache = _C.DramCache(
            pool=_C.ThreadPool(threads),
            optimizer_kind=sgd.kind,
            hyperparameters=sgd.hyperparameters(),
            dim=DIM,
            capacity_bytes=capacity_bytes,
            instruction_set="auto",
            initializer_kind="normal",
            initializer_numbers=(0.1, 0.0),
            stream=1,
        )
        self.generator = np.random.default_rng(3)
        self.keys = self.generator.permutation(np.arange(num_rows, dtype=np.uint64))
        self.images = self.new_images(self.keys)
        self.take(self.keys, self.images)

    def new_images(self, keys: Any) -> Any:
        images = np.zeros((len(keys), self.cache.row_bytes), np.uint8)
        images.view(np.uint64)[:, 0] = keys
        images.view(np.float32)[:, 4:] = random_floats(self.generator, len(keys), DIM)
        return images

    def take(self, keys: Any, images: Any) -> None:
        """Slots for these rows, which come from below."""
        plan = self.reserve(keys)
        missing = self.cache.missing_keys(plan)
        order = np.argsort(keys)
        places = order[np.searchsorted(keys, missing, sorter=order)]
        self.cache.fill(plan, images[places], np.ones(len(missing), np.uint8), 0.1, False)
        self.cache.release(plan)

    def reserve(self, keys: Any) -> Any:
        plan = self.cache.make_plan(keys, None)
        self.cache.find(plan, 0, -1)
        assert self.cache.reserve(plan)
        return plan

    def read(self, keys: Any) -> tuple[Any, Any, tuple[int, int]]:
        rows = np.full((len(keys), self.cache.row_bytes), 7, np.uint8)
        found = np.zeros(len(keys), np.uint8)
        return rows, found, self.cache.read_here(keys, rows, found)


@pytest.mark.parametrize("count", [0, 1, 33, MANY])
def test_rows_come_to_their_keys_places(count: int) -> None:
    filled = Filled(MANY)
    absent = np.arange(10**6, 10**6 + count, dtype=np.uint64)
    keys = np.concatenate([filled.keys[:count], absent])
    order = filled.generator.permutation(len(keys))
    rows, found, counts = filled.read(keys[order])
    assert counts == (count, 0)
    np.testing.assert_array_equal(found, order < count)
    is_here = found != 0
    np.testing.assert_array_equal(rows[is_here], filled.images[order[is_here]])
    assert (rows[~is_here] == 7).all()


def test_rows_that_are_written_are_dirty_and_others_stay() -> None:
    filled = Filled(MANY)
    new = filled.new_images(filled.keys)
    done = np.arange(MANY).astype(np.uint8) % 3 == 0
    flags = done.astype(np.uint8)
    assert filled.cache.write_here(new, flags) == MANY - int(done.sum()) == filled.cache.num_dirty
    assert flags.all()
    rows, _, _ = filled.read(filled.keys)
    np.testing.assert_array_equal(rows, np.where(done[:, None], filled.images, new))
    assert np.array_equal(filled.cache.contains(filled.keys), np.where(done, STORED, DIRTY))
    strange = filled.new_images(filled.keys + np.uint64(10**6))
    flags = np.zeros(MANY, np.uint8)
    assert filled.cache.write_here(strange, flags) == 0 and not flags.any()


def test_pinned_rows_are_counted() -> None:
    filled = Filled(MANY)
    plan = filled.reserve(filled.keys[:40])
    nothing = np.empty((0, filled.cache.row_bytes), np.uint8)
    filled.cache.fill(plan, nothing, np.empty(0, np.uint8), 0.1, False)
    assert filled.read(filled.keys[30:100])[2] == (70, 10)
    filled.cache.release(plan)
    assert filled.read(filled.keys[30:100])[2] == (70, 0)


def test_rows_that_are_on_their_way_or_that_nobody_stores_do_not_move() -> None:
    filled = Filled(10)
    coming, fresh = (np.arange(at, at + 5, dtype=np.uint64) for at in (100, 200))
    plan = filled.reserve(fresh)
    none_found = np.zeros((5, filled.cache.row_bytes), np.uint8)
    filled.cache.fill(plan, none_found, np.zeros(5, np.uint8), 0.1, False)
    pending = filled.reserve(coming)
    for keys, code in ((coming, PENDING), (fresh, FRESH)):
        assert (filled.cache.contains(keys) == code).all()
        rows, found, counts = filled.read(keys)
        assert counts == (0, 0) and not found.any() and (rows == 7).all()
        flags = np.zeros(5, np.uint8)
        assert filled.cache.write_here(filled.new_images(keys), flags) == 0 and not flags.any()
    filled.cache.abandon(pending)
    filled.cache.release(plan)


@pytest.mark.parametrize("verb", ["read", "write"])
def test_rows_that_move_by_key_were_used_and_stay_longer(verb: str) -> None:
    filled = Filled(0, capacity_bytes=200_000)
    cache = filled.cache
    count = cache.capacity_rows // 10
    kept = np.arange(count, dtype=np.uint64)
    filled.take(kept, filled.new_images(kept))
    for start in range(1, 60):
        others = np.arange(count, dtype=np.uint64) + np.uint64(10**6 * start)
        filled.take(others, filled.new_images(others))
        if verb == "read":
            filled.read(kept)
        else:
            cache.write_here(filled.new_images(kept), np.zeros(count, np.uint8))
    assert cache.stats()["evictions"] > 20 * count
    assert (cache.contains(kept) != 0).mean() > 0.6  # of rows never used again: none


def test_arrays_of_other_shapes_are_refused() -> None:
    filled = Filled(10)
    rows, flags = np.zeros((10, filled.cache.row_bytes), np.uint8), np.zeros(10, np.uint8)
    for verb, arguments in (
        ("read_here", (filled.keys, rows[:9], flags)),
        ("read_here", (filled.keys, rows, flags[:9])),
        ("read_here", (filled.keys, rows[:, :16].copy(), flags)),
        ("write_here", (rows, flags[:9])),
        ("write_here", (rows[:, :16].copy(), flags)),
    ):
        with pytest.raises(ValueError, match=r"rows \[n, row_bytes\] and a flag of each"):
            getattr(filled.cache, verb)(*arguments)
