"""gpu_cache of hps: the working rows of a table in a device's memory, within a budget of bytes."""

from hps.gpu_cache.caches import make_gpu_caches

__all__ = ["make_gpu_caches"]
