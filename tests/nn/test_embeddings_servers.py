"""SparseEmbeddings over shards, over ranks and with a gpu_cache comes to the rows of one process;
and what it costs in memory.

Above it: pytest. Below it: embeddings_lab.py, tests/cluster/ranks.py, client_lab.py.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import hps
from hps.cluster.world.local_world import LocalWorld
from tests.cluster.ranks import run_ranks, successes
from tests.nn.embeddings_lab import (
    EXAMPLES,
    FEATURES,
    NAMES,
    Jagged,
    config_of,
    draw_batch,
    joint,
    open_tables,
    slope_of,
    tables,
    tiers_of,
    train,
)
from tests.parameter_server.test_memory import MIB, peak_of
from tests.service.client.client_lab import service

NUM_BATCHES = 4


def batches() -> list[hps.Batch]:
    return [draw_batch(seed) for seed in range(NUM_BATCHES)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Outputs and digests of one process with its rows in DRAM."""
    with open_tables(tmp_path_factory.mktemp("alone")) as server:
        return train(server, joint(server), batches())


@pytest.mark.parametrize("depth", [None, 2])
def test_with_a_gpu_cache_bits_are_those_without(
    tmp_path: Path, alone: Any, depth: int | None
) -> None:
    with open_tables(tmp_path, kind="gpu") as server:
        assert train(server, joint(server), batches(), depth=depth) == alone
        assert server.stats()["gpu_cache"]["hits"] > 0


@pytest.mark.parametrize("depth", [None, 2])
def test_over_shards_bits_are_those_of_one_process(
    tmp_path: Path, alone: Any, depth: int | None
) -> None:
    with service(tmp_path, 2, tables=tables()) as servers, servers.client() as client:
        assert client.joint is None
        assert train(client, joint(client), batches(), depth=depth) == alone


def part_of(batch: hps.Batch, rank: int, size: int) -> hps.Batch:
    """A rank's contiguous examples of a batch."""
    first, end = rank * EXAMPLES // size, (rank + 1) * EXAMPLES // size
    features = {}
    for table, ids in batch.features.items():
        places = [
            slice(feature * EXAMPLES + first, feature * EXAMPLES + end)
            for feature in range(len(NAMES[table]))
        ]
        bounds = [(int(ids.offsets[own.start]), int(ids.offsets[own.stop])) for own in places]
        lengths = torch.cat([ids.offsets.diff()[own] for own in places])
        weights = ids.weights_L
        features[table] = hps.Ids(
            torch.cat([ids.keys_L[start:stop] for start, stop in bounds]),
            torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]),
            None if weights is None else torch.cat([weights[a:b] for a, b in bounds]),
        )
    return replace(
        batch,
        features=features,
        dense=batch.dense[first:end],
        labels=batch.labels[first:end],
    )


@pytest.mark.parametrize("size", [1, 2])
def test_over_ranks_a_module_of_all_tables_is_one_a_table(
    tmp_path: Path, alone: Any, size: int
) -> None:
    """One rank has the bits of one process; two see the same rows at the first look."""

    def body(world: LocalWorld) -> Any:
        own = tmp_path / f"rank-{world.rank}"
        own.mkdir()
        with (
            hps.ParameterServer(config_of(own)) as local,
            hps.ClusterParameterServer.over(local, world) as server,
        ):
            assert server.joint is None
            log = [part_of(batch, world.rank, size) for batch in batches()]
            return train(server, joint(server), log, depth=0)

    results = successes(run_ranks(size, body))
    assert all(digests == results[0][1] for _, digests in results)
    assert b"".join(outputs[0] for outputs, _ in results) == alone[0][0]
    if size == 1:
        assert results[0] == alone


@pytest.mark.parametrize("kind", ["gpu", "twins", "shards"])
def test_jagged_tensors_and_empty_batches_are_taken_by_all_servers(
    tmp_path: Path, kind: str
) -> None:
    batch, empty = draw_batch(1), draw_batch(1, 0)
    with open_tables(tmp_path / "alone") as server:
        wanted = joint(server).eval()(batch)
        width = wanted.shape[1]

    def look(server: Any) -> None:
        module = joint(server)
        assert torch.equal(module(batch), wanted)
        for dtype in (torch.int64, torch.int32):
            assert torch.equal(module(Jagged(batch, list(FEATURES), dtype)), wanted)
        for source in (empty, Jagged(empty, list(FEATURES))):
            output = module(source)
            assert output.shape == (0, width)
            output.sum().backward()
        hps.RowOptimizer(server).step()

    if kind == "shards":
        with service(tmp_path, 2, tables=tables()) as servers, servers.client() as client:
            look(client)
    else:
        with open_tables(tmp_path / kind, kind=kind) as server:
            look(server)


@pytest.mark.parametrize("kind", ["dram", "twins"])
def test_a_batch_without_examples_has_all_columns_of_features_without_names(
    tmp_path: Path, kind: str
) -> None:
    plain = [replace(table, features=None) for table in tables()]
    config = hps.Config(path=tmp_path / "s", tables=plain)
    with hps.ParameterServer(config, _tiers=tiers_of(kind)) as server:
        module = hps.SparseEmbeddings(server, {"one": 3, "four": 2})
        output = module(draw_batch(1, 0))
        assert output.shape == (0, 3 * 1 + 2 * 4)
        output.sum().backward()
        hps.RowOptimizer(server).step()
        assert server.num_rows("one") == 0


def test_what_rows_learn_by_two_kinds_of_servers_is_of_their_own(tmp_path: Path) -> None:
    """A batch that another server has pinned is looked up here."""
    batch = draw_batch(1)
    with open_tables(tmp_path / "here") as here, open_tables(tmp_path / "there") as there:
        wanted = joint(here).eval()(batch)
        output = joint(there)(batch)
        output.backward(slope_of(output))
        hps.RowOptimizer(there).step()
        with hps.Pipeline([batch], there) as pinned:
            own = next(pinned)
            assert torch.equal(joint(here).eval()(own), wanted)
            assert not torch.equal(joint(there).eval()(own), wanted)


STEPS = """
import sys, tempfile, torch, hps
torch.set_num_threads(1)
length = int(sys.argv[1])
tables = [hps.TableConfig(name=name, dim=128, optimizer=hps.SGD(lr=0.1)) for name in ("a", "b")]
config = hps.Config(path=sys.argv[2], tables=tables, threads=2)
with hps.ParameterServer(config) as server:
    module, optimizer = hps.SparseEmbeddings(server, {"a": 1, "b": 1}), hps.RowOptimizer(server)
    for step in range(3):
        features = {}
        for name in ("a", "b"):
            keys = torch.arange(64 * length) % 1000
            features[name] = hps.Ids(keys, torch.arange(65) * length)
        batch = hps.Batch(features, torch.zeros(64, 0), torch.ones(64))
        if step == 2:
            with hps.Pipeline([batch], server, 1) as batches:
                module(next(batches)).sum().backward()
                optimizer.step()
        else:
            module(batch).sum().backward()
            optimizer.step()
"""


def test_no_memory_is_taken_for_a_row_an_occurrence(tmp_path: Path) -> None:
    """Two tables of 320,000 occurrences each, whose rows would take 312 MiB."""
    peaks = [peak_of(STEPS, str(length), str(tmp_path / str(length))) for length in (20, 5000)]
    assert peaks[1] - peaks[0] < 100 * MIB
