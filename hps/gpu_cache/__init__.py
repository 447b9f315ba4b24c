"""The gpu_cache: rows of the working sets in a device's memory; see ARCHITECTURE.md."""

from hps.gpu_cache.cache import make_gpu_caches

__all__ = ["make_gpu_caches"]
