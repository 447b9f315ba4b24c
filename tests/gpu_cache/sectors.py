"""The memory that a verb of the gpu_cache touches on a device, in sectors of 32 bytes, as committed
in sectors.json, and as counted on emulated warps.

`python -m tests.gpu_cache.sectors` writes the file anew and prints the table of
docs/decisions/0038-proofs-without-a-gpu.md. Above it: test_sectors.py. Below it: simt_grid.py.

A warp's instruction counts each sector that its lanes touch once; sectors that it touches again by
another instruction count again, as if there were no cache. `distinct` counts a sector once for
all that the groups of a warp do with the items they have at one time, as a first-level cache
would have it. `memory` is what a second-level cache reads from the device's memory and writes back
to it, of which the batch has the share that a batch of a million has of 32 MiB: one sector an
occurrence. It is empty when a verb begins, and written back at its end. (An H100 has 50 MiB.)
What a library does between kernels (sorts, prefix sums, fills, copies, torch's operators) is not
counted but reckoned, as if there were no cache: `library`, in bytes.
"""

import ctypes
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import hps
from hps.gpu_cache.device_cache import DeviceCache
from hps.gpu_cache.failures import Failures
from tests.gpu_cache.cache_pair import cache_options, capacity_of
from tests.gpu_cache.simt_grid import COUNTS, WARP_BY_WARP, Grid, GridDevice

RECORD = Path(__file__).with_name("sectors.json")
RENEW = "renew it with: python -m tests.gpu_cache.sectors"
DIMS = (16, 64, 128)
VERBS = ("find", "pull", "pool", "push")
OCCURRENCES, BAGS = 2048, 512
_DRAWN_FROM = 1024
_SECTOR = 32
# So many that the digests of a table do not fit into the cache's share.
_BUCKETS = 2048
_SHARE = OCCURRENCES  # sectors
_ADDRESSES = range(1 << 40, 1 << 47)
# A stable sort of 32-bit ids with 64-bit positions by radix: four passes over digits of 8 bits,
# each of which reads and writes both, and one that counts the digits.
_SORT_PASSES, _SORT_BYTES = 4, 12

Record = dict[str, Any]


class CountedGrid(GridDevice):
    """A GridDevice that reckons what a library would move."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid, WARP_BY_WARP)
        self.library = 0
        self.is_inside = False
        # Memory that comes again at another's address would be found in the cache.
        self.kept: list[torch.Tensor] = []

    def arrays_of(self, kernel: str, args: NDArray[Any]) -> dict[str, int]:
        """By field of the kernel's struct, and those of the structs of tables, by theirs."""
        if args.dtype != self.args.dtype("Tables"):
            return dict(_pointers(args[0], ""))
        address, ends, count = (int(args[name][0]) for name in ("args", "ends", "num_tables"))
        dtype = self.args.dtype(self.args.table_struct_of(kernel))
        words = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
        one = np.frombuffer(words, dtype)[0]
        return {"(ends)": ends, "(structs)": address, "(others)": 0} | dict(_pointers(one, ""))

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.library += 2 * target.nbytes
        super().copy(target, source)

    def fill(self, target: torch.Tensor, value: int) -> None:
        self.library += target.nbytes
        super().fill(target, value)

    def prefix_sum(self, target: torch.Tensor) -> None:
        self.library += 2 * target.nbytes
        super().prefix_sum(target)

    def sort(self, ids: torch.Tensor, in_order: torch.Tensor, positions: torch.Tensor) -> None:
        self.library += len(ids) * (2 * _SORT_PASSES * _SORT_BYTES + 4)
        super().sort(ids, in_order, positions)

    def empty(self, num_bytes: int) -> torch.Tensor:
        before, self.is_inside = self.is_inside, True
        try:
            self.kept.append(super().empty(num_bytes))
            return self.kept[-1]
        finally:
            self.is_inside = before

    def work_off(self, number: int) -> None:
        before, self.is_inside = self.is_inside, True
        try:
            super().work_off(number)
        finally:
            self.is_inside = before


def _pointers(struct: Any, prefix: str) -> Iterator[tuple[str, int]]:
    for name in struct.dtype.names:
        value = struct[name]
        if value.dtype.names:
            yield from _pointers(value, f"{prefix}{name}.")
        elif value.dtype == np.uint64 and value.ndim == 0 and int(value) in _ADDRESSES:
            yield prefix + name, int(value)


