"""Ranks that are threads, each with its rows on a device that stands in for a GPU.

Above it: tests/cluster/exchange/test_device_ranks.py, rank_counts.py. Below it: ranks.py,
tests/gpu_cache/counted_device.py. A queued channel takes tensors of such a device as NCCL takes
those of a GPU: in the order of the work on them. What is queued before it is done then, which on a
GPU goes on by itself; that is no wait of the host.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

import hps
from hps.cluster.world.local_world import LocalWorld
from hps.common.bags import BagPooling, make_bags
from hps.common.row_layout import Keys
from hps.contracts.reads import PooledRead
from hps.contracts.row_cache import AnyRowCache
from hps.contracts.updates import RowUpdate
from hps.gpu_cache import make_gpu_caches
from hps.gpu_cache.device_cache import DeviceCache
from hps.gpu_cache.failures import Failures
from hps.parameter_server.opening import Tiers
from hps.parameter_server.server import ParameterServer
from tests.gpu_cache.counted_device import CountedDevice
from tests.gpu_cache.host_device import HostDevice
from tests.twins.ssd_store import TwinDisk

DIMS = {"ads": 4, "sites": 3, "users": 8}


def _of(device: HostDevice, name: str, *given: str) -> AbstractContextManager[object]:
    """What a device that counts has under that name; nothing of others."""
    context: AbstractContextManager[object] = getattr(device, name, lambda *_: nullcontext())(
        *given
    )
    return context


class _Carrying:
    """A channel of which what carries it is no work of the device's."""

    def __init__(self, channel: Any, device: HostDevice, is_queued: bool = False) -> None:
        self._channel = channel
        self._stand_in = device
        self.is_queued = is_queued  # its tensors are those of the device

    def exchange(
        self, rows: torch.Tensor, counts: list[int], incoming: list[int] | None = None
    ) -> torch.Tensor:
        """As Channel has it."""
        if self.is_queued:
            HostDevice.work_off(self._stand_in, self._stand_in.num_queued)
        with _of(self._stand_in, "inside"):
            received: torch.Tensor = self._channel.exchange(rows, counts, incoming)
        return received

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


@contextmanager
def device_server(
    world: LocalWorld,
    folder: Path,
    where: str,
    options: hps.ClusterConfig | None = None,
    dims: Mapping[str, int] = DIMS,
    num_bytes: int = 2**18,
    batch_bytes: int = 2**24,
    device: HostDevice | None = None,
) -> Iterator[Any]:
    """A rank's server over all ranks.

    Args:
        where: "host": no gpu_cache; "cpu": its host build; "queued": a stand-in device whose
            tensors travel as they are; "staged": one whose tensors travel by way of the host.
        num_bytes, batch_bytes: of a device's rows, and of what batches work on.
        device: that one; None makes a CountedDevice.
    """
    tables = [
        hps.TableConfig(name=name, dim=dim, optimizer=hps.Adagrad(lr=0.1), features=[name])
        for name, dim in dims.items()
    ]
    gpu = None if where == "host" else hps.GpuCacheConfig(bytes=num_bytes, device="cpu")
    config = hps.Config(
        path=folder / f"{where}-{world.rank}-of-{world.size}",
        tables=tables,
        dram=hps.DramCacheConfig(bytes=2**20),
        gpu=gpu,
        threads=1,
    )
    device = device or CountedDevice()
    tiers = Tiers(open_store=TwinDisk().open)
    if where in ("queued", "staged"):
        failures = Failures(device, batch_bytes)

        def caches(config: hps.Config) -> dict[str, AnyRowCache]:
            return make_gpu_caches(
                config, lambda options: cast("Any", DeviceCache(device, failures, options))
            )

        tiers = Tiers(open_store=TwinDisk().open, make_gpu_caches=caches)
        world = cast("LocalWorld", _Ranks(world, device, where == "queued"))
    with (
        ParameterServer(config, _tiers=tiers) as local,
        hps.ClusterParameterServer.over(local, world, options) as server,
    ):
        yield DeviceRank(server, device, dims)


