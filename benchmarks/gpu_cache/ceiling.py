"""What the device's memory can do at most: copies, and random reads of 64-byte pieces.

Above it: gpu_cache_bench.py, which holds every figure against these. Below it: ceiling.cu, CuPy,
torch.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

PIECE_BYTES = 64
_TABLE_BYTES = 8 << 30
_COPY_BYTES = 2 << 30
_PIECES = 1 << 25
_BLOCK = 256


class LaunchStream(NamedTuple):
    """A stream as CuPy's launches want it: they ask for nothing but its address.

    CuPy's own class for streams of others takes longer to make than a launch, and warns each time
    that it is deprecated.
    """

    ptr: int


class Timer(Protocol):
    """Times work on a device."""

    def seconds(
        self, step: Callable[[], Any], repetitions: int, prepare: Callable[[], Any] | None = None
    ) -> tuple[float, ...]:
        """Seconds of each repetition of step(); prepare() before it is not timed."""


class DeviceTimer:
    """Times work on the current stream by events, with nothing of the last round in L2."""

    def __init__(self, device: torch.device) -> None:
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self._flush = torch.empty(4 * l2_bytes, dtype=torch.uint8, device=device)

    def seconds(
        self, step: Callable[[], Any], repetitions: int, prepare: Callable[[], Any] | None = None
    ) -> tuple[float, ...]:
        """Seconds of each repetition of step(); prepare() and the flush before it are not timed."""
        elapsed = []
        for repetition in range(repetitions + 3):  # three to warm up
            if prepare is not None:
                prepare()
            self._flush.fill_(repetition)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            step()
            end.record()
            end.synchronize()
            elapsed.append(start.elapsed_time(end) / 1e3)
        return tuple(elapsed[3:])


@dataclass(frozen=True)
class Ceiling:
    """Bytes a second: of a copy (read and written), and of random 64-byte reads."""

    copy: float
    random: float

    def seconds(self, streamed_bytes: float, random_bytes: float) -> float:
        """The least time for so many bytes; random ones are whole 64-byte pieces."""
        return streamed_bytes / self.copy + random_bytes / self.random


def pieces(num_bytes: int) -> int:
    """The bytes of memory that a random access to `num_bytes` moves at the least, in pieces."""
    return -(-num_bytes // PIECE_BYTES) * PIECE_BYTES


def measure_ceiling(device: torch.device, timer: DeviceTimer, repetitions: int) -> Ceiling:
    """Measures both ceilings. Cost: some 12 GB of device memory for a second."""
    import cupy

    free, _ = torch.cuda.mem_get_info(device)
    halves = torch.empty(2, min(_COPY_BYTES, free // 8), dtype=torch.uint8, device=device).fill_(1)
    copies = timer.seconds(lambda: halves[0].copy_(halves[1]), repetitions)
    copy = halves.numel() / statistics.median(copies)

    table_bytes = min(_TABLE_BYTES, free // 4)
    table = torch.zeros(table_bytes, dtype=torch.uint8, device=device)
    idx = torch.randint(table_bytes // PIECE_BYTES, (_PIECES,), device=device)
    sink = torch.zeros(1, dtype=torch.int32, device=device)
    module = cupy.RawModule(code=Path(__file__).with_name("ceiling.cu").read_text())
    kernel = module.get_function("read_pieces")
    blocks = torch.cuda.get_device_properties(device).multi_processor_count * 16

    def read() -> None:
        stream = LaunchStream(torch.cuda.current_stream().cuda_stream)
        addresses = [one.data_ptr() for one in (table, idx, sink)]
        arguments = (*addresses, np.int64(_PIECES))
        kernel((blocks,), (_BLOCK,), arguments, stream=stream)

    reads = timer.seconds(read, repetitions)
    return Ceiling(copy, (PIECE_BYTES + 8) * _PIECES / statistics.median(reads))
