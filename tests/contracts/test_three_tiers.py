"""A cache over the dram_cache over the store: rows go down and come up as with two tiers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.contracts.row_cache import DIRTY
from hps.dram_cache.tier import DramTier
from hps.parameter_server.server import ParameterServer, RowUpdate
from tests.contracts.test_phases import Call, held
from tests.lab import OPTIMIZERS, Lab, dump, keys_of, random_floats, random_keys, table

KEYS = np.arange(700, dtype=np.uint64)


@pytest.fixture(params=["three_twins", "gpu"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    """An empty store under two caches."""
    return Lab(request.param, tmp_path)


def ones(count: int) -> np.ndarray:
    return np.ones((count, 4), np.float32)


def tiers(server: ParameterServer) -> tuple[Any, DramTier, Any]:
    """The top cache, the tier below it, the store's side of table "ads"."""
    found = server.parts.tables.tiers["ads"]
    assert found.dram is not None
    return found.stack.cache, found.dram, found.store


def in_store(server: ParameterServer, keys: np.ndarray) -> np.ndarray:
    store = tiers(server)[2]
    rows = np.zeros((len(keys), server.parts.tables.stack("ads").layout.row_bytes), np.uint8)
    found = np.zeros(len(keys), np.uint8)
    store.store.fetch("ads", keys, rows, found)
    assert found.all()
    return rows


def test_a_key_that_no_tier_stores_takes_no_slot_below(lab: Lab) -> None:
    with lab.server(table()) as server:
        top, dram, _ = tiers(server)
        for first in range(0, 700, 7):
            server.pin("ads", KEYS[first : first + 7]).release()
            server.warm("ads", KEYS[first : first + 14]).release()
        assert top.num_fresh > 0 and dram.cache.num_rows == dram.cache.num_fresh == 0
        server.push("ads", KEYS, ones(700))
        assert dram.cache.num_rows > 0 and dram.cache.num_fresh == 0


def test_a_dirty_victim_updates_the_row_below_or_takes_a_slot_there(lab: Lab) -> None:
    with lab.server(table()) as server:
        top, dram, store = tiers(server)
        appended = store.counters.append_rows
        count = top.capacity_rows // 2
        server.push("ads", KEYS[:count], ones(count))
        others = 1000 + np.arange(4 * top.capacity_rows, dtype=np.uint64)
        number = 0
        while top.contains(KEYS[:count]).any():  # until all have given way
            server.pull("ads", others[number : number + 8])
            number += 8
        codes = dram.cache.contains(KEYS[:count])
        assert (codes == DIRTY).any() and store.counters.append_rows - appended < count
        server.push("ads", KEYS[:count], ones(count))
        stale = dram.cache.contains(KEYS[:count]) == DIRTY  # older than the rows above
        assert stale.any()
        before = dump(server)
        assert server.num_rows("ads") == count == len(before)
        info = server.checkpoint("kept")
        assert info["rows_written"] >= count and dram.cache.num_dirty == top.num_dirty == 0
        server.push("ads", KEYS[:count], ones(count))
        server.restore("kept")
        assert dump(server) == before


