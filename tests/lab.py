"""Small servers for tests, over readable twins or over the native tiers, with budgets that evict.

Above it: tests of the server. A Lab is one store: it can be opened again and again, and knows how
to fill its disk and to damage it.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hps
from hps import _C, dram_cache
from hps.gpu_cache.cuda_device import CudaDevice
from hps.gpu_cache.failures import Failures
from hps.parameter_server import open_server
from hps.parameter_server.opening import Tiers
from hps.parameter_server.server import ParameterServer
from tests.gpu_cache.host_device import AskedCache, HostDevice
from tests.twins.dram_cache import TwinDramCache
from tests.twins.ssd_store import TwinDisk

KINDS = ("twins", "native_dram", "native_gpu", "native", "rocksdb", "gpu")
OPTIMIZERS: list[hps.common.optimizers.Optimizer] = [
    hps.SGD(lr=0.1),
    hps.Adagrad(lr=0.1, initial_accumulator_value=0.1),
    hps.RowWiseAdagrad(lr=0.1),
    hps.Adam(lr=0.01),
    hps.FTRL(lr=0.1, l1=0.001, l2=0.01),
]
# Weights decay fast enough that a step without it would differ at once.
DECAYING: list[hps.common.optimizers.Optimizer] = [
    hps.SGD(lr=0.1, weight_decay=0.3),
    hps.Adagrad(lr=0.1, initial_accumulator_value=0.1, weight_decay=0.2),
    hps.RowWiseAdagrad(lr=0.1, weight_decay=0.5),
    hps.Adam(lr=0.01, weight_decay=2.0),
]
TWIN_ROWS = 16


class Lab:
    """One store over tiers of a kind.

    "twins"; "native_dram" over the twin's store; "native_gpu", the host build of gpu_cache in its
    place; "launched_gpu", the launcher of the CUDA cache over host memory, "cuda" over a GPU;
    "native"; "rocksdb": native over RocksDB; and with a cache more on top: "three_twins"; "gpu",
    the host build of gpu_cache over "native".
    """

    def __init__(self, kind: str, path: Path) -> None:
        if kind == "native" and not hasattr(_C, "SsdStore"):
            pytest.skip("the native SsdStore is not in this build")
        if kind == "rocksdb":
            pytest.importorskip("rocksdict")
        self.kind = kind
        self.path = path / "store"
        self.disk = TwinDisk()
        is_twin = kind in ("twins", "three_twins")
        makers = {
            "native_gpu": make_gpu_cache,
            "launched_gpu": make_launched_cache,
            "cuda": make_cuda_cache,
        }
        self.make_cache: Any = TwinDramCache if is_twin else makers.get(kind)
        options: dict[str, Any] = {}
        if is_twin or kind == "native_dram" or kind in makers:
            options = {"open_store": self.disk.open, "make_cache": self.make_cache}
        if kind == "three_twins":
            options["make_gpu_caches"] = self._second_caches
        self.tiers = Tiers(**options)

    def config(self, *tables: hps.TableConfig, scale: float = 1.0, **others: Any) -> hps.Config:
        """A config whose dram budget is `scale` times the smallest that its tables can have."""
        least = max(self.smallest_budget(table) for table in tables) * len(tables)
        budget = int(least * scale) + len(tables)
        above = int(scale * (least + 8192 * len(tables))) if self.kind == "gpu" else budget
        gpu = hps.GpuCacheConfig(bytes=above, device="cpu")
        return hps.Config(
            path=self.path,
            tables=tables,
            dram=hps.DramCacheConfig(bytes=budget),
            gpu=gpu if self.kind in ("three_twins", "gpu") else None,
            ssd=hps.SsdStoreConfig(
                segment_bytes=2**16, engine="rocksdb" if self.kind == "rocksdb" else "segments"
            ),
            **{"threads": 2, **others},
        )

    def _second_caches(self, config: hps.Config) -> dict[str, Any]:
        """Another cache of the same kind over each dram_cache."""
        assert config.gpu is not None
        dram = hps.DramCacheConfig(bytes=config.gpu.bytes)
        above = dataclasses.replace(config, gpu=None, dram=dram)
        return dram_cache.make_dram_caches(above, self.make_cache)

    def server(
        self, *tables: hps.TableConfig, scale: float = 1.0, **others: Any
    ) -> ParameterServer:
        """The store opened for writing, with the smallest caches times `scale`."""
        return ParameterServer(self.config(*tables, scale=scale, **others), _tiers=self.tiers)

    def open(self, dram: str = "1MiB", **options: Any) -> ParameterServer:
        """As hps.open."""
        return open_server.open(self.path, dram=dram, _tiers=self.tiers, **options)

    def smallest_budget(self, table: hps.TableConfig) -> int:
        """Bytes of the smallest cache a table can have."""
        row_bytes = table.layout.row_bytes
        if self.kind in ("twins", "three_twins"):
            return TWIN_ROWS * row_bytes
        alone = dataclasses.replace(table, admission=None)  # which may name another table
        with pytest.raises(hps.ConfigError) as refusal:
            dram_cache.make_dram_caches(
                hps.Config(path=self.path, tables=[alone], dram=hps.DramCacheConfig(bytes=1)),
                self.make_cache,
            )
        found = re.search(r"least is (\d+) bytes", str(refusal.value))
        assert found is not None
        return int(found[1])


def make_gpu_cache(*, instruction_set: str, **options: Any) -> Any:
    """The host build of gpu_cache where a dram_cache is wanted; it has one instruction set."""
    return _C.GpuCache(**options)


def make_launched_cache(*, pool: Any, instruction_set: str, **options: Any) -> Any:
    """The CUDA cache's launcher over host memory where a dram_cache is wanted."""
    device = HostDevice()
    return AskedCache(device, Failures(device), options)