class _Operators(TorchDispatchMode):
    """Reckons what torch's own operators read and write."""

    def __init__(self, device: CountedGrid) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        returns = func._schema.returns
        is_view = any(one.alias_info and not one.alias_info.is_write for one in returns)
        if not self._device.is_inside and not is_view:
            for one in tree_flatten((args, kwargs, found))[0]:
                if isinstance(one, torch.Tensor):
                    self._device.library += one.nbytes
        return found


class Batch:
    """A cache of one dim with every key of a batch in it, and the verbs over that batch."""

    def __init__(self, dim: int, grid: Grid) -> None:
        optimizer = hps.RowWiseAdagrad(lr=0.1)
        self.grid = grid
        self.device = CountedGrid(grid)
        options = cache_options(optimizer, dim, capacity_of(optimizer, dim, _BUCKETS))
        self.cache = DeviceCache(self.device, Failures(self.device), options)
        random = np.random.default_rng(7)
        # Copies, for torch's memory begins with a sector, and numpy's need not.
        self.keys = torch.from_numpy(random.integers(0, _DRAWN_FROM, OCCURRENCES)).clone()
        cuts = np.sort(random.integers(0, OCCURRENCES + 1, BAGS - 1))
        self.offsets = torch.from_numpy(np.array([0, *cuts, OCCURRENCES])).clone()
        self.rows = torch.zeros(OCCURRENCES, dim)
        self.bags = torch.zeros(BAGS, dim)
        self.grads = torch.ones(BAGS, dim)
        cache = self.cache
        self.plan = cache.make_plan(self.keys, None)
        cache.find(self.plan, 0, -1)
        assert cache.reserve(self.plan)
        count = self.plan.num_missing
        images = np.zeros((count, cache.row_bytes), np.uint8)
        cache.fill(self.plan, images, np.zeros(count, np.uint8), 0.1, create=True)
        cache.release(self.plan)
        self.num_unique = self.plan.num_unique

    def find(self) -> None:
        """Keys are numbered and looked up."""
        self.cache.make_plan(self.keys, self.plan)
        self.cache.find(self.plan, 0, -1)
        assert self.plan.num_missing == 0

    def pull(self) -> None:
        """A row an occurrence."""
        self.find()
        self.cache.gather(self.plan, self.rows)

    def pool(self) -> None:
        """A sum a bag."""
        self.find()
        self.cache.pool(self.plan, self.offsets, None, False, self.bags)

    def push(self) -> None:
        """The update by gradients of bags, of what has been looked up."""
        self.cache.sum_bag_gradients(self.plan, self.offsets, None, False, self.grads)
        self.cache.find_overflow(self.plan, 0.1)
        self.cache.apply(self.plan, 0.1)

    def count(self, verb: Callable[[], None]) -> tuple[dict[str, Counter[str]], int, int]:
        """Counts by kernel, the library's bytes, and sectors to be written at last, of one call."""
        device = self.device
        device.work_off(device.num_queued)
        device.counts, device.library = {}, 0
        device.kept.clear()
        self.grid.of_arrays.clear()
        self.grid.empty_cache(_SHARE)
        with _Operators(device):
            verb()
            device.work_off(device.num_queued)
        last = self.grid.flush_cache()
        self.grid.empty_cache(0)
        return device.counts, device.library, last


def floors(dim: int, num_unique: int) -> dict[str, float]:
    """Bytes an occurrence that no way of doing it can save, with row-wise Adagrad.

    find: a key of 8 bytes is read and an id of 4 written; once a distinct key its bucket's 64
    digests and the sector with its row's key are read, and a slot of 8 written.
    pull: also the id and the slot are read, and once a distinct key its weights; weights are
    written to every occurrence.
    pool: as pull, but written once a bag, whose offset of 8 is read.
    push: the id is read, a bag's offset and gradient, and once a distinct key its slot, weights,
    and state of one sector, which are written, too.
    """
    unique, bags = num_unique / OCCURRENCES, BAGS / OCCURRENCES
    row = 4 * dim
    find = 8 + 4 + unique * (64 + _SECTOR + 8)
    rows = 4 + unique * (8 + row)
    return {
        "find": find,
        "pull": find + rows + row,
        "pool": find + rows + bags * (8 + row),
        "push": 4 + bags * (8 + row) + unique * (8 + 2 * (row + _SECTOR)),
    }


