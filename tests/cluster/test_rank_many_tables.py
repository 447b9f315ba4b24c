"""Models of many tables on ranks: what a look-up of all tables sends, and that it changes no bit.

Above it: pytest. Below it: tests/cluster/ranks.py.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.cluster.exchange.hot_rows import PERIOD_STEPS
from hps.cluster.world.local_world import LocalWorld
from hps.common.bags import BagPooling, make_bags
from hps.contracts.reads import PooledRead
from hps.errors import ConfigError
from tests.cluster.ranks import run_ranks, successes


def tables_of(count: int) -> list[hps.TableConfig]:
    return [
        hps.TableConfig(name=f"t{i}", dim=2 + i % 2, optimizer=hps.Adagrad(lr=0.1))
        for i in range(count)
    ]


def batches(count: int, rank: int, num: int) -> list[hps.Batch]:
    generator = np.random.default_rng([num, rank])
    offsets = torch.arange(0, 13, 2)
    return [
        hps.Batch(
            {
                f"t{i}": hps.Ids(torch.from_numpy(generator.integers(0, 30, 12)), offsets)
                for i in range(count)
            },
            torch.zeros(6, 0),
            torch.ones(6),
        )
        for _ in range(num)
    ]


def config_of(folder: Path, count: int) -> hps.Config:
    return hps.Config(path=folder, tables=tables_of(count), threads=1)


def entered(world: LocalWorld) -> int:
    return world.rows.num_entered + world.control.num_entered


@pytest.mark.parametrize("depth", [None, 2])
def test_the_messages_of_a_look_up_are_as_many_for_any_number_of_tables(
    tmp_path: Path, depth: int | None
) -> None:
    def messages(count: int) -> Any:
        def body(world: LocalWorld) -> Any:
            config = config_of(tmp_path / f"{count}", count)
            with hps.ClusterParameterServer(config, world) as server:
                names = {f"f{i}": f"t{i}" for i in range(count)}
                embeddings, optimizer = (
                    hps.SparseEmbeddings(server, names),
                    hps.RowOptimizer(server),
                )
                counts = []

                def step(batch: hps.Batch) -> None:
                    before = entered(world)
                    output = embeddings(batch)
                    counts.append(entered(world) - before)
                    output.sum().backward()
                    optimizer.step()

                log = batches(count, world.rank, 4)
                if depth is None:
                    for batch in log:
                        step(batch)
                else:
                    with hps.Pipeline(iter(log), server, depth) as pipeline:
                        for batch in pipeline:
                            step(batch)
                return counts

        return successes(run_ranks(2, body))

    assert messages(1) == messages(7)


@pytest.mark.parametrize("hot_rows", [0, 20])
@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_all_tables_at_once_give_the_bits_of_one_after_the_other(
    tmp_path: Path, hot_rows: int, wire: str
) -> None:
    def digests(name: str, is_joint: bool) -> Any:
        def body(world: LocalWorld) -> Any:
            options = hps.ClusterConfig(hot_rows=hot_rows, row_wire=wire)
            with hps.ClusterParameterServer(
                config_of(tmp_path / name, 3), world, options
            ) as server:
                optimizer = hps.RowOptimizer(server)
                names = {f"f{i}": f"t{i}" for i in range(3)}
                joint = hps.SparseEmbeddings(server, names)
                single = [hps.SparseEmbedding(server, table) for table in names.values()]
                outputs = []
                log = batches(3, world.rank, PERIOD_STEPS + 3)
                with hps.Pipeline(iter(log), server, 1) as pipeline:
                    for batch in pipeline:
                        output = (
                            joint(batch)
                            if is_joint
                            else torch.cat([one(batch) for one in single], dim=1)
                        )
                        outputs.append(output.detach().numpy().tobytes())
                        (output**2).sum().backward()
                        optimizer.step()
                has_hot = server._exchanges.hot is not None and any(
                    not one.is_empty for one in server._exchanges.hot.tables.values()
                )
                return outputs, [server.digest(f"t{i}") for i in range(3)], has_hot

        return successes(run_ranks(2, body))

    found = digests("joint", True)
    assert found == digests("single", False)
    assert all(has_hot == (hot_rows > 0) for *_, has_hot in found)


def test_ranks_that_read_different_tables_are_told_on_all(tmp_path: Path) -> None:
    def body(world: LocalWorld) -> Any:
        with hps.ClusterParameterServer(config_of(tmp_path, 2), world) as server:
            keys = np.arange(3)
            bags = BagPooling(make_bags(torch.tensor([0, 3]), 3, "bags"), None, False)
            reads = {
                name: PooledRead(name, keys, bags, torch.empty(1, server.tables[name].dim))
                for name in server.tables
            }
            with pytest.raises(ConfigError, match=r"ranks \[0\] have no table 't1'"):
                server.pull_tables([reads[f"t{i}"] for i in range(1 + world.rank)])
            with pytest.raises(ConfigError, match="'t0' is given twice"):
                server.pull_tables([reads["t0"], reads["t0"]])
            with pytest.raises(ConfigError, match="no table 'bogus'"):
                server.pin("bogus", keys)
            with pytest.raises(ConfigError, match="of another table or server"):
                server.pull_tables([replace(reads["t1"], rows=server.pin("t0", keys))])
            released = server.pin("t1", keys)
            released.release()
            with pytest.raises(ConfigError, match="were released"):
                server.pull_tables([reads["t0"], replace(reads["t1"], rows=released)])
            server.pull_tables([])
            order = list(reads.values())[:: 1 - 2 * world.rank]
            server.pull_tables(order)  # in any order, and the ranks are still in step
            return [server.num_rows(name) for name in server.tables]

    assert successes(run_ranks(2, body)) == [[0, 0], [0, 0]]


def test_a_server_of_its_own_refuses_the_same_reads(tmp_path: Path) -> None:
    keys = np.arange(3)
    bags = BagPooling(make_bags(torch.tensor([0, 3]), 3, "bags"), None, False)
    with hps.ParameterServer(config_of(tmp_path, 2)) as server:
        read = PooledRead("t0", keys, bags, torch.empty(1, 2))
        with pytest.raises(ConfigError, match="'t0' is given twice"):
            server.pull_tables([read, read])
        with pytest.raises(ConfigError, match="are of table 't1'"):
            server.pull_tables([replace(read, rows=server.pin("t1", keys))])
        server.pull_tables([replace(read, rows=server.pin("t0", keys))])