def test_rows_of_which_none_is_in_the_dram_cache_are_read_to_where_they_are_wanted(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lab.server(table()) as server:
        server.push("ads", KEYS, ones(700))
        server.checkpoint()
        _, dram, store = tiers(server)
        keys = KEYS[dram.cache.contains(KEYS) == 0][:8]
        rows = np.zeros((8, dram.layout.row_bytes), np.uint8)
        found, places = np.zeros(8, np.uint8), []

        class Below:
            def fetch(self, keys: Any, rows: Any, found: Any) -> None:
                places.append(rows.ctypes.data)
                store.fetch(keys, rows, found)

            def append(self, rows: Any, *, takes_slots: bool = True) -> None:
                store.append(rows, takes_slots=takes_slots)

        with monkeypatch.context() as patched:
            patched.setattr(dram, "below", Below())
            dram.fetch(keys, rows, found)
        assert places == [rows.ctypes.data] and found.all()
        np.testing.assert_array_equal(rows, in_store(server, keys))


def test_a_row_that_comes_down_is_newer_than_one_that_descends(lab: Lab) -> None:
    with lab.server(table()) as server:
        server.push("ads", KEYS, ones(700))
        server.checkpoint()
        _, dram, _ = tiers(server)
        keys = KEYS[dram.cache.contains(KEYS) != 0][:3]
        assert len(keys) == 3
        older, newest = in_store(server, keys), in_store(server, keys)
        older.view(np.float32)[:, 4] = 5.0
        newest.view(np.float32)[:, 4] = 9.0
        with dram.lock:
            dram._descending.add(keys, older)
        dram.append(newest)
        with dram.turn:
            dram._settle()
        rows, found = np.zeros_like(newest), np.zeros(3, np.uint8)
        dram.fetch(keys, rows, found)
        np.testing.assert_array_equal(rows, newest)


def test_a_write_back_never_waits_for_a_pin(lab: Lab) -> None:
    """With every slot below pinned, a row that is there is updated and others go to the store."""
    with lab.server(table()) as server:
        _, dram, _ = tiers(server)
        server.push("ads", KEYS, ones(700))
        server.checkpoint()
        warm = [dram.warm(KEYS[first : first + 1]) for first in range(699)]
        assert dram.cache.pins > dram.cache.capacity_rows * 0.7
        pinned = KEYS[dram.cache.contains(KEYS) != 0]
        server.push("ads", KEYS, ones(700))
        server.push("ads", KEYS[::-1].copy(), ones(700))
        assert (dram.cache.contains(pinned) != 0).all()  # they stayed, and are new
        expected = server.pull("ads", KEYS).copy()
        digest = server.digest("ads")
        for one in warm:
            one.release()
        assert server.pins == 0
        np.testing.assert_array_equal(server.pull("ads", KEYS[::-1].copy()), expected[::-1])
        assert server.digest("ads") == digest


def test_warm_rows_wait_below_pinned_until_they_are_released(lab: Lab) -> None:
    with lab.server(table()) as server:
        top, dram, store = tiers(server)
        server.push("ads", KEYS, ones(700))
        away = KEYS[(top.contains(KEYS) == 0) & (dram.cache.contains(KEYS) == 0)][:8]
        assert len(away) == 8
        warm = server.warm("ads", np.concatenate([away, away, keys_of(9999)]))
        assert warm.num_rows == 8 == dram.cache.pins == server.pins
        assert not warm.is_released
        with pytest.raises(hps.ConfigError, match=f"key {away[1]} is pinned"):
            server.erase("ads", away[1:])
        with pytest.raises(hps.ConfigError, match="pins"):
            server.restore()
        fetched = store.counters.hits
        rows = server.pin("ads", away)
        assert store.counters.hits == fetched  # nothing was read from the store again
        warm.release()
        warm.release()
        assert dram.cache.pins == 0 and server.pins == 8 and warm.is_released
        server.apply([RowUpdate("ads", away, ones(8), rows)])
        rows.release()
        dropped = server.warm("ads", KEYS[300:308])
        del dropped
        assert server.pins == 0 and server.erase("ads", away).all()


def test_each_row_asked_for_is_counted_once_warmed_or_not(lab: Lab) -> None:
    with lab.server(table()) as server:
        top, dram, _ = tiers(server)
        server.push("ads", KEYS, ones(700))
        server.checkpoint()  # so that no row that leaves goes into a slot below

        def away(count: int, is_in_dram: bool, but: Any = ()) -> Any:
            is_here = dram.cache.contains(KEYS) != 0
            keys = KEYS[(top.contains(KEYS) == 0) & (is_here == is_in_dram)]
            keys = np.setdiff1d(keys, but)[:count]
            assert len(keys) == count
            return keys

        def counted(call: Call) -> tuple[int, int]:
            before = dram.counters.hits, dram.counters.misses
            call()
            return dram.counters.hits - before[0], dram.counters.misses - before[1]

        warmed, read, warm = away(4, True), away(2, False), []
        keys = np.concatenate([warmed, read])
        assert counted(lambda: warm.append(server.warm("ads", keys))) == (4, 2)
        assert dram.cache.pins == 6
        assert counted(lambda: server.pin("ads", warmed[:3]).release()) == (0, 0)
        # Rows that wait for another batch do not hide what this one asks for.
        others, below = away(2, True, but=keys), away(1, False)
        mixed = np.concatenate([others, warmed[3:], read[:1], below])
        assert not top.contains(mixed).any()
        assert counted(lambda: server.pin("ads", mixed).release()) == (2, 1)
        warm[0].release()
        keys = away(3, True)
        assert counted(lambda: server.pin("ads", keys).release()) == (3, 0)


def test_without_a_second_cache_warm_does_nothing(tmp_path: Path) -> None:
    with Lab("native", tmp_path).server(table()) as server:
        warm = server.warm("ads", KEYS)
        assert warm.num_rows == 0 == server.pins
        warm.release()
        with pytest.raises(hps.ConfigError, match="nope"):
            server.warm("nope", KEYS)


def test_rows_warmed_before_a_failure_are_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lab("gpu", tmp_path).server(table()) as server:
        _, dram, store = tiers(server)
        server.push("ads", KEYS, ones(700))
        server.checkpoint()
        fetch, pins = store.fetch, []

        def fail(*arguments: Any) -> None:
            pins.append(server.pins)
            if server.pins:
                raise hps.CorruptionError("a bad record")
            fetch(*arguments)

        away = KEYS[dram.cache.contains(KEYS) == 0]
        monkeypatch.setattr(store, "fetch", fail)
        with pytest.raises(hps.CorruptionError) as kept:
            dram.warm(away)
        monkeypatch.undo()
        assert pins[-1] > 0 == server.pins and kept.value.__traceback__ is not None


def test_a_full_disk_below_two_caches_loses_nothing(tmp_path: Path) -> None:
    lab = Lab("three_twins", tmp_path)
    with lab.server(table()) as server:
        server.push("ads", KEYS, ones(700))
        server.checkpoint()
        server.push("ads", KEYS[:200], ones(200))
        expected, digest = server.pull("ads", KEYS).copy(), server.digest("ads")
        server.push("ads", KEYS[:20], np.zeros((20, 4), np.float32))
        lab.disk.free_rows = 3
        for _ in range(3):
            np.testing.assert_array_equal(server.pull("ads", KEYS), expected)
        with pytest.raises(hps.StoreError, match="no space"):
            for _ in range(50):
                server.push("ads", KEYS, np.zeros((700, 4), np.float32))
        assert server.pins == 0 and server.digest("ads") == digest
        lab.disk.free_rows = None
        np.testing.assert_array_equal(server.pull("ads", KEYS), expected)
        assert server.digest("ads") == digest and server.num_rows("ads") == 700


def test_rows_on_their_way_between_all_tiers_are_seen(lab: Lab) -> None:
    with lab.server(table()) as server:
        top, dram, _ = tiers(server)
        server.push("ads", KEYS, ones(700))
        before, digest = dump(server), server.digest("ads")
        with held(server, "append") as store:
            other = Call(lambda: server.pull("ads", KEYS[:400]).copy())
            assert store.reached.wait(60)
            assert server.parts.tables.stack("ads").is_moving and dram.is_moving
            away = KEYS[(top.contains(KEYS) & 1) + (dram.cache.contains(KEYS) & 1) == 0]
            assert len(away) > 0 and server.contains("ads", KEYS).all()
            assert server.num_rows("ads") == 700
            calls = [Call(lambda: server.digest("ads")), Call(lambda: dump(server))]
            warm = Call(lambda: server.warm("ads", KEYS[600:610]))
            assert all(call.is_waiting() for call in [*calls, warm])
            store.gate.set()
            np.testing.assert_array_equal(other.result(), server.pull("ads", KEYS[:400]))
            assert calls[0].result() == digest and calls[1].result() == before
            warm.result().release()
        assert server.pins == 0 and server.digest("ads") == digest


def test_the_cache_above_goes_on_while_a_batch_is_warmed_below(lab: Lab) -> None:
    """Warmed rows come up, and victims go down, though another thread has the turn and waits."""
    with lab.server(table()) as server:
        top, dram, _ = tiers(server)
        server.push("ads", KEYS, ones(700))
        server.checkpoint()
        server.push("ads", KEYS, ones(700))  # what lies above is newer than what the store has
        before, digest = dump(server), server.digest("ads")
        for keys in np.array_split(KEYS[top.contains(KEYS) == 0], 80):
            dram.warm(keys).release()  # takes the place of older copies below
        above = KEYS[(top.contains(KEYS) == DIRTY) & (dram.cache.contains(KEYS) == 0)]
        above = above[: dram.cache.capacity_rows // 4]
        with held(server, "fetch") as store:
            warm = Call(lambda: dram.warm(above))
            assert store.reached.wait(60)
            warmed = KEYS[((dram.cache.contains(KEYS) & 1) != 0) & (top.contains(KEYS) == 0)]
            assert len(warmed) > len(above) > 3 and dram.turn.num_asking == 1
            for keys in np.array_split(warmed, 4):
                Call(lambda keys=keys: server.pin("ads", keys).release()).result()
            went = above[top.contains(above) == 0]
            assert dram._descending.holds(went).all() and len(went) > 0
            assert server.contains("ads", KEYS).all() and server.num_rows("ads") == 700
            coming_back = went[:1]  # the store sends its old version
            Call(lambda: server.pin("ads", coming_back).release()).result()
            calls = [Call(lambda: server.digest("ads")), Call(lambda: dump(server))]
            assert all(call.is_waiting() for call in calls)
            store.gate.set()
            warm.result().release()
            assert calls[0].result() == digest and calls[1].result() == before
        assert dram._descending.num_rows == 0 and server.digest("ads") == digest
        assert server.pins == 0 and dump(server) == before


@pytest.mark.parametrize("ending", ["restore", "erase", "checkpoint"])
def test_rows_that_descend_belong_to_the_table(lab: Lab, ending: str) -> None:
    with lab.server(table()) as server:
        top, dram, _ = tiers(server)
        server.push("ads", KEYS, ones(700))
        server.checkpoint("old")
        old = server.digest("ads")
        server.push("ads", KEYS, ones(700))
        server.checkpoint()  # no tier above has anything to write down
        before = dump(server)
        away = KEYS[(top.contains(KEYS) == 0) & (dram.cache.contains(KEYS) == 0)][:30]
        assert len(away) == 30 and tiers(server)[2].contains(away).all()
        newest = in_store(server, away)
        expected = server.parts.tables.stack("ads").layout.weights(newest) + 1
        newest.view(np.float32)[:, 4:8] += 1  # the weights
        with dram.turn:  # as a thread that warms a batch
            Call(lambda: dram.append(newest)).result()
        assert dram._descending.num_rows == 30
        if ending == "restore":
            server.restore("old")
            assert server.digest("ads") == old
        elif ending == "erase":
            assert server.erase("ads", away).all() and not server.contains("ads", away).any()
            server.warm("ads", away).release()
            assert set(dump(server)) == set(before) - set(away.tolist())
        else:
            server.checkpoint("new")
        assert not dram._descending.holds(KEYS).any()
        server.close()
    if ending == "checkpoint":
        with lab.server(table()) as server:
            np.testing.assert_array_equal(server.pull("ads", away), expected)


def test_a_new_row_that_descends_is_found_and_fetched(lab: Lab) -> None:
    with lab.server(table()) as server:
        _, dram, _ = tiers(server)
        server.push("ads", KEYS[:30], ones(30))
        server.checkpoint()
        new_keys, images = KEYS[:30] + np.uint64(1000), in_store(server, KEYS[:30])
        images[:, :8] = new_keys.view(np.uint8).reshape(30, 8)
        fetched, found = np.zeros_like(images), np.zeros(30, np.uint8)
        with dram.turn:  # as a thread that warms a batch
            Call(lambda: dram.append(images)).result()
            Call(lambda: dram.fetch(new_keys, fetched, found)).result()
        with server.parts.tables.lock:
            assert dram.contains(new_keys).all() and found.all()
        np.testing.assert_array_equal(fetched, images)


def test_a_new_row_that_descends_while_its_batch_is_warmed_is_not_hidden(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes between the settling and the look-up; the slots are pinned, so that it goes on to
    the store."""
    with lab.server(table()) as server:
        _, dram, _ = tiers(server)
        server.push("ads", KEYS, ones(700))
        server.checkpoint()
        new_keys, images = KEYS[:30] + np.uint64(1000), in_store(server, KEYS[:30])
        images[:, :8] = new_keys.view(np.uint8).reshape(30, 8)
        warm = [dram.warm(KEYS[first : first + 1]) for first in range(699)]
        warm.pop(0).release()
        settle = dram._settle

        def settle_and_descend() -> None:
            settle()
            monkeypatch.undo()
            Call(lambda: dram.append(images)).result()

        monkeypatch.setattr(dram, "_settle", settle_and_descend)
        warm.append(dram.warm(new_keys[:1]))
        assert dram.cache.num_fresh == 0
        with dram.turn:
            dram._settle()
        for one in warm:
            one.release()
        fetched, found = np.zeros_like(images), np.zeros(30, np.uint8)
        dram.fetch(new_keys, fetched, found)
        assert found.all() and server.pins == 0
        np.testing.assert_array_equal(fetched, images)


def test_rows_that_leave_the_tier_below_are_waited_for(lab: Lab) -> None:
    """Only the lower tier moves: what has left it is in no tier above."""
    with lab.server(table()) as server:
        _, dram, _ = tiers(server)
        server.push("ads", KEYS, ones(700))
        server.checkpoint()
        server.push("ads", KEYS, ones(700))
        before, digest = dump(server), server.digest("ads")
        assert dram.cache.num_dirty > 0
        away = KEYS[dram.cache.contains(KEYS) == 0]
        with held(server, "append") as store:
            warm = Call(lambda: dram.warm(away[: 3 * dram.cache.capacity_rows // 4]))
            assert store.reached.wait(60)
            assert not server.parts.tables.stack("ads").is_moving
            assert server.contains("ads", KEYS).all()
            calls = [Call(lambda: server.digest("ads")), Call(lambda: dump(server))]
            assert all(call.is_waiting() for call in calls)
            store.gate.set()
            assert calls[0].result() == digest and calls[1].result() == before
            warm.result().release()
        assert server.digest("ads") == digest and server.pins == 0


def test_rows_keep_their_keys_where_threads_divide_a_batch(tmp_path: Path) -> None:
    lab = Lab("gpu", tmp_path)
    generator = np.random.default_rng(7)
    with lab.server(table(), scale=100.0, threads=2) as server:
        top, dram, _ = tiers(server)
        assert top.num_parts > 1
        keys = np.unique(random_keys(generator, 60_000, 10**6))
        rows = random_floats(generator, len(keys), 4)
        server.assign("ads", keys, rows)
        assert dram.cache.num_rows > 5000  # came down
        for part in np.array_split(generator.permutation(len(keys)), 20):
            with server.warm("ads", keys[part]) as warm:
                assert warm.num_rows > 100
                np.testing.assert_array_equal(server.pull("ads", keys[part]), rows[part])


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: one.kind)
def test_the_same_bits_with_and_without_a_second_cache(
    tmp_path: Path, optimizer: hps.common.optimizers.Optimizer
) -> None:
    digests = set()
    for kind, scale in (("native", 40.0), ("native", 1.0), ("gpu", 1.0)):
        generator = np.random.default_rng(23)
        lab = Lab(kind, tmp_path / f"{kind}-{scale}")
        with lab.server(table(optimizer), scale=scale) as server:
            for step in range(25):
                server.learning_rates["ads"] = 0.1 / (step + 1)
                keys = random_keys(generator, 60, 900)
                warm = server.warm("ads", keys)
                with server.pin("ads", keys) as rows:
                    warm.release()
                    grads = random_floats(generator, 60, 4)
                    server.apply([RowUpdate("ads", keys, grads, rows)])
                if step % 5 == 0:
                    server.erase("ads", random_keys(generator, 9, 900))
                    server.checkpoint()
                server.pull("ads", random_keys(generator, 300, 900), create=step % 3 == 0)
            digests.add((server.digest("ads"), server.num_rows("ads")))
            if kind == "gpu":
                stats = server.stats()
                assert stats["gpu_cache"]["write_backs"] > 0
                assert stats["dram_cache"]["evictions"] > 0 and stats["dram_cache"]["hits"] > 0
    assert len(digests) == 1
