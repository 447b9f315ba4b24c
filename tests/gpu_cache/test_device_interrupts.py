"""An interrupt at every single line of a device's verbs: no pin stays, and rows keep their numbers.

Above it: pytest. Below it: device_batch.py over the stand-in device. What the host notes of queued
work has to be noted with the queueing, in one native call: else the device pins, or gives back,
what the host knows nothing of.
"""

import dis
import gc
import linecache
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import hps
from hps import _C
from hps.contracts.joint import JointUpdate, Places
from hps.contracts.table_verbs import RowsOfTable
from hps.contracts.updates import RowUpdate
from hps.gpu_cache import ring
from hps.gpu_cache.device_cache import DeviceCache
from hps.gpu_cache.failures import Failures
from tests.gpu_cache.cache_pair import cache_options, capacity_of
from tests.gpu_cache.host_device import HostDevice
from tests.gpu_cache.step_counts import BAGS, DIM, CountedSteps

# An interrupt in a __del__ is told of, no more.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
WHOLE_PACKAGE = str(Path(hps.__file__).parent)
PACKAGE = str(Path(WHOLE_PACKAGE) / "gpu_cache")
DRIVER = str(Path(__file__).with_name("called_driver.py"))
ROW_DIM, COUNT = 4, 40
Keys = NDArray[np.uint64]


class Strike:
    """A tracer that interrupts before the number-th line of a device's verbs, once."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.place = ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        # Nothing strikes inside a native call, as which the stand-in's driver counts, nor between
        # the last step of a `with` block and its end, which Python tells as that line, too.
        if event == "line" and not _is_called_by_driver(frame) and not _is_with(frame):
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.place = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                raise KeyboardInterrupt
        return self._line


def _is_called_by_driver(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == DRIVER:
            return True
        frame = frame.f_back
    return False


def _is_with(frame: FrameType) -> bool:
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return line.lstrip().startswith("with ")


class StrikeBehindCall(Strike):
    """The same behind the number-th call that returns to hps: there Python takes up what has come
    while a native call was at work."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._before: dict[FrameType, str] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(WHOLE_PACKAGE) or _is_called_by_driver(frame):
            return None
        frame.f_trace_opcodes = True
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            before = self._before.get(frame, "")
            self._before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before.startswith("CALL"):
                self.left -= 1
                if self.left == 0:
                    sys.settrace(None)
                    self.place = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                    raise KeyboardInterrupt
        return self._opcode


def struck_at(number: int, call: Callable[[], object], kind: type[Strike] = Strike) -> str:
    """Where the interrupt struck; empty if the call has not so many lines. A __del__ that it struck
    was ended by it, and the call was not."""
    strike, before = kind(number), sys.gettrace()
    sys.settrace(strike)
    try:
        with suppress(KeyboardInterrupt):
            call()
    finally:
        sys.settrace(before)
    return strike.place