def count_dim(dim: int, grid: Grid, arrays: list[str] | None = None) -> Record:
    """The record of one dim: by verb its bytes, and its kernels' counts. `arrays` gets a line for
    each array of a kernel."""
    batch = Batch(dim, grid)
    least = floors(dim, batch.num_unique)
    found: Record = {}
    for verb in VERBS:
        counts, library, last = batch.count(getattr(batch, verb))
        if arrays is not None:
            arrays += _array_lines(f"{dim}: {verb}", grid.of_arrays)
        total = sum(counts.values(), Counter())
        sectors = sum(total[f"sectors_{kind}"] for kind in ("read", "written", "atomic"))
        distinct = sum(total[f"distinct_{kind}"] for kind in ("read", "written", "atomic"))
        memory = last + total["memory_read"] + total["memory_written"]
        found[verb] = {
            "memory_bytes": round(_SECTOR * memory / OCCURRENCES, 1),
            "bytes": round(_SECTOR * sectors / OCCURRENCES, 1),
            "distinct_bytes": round(_SECTOR * distinct / OCCURRENCES, 1),
            "library_bytes": round(library / OCCURRENCES, 1),
            "floor": round(least[verb], 1),
            "kernels": {
                name: {count: of[count] for count in COUNTS if of[count]}
                for name, of in sorted(counts.items())
            },
        }
    return found


def _array_lines(verb: str, counted: Counter[tuple[str, str, str]]) -> list[str]:
    """Bytes an occurrence of each array that takes one at least, the greatest first."""
    bytes_of = {key: _SECTOR * count / OCCURRENCES for key, count in counted.items()}
    greatest = sorted(bytes_of, key=lambda key: -bytes_of[key])
    return [
        f"| {verb} | {kernel} | {array} | {bytes_of[kernel, array, what]:.1f} "
        f"| {bytes_of[kernel, array, 'memory']:.1f} |"
        for kernel, array, what in greatest
        if what == "sectors" and bytes_of[kernel, array, what] >= 1
    ]


def count_all(arrays: list[str] | None = None) -> Record:
    """The whole record."""
    grid = Grid()
    return {str(dim): count_dim(dim, grid, arrays) for dim in DIMS}


def read_record() -> Record:
    """As it is committed."""
    record: Record = json.loads(RECORD.read_text())
    return record


def as_text(record: Record) -> str:
    """JSON with a line a kernel."""
    lines = ["{"]
    for dim, verbs in record.items():
        lines.append(f' "{dim}": {{')
        for verb, found in verbs.items():
            plain = {name: value for name, value in found.items() if name != "kernels"}
            lines.append(f'  "{verb}": {{{json.dumps(plain)[1:-1]}, "kernels": {{')
            kernels = [f'   "{name}": {json.dumps(of)}' for name, of in found["kernels"].items()]
            lines += [",\n".join(kernels), "  }}" + ("," if verb != VERBS[-1] else "")]
        lines.append(" }" + ("," if dim != str(DIMS[-1]) else ""))
    return "\n".join([*lines, "}"]) + "\n"


def ratio(of: Record, name: str) -> float:
    """What was counted by its floor; what is reckoned of a library is part of it."""
    return float((of[name] + of["library_bytes"]) / of["floor"])


def table(record: Record) -> list[str]:
    """The page's, in Markdown."""
    names = ("memory", "distinct", "bytes")
    heads = " | over the floor | ".join(names)
    lines = [f"| dim: verb | {heads} | over the floor | library | floor |"]
    lines.append("| --- |" + " --- |" * 8)
    for dim, verbs in record.items():
        for verb, of in verbs.items():
            keys = [name if name == "bytes" else f"{name}_bytes" for name in names]
            cells = " | ".join(f"{of[key]} | {ratio(of, key):.2f}" for key in keys)
            lines.append(f"| {dim}: {verb} | {cells} | {of['library_bytes']} | {of['floor']} |")
    return lines


def main() -> None:
    """Writes the record and prints the table; with --arrays also bytes by kernel and array."""
    arrays: list[str] | None = ["| verb | kernel | array | bytes | memory |", "| --- |" * 5]
    record = count_all(arrays if "--arrays" in sys.argv else None)
    RECORD.write_text(as_text(record))
    print("\n".join(table(record)))
    if "--arrays" in sys.argv:
        print("\n".join(arrays or []))


if __name__ == "__main__":
    main()
