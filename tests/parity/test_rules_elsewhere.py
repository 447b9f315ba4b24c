"""Rules that change over ranks have the rows of one process: all ranks change or none.

Above it: pytest. Below it: logical ranks in this process, which push whole numbers, so that the
sums of any number of ranks are the same.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cluster.folder.offline import reshard
from hps.cluster.world.local_world import LocalWorld
from hps.parameter_server.life import RuleChange
from tests.cluster.ranks import run_ranks, successes

DIM = 3
ALL = np.arange(400, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
FIRST = hps.Expiry(unseen=6)
RULES: dict[str, Sequence[hps.Expiry | None]] = {
    "shorter": [FIRST, hps.Expiry(unseen=1), None],
    "scores": [None, hps.Expiry(min_score=0.5, decay=0.6), hps.Expiry(unseen=3, decay=0.8)],
    "bounded": [None, hps.Expiry(unseen=20, min_score=0.05, decay=0.6), FIRST],
    "waiting": [FIRST, hps.Expiry(unseen=1), hps.Expiry(unseen=9)],
}


def tables(kind: str, expiry: hps.Expiry | None) -> list[hps.TableConfig]:
    """Of "few" most ranks have no row."""
    ads = hps.TableConfig(
        name="ads",
        dim=DIM,
        features=["a"],
        optimizer=hps.SGD(lr=0.5),
        statistics=True,
        expiry=expiry,
        max_rows=120 if kind == "bounded" and expiry is not None else None,
        admission=hps.Admission(count=2) if kind == "waiting" else None,
    )
    return [ads, replace(ads, name="few", features=["b"], max_rows=None, admission=None)]


def train(server: Any, era: int, rank: int = 0, size: int = 1) -> list[Any]:
    """This rank's part of the batches of some periods; what there is after each."""
    generator = np.random.default_rng(era)
    found = []
    for period in range(3):
        keys = ALL[generator.integers(100 * era, 100 * era + 40 * (period + 1), 200)]
        grads = generator.integers(-6, 7, (200, DIM)).astype(np.float32)
        labels = generator.integers(0, 2, 200).astype(np.float32)
        mine = slice(rank, None, size)
        server.push("ads", keys[mine].copy(), grads[mine] * size, labels[mine].copy())
        few = np.repeat(ALL[: 1 if rank == 0 else 0], 6)
        server.push("few", few, np.full((len(few), DIM), size, np.float32))
        server.advance_period()
        found.append(seen(server))
    return found


def seen(server: Any) -> Any:
    counts = {name: part.tolist() for name, part in server.statistics("ads", ALL).items()}
    rows = [(server.num_rows(name), server.digest(name)) for name in ("ads", "few")]
    return server.period, rows, counts