class Full:
    """A table of two buckets whose rows all differ from what lies below, and that below."""

    def __init__(self) -> None:
        self.device, optimizer = HostDevice(), hps.SGD()
        options = cache_options(optimizer, ROW_DIM, capacity_of(optimizer, ROW_DIM, 2))
        self.cache: Any = DeviceCache(self.device, Failures(self.device), options)
        self.batch = self.cache.together
        self.below: dict[int, NDArray[np.uint8]] = {}
        self.keys: Keys = np.arange(3 * self.cache.capacity_rows, dtype=np.uint64)
        self.plan = self.cache.make_plan(self.keys[:0], None)
        for first in range(0, len(self.keys), COUNT):
            part = self.keys[first : first + COUNT]
            self.pin(part, self.plan)
            self.cache.assign(self.plan, self.rows(part), None, 0.1)
            self.batch.release([self.plan])

    def rows(self, keys: Keys) -> Any:
        """What each row's weights are, from the first to the last."""
        return np.repeat(keys.astype(np.float32)[:, None] + 1, ROW_DIM, axis=1)

    def needed(self, keys: Keys) -> _C.DeviceKeys:
        found = self.batch.keys_of([keys])
        assert found is not None
        return found

    def pin(self, keys: Keys, plan: Any, pins: bool = True) -> None:
        """As a server has it done; `pins`: by the look-up, if no row is missing."""
        self.batch.look_up([plan], self.needed(keys), [pins])
        if self.batch.pin_found([plan]):
            return
        assert self.batch.begin_reserve([plan])
        assert self.batch.end_reserve([plan]) == [True]
        self.fill(plan)

    def fill(self, plan: Any) -> None:
        """The victims go down, then the missing rows come."""
        for image in self.cache.victims(plan):
            self.below[int(image[:8].view(np.uint64)[0])] = image.copy()
        missing = self.cache.missing_keys(plan)
        rows = np.zeros((len(missing), self.cache.row_bytes), np.uint8)
        found = np.zeros(len(missing), np.uint8)
        for at, key in enumerate(missing.tolist()):
            if key in self.below:
                rows[at], found[at] = self.below[key], 1
        self.batch.fill([RowsOfTable(self.cache, plan, rows, found, 0.1)])

    def check(self, keys: Keys, plan: Any, place: str) -> None:
        """Nothing is pinned, and keys are read as they were."""
        assert (self.cache.pins, self.cache.num_held) == (0, 0), place
        assert self.cache.stats()["pending"] == 0, place
        self.pin(keys, plan)
        out = np.zeros((len(keys), ROW_DIM), np.float32)
        self.cache.gather(plan, out)
        self.batch.release([plan])
        assert np.array_equal(out, self.rows(keys)), place


HERE, RESERVED = "rows that are here", "rows that are here, pinned by a reserve"
CASES = (HERE, RESERVED, "rows that are missing", "rows that are partly missing")


