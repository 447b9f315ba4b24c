"""Builds the gpu_cache of each table from its config and its share of the budget.

Above it: parameter_server/opening.py. Below it: on a GPU device_cache.py over cuda_device.py; with
device="cpu" hps._C.GpuCache, which runs the same kernels on host threads. Neither torch nor CuPy is
imported before a cache on a GPU is wanted.
"""

from collections.abc import Callable
from typing import cast

from hps import _C
from hps.config import Config, GpuCacheConfig, TableConfig
from hps.contracts.row_cache import AnyRowCache, RowCache
from hps.errors import ConfigError
from hps.gpu_cache.options import CacheOptions, HostCacheOptions

# From a table's options to its cache.
Maker = Callable[[CacheOptions], AnyRowCache]
# mypy checks here that the native cache keeps the contract.
_NATIVE: Callable[..., RowCache[_C.GpuPlan]] = _C.GpuCache


def make_gpu_caches(config: Config, make: Maker | None = None) -> dict[str, AnyRowCache]:
    """The gpu_cache of each table; those of one device share its flag of refused gradients.

    Args:
        config: the store; `config.gpu` says where and how large.
        make: what to build each with; None is what the device asks for.

    Raises:
        ConfigError: no CuPy, no NVRTC, no driver, no such device, not enough memory on it, or a
            table's share is too small for the smallest cache; names the numbers.

    Cost: the whole budget is taken at once. A GPU's kernels are compiled the first time, in a few
    seconds.
    """
    assert config.gpu is not None, "there is no gpu_cache without Config.gpu"
    build = make or _maker(config.gpu, config.num_threads())
    shares = config.shares(config.gpu.rows_bytes)
    caches = {}
    for table in config.tables:
        try:
            caches[table.name] = build(_options(table, shares[table.name], config.seed))
        except ConfigError as error:
            raise ConfigError(
                f"table {table.name!r} on {config.gpu.device}: {error}; GpuCacheConfig.bytes "
                f"(--gpu) is {config.gpu.bytes}, "
                f"{config.gpu.arena_bytes} of them for batches, the table's share {table.share:g} "
                f"of {sum(each.share for each in config.tables):g}"
            ) from error
    return caches


def _options(table: TableConfig, capacity_bytes: int, seed: int) -> HostCacheOptions:
    options: HostCacheOptions = {
        "optimizer_kind": table.optimizer.kind,
        "hyperparameters": table.optimizer.hyperparameters(),
        "dim": table.dim,
        "capacity_bytes": capacity_bytes,
        "initializer_kind": table.initializer.kind,
        "initializer_numbers": table.initializer.numbers(),
        # The same stream as dram_cache's: where a row is made does not show in its bits.
        "stream": _C.xxh64(table.name.encode(), seed),
        "statistics": table.statistics,
    }
    if table.is_narrow:
        options |= {"narrow": True, "rounding": table.rounding}
    if table.more_shows:
        options["more_shows"] = table.more_shows
    return options


def _maker(gpu: GpuCacheConfig, num_threads: int) -> Maker:
    if gpu.device == "cpu":
        pool = _C.ThreadPool(num_threads)
        return lambda options: cast("AnyRowCache", _NATIVE(pool=pool, **options))
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"GpuCacheConfig.device={gpu.device!r} needs torch ({error}); install it with: "
            "pip install 'hps-ctr[train]', or use device='cpu'"
        ) from error
    from hps.gpu_cache.cuda_device import CudaDevice
    from hps.gpu_cache.device_cache import DeviceCache
    from hps.gpu_cache.device_plan import DevicePlan
    from hps.gpu_cache.failures import Failures

    device = CudaDevice(gpu.device)
    failures = Failures(device, gpu.arena_bytes)

    def made(options: CacheOptions) -> RowCache[DevicePlan]:
        return DeviceCache(device, failures, options)

    return cast("Maker", made)