@pytest.fixture(scope="module", params=RULES)
def expected(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[str, list[Any]]:
    path, found = tmp_path_factory.mktemp("store"), []
    for era, expiry in enumerate(RULES[request.param]):
        config = hps.Config(path=path, tables=tables(request.param, expiry))
        with hps.ParameterServer(config) as server:
            found.append(train(server, era))
    return request.param, found


@pytest.mark.parametrize("size", [1, 2, 4])
def test_rules_change_on_ranks_as_in_one_process(
    expected: tuple[str, list[Any]], tmp_path: Path, size: int
) -> None:
    kind, one = expected

    def body(world: LocalWorld, era: int) -> Any:
        config = hps.Config(path=tmp_path / "store", tables=tables(kind, RULES[kind][era]))
        with hps.ClusterParameterServer(config, world) as server:
            return train(server, era, world.rank, size)

    for era, found in enumerate(one):
        assert successes(run_ranks(size, lambda world, era=era: body(world, era))) == [found] * size
    reshard(tmp_path / "store", tmp_path / "whole", None)
    with hps.open(tmp_path / "whole") as reader:
        assert seen(reader) == one[-1][-1]


def config_of(path: Path, expiry: hps.Expiry | None) -> hps.Config:
    return hps.Config(path=path / "store", tables=tables("plain", expiry)[:1])


def fill(server: Any, rank: int, size: int) -> None:
    """Keys of which the second half is older by two periods."""
    for half in (ALL[200:], ALL[:200]):
        mine = half[rank::size].copy()
        server.push("ads", mine, np.full((len(mine), DIM), size, np.float32))
        server.advance_period(to=server.period + 2)


def test_rules_that_would_empty_all_ranks_are_refused_and_those_of_one_are_not(
    tmp_path: Path,
) -> None:
    own = {}

    def first(world: LocalWorld) -> None:
        with hps.ClusterParameterServer(config_of(tmp_path, None), world) as server:
            owner = np.array([[key in set(keys.tolist()) for key in ALL.tolist()]
                              for keys, *_ in server.items("ads")] or [[]])  # fmt: skip
            assert not owner.any()
            fill(server, world.rank, 2)
            keys = np.concatenate([keys for keys, *_ in server.items("ads")])
            own[world.rank] = keys
            # Rank 1 has none of the younger rows any more.
            young = ALL[:200][np.isin(ALL[:200], keys)] if world.rank else ALL[:0]
            server.erase("ads", young)

    def change(world: LocalWorld, expiry: hps.Expiry) -> Any:
        with hps.ClusterParameterServer(config_of(tmp_path, expiry), world) as server:
            before = seen_of(server)
            try:
                server.advance_period()
            except hps.ConfigError as error:
                assert seen_of(server) == before
                return str(error)
            return server.num_rows("ads"), server.local.num_rows("ads")

    successes(run_ranks(2, first))
    num_young = int(np.isin(ALL[:200], own[0]).sum())
    assert 0 < num_young < 200
    told = run_ranks(2, lambda world: change(world, hps.Expiry(min_score=99.0)))
    for text in told:
        assert f"all {200 + num_young} rows would die at once" in text
    found = successes(run_ranks(2, lambda world: change(world, hps.Expiry(unseen=3))))
    assert found == [(num_young, num_young), (num_young, 0)]


def seen_of(server: Any) -> Any:
    return server.period, server.num_rows("ads"), server.digest("ads")


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_pass_that_fails_on_one_rank_is_made_by_all_with_the_next_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_reopened: bool
) -> None:
    with hps.ParameterServer(config_of(tmp_path / "one", FIRST)) as server:
        fill(server, 0, 1)
    with hps.ParameterServer(config_of(tmp_path / "one", hps.Expiry(unseen=3))) as server:
        server.advance_period()
        one = seen_of(server)
    assert one[1] == 200
    apply = RuleChange.apply
    failing: set[int] = set()  # native stores of rank 1

    def fails(change: RuleChange, store: Any) -> None:
        if id(store) in failing:
            raise hps.StoreError(28, "no space")
        apply(change, store)

    def body(world: LocalWorld) -> Any:
        with hps.ClusterParameterServer(config_of(tmp_path, FIRST), world) as server:
            fill(server, world.rank, 2)
        config = config_of(tmp_path, hps.Expiry(unseen=3))
        server = hps.ClusterParameterServer(config, world)
        tables = server.local.parts.tables
        if world.rank:
            failing.add(id(tables.store))
        with pytest.raises(hps.StoreError, match="no space"):
            server.advance_period()
        failing.clear()
        assert server.period == 4 and tables.unsettled == {"ads"}
        assert server.num_rows("ads") == 400
        if is_reopened:  # with the rules of before: the rows that have new ones are mended
            server.checkpoint()
            server.close()
            server = hps.ClusterParameterServer(config_of(tmp_path, FIRST), world)
            assert server.local.parts.periods.changed() == ["ads"]
        with server:
            server.advance_period()
            return seen_of(server)

    monkeypatch.setattr(RuleChange, "apply", fails)
    found, other = successes(run_ranks(2, body))
    assert found == other
    if is_reopened:
        assert found[1] == 400
    else:
        assert found == one
