"""Periods and statistics over ranks: all ranks begin a period or none; checkpoints carry both, also
to another number of ranks.

Above it: pytest. Below it: ranks.py; `hps reshard`.
"""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cluster.folder.offline import reshard
from hps.cluster.world.local_world import LocalWorld
from hps.contracts.updates import RowUpdate
from hps.errors import CorruptionError
from hps.ssd_store import SsdStore
from tests.cluster.ranks import Failure, run_ranks, successes

ADS = hps.TableConfig(name="ads", dim=4, features=["a"], statistics=True)
PLAIN = hps.TableConfig(name="plain", dim=4, features=["b"])
KEYS = np.arange(40, dtype=np.uint64)
ONES = np.ones((40, 4), np.float32)
CLICKS = (KEYS % 3 == 0).astype(np.float32)


def config_of(path: Path) -> hps.Config:
    return hps.Config(path=path, tables=[ADS, PLAIN])


def counts(server: Any, keys: Any = KEYS) -> list[list[float]]:
    found = server.statistics("ads", keys)
    return [found[name].tolist() for name in ("show", "click", "last_period", "dies_at")]


def expected(times: float, last: int, count: int = 40) -> list[list[float]]:
    clicks = (times * CLICKS[:count]).tolist()
    return [[times] * count, clicks, [last] * count, [-1] * count]


def count_some(server: hps.ClusterParameterServer, size: int) -> None:
    """Two periods, in each of which all ranks push all keys."""
    for period in (3, 4):
        assert server.advance_period(to=period) == period
        server.push("ads", KEYS, ONES, labels=CLICKS)
        server.push("plain", KEYS, ONES, labels=CLICKS)
    assert counts(server) == expected(2 * size, 4)
    assert counts(server, KEYS[:0]) == [[], [], [], []]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_pushes_of_all_ranks_count_and_checkpoints_have_it(tmp_path: Path, size: int) -> None:
    def body(world: LocalWorld) -> list[list[list[float]]]:
        found = []
        with hps.ClusterParameterServer(config_of(tmp_path / "s"), world) as server:
            assert server.period == 0
            count_some(server, size)
            server.checkpoint("one")
            server.advance_period()
            server.push("ads", KEYS[:1], ONES[:1])
            assert server.period == 5 and counts(server)[0][0] == 3 * size
            server.restore("one")
            assert server.period == 4
            found.append(counts(server))
            pieces = list(server.items("ads", 7, state=True, statistics=True))
            keys = np.concatenate([piece[0] for piece in pieces])
            shows = np.concatenate([piece[3] for piece in pieces])
            assert shows.tolist() == [2 * size] * len(keys)
        with hps.ClusterParameterServer(config_of(tmp_path / "s"), world) as server:
            assert server.period == 4
            found.append(counts(server))
        return found

    for found in successes(run_ranks(size, body)):
        assert found == [expected(2 * size, 4)] * 2


@pytest.mark.parametrize("after", [1, 3])
def test_another_number_of_ranks_goes_on_with_period_and_counts(tmp_path: Path, after: int) -> None:
    path = tmp_path / "s"

    def first(world: LocalWorld) -> str:
        with hps.ClusterParameterServer(config_of(path), world) as server:
            count_some(server, 2)
            server.checkpoint("of-two")
            return server.digest("ads")

    def second(world: LocalWorld) -> str:
        with hps.ClusterParameterServer(config_of(path), world) as server:
            assert server.period == 4 and counts(server) == expected(4, 4)
            digest = server.digest("ads")
            server.advance_period(9)
            server.push("ads", KEYS[:2], ONES[:2])
            server.restore("of-two")  # which the other ranks took
            assert server.period == 4 and server.digest("ads") == digest
            assert server.advance_period() == 5
            return digest

    digests = successes(run_ranks(2, first)) + successes(run_ranks(after, second))
    assert len(set(digests)) == 1