@pytest.mark.parametrize("case", CASES)
def test_an_interrupt_at_any_line_of_a_batch_leaves_no_pin_and_every_row(case: str) -> None:
    full, generator = Full(), np.random.default_rng(1)
    plan, places = full.plan, set()

    def step(keys: Keys) -> None:
        full.pin(keys, plan, pins=case != RESERVED)
        full.batch.release([plan])

    for number in range(1, 2000):
        stored = full.cache.contains(full.keys) != 0
        here, away = full.keys[stored], full.keys[~stored]
        generator.shuffle(here)
        generator.shuffle(away)
        counts = {HERE: COUNT, RESERVED: COUNT, "rows that are missing": 0}
        num_here = counts.get(case, COUNT // 2)
        keys = np.concatenate([here[:num_here], away[: COUNT - num_here]])
        place = struck_at(number, lambda keys=keys: step(keys))
        full.batch.abandon([plan])
        full.check(keys, plan, f"{case}: {place}")
        if not place:
            break
        places.add(place)
    assert len(places) > 30, places


@pytest.mark.parametrize("verb", ["abandon", "cancel", "release"])
def test_what_gives_slots_back_may_be_repeated_after_an_interrupt_at_any_line(verb: str) -> None:
    full, generator = Full(), np.random.default_rng(2)
    plan, places = full.plan, set()
    for number in range(1, 500):
        keys = generator.choice(full.keys, COUNT, replace=False)
        full.batch.look_up([plan], full.needed(keys), [False])
        assert full.batch.begin_reserve([plan])
        if verb != "abandon":
            assert full.batch.end_reserve([plan]) == [True]
        if verb == "release":
            full.fill(plan)
        give_back = full.batch.release if verb == "release" else full.batch.abandon
        place = struck_at(number, lambda give_back=give_back: give_back([plan]))
        full.batch.abandon([plan])
        full.check(keys, plan, f"{verb}: {place}")
        if not place:
            break
        places.add(place)
    assert len(places) > 3, places


def test_a_plan_whose_growth_was_interrupted_knows_its_arrays() -> None:
    full, places = Full(), set()
    for number in range(1, 500):
        plan = full.cache.make_plan(full.keys[:3], None)
        place = struck_at(number, lambda plan=plan: full.cache.make_plan(full.keys[:100], plan))
        full.batch.abandon([plan])
        full.cache.make_plan(full.keys[1:4], plan)
        assert plan.unique_keys.tolist() == [1, 2, 3], place
        if not place:
            break
        places.add(place)
    assert any("grow" in place for place in places), places


def test_memory_that_kernels_write_to_is_kept_where_an_interrupt_follows_their_launch() -> None:
    for number in range(1, 500):
        full = Full()
        keys = full.keys[:COUNT]
        plan = full.cache.make_plan(keys, None)
        full.cache.find(plan, 0, -1)
        assert plan.num_missing
        place = struck_at(number, lambda plan=plan, full=full: full.batch.begin_reserve([plan]))
        is_queued = any(name == "CommitEntry" for name, _ in full.device.launches[-1:])
        del plan
        gc.collect()
        pool = full.batch._reserves._pool
        busy = [one for one in (*pool._in_use, *pool._idle) if one.used and not one.used.query()]
        assert not is_queued or (busy and busy[0].used._number == full.device.num_queued), place
        if not place:
            break


class CopyingDevice(HostDevice):
    """Notes from where what kernels are given is copied."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[int] = []

    def _copied(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        self.sources.append(source)
        super()._copied(target, source, num_bytes, stream)


def test_what_is_left_of_a_chunk_is_not_written_to_once_another_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event that says when its use is over has been recorded by then."""
    device = CopyingDevice()
    options = cache_options(hps.SGD(), ROW_DIM, 40_000)
    cache = DeviceCache(device, Failures(device), options)
    many = np.arange(33_000, dtype=np.uint64)  # more than a chunk
    plan = cache.make_plan(many, None)
    start = device.sources[-1]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        # On the way back to the native core.
        patched.setattr(ring._Chunk, "address", property(interrupt))
        with pytest.raises(KeyboardInterrupt):
            cache.make_plan(many, plan)
    device.sources.clear()
    cache.make_plan(many[:3], plan)
    assert plan.unique_keys.tolist() == [0, 1, 2]
    assert device.sources and not any(start <= one < start + 2**18 for one in device.sources)


def stepping(steps: CountedSteps, keys: torch.Tensor, number: int, is_joint: bool) -> Any:
    """Pinned rows of a batch, and a step of them, which is called with what is told of it."""
    queued, grads = steps.server.queued, torch.full((BAGS, 2 * DIM), float(number))
    assert queued is not None
    if is_joint:
        bags = steps.bags
        features = {name: hps.Ids(keys, bags.offsets, None, bags) for name in steps.names}
        rows = queued.pin_joint(features, BAGS)
        assert rows is not None
        columns = [[place * DIM] for place in range(2)]
        places = Places.of(steps.names, [DIM] * 2, [True] * 2, columns, [[0], [1]])
        update = JointUpdate(rows, places, grads)
        return rows.of_tables(), partial(queued.apply_joint, update)
    pinned = queued.pinning(dict.fromkeys(steps.names, keys))
    own = grads[:, :DIM].contiguous()
    updates = [RowUpdate(name, keys, own, pinned[name], steps.pooling) for name in steps.names]
    return pinned, partial(steps.server.apply, updates)


@pytest.mark.parametrize("is_joint", [False, True])
def test_a_step_that_is_interrupted_is_applied_and_told_of_or_neither(
    tmp_path: Path, is_joint: bool
) -> None:
    """Else gradients that were applied would stay pending, and be applied again."""
    steps, places = CountedSteps(tmp_path / "store", 2), set()
    with steps.server as server:
        queued = server.queued
        assert queued is not None
        keys = torch.from_numpy(steps.new_keys().view(np.int64))
        rows, step = stepping(steps, keys, 0, is_joint)
        step(None)  # which takes memory that later steps have
        queued.release(list(rows.values()))
        for number in range(1, 3000):
            before = [server.digest(name) for name in steps.names]
            rows, step = stepping(steps, keys, number, is_joint)
            told = list[int]()
            applied = partial(told.append, number)
            place = struck_at(number, partial(step, applied), StrikeBehindCall)
            queued.release(list(rows.values()))
            is_other = [
                server.digest(name) != own for name, own in zip(steps.names, before, strict=True)
            ]
            assert is_other == [bool(told)] * 2, place
            if not place:
                break
            places.add(place)
    assert any("DeviceBatch.apply" in place for place in places), (number, sorted(places))
