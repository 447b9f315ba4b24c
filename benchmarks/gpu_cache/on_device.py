"""The gpu_cache on a GPU: what each verb takes, by events, with nothing of the last round in L2.

Above it: gpu_cache_bench.py. Below it: ceiling.py, hps/gpu_cache. A figure is beside torch's
nearest operation over a plain array of the same rows, where there is one, and beside the ceiling:
the bytes that the verb has to move, random ones in pieces of 64, at the rates that were measured
first. Events also see the gaps in which a verb waits for the host.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.common.keys import ZipfIds, hashed_keys
from benchmarks.common.report import comparison_row
from benchmarks.common.timing import Samples
from benchmarks.gpu_cache.ceiling import Ceiling, DeviceTimer, Timer, measure_ceiling, pieces
from benchmarks.gpu_cache.options import LR, UNIT, cache_options
from hps.gpu_cache.cuda_device import CudaDevice
from hps.gpu_cache.device import Device
from hps.gpu_cache.device_cache import DeviceCache
from hps.gpu_cache.failures import Failures
from hps.plan.sizes import PLAN_BYTES, SUMS_BYTES

KEYS = 1 << 20  # a call
HEADER_BYTES = 16
DIMS = (16, 64, 128)
LOADS = (0.5, 1.0)
_FILL_KEYS = 1 << 19


@dataclass(frozen=True)
class Bytes:
    """What one key moves: streamed, and at random in whole pieces."""

    streamed: float
    random: float


class Subject:
    """A cache of one dim at one load, and the torch array of the same rows.

    Args:
        device: of both.
        dim: of a row.
        rows: slots, about.
        load: part of the slots that hold a row.
        num_keys: of a call.
    """

    def __init__(
        self, device: Device, dim: int, rows: int, load: float, num_keys: int = KEYS
    ) -> None:
        where = device.torch_device
        self.device, self.dim, self.load, self.num_keys = device, dim, load, num_keys
        most = max(num_keys, min(_FILL_KEYS, rows))  # a plan, and sums of these keys
        arena_bytes = 2**22 + (2 * PLAN_BYTES + SUMS_BYTES + dim) * most
        self.cache = DeviceCache(device, Failures(device, arena_bytes), cache_options(dim, rows))
        self.num_rows = int(self.cache.capacity_rows * min(load, 0.98))
        step = min(_FILL_KEYS, self.cache.capacity_rows // 8)
        for start in range(0, self.num_rows, step):
            self.insert(start, min(step, self.num_rows - start))
        if load == 1.0:  # beyond what fits, so that every bucket is full
            self.insert(self.num_rows, self.cache.capacity_rows // 8)
        self.next_id = 2 * self.cache.capacity_rows
        self.stored = self._stored_keys()
        draw = np.random.default_rng(0).integers(0, len(self.stored), num_keys)
        self.keys = torch.from_numpy(self.stored[draw].view(np.int64)).to(where)
        self.out = torch.empty(num_keys, dim, device=where)
        self.grads = torch.full((num_keys, dim), 1e-3, device=where)
        self.plain = torch.zeros(len(self.stored), dim, device=where)
        self.idx = torch.from_numpy(draw).to(where)

    def insert(self, first_id: int, count: int) -> Any:
        """Takes slots for keys, all initialised on the device and dirty; returns the plan."""
        keys = torch.from_numpy(hashed_keys(np.arange(first_id, first_id + count)).view(np.int64))
        return self.reserve_and_fill(self.find(keys.to(self.device.torch_device)))

    def find(self, keys: torch.Tensor) -> Any:
        """A plan that has been looked up."""
        plan = self.cache.make_plan(keys, None)
        self.cache.find(plan, 0, -1)
        return plan

    def reserve_and_fill(self, plan: Any) -> Any:
        """Evicts and inserts, and lets go."""
        assert self.cache.reserve(plan)
        count = plan.num_missing
        rows = np.empty((count, self.cache.row_bytes), np.uint8)
        self.cache.fill(plan, rows, np.zeros(count, np.uint8), LR, True)
        self.cache.release(plan)
        return plan

    def new_keys(self, count: int) -> torch.Tensor:
        """Keys that were never there, on the device."""
        ids = np.arange(self.next_id, self.next_id + count)
        self.next_id += count
        return torch.from_numpy(hashed_keys(ids).view(np.int64)).to(self.device.torch_device)

    def _stored_keys(self) -> np.ndarray:
        ids = np.arange(self.num_rows + self.cache.capacity_rows // 8)
        keys = hashed_keys(ids)
        here = np.concatenate([self.cache.contains(piece) for piece in np.array_split(keys, 16)])
        return keys[here != 0]


class Table:
    """Makes the rows of the result."""

    def __init__(self, timer: Timer, ceiling: Ceiling, repetitions: int) -> None:
        self.timer, self.ceiling, self.repetitions = timer, ceiling, repetitions

    def rows(
        self,
        subject: Subject,
        operation: str,
        step: Callable[[], Any],
        moved: Bytes,
        *,
        plain: tuple[str, Callable[[], Any]] | None = None,
        prepare: Callable[[], Any] | None = None,
        count: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """A row beside torch's operation, if there is one, and one beside the ceiling."""
        count = count or subject.num_keys
        device = str(subject.device.torch_device)
        axes = {
            "device": device,
            "operation": operation,
            "dim": subject.dim,
            "load": subject.load,
        }
        mine = self._rates(step, count, prepare)
        if plain is not None:
            name, other = plain
            yield comparison_row(
                axes, UNIT, mine, (name, self._rates(other, subject.num_keys, None))
            )
        least = self.ceiling.seconds(count * moved.streamed, count * moved.random)
        top = Samples((count / 1e6 / least,) * len(mine.values))
        yield comparison_row(axes, UNIT, mine, ("ceiling for its bytes", top))

    def _rates(
        self, step: Callable[[], Any], count: int, prepare: Callable[[], Any] | None
    ) -> Samples:
        seconds = self.timer.seconds(step, self.repetitions, prepare)
        return Samples(tuple(count / 1e6 / one for one in seconds))