class _Ranks:
    """A world whose rows travel from device to device, or by way of the host."""

    def __init__(self, world: LocalWorld, device: HostDevice, is_queued: bool) -> None:
        self._world = world
        self.rows = _Carrying(world.rows, device, is_queued)
        self.keys = _Carrying(world.keys, device)
        self.control = _Carrying(world.control, device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)


class BatchOf(NamedTuple):
    """One table's part of a rank's batch."""

    keys: Keys
    pooling: BagPooling
    grads: torch.Tensor  # float32 [F * B, D]


class DeviceRank:
    """A rank's server, and steps as a Pipeline has them done, one stage after the other."""

    def __init__(self, server: Any, device: HostDevice, dims: Mapping[str, int]) -> None:
        self.server = server
        self.device = device
        self._dims = dims

    def settle(self) -> None:
        """Everything that was queued is done."""
        HostDevice.work_off(self.device, self.device.num_queued)

    def step(self, batch: Mapping[str, BatchOf]) -> dict[str, NDArray[np.float32]]:
        """One step; what was pooled."""
        server = self.server

        def counting(stage: str) -> AbstractContextManager[object]:
            return _of(self.device, "counting", stage)

        keys = {name: torch.from_numpy(of.keys.view(np.int64)) for name, of in batch.items()}
        held: Mapping[str, Any] = {}
        with counting("network"):
            exchanged = server.ranks.exchange(server.ranks.divide(keys))
        queued = server.queued
        if queued is not None:  # as on a device, to which they are copied
            for own in exchanged.values():
                own.there = torch.from_numpy(own.received.view(np.int64))
        with counting("fetch"):
            waiting: Sequence[Any]
            if queued is None:
                waiting = [server.warm(name, of) for name, of in exchanged.items()]
            else:
                waiting = list(queued.warming(exchanged).values())
        with counting("copy"):
            if queued is None:
                held = {name: server.pin(name, of) for name, of in exchanged.items()}
            else:
                held = queued.pinning(exchanged)
            for pins in waiting:
                pins.release()
        outs = {name: torch.empty(_shape(of, self._dims[name])) for name, of in batch.items()}
        reads = [
            PooledRead(name, keys[name], of.pooling, outs[name], held[name])
            for name, of in batch.items()
        ]
        updates = [
            RowUpdate(name, keys[name], of.grads, held[name], of.pooling)
            for name, of in batch.items()
        ]
        try:
            with counting("training"):
                server.pull_tables(reads)
                server.apply(updates)
        finally:
            let_go = None if queued is None else queued.release
            with counting("training"):
                if let_go is not None:
                    let_go(list(held.values()))
                else:
                    for rows in held.values():
                        rows.release()
        self.settle()
        return {name: out.numpy().copy() for name, out in outs.items()}


def _shape(of: BatchOf, dim: int) -> tuple[int, int]:
    return len(of.pooling.bags.lengths) // 2, 2 * dim


def random_batch(
    generator: np.random.Generator,
    num_keys: int,
    longest: int,
    num_bags: int = 12,
    dims: Mapping[str, int] = DIMS,
) -> dict[str, BatchOf]:
    """Bags of two features, some of them empty; keys that come more often than 32 times."""
    batch = {}
    for number, (name, dim) in enumerate(dims.items()):
        lengths = generator.integers(0, longest + 1, 2 * num_bags)
        offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
        count = int(offsets[-1])
        keys = (num_keys * generator.random(count) ** 3).astype(np.uint64)
        keys *= np.uint64(0x9E3779B97F4A7C15)
        weights = None
        if number == 1:
            weights = torch.from_numpy(generator.standard_normal(count).astype(np.float32))
        pooling = BagPooling(make_bags(offsets, count, "bags"), weights, number == 2)
        grads = generator.standard_normal((2 * num_bags, dim)).astype(np.float32)
        batch[name] = BatchOf(keys, pooling, torch.from_numpy(grads))
    return batch
