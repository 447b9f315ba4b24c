"""Ranks whose rows lie on a device: the bits of ranks whose rows lie on the host, in all formats.

Above it: pytest. Below it: tests/cluster/device_ranks.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.cluster.world.local_world import LocalWorld
from hps.contracts.updates import RowUpdate
from tests.cluster.device_ranks import DIMS, BatchOf, device_server, random_batch
from tests.cluster.ranks import run_ranks, successes
from tests.gpu_cache.simt_grid import (
    SEEDED,
    STARVING,
    WARP_BY_WARP,
    Grid,
    GridDevice,
    find_compiler,
)

WIRES = ["float32", "float16", "bfloat16", "int8"]


def outcome(
    folder: Path,
    where: str,
    size: int,
    options: hps.ClusterConfig,
    batches: Any,
    make_device: Any = lambda rank: None,
    batch_bytes: int = 2**24,
) -> Any:
    """What was pooled in each step on each rank, and the tables' digests."""

    def body(world: LocalWorld) -> Any:
        device = make_device(world.rank)
        more: Any = {"device": device, "batch_bytes": batch_bytes}
        with device_server(world, folder, where, options, **more) as rank:
            rank.server.ranks.pipeline_opened(rank)
            pooled = [rank.step(batch) for batch in batches(world.rank)]
            rank.server.ranks.pipeline_closed(rank)
            digests = {name: rank.server.digest(name) for name in DIMS}
            return [{name: out.tobytes() for name, out in of.items()} for of in pooled], digests

    return successes(run_ranks(size, body))


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("size", "where"), [(2, "queued"), (3, "queued"), (2, "staged")])
def test_ranks_over_a_device_have_the_bits_of_ranks_over_the_host(
    tmp_path: Path, size: int, where: str, wire: str
) -> None:
    options = hps.ClusterConfig(row_wire=wire, gradient_wire=wire)

    def batches(rank: int) -> Any:
        generator = np.random.default_rng([7, rank])
        for number in range(4):
            longest = 0 if number == 2 and rank == 0 else 40  # one rank without keys
            yield random_batch(generator, 90, longest)

    on_host = outcome(tmp_path, "host", size, options, batches)
    assert outcome(tmp_path, where, size, options, batches) == on_host
    if wire == "float32":
        assert outcome(tmp_path, "cpu", size, options, batches) == on_host


def test_ranks_with_little_memory_for_batches_have_the_same_bits_or_are_refused(
    tmp_path: Path,
) -> None:
    options = hps.ClusterConfig()

    def batches(rank: int) -> Any:
        generator = np.random.default_rng([8, rank])
        return [random_batch(generator, 90, longest) for longest in (10, 40, 20)]

    def of(where: str, num_bytes: int) -> Any:
        return outcome(tmp_path / str(num_bytes), where, 2, options, batches, batch_bytes=num_bytes)

    assert of("queued", 2**19) == of("host", 2**19)
    with pytest.raises(BaseException, match=r"a batch of \d+ keys in 3 tables needs \d+ bytes"):
        of("queued", 2**16 + 2**15)


@pytest.mark.skipif(find_compiler() is None, reason="no g++ here")
@pytest.mark.parametrize("wire", ["float16", "int8"])
@pytest.mark.parametrize("order", [WARP_BY_WARP, SEEDED, STARVING])
def test_no_order_of_lanes_and_warps_changes_a_bit(tmp_path: Path, order: int, wire: str) -> None:
    options = hps.ClusterConfig(row_wire=wire, gradient_wire=wire)
    grid = Grid()

    def batches(rank: int) -> Any:
        generator = np.random.default_rng([9, rank])
        return [random_batch(generator, 25, 6, num_bags=3) for _ in range(2)]

    def device(rank: int) -> GridDevice:
        return GridDevice(grid, order, seed=rank)

    on_host = outcome(tmp_path, "host", 2, options, batches)
    assert outcome(tmp_path, "queued", 2, options, batches, device) == on_host


