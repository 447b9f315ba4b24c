"""ShardPlan: keys of a call by shard, sums in the core's order, rows back to every occurrence.

Above it: pytest. Below it: `hps._C.ShardPlan`, hps/common/sharding.py.
"""

import numpy as np
import pytest

import hps
from hps import _C
from hps.common.sharding import NUM_VIRTUAL, ShardMap


def expected_shard(key: int, count: int) -> int:
    """As docs/clients.md says it."""
    virtual = _C.xxh64(key.to_bytes(8, "little")) % NUM_VIRTUAL
    return virtual * count // NUM_VIRTUAL


def make_plan(count: int, keys: np.ndarray) -> _C.ShardPlan:
    plan = _C.ShardPlan(ShardMap(count).owners().tolist())
    plan.build(keys)
    return plan


def random_keys(seed: int, length: int, distinct: int) -> np.ndarray:
    print("seed", seed)
    random = np.random.default_rng(seed)
    pool = random.integers(0, 2**64, distinct, np.uint64, endpoint=False)
    pool[:3] = 0, 2**63, 2**64 - 1
    return random.choice(pool, length)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_distinct_keys_stand_by_shard_in_order_of_first_occurrence(count: int) -> None:
    keys = random_keys(count, 5000, 900)
    plan = make_plan(count, keys)
    wanted: list[list[int]] = [[] for _ in range(count)]
    for key in dict.fromkeys(keys.tolist()):
        wanted[expected_shard(key, count)].append(key)
    starts = plan.starts
    got = [plan.unique_keys[starts[s] : starts[s + 1]].tolist() for s in range(count)]
    assert got == wanted
    assert all(len(part) > 50 for part in got)  # keys did go everywhere
    assert plan.num_unique == sum(map(len, wanted)) and plan.num_occurrences == 5000
    assert plan.matches(keys) and not plan.matches(keys[::-1].copy())


@pytest.mark.parametrize(("count", "dim"), [(1, 33), (3, 16), (3, 1)])
def test_sums_have_the_bits_of_a_cache(count: int, dim: int, tmp_path) -> None:
    keys = random_keys(dim, 20000, 300)
    keys[5000:9000] = keys[0]  # one key with very many runs
    grads = np.random.default_rng(dim).normal(size=(len(keys), dim)).astype(np.float32)
    table = hps.TableConfig(
        name="t", dim=dim, optimizer=hps.SGD(lr=1.0), initializer=hps.Constant(0.0)
    )
    with hps.ParameterServer(hps.Config(path=tmp_path / "s", tables=[table])) as server:
        server.push("t", keys, grads)
        plan = make_plan(count, keys)
        assert plan.sum_gradients(grads) == -1
        stored = server.pull("t", plan.unique_keys.copy())
    assert np.array_equal(-plan.sums(dim), stored)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_rows_come_back_to_every_occurrence(count: int) -> None:
    keys = random_keys(7, 3000, 400)
    plan = make_plan(count, keys)
    rows = plan.unique_keys[:, None] + np.arange(8, dtype=np.uint64)
    rows = rows.astype(np.float32)
    starts = plan.starts
    parts = [rows[starts[s] : starts[s + 1]] for s in range(count)]
    out = np.full((len(keys), 8), np.nan, np.float32)
    plan.scatter(parts, out)
    assert np.array_equal(out, (keys[:, None] + np.arange(8, dtype=np.uint64)).astype(np.float32))


@pytest.mark.parametrize("count", [1, 4])
def test_bad_sum_is_named(count: int) -> None:
    keys = random_keys(9, 1000, 200)
    grads = np.ones((1000, 4), np.float32)
    grads[777, 2] = np.inf
    plan = make_plan(count, keys)
    bad = plan.sum_gradients(grads)
    assert plan.unique_keys[bad] == keys[777]


def test_keys_of_one_shard_only_and_no_keys_at_all() -> None:
    keys = random_keys(4, 2000, 2000)
    mine = keys[ShardMap(2).split(keys)[1]]
    plan = make_plan(2, mine)
    assert plan.starts == [0, 0, plan.num_unique]
    out = np.empty((len(mine), 2), np.float32)
    rows = np.arange(plan.num_unique * 2, dtype=np.float32).reshape(-1, 2)
    plan.scatter([np.empty((0, 2), np.float32), rows], out)
    order = {key: i for i, key in enumerate(plan.unique_keys.tolist())}
    assert np.array_equal(out, rows[[order[key] for key in mine.tolist()]])
    plan.build(np.empty(0, np.uint64))
    assert plan.starts == [0, 0, 0] and plan.num_unique == 0
    plan.scatter([np.empty((0, 2), np.float32)] * 2, np.empty((0, 2), np.float32))


def test_shares_of_skewed_and_of_consecutive_keys_are_even() -> None:
    for keys in (np.arange(100_000, dtype=np.uint64), np.arange(10**5, dtype=np.uint64) << 40):
        sizes = [len(part) for part in ShardMap(4).split(keys)]
        assert max(sizes) < 1.05 * min(sizes)


def test_shard_is_independent_of_a_caches_buckets() -> None:
    """A shard's keys must not fill a part of its caches' buckets: their hash is another one."""
    keys = ShardMap(2).split(np.arange(200_000, dtype=np.uint64))[0].astype(np.uint64)
    mixed = keys.copy()
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    parts = np.bincount(((mixed ^ (mixed >> np.uint64(33))) >> np.uint64(58)).astype(int))
    assert len(parts) == 64 and parts.max() < 1.2 * parts.min()


def test_map_refuses_what_it_cannot_divide() -> None:
    for count in (0, NUM_VIRTUAL + 1):
        with pytest.raises(hps.ConfigError, match="virtual shards"):
            ShardMap(count)
    with pytest.raises(hps.ConfigError, match="hash"):
        ShardMap(1, hash="md5")


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("length", [0, 1, 5000])
def test_occurrences_and_clicks_are_counted_by_key(count: int, length: int) -> None:
    keys = random_keys(count, length, 900)
    labels = np.random.default_rng(count).integers(0, 2, length).astype(np.uint8)
    plan = make_plan(count, keys)
    for given in (labels, None):
        shows, clicks = plan.count(given)
        assert shows.dtype == clicks.dtype == np.uint32
        clicked = keys[labels == 1] if given is not None else keys[:0]
        for key, show, click in zip(plan.unique_keys, shows, clicks, strict=True):
            assert show == (keys == key).sum() and click == (clicked == key).sum()
    with pytest.raises(ValueError, match="labels"):
        plan.count(np.zeros(length + 1, np.uint8))
