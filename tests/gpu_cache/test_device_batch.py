"""A step's verbs over several tables, launched once, do what the host build does with each table.

Above it: pytest. Below it: device_batch.py over host memory, whose work is done late, and over
emulated warps; hps._C.GpuCache, a table at a time.
"""

import gc
import weakref
from typing import Any, cast

import numpy as np
import pytest
import torch

import hps
from hps import _C
from hps.contracts.table_verbs import BagsOfTable, RowsOfTable
from hps.gpu_cache.device_cache import DeviceCache
from hps.gpu_cache.failures import Failures
from tests.gpu_cache.cache_pair import cache_options, capacity_of
from tests.gpu_cache.host_device import HostDevice
from tests.gpu_cache.simt_grid import SEEDED, Grid, GridDevice, find_compiler
from tests.lab import random_floats

BAGS, FEATURES = 24, 2
# A dim that lanes take in pieces of 16 bytes and ones that they do not; two tables of one optimizer
# apart from each other.
TABLES = (
    (hps.RowWiseAdagrad(lr=0.1), 16),
    (hps.SGD(lr=0.1), 6),
    (hps.Adam(), 4),
    (hps.RowWiseAdagrad(lr=0.1), 5),
    (hps.FTRL(), 8),
    (hps.Adagrad(lr=0.1), 16),
)


class Tables:
    """Tables of a device, and the host build of each.

    Args:
        device: whose verbs are asked for all tables at once.
    """

    def __init__(self, device: HostDevice) -> None:
        self.device = device
        self.failures = Failures(device)
        self.ours: list[Any] = []
        self.theirs: list[Any] = []
        for number, (optimizer, dim) in enumerate(TABLES):
            options = cache_options(optimizer, dim, capacity_of(optimizer, dim, 3))
            options["stream"] = number
            self.ours.append(DeviceCache(device, self.failures, options))
            self.theirs.append(_C.GpuCache(pool=_C.ThreadPool(1), **options))
        empty = np.empty(0, np.uint64)
        self.plans = [one.make_plan(empty, None) for one in self.ours]
        self.twins = [one.make_plan(empty, None) for one in self.theirs]
        self.verbs = self.ours[0].together
        self.kept: list[Any] = []  # what queued work reads and writes

    def keep(self, array: Any) -> Any:
        """On the device."""
        if array is None:
            return None
        tensor = torch.from_numpy(array).clone()
        self.kept.append(tensor)
        return tensor

    def bring(self, keys: list[Any]) -> None:
        """Looks up all tables at once, pins those that lack nothing at once, then the others."""
        given = [self.keep(one.view(np.int64)) if len(one) % 2 else one for one in keys]
        self.verbs.look_up(self.plans, self.verbs.keys_of(given), [True] * len(given))
        found = self.verbs.pin_found(self.plans)
        pinned = [plan in found for plan in self.plans]
        lacking = [plan for plan in self.plans if plan not in found]
        assert self.verbs.begin_reserve(lacking) and all(self.verbs.end_reserve(lacking))
        brought = []
        for number, own in enumerate(keys):
            ours, plan = self.ours[number], self.plans[number]
            theirs, twin = self.theirs[number], self.twins[number]
            theirs.make_plan(own, twin)
            theirs.find(twin, 0, -1)
            assert pinned[number] == (twin.num_missing == 0)
            assert theirs.reserve(twin)
            rows = np.zeros((twin.num_missing, ours.row_bytes), np.uint8)
            found = np.zeros(twin.num_missing, np.uint8)
            if not pinned[number]:
                assert np.array_equal(ours.missing_keys(plan), theirs.missing_keys(twin))
                assert np.array_equal(ours.victims(plan), theirs.victims(twin))
                brought.append(RowsOfTable(ours, plan, rows, found, 0.1))
            theirs.fill(twin, rows, found, 0.1, False)
        self.verbs.fill(brought)

    def step(self, bags: list[Any], lr: float) -> None:
        """Pools, sums, tries, applies, and lets go, all tables at once."""
        outs, asked, sums, expected = [], [], [], []
        for number, (offsets, weights, mean, grads) in enumerate(bags):
            cache, plan = self.ours[number], self.plans[number]
            out = np.zeros((BAGS, FEATURES * TABLES[number][1]), np.float32)
            self.theirs[number].pool(self.twins[number], offsets, weights, mean, out)
            expected.append(out)
            outs.append(self.keep(np.zeros_like(out)))
            own = self.keep(offsets), self.keep(weights), mean
            asked.append(BagsOfTable(cache, plan, *own, cast("Any", outs[-1])))
            sums.append(BagsOfTable(cache, plan, *own, self.keep(grads)))
            self.theirs[number].sum_bag_gradients(self.twins[number], offsets, weights, mean, grads)
            self.theirs[number].find_overflow(self.twins[number], lr)
            self.theirs[number].apply(self.twins[number], lr)
            self.theirs[number].abandon(self.twins[number])
        self.verbs.pool(self.verbs.bags_of(asked))
        summed = self.verbs.bags_of(sums, [lr] * len(sums))
        self.verbs.sum_gradients(summed)
        self.verbs.find_overflow(summed)
        self.verbs.apply(summed)
        self.verbs.abandon(self.plans)
        self.device.work_off(self.device.num_queued)
        for out, other in zip(outs, expected, strict=True):
            assert out.numpy().tobytes() == other.tobytes()

    def compare(self) -> None:
        for ours, theirs in zip(self.ours, self.theirs, strict=True):
            mine = ours.stats()
            others = theirs.stats()
            assert others == {name: mine[name] for name in others}
            images = [np.zeros((ours.capacity_rows, ours.row_bytes), np.uint8) for _ in range(2)]
            ends = [
                one.scan(0, "stored", rows)
                for one, rows in zip((ours, theirs), images, strict=True)
            ]
            assert ends[0] == ends[1] and images[0].tobytes() == images[1].tobytes()