def test_a_rank_alone_with_its_keys_has_the_bits_of_one_process(tmp_path: Path) -> None:
    """Half of the gradients, which is exact, of keys that come far more often than 32 times."""

    def batches(rank: int) -> Any:
        generator = np.random.default_rng(3)
        for _ in range(3):
            batch = random_batch(generator, 20, 300)
            yield batch if rank == 0 else random_batch(np.random.default_rng(0), 20, 0)

    first, _ = outcome(tmp_path, "queued", 2, hps.ClusterConfig(), batches)

    def alone(world: LocalWorld) -> Any:
        with device_server(world, tmp_path / "alone", "host") as rank:
            pooled = []
            for batch in batches(0):
                outs = {}
                for name, of in batch.items():
                    out = torch.empty(12, 2 * DIMS[name])
                    rank.server.pull_pooled(name, of.keys, of.pooling, out)
                    outs[name] = out.numpy().tobytes()
                pooled.append(outs)
                rank.server.apply(
                    [
                        RowUpdate(name, of.keys, of.grads / 2, None, of.pooling)
                        for name, of in batch.items()
                    ]
                )
            return pooled, {name: rank.server.digest(name) for name in DIMS}

    assert [first] == successes(run_ranks(1, alone))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3.395e38])
def test_a_gradient_that_must_not_travel_is_refused_on_all_ranks(
    tmp_path: Path, value: float
) -> None:
    def body(world: LocalWorld) -> Any:
        with device_server(world, tmp_path, "queued") as rank:
            rank.server.ranks.pipeline_opened(rank)
            batch = random_batch(np.random.default_rng([1, world.rank]), 50, 5)
            rank.step(batch)
            before = rank.server.digest("ads")
            if world.rank == 1:
                of = batch["ads"]
                grads = torch.zeros_like(of.grads)
                grads[int(of.pooling.bags.lengths.argmax()), 3] = value
                batch["ads"] = BatchOf(of.keys, of.pooling, grads)
            with pytest.raises(hps.NonFiniteError, match="rank 1, table 'ads', key"):
                rank.step(batch)
            assert rank.server.digest("ads") == before
            rank.server.ranks.pipeline_closed(rank)
            return rank.server.pins

    assert successes(run_ranks(2, body)) == [0, 0]


def test_a_step_that_overflows_at_one_owner_changes_no_rank(tmp_path: Path) -> None:
    """Each rank's sum may travel; their sum at the owner is not finite where it is squared."""

    def body(world: LocalWorld) -> Any:
        with device_server(world, tmp_path, "queued") as rank:
            rank.server.ranks.pipeline_opened(rank)
            batch = random_batch(np.random.default_rng(4), 50, 5)  # the same on both ranks
            rank.step(batch)
            before = {name: rank.server.digest(name) for name in DIMS}
            of = batch["ads"]
            grads = torch.zeros_like(of.grads)
            grads[int(of.pooling.bags.lengths.argmax()), 2] = 1.95e19
            with pytest.raises(hps.NonFiniteError, match="table 'ads', key"):
                rank.step({**batch, "ads": BatchOf(of.keys, of.pooling, grads)})
            assert {name: rank.server.digest(name) for name in DIMS} == before
            rank.step(batch)
            rank.server.ranks.pipeline_closed(rank)
            return rank.server.digest("ads") != before["ads"]

    assert successes(run_ranks(2, body)) == [True, True]


def test_pulls_and_pushes_of_bare_keys_are_those_of_the_host(tmp_path: Path) -> None:
    def body(world: LocalWorld, where: str) -> Any:
        with device_server(world, tmp_path, where) as rank:
            generator = np.random.default_rng([5, world.rank])
            found = []
            for _ in range(3):
                keys = generator.integers(0, 40, 100).astype(np.uint64)
                grads = generator.standard_normal((100, 4)).astype(np.float32)
                rank.server.push("ads", keys, grads)
                found.append(rank.server.pull("ads", keys).tobytes())
                found.append(rank.server.contains("ads", keys).tobytes())
            return found, rank.server.digest("ads")

    results = [
        successes(run_ranks(2, lambda world, where=where: body(world, where)))
        for where in ("host", "queued", "staged")
    ]
    assert results[0] == results[1] == results[2]


def test_hot_rows_on_a_device_are_refused(tmp_path: Path) -> None:
    def body(world: LocalWorld) -> None:
        with (
            pytest.raises(hps.ConfigError, match=r"hot_rows \(--hot-rows\) is 8"),
            device_server(world, tmp_path, "queued", hps.ClusterConfig(hot_rows=8)),
        ):
            pass

    successes(run_ranks(2, body))
