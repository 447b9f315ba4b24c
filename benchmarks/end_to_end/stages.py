"""Seconds by stage of a training loop.

Above it: peer_train.py, hps_stages.py. Below it: the clock.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stages:
    """Sums the seconds of each stage, in order of first use."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts the block's duration."""
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