def draw(random: Any, step: int) -> tuple[list[Any], list[Any]]:
    """Keys and bags of all tables: one has none, one a key that fills whole blocks of runs."""
    keys, bags = [], []
    for number, (_, dim) in enumerate(TABLES):
        length = 0 if number == (step + 1) % len(TABLES) else int(random.integers(60, 120))
        own = random.integers(0, 150, length).astype(np.uint64)
        if number == step % len(TABLES):
            own = np.concatenate([np.full(2200, 7, np.uint64), own])
        if step % 3 == 2 and len(own):
            own = own % 5
        cuts = np.sort(random.integers(0, len(own) + 1, BAGS * FEATURES - 1))
        offsets = np.array([0, *cuts, len(own)], np.int64)
        weights = random_floats(random, len(own)) if number % 3 == 1 else None
        grads = random_floats(random, BAGS * FEATURES, dim)
        keys.append(own)
        bags.append((offsets, weights, number % 2 == 0, grads))
    return keys, bags


def test_steps_over_tables_of_several_optimizers_have_the_bits_of_each_tables_own() -> None:
    tables, random = Tables(HostDevice()), np.random.default_rng(11)
    was_pinned = 0
    for step in range(9):
        keys, bags = draw(random, step)
        before = [one for one, _ in tables.device.launches].count("CommitEntry")
        tables.bring(keys)
        was_pinned += [one for one, _ in tables.device.launches].count("CommitEntry") - before < 5
        tables.step(bags, 0.3 / (step + 1))
    tables.compare()
    assert was_pinned, "no step pinned tables at once"


def test_each_verb_is_launched_once_for_all_tables() -> None:
    tables, random = Tables(HostDevice()), np.random.default_rng(12)
    for _ in range(2):
        keys, bags = draw(random, 2)
        tables.device.launches.clear()
        tables.bring([one % np.uint64(5) for one in keys])
        tables.step(bags, 0.1)
    names = [name for name, _ in tables.device.launches]
    kinds = {type(optimizer) for optimizer, _ in TABLES}
    assert [one for one in names if one.startswith("Apply")] == list(
        dict.fromkeys(one for one in names if one.startswith("Apply"))
    )
    assert len([one for one in names if one.startswith(("Apply", "Try"))]) == 2 * len(kinds)
    assert all(names.count(one) == 1 for one in set(names)), names
    assert len(names) == 15 + 2 * len(kinds), names


def test_of_several_tables_the_first_whose_gradient_is_not_finite_tells_and_none_is_updated() -> (
    None
):
    tables, random = Tables(HostDevice()), np.random.default_rng(13)
    keys, bags = draw(random, 3)
    for number in (1, 3):
        bags[number][3][:] = np.inf
    tables.bring(keys)
    before = [one.num_rows for one in tables.ours]
    sums = []
    for number, (offsets, weights, mean, grads) in enumerate(bags):
        own = tables.keep(offsets), tables.keep(weights), mean
        cache, plan = tables.ours[number], tables.plans[number]
        sums.append(BagsOfTable(cache, plan, *own, tables.keep(grads)))
    summed = tables.verbs.bags_of(sums, [0.1] * len(sums))
    tables.verbs.sum_gradients(summed)
    tables.verbs.find_overflow(summed)
    tables.verbs.apply(summed)
    told = [one.failed_key(wait=True) for one in tables.ours]
    assert [number for number, key in enumerate(told) if key is not None] == [1]
    assert [one.num_rows for one in tables.ours] == before
    tables.verbs.abandon(tables.plans)
    assert not any(one.pins for one in tables.ours)


def test_memory_of_sums_is_used_again_by_the_same_plans_alone() -> None:
    tables, random = Tables(HostDevice()), np.random.default_rng(14)
    keys, bags = draw(random, 9)
    tables.bring(keys)
    caches = list(zip(tables.ours, tables.plans, bags, strict=True))[:2]
    sums = [
        BagsOfTable(cache, plan, tables.keep(offsets), None, mean, tables.keep(grads))
        for cache, plan, (offsets, _, mean, grads) in caches
    ]
    verbs, plans = tables.verbs, tables.plans[:2]
    verbs.sum_gradients(verbs.bags_of(sums))
    kept = plans[0].sums
    verbs.sum_gradients(verbs.bags_of(sums[::-1]))
    assert plans[0].sums is plans[1].sums is kept, "memory was not used again"
    verbs.sum_gradients(verbs.bags_of(sums[:1]))
    assert plans[0].sums is not kept and plans[1].sums is kept
    step = verbs.step_of(plans[1], 0.1)
    step.add_step(tables.plans[2], 0.1)
    with pytest.raises(AssertionError, match="without sums"):
        verbs.apply(step)


