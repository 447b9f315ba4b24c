"""CacheCounters: what one table asked of one of its caches, and for how long.

Above it: cached_tier.py, top_tier.py, hps/parameter_server/stats.py. Below it: nothing.
"""

from dataclasses import dataclass
from time import perf_counter


@dataclass(slots=True)
class CacheCounters:
    """What one table asked of one of its caches since the server was opened.

    As a context manager, under the server's lock, it times the cache's verbs; wall clock.
    """

    hits: int = 0
    misses: int = 0
    seconds: float = 0.0
    _started: float = 0.0

    def __enter__(self) -> None:
        self._started = perf_counter()

    def __exit__(self, *error: object) -> None:
        self.seconds += perf_counter() - self._started
