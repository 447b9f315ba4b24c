"""Counts of calls by method and status, cheap enough for every call.

Above it: calls.py counts, metrics.py shows. Below it: nothing.
"""

import threading
from bisect import bisect_left
from dataclasses import dataclass, field

# Upper ends of the buckets of latency, in seconds.
BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass
class MethodCounts:
    """Of one method: calls by status, bytes both ways, and how long they took."""

    by_status: dict[str, int] = field(default_factory=dict)
    request_bytes: int = 0
    reply_bytes: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))


class CallCounts:
    """Counts since the server was started; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._methods: dict[str, MethodCounts] = {}

    def count(
        self, method: str, status: str, seconds: float, request_bytes: int, reply_bytes: int
    ) -> None:
        """One call that has ended, or one message of a push stream."""
        bucket = bisect_left(BUCKETS, seconds)
        with self._lock:
            counts = self._methods.setdefault(method, MethodCounts())
            counts.by_status[status] = counts.by_status.get(status, 0) + 1
            counts.request_bytes += request_bytes
            counts.reply_bytes += reply_bytes
            counts.seconds += seconds
            counts.buckets[bucket] += 1

    def snapshot(self) -> dict[str, MethodCounts]:
        """A copy of the counts, by method."""
        with self._lock:
            return {
                method: MethodCounts(
                    dict(counts.by_status),
                    counts.request_bytes,
                    counts.reply_bytes,
                    counts.seconds,
                    list(counts.buckets),
                )
                for method, counts in self._methods.items()
            }