def test_gradients_are_kept_until_all_plans_of_their_sum_are_updated() -> None:
    tables, random = Tables(HostDevice()), np.random.default_rng(16)
    keys, bags = draw(random, 9)
    tables.bring(keys)
    grads = [torch.from_numpy(bags[number][3]) for number in range(2)]
    known = [weakref.ref(one) for one in grads]
    sums = [
        BagsOfTable(tables.ours[at], tables.plans[at], tables.keep(bags[at][0]), None, False, one)
        for at, one in enumerate(grads)
    ]
    verbs, device = tables.verbs, tables.device
    verbs.sum_gradients(verbs.bags_of(sums))
    del sums, grads

    def kept() -> list[bool]:
        device.work_off(device.num_queued)
        gc.collect()
        return [one() is not None for one in known]

    assert kept() == [True, True]
    verbs.apply(verbs.step_of(tables.plans[0], 0.1))
    assert kept() == [True, True]
    verbs.apply(verbs.step_of(tables.plans[1], 0.1))
    assert [one() is not None for one in known] == [True, True]  # what is queued reads them
    assert kept() == [False, False]
    with pytest.raises(AssertionError, match="without sums"):
        verbs.apply(verbs.step_of(tables.plans[1], 0.1))


def test_gradients_of_a_sum_that_another_has_replaced_go_with_its_last_table() -> None:
    tables, random = Tables(HostDevice()), np.random.default_rng(19)
    keys, bags = draw(random, 9)
    tables.bring(keys)
    grads = [torch.from_numpy(bags[number][3]) for number in range(2)]
    known, verbs, device = weakref.ref(grads[0]), tables.verbs, tables.device
    sums = [
        BagsOfTable(tables.ours[at], tables.plans[at], tables.keep(bags[at][0]), None, False, one)
        for at, one in enumerate(grads)
    ]
    verbs.sum_gradients(verbs.bags_of(sums))
    others = tables.keep(bags[0][0]), None, False, tables.keep(bags[0][3])
    sums[0] = BagsOfTable(tables.ours[0], tables.plans[0], *others)
    verbs.sum_gradients(verbs.bags_of(sums[:1]))
    del grads, sums
    assert known() is not None  # the other table's update has still to read that sum
    verbs.apply(verbs.step_of(tables.plans[1], 0.1))
    device.work_off(device.num_queued)
    gc.collect()
    assert known() is None


def test_a_plan_of_other_keys_has_no_sums_and_keeps_no_gradients() -> None:
    tables, random = Tables(HostDevice()), np.random.default_rng(17)
    keys, bags = draw(random, 9)
    tables.bring(keys)
    grads = torch.from_numpy(bags[1][3])
    known, verbs, device, plan = weakref.ref(grads), tables.verbs, tables.device, tables.plans[1]
    offsets = tables.keep(bags[1][0])
    verbs.sum_gradients(
        verbs.bags_of([BagsOfTable(tables.ours[1], plan, offsets, None, False, grads)])
    )
    del grads
    verbs.make_plan(plan, keys[1])
    device.work_off(device.num_queued)
    gc.collect()
    assert known() is None
    tables.ours[1].find(plan, 0, -1)  # its rows are here
    with pytest.raises(AssertionError, match="without sums"):
        verbs.apply(verbs.step_of(plan, 0.1))


def test_weights_of_another_number_than_the_keys_are_refused() -> None:
    tables, random = Tables(HostDevice()), np.random.default_rng(18)
    keys, bags = draw(random, 9)
    tables.bring(keys)
    offsets, _, mean, grads = bags[1]
    out = torch.zeros(BAGS, FEATURES * TABLES[1][1])
    for length in (0, len(keys[1]) - 1, len(keys[1]) + 1):
        weights = tables.keep(np.ones(length, np.float32))
        for values in (out, tables.keep(grads)):
            bag = BagsOfTable(
                tables.ours[1], tables.plans[1], tables.keep(offsets), weights, mean, values
            )
            with pytest.raises(ValueError, match=rf"weights .*of {len(keys[1])} keys.*{length}"):
                tables.verbs.bags_of([bag])


@pytest.mark.skipif(find_compiler() is None, reason="no g++, which compiles the emulated warps")
def test_warps_whose_groups_work_on_several_tables_at_once_have_the_same_bits() -> None:
    tables, random = Tables(GridDevice(Grid(), SEEDED, 5)), np.random.default_rng(15)
    for step in range(2):
        keys, bags = draw(random, step)
        tables.bring(keys)
        tables.step(bags, 0.1)
    tables.compare()