def look_ups(table: Table, subject: Subject) -> Iterator[dict[str, Any]]:
    """Find, gather of pinned rows, and both at once without a plan."""
    cache, dim = subject.cache, subject.dim
    plan = subject.find(subject.keys)
    assert plan.num_missing == 0
    unique = plan.num_unique
    found = Bytes(streamed=8 + 8 + 3 * 4, random=64 + 64)
    yield from table.rows(subject, "find", lambda: cache.find(plan, 0, -1), found, count=unique)
    assert cache.reserve(plan)
    nothing = np.empty((0, cache.row_bytes), np.uint8)
    cache.fill(plan, nothing, np.empty(0, np.uint8), LR, False)

    def select() -> None:
        torch.index_select(subject.plain, 0, subject.idx, out=subject.out)

    gathered = Bytes(streamed=4 + 8 + 4 * dim, random=pieces(4 * dim))
    yield from table.rows(
        subject,
        "gather",
        lambda: cache.gather(plan, subject.out),
        gathered,
        plain=("torch.index_select", select),
    )
    cache.release(plan)
    yield from table.rows(
        subject,
        "deduplicate, find, gather",
        lambda: cache.pull(plan, subject.keys, subject.out),
        Bytes(streamed=8 + 4 * dim, random=64 + pieces(HEADER_BYTES + 4 * dim)),
        plain=("torch.index_select", select),
    )


def inserts(table: Table, subject: Subject) -> Iterator[dict[str, Any]]:
    """Reserve and fill of new keys: into free slots, or where rows give way, clean or dirty."""
    cache = subject.cache
    row = pieces(cache.row_bytes)
    count = subject.num_keys // 8  # a reserve puts victims out on PCIe
    plans: list[Any] = []

    def prepare() -> None:
        if subject.load < 1 and plans:
            cache.erase(plans[0].unique_keys)  # the load stays
        plans[:] = [subject.find(subject.new_keys(count))]
        assert plans[0].num_missing == count

    # Digests, pins and marks of one bucket at the least, the header of the victim, the new row.
    moved = Bytes(streamed=8 * 8, random=64 + 64 + 128 + 64 + row)
    name = "reserve, fill" if subject.load < 1 else "reserve with export, fill"
    yield from table.rows(
        subject,
        name,
        lambda: subject.reserve_and_fill(plans[0]),
        moved,
        prepare=prepare,
        count=count,
    )
    if subject.load < 1:
        return

    rows = np.empty((1 << 16, cache.row_bytes), np.uint8)

    def clean() -> None:
        cursor = 0
        while cursor >= 0:
            _, end = cache.scan(cursor, "dirty", rows)
            cache.mark_clean(cursor, end)
            cursor = end
        prepare()

    yield from table.rows(
        subject,
        "reserve, fill, clean victims",
        lambda: subject.reserve_and_fill(plans[0]),
        moved,
        prepare=clean,
        count=count,
    )


