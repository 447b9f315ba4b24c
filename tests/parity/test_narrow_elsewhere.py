"""Narrow rows over ranks have the bits of one process: the rank that owns a row rounds it, by a
hash that knows of no ranks.

Above it: pytest. Below it: logical ranks in this process, which push whole numbers, so that the
sums of any number of ranks are the same.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cluster.folder.offline import reshard
from hps.cluster.world.local_world import LocalWorld
from tests.cluster.ranks import run_ranks, successes

DIM = 9
ALL = np.arange(700, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
STEPS = 14
OPTIMIZERS = {
    "sgd": hps.SGD(lr=0.01),
    "rowwise_adagrad": hps.RowWiseAdagrad(lr=0.05),
    "adam": hps.Adam(lr=0.01),
    "ftrl": hps.FTRL(lr=0.05, l1=0.001),
}


def tables(kind: str) -> list[hps.TableConfig]:
    rounding = "nearest" if kind == "ftrl" else "stochastic"
    return [
        hps.TableConfig(
            name="ads",
            dim=DIM,
            optimizer=OPTIMIZERS[kind],
            dtype="bfloat16",
            rounding=rounding,
            expiry=hps.Expiry(unseen=2),
        )
    ]


def train(server: Any, rank: int = 0, size: int = 1) -> None:
    """This rank's part of each batch; a rank's gradients are divided by how many there are."""
    generator = np.random.default_rng(3)
    for step in range(STEPS):
        keys = ALL[generator.integers(0, 40 * (step + 1), 300)]
        grads = generator.integers(-6, 7, (300, DIM)).astype(np.float32)
        mine = slice(rank, None, size)
        server.push("ads", keys[mine].copy(), grads[mine] * size)
        if step % 4 == 3:
            server.advance_period()


def seen(server: Any) -> Any:
    rows = np.asarray(server.pull("ads", ALL))
    counts = {name: part.tolist() for name, part in server.statistics("ads", ALL).items()}
    return server.digest("ads"), server.num_rows("ads"), rows.tobytes(), counts


@pytest.fixture(scope="module", params=OPTIMIZERS)
def expected(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[str, Any]:
    path = tmp_path_factory.mktemp("store")
    config = hps.Config(path=path, tables=tables(request.param))
    with hps.ParameterServer(config) as server:
        train(server)
        found = seen(server)
    assert 100 < found[1] < 560  # some have died
    return request.param, found


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (1, None),
        (2, None),
        (4, hps.ClusterConfig(row_wire="bfloat16")),  # which loses nothing of such rows
        (2, hps.ClusterConfig(hot_rows=50)),
    ],
    ids=["1", "2", "4-wire", "2-hot"],
)
def test_ranks_round_as_one_process(
    expected: tuple[str, Any], tmp_path: Path, size: int, options: Any
) -> None:
    kind, one = expected

    def body(world: LocalWorld) -> Any:
        config = hps.Config(path=tmp_path / "store", tables=tables(kind))
        with hps.ClusterParameterServer(config, world, options) as server:
            train(server, world.rank, size)
            return seen(server)

    assert successes(run_ranks(size, body)) == [one] * size
    with hps.open(tmp_path / "store") as reader:  # of all parts
        assert seen(reader) == one


@pytest.mark.parametrize("engine", ["segments", "rocksdb"])
def test_another_number_of_ranks_has_the_same_narrow_rows(
    expected: tuple[str, Any], tmp_path: Path, engine: str
) -> None:
    """By `hps reshard`, and by an opening."""
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    kind, one = expected
    ssd = hps.SsdStoreConfig(engine=engine)

    def trained(world: LocalWorld) -> None:
        config = hps.Config(path=tmp_path / "store", tables=tables(kind), ssd=ssd)
        with hps.ClusterParameterServer(config, world) as server:
            train(server, world.rank, 2)

    def looked_at(world: LocalWorld, path: Path) -> Any:
        config = hps.Config(path=path, tables=tables(kind), ssd=ssd)
        with hps.ClusterParameterServer(config, world) as server:
            return seen(server)

    successes(run_ranks(2, trained))
    reshard(tmp_path / "store", tmp_path / "divided", 3)
    reshard(tmp_path / "store", tmp_path / "whole", None)
    assert successes(run_ranks(3, lambda w: looked_at(w, tmp_path / "divided"))) == [one] * 3
    assert successes(run_ranks(4, lambda w: looked_at(w, tmp_path / "store"))) == [one] * 4
    wide = [replace(table, dtype="float32") for table in tables(kind)]
    wrong = hps.Config(path=tmp_path / "store", tables=wide, ssd=ssd)
    for size in (4, 3):  # as it is, and moved to another number of ranks
        for result in run_ranks(size, lambda world: hps.ClusterParameterServer(wrong, world)):
            assert "stored dtype is bfloat16, requested is float32" in str(result)
    with hps.ParameterServer(
        hps.Config(path=tmp_path / "whole", tables=tables(kind), ssd=ssd)
    ) as server:
        assert seen(server) == one


def test_ranks_with_rows_of_two_kinds_are_refused(tmp_path: Path) -> None:
    def body(world: LocalWorld) -> None:
        dtype = "bfloat16" if world.rank else "float32"
        table = hps.TableConfig(name="ads", dim=DIM, dtype=dtype)
        with hps.ClusterParameterServer(hps.Config(path=tmp_path / "store", tables=[table]), world):
            pass

    for result in run_ranks(2, body):
        assert "dtype" in str(result) and "the ranks differ in" in str(result)
    assert not list((tmp_path / "store").glob("rank*"))
