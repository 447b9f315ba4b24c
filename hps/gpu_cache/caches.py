"""Builds the gpu_cache of each table from its config and its share of the budget.

Above it: parameter_server.py. Below it: hps._C.GpuCache, the kernels of csrc/gpu_cache over host
memory. The verbs are described in hps/row_cache.py.
"""

from typing import Any

from hps import _C
from hps.config import Config
from hps.errors import ConfigError


def make_gpu_caches(config: Config) -> dict[str, Any]:
    """The gpu_cache of each table, on the device of `config.gpu`.

    Raises:
        ConfigError: a table's share is too small for the smallest cache (names both numbers), or
            the device is not there.
    """
    gpu = config.gpu
    assert gpu is not None
    if gpu.device != "cpu":
        raise ConfigError(
            f"GpuCacheConfig.device={gpu.device!r}: only the host build is in this "
            "installation; use device='cpu'"
        )
    shares = config.shares(int(gpu.bytes))
    pool = _C.ThreadPool(config.num_threads())
    caches = {}
    for table in config.tables:
        try:
            caches[table.name] = _C.GpuCache(
                pool=pool,
                optimizer_kind=table.optimizer.kind,
                hyperparameters=table.optimizer.hyperparameters(),
                dim=table.dim,
                capacity_bytes=shares[table.name],
                initializer_kind=table.initializer.kind,
                initializer_numbers=table.initializer.numbers(),
                # The stream makes initial rows a function of (seed, table, key).
                stream=_C.xxh64(table.name.encode(), config.seed),
            )
        except ConfigError as error:
            raise ConfigError(
                f"table {table.name!r}: {error}; raise GpuCacheConfig.bytes (now {gpu.bytes}) or "
                f"the table's share (now {table.share:g})"
            ) from error
    return caches