@pytest.mark.parametrize(("ranks", "to"), [(None, 2), (2, 3), (3, None)])
def test_a_store_with_statistics_is_divided(
    tmp_path: Path, ranks: int | None, to: int | None
) -> None:
    """From one process or ranks to ranks or one process."""

    def body(world: LocalWorld) -> str:
        with hps.ClusterParameterServer(config_of(tmp_path / "old"), world) as server:
            server.advance_period(to=6)
            own = slice(world.rank, None, world.size)
            server.push("ads", KEYS[own], ONES[own], labels=CLICKS[own])
            return server.digest("ads")

    if ranks is None:
        with hps.ParameterServer(config_of(tmp_path / "old")) as server:
            server.advance_period(to=6)
            server.push("ads", KEYS, ONES, labels=CLICKS)
            digest = server.digest("ads")
    else:
        (digest,) = set(successes(run_ranks(ranks, body)))
    reshard(tmp_path / "old", tmp_path / "new", to)
    with hps.open(tmp_path / "new") as reader:
        assert reader.period == 6 and reader.digest("ads") == digest
        assert counts(reader) == expected(1, 6)


def test_all_ranks_begin_a_period_or_none(tmp_path: Path) -> None:
    def body(world: LocalWorld) -> int:
        with hps.ClusterParameterServer(config_of(tmp_path / "s"), world) as server:
            server.advance_period(2)
            with pytest.raises(hps.ConfigError, match=r"periods \[5, 6\] \(by rank\)"):
                server.advance_period(5 + world.rank)
            with pytest.raises(hps.ConfigError, match="at period 2"):
                server.advance_period(3 if world.rank else 1)
            assert server.period == 2
            with hps.Pipeline([], server), pytest.raises(hps.ConfigError, match="open pipeline"):
                server.advance_period()
            assert server.period == 2
            return server.advance_period()

    assert successes(run_ranks(2, body)) == [3, 3]


def test_rows_take_statistics_on_all_ranks_or_none(tmp_path: Path) -> None:
    given = {
        "show": np.arange(40, dtype=np.float32),
        "click": np.arange(40, dtype=np.float32) / 4,
        "last_period": np.full(40, 3, np.int64),
    }

    def body(world: LocalWorld) -> list[list[float]]:
        own = slice(20 * world.rank, 20 * world.rank + 20)
        mine = {name: part[own] for name, part in given.items()}
        with hps.ClusterParameterServer(config_of(tmp_path / "s"), world) as server:
            with pytest.raises(hps.ConfigError, match="last_period is 3, and the store is at"):
                server.assign("ads", KEYS[own], ONES[own], statistics=mine)
            server.advance_period(to=4)
            with pytest.raises(hps.ConfigError, match=r"there is statistics on rank\(s\) \[1\]"):
                server.assign("ads", KEYS, ONES, statistics=given if world.rank else None)
            server.assign("ads", KEYS[own], ONES[own], statistics=mine)
            return counts(server)[:3]

    assert successes(run_ranks(2, body)) == [[given[name].tolist() for name in given]] * 2


def test_a_label_that_is_no_click_ends_the_step_before_a_row_changes(tmp_path: Path) -> None:
    def body(world: LocalWorld) -> None:
        with hps.ClusterParameterServer(config_of(tmp_path / "s"), world) as server:
            labels = np.full(40, 0.5 if world.rank else 0, np.float32)
            server.push("ads", KEYS, ONES, labels=labels)

    results = run_ranks(2, body, timeout_seconds=5.0)
    assert all(isinstance(one, Failure) for one in results)
    assert "labels[0] is 0.5; clicks are counted" in str(results[1].error)
    assert isinstance(results[0].error, hps.ClusterError)


def test_tables_that_count_are_stepped_together(tmp_path: Path) -> None:
    """Of different keys on each rank, of which one has none of a table."""
    tables = [ADS, PLAIN, hps.TableConfig(name="more", dim=2, features=["c"], statistics=True)]
    keys = {
        (0, "ads"): np.array([7, 8, 7, 30], np.uint64),
        (1, "ads"): np.array([8, 31, 7], np.uint64),
        (1, "more"): np.array([5, 5, 6, 7, 5, 39], np.uint64),
        (2, "ads"): np.array([9], np.uint64),
        (2, "more"): np.array([6, 39], np.uint64),
        (2, "plain"): np.array([6, 39], np.uint64),
    }
    clicks = {place: (np.arange(len(of)) % 2).astype(np.uint8) for place, of in keys.items()}

    def body(world: LocalWorld) -> list[list[float]]:
        config = hps.Config(path=tmp_path / "s", tables=tables)
        with hps.ClusterParameterServer(config, world) as server:
            updates = [
                RowUpdate(
                    table,
                    of,
                    np.ones((len(of), server.tables[table].dim), np.float32),
                    clicks=clicks[rank, table],
                )
                for (rank, table), of in keys.items()
                if rank == world.rank
            ]
            server.apply(updates)
            found = [server.statistics(table, KEYS) for table in ("ads", "more")]
            return [one[name].tolist() for one in found for name in ("show", "click")]

    recount = []
    for table in ("ads", "more"):
        show, click = np.zeros(40), np.zeros(40)
        for place, of in keys.items():
            if place[1] == table:
                np.add.at(show, of.astype(np.int64), 1)
                np.add.at(click, of.astype(np.int64), clicks[place])
        recount += [show.tolist(), click.tolist()]
    assert successes(run_ranks(3, body)) == [recount] * 3


