"""The device's kernels take the same slots and bits in every order of lanes, groups and warps.

Above it: pytest. Below it: simt_grid.py, cache_pair.py. Lanes are parted at any access of memory,
warps are left alone for long, and one is not run before all others are done: no kernel may need
the progress of another warp.
"""

from typing import Any

import numpy as np
import pytest

import hps
from hps.gpu_cache.device_cache import DeviceCache
from hps.gpu_cache.failures import Failures
from tests.gpu_cache.cache_pair import CachePair, take_step
from tests.gpu_cache.host_device import AskedCache
from tests.gpu_cache.simt_grid import (
    SEEDED,
    STARVING,
    WARP_BY_WARP,
    Grid,
    GridDevice,
    find_compiler,
)

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no g++ here")
STEPS = 12


@pytest.fixture(scope="module")
def grid() -> Grid:
    """The kernels, built once."""
    return Grid()


@pytest.mark.parametrize(
    ("order", "dim"),
    # At 72 a sum takes two pieces a lane at once, then one.
    [(WARP_BY_WARP, 6), (SEEDED, 6), (STARVING, 6), (WARP_BY_WARP, 72)],
)
def test_every_order_takes_the_slots_and_bits_of_the_host_build(
    grid: Grid, order: int, dim: int
) -> None:
    device = GridDevice(grid, order, seed=1000 * order)
    failures = Failures(device)

    def make(options: dict[str, Any]) -> DeviceCache:
        return AskedCache(device, failures, options)

    pair = CachePair(hps.RowWiseAdagrad(lr=0.1), dim, 2, make, seed=3)
    for step in range(STEPS):
        take_step(pair, step)
    stats = pair.caches[0].stats()
    assert stats["evictions"] and stats["write_backs"], stats
    pair.finish()
    launched = {name for name, _ in device.launches}
    assert {
        "PlaceKey",
        "PlaceFirst",
        "PlaceVictimSecond",
        "CommitEntry",
        "SumRun",
        "ApplyRowWiseAdagrad",
    } <= launched


def deduplicate(device: GridDevice, **changes: Any) -> Any:
    """PlaceKey over keys [200] of 50 kinds; the table of positions [512], and flags [7 * 32]."""
    keys = np.random.default_rng(5).integers(0, 50, 200).astype(np.uint64)
    table = np.full(512, 0xFFFFFFFF, np.uint32)
    inverse, words, sums = (np.zeros(size, np.uint32) for size in (200, 7, 1))
    args = np.zeros(1, device.args.dtype("DeduplicateArgs"))
    args["keys"] = keys.ctypes.data
    batch = args["batch"]
    batch["num_occurrences"] = len(keys)
    batch["id_table"], batch["id_mask"] = table.ctypes.data, len(table) - 1
    batch["inverse"] = inverse.ctypes.data
    batch["first_flags"]["words"], batch["first_flags"]["sums"] = (
        words.ctypes.data,
        sums.ctypes.data,
    )
    for name, value in changes.items():
        batch[name] = value
    ends = np.array([len(keys)])
    tables = np.zeros(1, device.args.dtype("Tables"))
    tables["args"], tables["ends"] = args.ctypes.data, ends.ctypes.data
    tables["num_tables"] = 1
    with device.order().verb():
        device.launch("PlaceKey", tables, len(keys))
    device.work_off(device.num_queued)
    flags = np.unpackbits(words.view(np.uint8), bitorder="little")
    assert sums[0] == flags.sum()
    return keys, table, np.flatnonzero(flags)


@pytest.mark.parametrize("order", [SEEDED, STARVING])
def test_lanes_that_race_for_an_entry_leave_each_key_its_first_position(
    grid: Grid, order: int
) -> None:
    firsts = None
    for seed in range(20):
        keys, table, flagged = deduplicate(GridDevice(grid, order, seed))
        found = np.sort(table[table != 0xFFFFFFFF])
        if firsts is None:
            firsts = np.sort(np.unique(keys, return_index=True)[1])
        assert np.array_equal(found, firsts), seed
        assert np.array_equal(flagged, firsts), seed


def test_the_same_seed_gives_the_same_order(grid: Grid) -> None:
    counts = []
    for seed in (1, 1, 2, 3, 4):
        device = GridDevice(grid, SEEDED, seed)
        deduplicate(device)
        found = device.counts["PlaceKey"]  # sectors depend on where numpy's memory begins
        counts.append([found[name] for name in ("reads", "writes", "atomics", "divergent")])
    assert counts[0] == counts[1]
    assert len({str(one) for one in counts}) > 1, "all seeds gave one order"


def test_a_lane_that_waits_for_ever_is_told(grid: Grid) -> None:
    """A table without a free entry: what would be a hang on a device."""
    device = GridDevice(grid, SEEDED)
    full = np.zeros(1, np.uint32)  # holds position 0 and has room for no other key
    with pytest.raises(AssertionError, match="PlaceKey does not end"):
        deduplicate(device, id_table=full.ctypes.data, id_mask=0)
