"""dram_cache of hps: the warm rows of a table in host memory, within a fixed budget of bytes."""

from hps.dram_cache.cache import make_dram_caches

__all__ = ["make_dram_caches"]