BOUNDED = hps.TableConfig(
    name="ads", dim=2, statistics=True, expiry=hps.Expiry(unseen=9), max_rows=100
)

OTHER_RULES = replace(BOUNDED, expiry=hps.Expiry(unseen=6))


def push_40(server: hps.ClusterParameterServer, period: int, world: LocalWorld) -> None:
    keys = np.arange(40 * period, 40 * period + 40, dtype=np.uint64)[world.rank :: 2].copy()
    server.push("ads", keys, np.ones((20, 2), np.float32))


def test_a_store_that_cannot_begin_keeps_all_ranks_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, is_damaged = SsdStore.check_period, threading.Event()

    def check_period(self: SsdStore, *arguments: Any) -> None:
        if is_damaged.is_set() and threading.current_thread().name == "rank 1":
            raise CorruptionError("damaged")
        old(self, *arguments)

    monkeypatch.setattr(SsdStore, "check_period", check_period)

    def body(world: LocalWorld) -> list[int]:
        config = hps.Config(path=tmp_path / "s", tables=[BOUNDED])
        found = []
        with hps.ClusterParameterServer(config, world) as server:
            for period in range(3):
                push_40(server, period, world)
                if period == 2:
                    is_damaged.set()
                    with pytest.raises(CorruptionError, match="damaged"):
                        server.advance_period()
                    found += [server.period, server.num_rows("ads")]
                    world.control.barrier()
                    is_damaged.clear()
                    world.control.barrier()
                server.advance_period()
            return [*found, server.period, server.num_rows("ads")]

    assert successes(run_ranks(2, body)) == [[2, 120, 3, 80]] * 2


@pytest.mark.parametrize("failing", [1, 3])
def test_ranks_that_came_apart_are_brought_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """As if none had failed: also new rules, and rows that a bound takes."""
    old, fails_at = SsdStore.set_period, [failing]

    def set_period(self: SsdStore, period: int, horizons: Any = None) -> None:
        if period in fails_at and threading.current_thread().name == "rank 1":
            fails_at.clear()
            raise hps.StoreError(28, "no space")
        old(self, period, horizons)

    def train(world: LocalWorld, name: str, failing: int) -> list[Any]:
        keys, found = np.arange(200, dtype=np.uint64), []
        for table, periods in ((BOUNDED, (1, 2)), (OTHER_RULES, (3, 4))):
            config = hps.Config(path=tmp_path / name, tables=[table])
            with hps.ClusterParameterServer(config, world) as server:
                for period in periods:
                    push_40(server, period, world)
                    found.append(server.statistics("ads", keys)["dies_at"].tolist())
                    if period == failing:
                        come_apart(server, period)
                        assert server.advance_period(period) == period
                    else:
                        server.advance_period()
                    found.append(server.statistics("ads", keys)["dies_at"].tolist())
                server.checkpoint()
                found += [server.digest("ads"), server.period, server.num_rows("ads")]
        return found

    def come_apart(server: hps.ClusterParameterServer, period: int) -> None:
        with pytest.raises(hps.StoreError, match="no space"):
            server.advance_period()
        now = rf"\[{period}, {period - 1}\] .* advance_period\(to={period}\)"
        for to in (None, period + 1):
            with pytest.raises(hps.ConfigError, match=now):
                server.advance_period(to)

    whole = successes(run_ranks(2, lambda world: train(world, "whole", 0)))
    monkeypatch.setattr(SsdStore, "set_period", set_period)
    assert successes(run_ranks(2, lambda world: train(world, "apart", failing))) == whole
    assert whole[0][-2:] == [4, 80] and not fails_at
