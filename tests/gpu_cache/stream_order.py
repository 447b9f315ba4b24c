"""StreamOrder: a log of what is queued on a device's streams, and the proof that it is in order.

Above it: stream_device.py, which logs. Below it: nothing of hps. Each stream has a vector clock:
how many of every stream's pieces of work are known to come before what it is given next. Recording
an event copies a clock, waiting for one joins it. Two accesses of one piece of memory, one of them
a write, must have one known to come before the other; host threads and the order in which they
happened to queue do not count, nor does a wait of the host that another thread did.

Memory that is given back may be taken again by the stream that it was taken on, at once: so work
on other streams must come before what that stream is given next, or the memory must have been
recorded for those streams, whose work the allocator then waits for.

Of pinned memory nobody waits for kernels: before the host reads what they wrote, or writes what
they read, and before it is given back, the thread must have waited, or asked whether that is done.
"""

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType

Clock = dict[int, int]
PINNED = -1


def _join(clock: Clock, other: Clock) -> None:
    for stream, count in other.items():
        clock[stream] = max(clock.get(stream, 0), count)


@dataclass
class Access:
    """The last piece of work of a stream on a piece of memory.

    Args:
        count: its number on the stream.
        what: for the report.
    """

    count: int
    what: str


@dataclass
class Block:
    """A piece of memory as the allocator gave it.

    Args:
        start, end: addresses.
        stream: that it was taken on; of pinned memory PINNED.
        name: where that was.
        is_gone: whether it has been given back.
    """

    start: int
    end: int
    stream: int
    name: str
    is_gone: Callable[[], bool]
    reads: dict[int, Access] = field(default_factory=dict)
    writes: dict[int, Access] = field(default_factory=dict)
    recorded: set[int] = field(default_factory=set)


class StreamOrder:
    """Clocks of streams and host threads, live memory, and what was found to be in no order.

    Any thread may call; `lock` is held meanwhile.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.faults: dict[str, None] = {}  # as a set in order
        self.blocks: dict[int, Block] = {}
        self.num_accesses = 0
        self.num_crossings = 0  # accesses after one of another stream's
        self.num_frees = 0
        self.num_host_accesses = 0  # of pinned memory
        self.num_used_elsewhere = 0  # pieces given back that other streams had worked on
        self._clocks: dict[int, Clock] = {}
        self._threads: dict[int, Clock] = {}

    def snapshot(self, stream: int) -> Clock:
        """What an event that is recorded now tells."""
        with self.lock:
            clock = dict(self._clocks.setdefault(stream, {}))
            _join(clock, self._known())
            return clock

    def wait(self, stream: int, told: Clock) -> None:
        """A stream waits for an event."""
        with self.lock:
            self.look_for_gone()  # what was given back before is behind less
            _join(self._clocks.setdefault(stream, {}), told)

    def host_wait(self, told: Clock) -> None:
        """A thread of the host waits for an event: what it queues from now on comes later."""
        with self.lock:
            _join(self._known(), told)

    def take(self, start: int, num_bytes: int, stream: int, is_gone: Callable[[], bool]) -> None:
        """Memory is taken on a stream; there may be none."""
        if num_bytes == 0:
            return
        with self.lock:
            self.look_for_gone()
            place = _place(sys._getframe(1))
            self.blocks[start] = Block(start, start + num_bytes, stream, place, is_gone)

    def access(self, address: int, *, is_write: bool) -> None:
        """The calling thread of the host reads, or reads and writes, pinned memory."""
        with self.lock:
            block = self.find(address)
            assert block is not None and block.stream == PINNED, "no pinned memory"
            self.num_host_accesses += 1
            known = self._known()
            earlier = [*block.writes.items(), *(block.reads.items() if is_write else ())]
            for stream, before in earlier:
                if known.get(stream, 0) < before.count:
                    what = "writes" if is_write else "reads"
                    self.faults[f"the host {what} before {before.what}: {block.name}"] = None

    def record(self, start: int, stream: int) -> None:
        """The memory that starts there is used by a stream, too."""
        with self.lock:
            if start in self.blocks:
                self.blocks[start].recorded.add(stream)

    def find(self, address: int) -> Block | None:
        """The live memory that an address lies in."""
        with self.lock:
            for block in self.blocks.values():
                if block.start <= address < block.end:
                    return block
            return None

    def work(self, stream: int, what: str, reads: list[Block], writes: list[Block]) -> None:
        """A piece of work is queued; memory that is written need not be among what is read."""
        with self.lock:
            self.look_for_gone()
            clock = self._clocks.setdefault(stream, {})
            _join(clock, self._known())
            clock[stream] = clock.get(stream, 0) + 1
            access = Access(clock[stream], f"{what} on stream {stream}")
            written = {id(block) for block in writes}
            for block in {id(one): one for one in (*reads, *writes)}.values():
                self.num_accesses += 1
                is_write = id(block) in written
                earlier = [*block.writes.items(), *(block.reads.items() if is_write else ())]
                self._require(block, access, clock, earlier)
                (block.writes if is_write else block.reads)[stream] = access

    def look_for_gone(self) -> None:
        """Checks what has been given back since the last call."""
        with self.lock:
            for block in [one for one in self.blocks.values() if one.is_gone()]:
                del self.blocks[block.start]
                self._check_gone(block)

    def _require(
        self, block: Block, access: Access, clock: Clock, earlier: list[tuple[int, Access]]
    ) -> None:
        own = access.what.partition(" on ")[2]
        for stream, before in earlier:
            self.num_crossings += before.what.partition(" on ")[2] != own
            if clock.get(stream, 0) < before.count:
                self.faults[
                    f"{access.what} is not behind {before.what}: memory of {block.name}"
                ] = None

    def _check_gone(self, block: Block) -> None:
        if block.stream == PINNED:
            self._check_pinned(block)
            return
        clock = self._clocks.get(block.stream, {})
        self.num_frees += 1
        users = {*block.reads, *block.writes} - {block.stream}
        self.num_used_elsewhere += bool(users)
        for accesses in (block.reads, block.writes):
            for stream, last in accesses.items():
                if stream == block.stream or stream in block.recorded:
                    continue
                if clock.get(stream, 0) < last.count:
                    self.faults[
                        f"memory of stream {block.stream} may be taken again before {last.what}: "
                        f"memory of {block.name}"
                    ] = None

    def _check_pinned(self, block: Block) -> None:
        waited: Clock = {}
        for clock in self._threads.values():
            _join(waited, clock)
        for stream, last in (*block.reads.items(), *block.writes.items()):
            if waited.get(stream, 0) < last.count:
                self.faults[f"pinned memory is given back before {last.what}: {block.name}"] = None

    def _known(self) -> Clock:
        """What the calling thread of the host has waited for."""
        return self._threads.setdefault(threading.get_ident(), {})


def _place(frame: FrameType | None) -> str:
    """The innermost two functions of hps that a frame is in."""
    names: list[str] = []
    while frame is not None and len(names) < 2:
        if "/hps/" in frame.f_code.co_filename:
            names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return " in ".join(names) if names else "the caller"


def called_from() -> str:
    """The function of hps that calls what calls this; empty if hps does not."""
    frame = sys._getframe(2)
    return frame.f_code.co_qualname if "/hps/" in frame.f_code.co_filename else ""
