"""The GPU part of benchmarks/gpu_cache runs every operation it times, here over host memory.

Above it: pytest. Below it: benchmarks/gpu_cache/on_device.py, tests/gpu_cache/host_device.py.
"""

import time
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.gpu_cache import on_device
from benchmarks.gpu_cache.ceiling import Ceiling, pieces
from tests.gpu_cache.host_device import HostDevice


class HostTimer:
    """Times by the clock, with all queued work done."""

    def __init__(self, device: HostDevice) -> None:
        self._device = device

    def seconds(
        self, step: Callable[[], Any], repetitions: int, prepare: Callable[[], Any] | None = None
    ) -> tuple[float, ...]:
        elapsed = []
        for _ in range(repetitions):
            if prepare is not None:
                prepare()
            self._device.work_off(self._device.num_queued)
            start = time.perf_counter()
            step()
            self._device.work_off(self._device.num_queued)
            elapsed.append(time.perf_counter() - start)
        return tuple(elapsed)


@pytest.mark.parametrize("load", on_device.LOADS)
def test_every_operation_is_timed_beside_its_ceiling(load: float) -> None:
    device = HostDevice()
    table = on_device.Table(HostTimer(device), Ceiling(copy=1e9, random=1e8), repetitions=3)
    subject = on_device.Subject(device, dim=16, rows=4000, load=load, num_keys=1000)
    part = subject.cache.num_rows / subject.cache.capacity_rows
    assert (part > 0.99) if load == 1.0 else (0.45 < part < 0.55)
    rows = []
    for measure in (
        on_device.look_ups, on_device.updates, on_device.whole_steps, on_device.inserts,
    ):  # fmt: skip
        rows += list(measure(table, subject))
    names = list(dict.fromkeys(row["operation"] for row in rows))
    assert len(names) == (8 if load == 1.0 else 7), names
    for row in rows:
        assert row["value"] > 0 and row["baseline_value"] > 0 and row["load"] == load
    ceilings = [row for row in rows if row["baseline"] == "ceiling for its bytes"]
    assert {row["operation"] for row in ceilings} == set(names)
    evicted = subject.cache.stats()["evictions"]
    assert (evicted > 0) == (load == 1.0), "rows give way only in a full table"
    drift = subject.cache.num_rows / subject.cache.capacity_rows - part
    assert abs(drift) < 0.04, "what was inserted to be timed is erased again"


def test_pieces_are_whole() -> None:
    assert [pieces(size) for size in (1, 64, 65, 528)] == [64, 64, 128, 576]
