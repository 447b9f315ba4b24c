"""CacheOptions: the numbers of one table that a gpu_cache is built from.

Above it: cache.py, which takes them from a config; device_rows.py and hps._C.GpuCache, which are
given them. Below it: nothing.
"""

from typing import NotRequired, TypedDict


class CacheOptions(TypedDict):
    """One table's.

    Args:
        optimizer_kind, hyperparameters: of its rows' optimizer.
        dim: floats in an embedding.
        capacity_bytes: of the cache, everything counted.
        initializer_kind, initializer_numbers: of a new row's weights.
        stream: of the random numbers of new rows.
        statistics: the header of a row has them.
    """

    optimizer_kind: str
    hyperparameters: list[float]
    dim: int
    capacity_bytes: int
    initializer_kind: str
    initializer_numbers: tuple[float, float]
    stream: int
    statistics: NotRequired[bool]


class HostCacheOptions(CacheOptions):
    """The same of a table in host memory, whose rows may be narrow, and count.

    Args:
        narrow: weights are bfloat16.
        rounding: of these by updates, "stochastic" or "nearest".
        more_shows: what an occurrence without a click counts beside its one show.
    """

    narrow: NotRequired[bool]
    rounding: NotRequired[str]
    more_shows: NotRequired[float]