def make_cuda_cache(*, pool: Any, instruction_set: str, **options: Any) -> Any:
    """The CUDA cache where a dram_cache is wanted; all arrays of the server stay on the host."""
    device = CudaDevice("cuda:0")
    return AskedCache(device, Failures(device), options)


def table(
    optimizer: hps.common.optimizers.Optimizer | None = None, *, name: str = "ads", dim: int = 4
) -> hps.TableConfig:
    """A small table; SGD with learning rate 1 unless told."""
    return hps.TableConfig(
        name=name, dim=dim, optimizer=optimizer or hps.SGD(lr=1.0), features=[f"{name}-feature"]
    )


def optimizer_id(one: hps.common.optimizers.Optimizer) -> str:
    """Names an optimizer among OPTIMIZERS and DECAYING."""
    return f"{one.kind}-decaying" if one.weight_decay else one.kind


def keys_of(*keys: int) -> NDArray[np.uint64]:
    """uint64 [L]."""
    return np.array(keys, np.uint64)


def random_keys(
    generator: np.random.Generator, count: int, num_distinct: int
) -> NDArray[np.uint64]:
    """Keys spread over all 64 bits, with repetitions."""
    return generator.integers(0, num_distinct, count).astype(np.uint64) * np.uint64(
        0x9E3779B97F4A7C15
    )


def random_floats(generator: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Standard normal float32."""
    return generator.standard_normal(shape).astype(np.float32)


def evictions(server: ParameterServer) -> int:
    """Rows that gave way in the caches of the top tier."""
    return int(top_stats(server)["evictions"])


def top_stats(server: ParameterServer) -> dict[str, Any]:
    """The part of the statistics that is the top tier's."""
    stats = server.stats()
    part: dict[str, Any] = stats.get("gpu_cache", stats["dram_cache"])
    return part


def dump(server: ParameterServer, name: str = "ads") -> dict[int, bytes]:
    """Every stored row with its state, by key."""
    rows: dict[int, bytes] = {}
    for keys, weights, state in server.items(name, batch=50, state=True):
        for key, weight, numbers in zip(keys.tolist(), weights, state, strict=True):
            assert key not in rows, "items() gave a key twice"
            rows[key] = weight.tobytes() + numbers.tobytes()
    return rows