def updates(table: Table, subject: Subject) -> Iterator[dict[str, Any]]:
    """Row-wise Adagrad of pinned rows: the update, which sums keys of one run, and a whole push."""
    cache, dim = subject.cache, subject.dim
    plan = subject.find(subject.keys)
    assert cache.reserve(plan)
    nothing = np.empty((0, cache.row_bytes), np.uint8)
    cache.fill(plan, nothing, np.empty(0, np.uint8), LR, False)
    unique = plan.num_unique
    row = pieces(HEADER_BYTES + 4 * dim)

    def add() -> None:
        subject.plain.index_add_(0, subject.idx, subject.grads)

    yield from table.rows(
        subject,
        "row-wise Adagrad by slot",
        lambda: cache.apply(plan, LR),
        Bytes(streamed=8 + 4 * dim, random=2 * row + 64),
        plain=("torch.index_add_ (no optimizer)", add),
        prepare=lambda: cache.sum_gradients(plan, subject.grads),
        count=unique,
    )
    yield from table.rows(
        subject,
        "sum of gradients, row-wise Adagrad",
        lambda: cache.push(plan, subject.grads, LR),
        Bytes(streamed=4 + 12 + 3 * 4 * dim, random=2 * row + 64),
        plain=("torch.index_add_ (no optimizer)", add),
    )
    cache.release(plan)


def whole_steps(table: Table, subject: Subject) -> Iterator[dict[str, Any]]:
    """Every verb of a training step over Zipf keys that are all there."""
    cache, dim = subject.cache, subject.dim
    ids = ZipfIds(len(subject.stored))
    keys = torch.from_numpy(subject.stored[ids.batch(subject.num_keys)].view(np.int64))
    keys = keys.to(subject.device.torch_device)
    plan = subject.find(keys)
    nothing = np.empty((0, cache.row_bytes), np.uint8)

    def step() -> None:
        cache.make_plan(keys, plan)
        cache.find(plan, 0, -1)
        assert cache.reserve(plan)
        cache.fill(plan, nothing, np.empty(0, np.uint8), LR, False)
        cache.gather(plan, subject.out)
        cache.push(plan, subject.grads, LR)
        cache.release(plan)

    share = plan.num_unique / subject.num_keys
    row = pieces(HEADER_BYTES + 4 * dim)
    moved = Bytes(streamed=8 + 2 * 4 * dim, random=share * (64 + 3 * row))
    yield from table.rows(subject, f"whole step, {share:.2f} unique", step, moved)


def run_on_device(name: str, rows: int, repetitions: int) -> dict[str, Any]:
    """Every operation over the dims and loads; the ceilings first."""
    device = CudaDevice(name)
    with torch.cuda.device(device.torch_device):
        timer = DeviceTimer(device.torch_device)
        ceiling = measure_ceiling(device.torch_device, timer, repetitions)
        table = Table(timer, ceiling, repetitions)
        result = []
        for dim in DIMS:
            for load in LOADS:
                subject = Subject(device, dim, rows, load)
                result += [*look_ups(table, subject), *updates(table, subject)]
                if dim == 128 and load < 1:
                    result += whole_steps(table, subject)
                result += inserts(table, subject)
                del subject
                torch.cuda.empty_cache()
    return {
        "axes": {"dim": list(DIMS), "load": list(LOADS), "keys": [KEYS], "rows": [rows]},
        "ceilings": {"copy_bytes_per_second": ceiling.copy, "random_64": ceiling.random},
        "gpu": torch.cuda.get_device_name(device.torch_device),
        "rows": result,
    }
