"""DeviceRows: the memory of a DeviceCache, its counters, and its verbs outside of batches.

Above it: device_cache.py. Below it: device.py, the kernels of csrc/gpu_cache/scan_kernels.h. Arrays
of the host are read and written by kernels where they lie, in pinned memory; what kernels work on
beside them is of the arena.
"""

from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray

from hps import _C
from hps.common.arrays import AnyArray, HostArray, on_host
from hps.common.row_layout import Floats, Images
from hps.errors import ConfigError
from hps.gpu_cache.device import Device, HostCopy, Memory, to_device
from hps.gpu_cache.device_plan import DevicePlan
from hps.gpu_cache.failures import Failures
from hps.gpu_cache.host_arrays import written
from hps.gpu_cache.options import CacheOptions

_BUCKET_SLOTS = 64  # csrc/table/table_view.h
_STRIPES, _WORDS_A_STRIPE = 64, 16  # csrc/gpu_cache/cache_args.h, as the counters' order
_COUNTERS = (
    "rows", "fresh", "pending", "dirty", "pins", "hits", "misses", "evictions", "write_backs",
    "refusals", "second_bucket", "created", "spared",
)  # fmt: skip
_NONE_PINNED = 2**32 - 1


class DeviceRows(_C.DeviceTable):
    """A table in one allocation of a device; see DeviceCache."""

    def __init__(
        self, device: Device, failures: Failures, memory: torch.Tensor, options: CacheOptions
    ) -> None:
        self.memory_bytes, words = _C.gpu_cache_args(**options, base=memory.data_ptr())
        self._device = device
        super().__init__(bytes(words), Memory(memory))
        self._memory = memory
        self._order = failures.order
        self._arena = failures.arena
        self._part = failures.scan
        self._host_arrays = failures.host_arrays
        self._args: HostArray = np.frombuffer(words, device.args.dtype("CacheArgs")).copy()
        self._base = memory.data_ptr()
        shape = self._args["table"]["shape"]
        self.num_parts = int(shape["num_parts"][0])
        self.num_buckets = self.num_parts * int(shape["buckets_per_part"][0])
        self.capacity_rows = self.num_buckets * _BUCKET_SLOTS
        self.row_bytes = int(shape["row_bytes"][0])
        layout = _C.row_layout(options["optimizer_kind"], options["dim"])
        self.state_floats = layout["state_floats"]
        self.dim = int(options["dim"])
        with self._verb():
            device.fill(memory[self._offset(self._args["table"]["digests"]) :], 0)

    # Counters; each waits for the device.

    @property
    def num_rows(self) -> int:
        """See RowCache."""
        return self._counters()["rows"]

    @property
    def num_fresh(self) -> int:
        """See RowCache."""
        return self._counters()["fresh"]

    @property
    def num_created(self) -> int:
        """See RowCache."""
        return self._counters()["created"]

    @property
    def num_dirty(self) -> int:
        """See RowCache."""
        return self._counters()["dirty"]

    @property
    def pins(self) -> int:
        """See RowCache."""
        return self._counters()["pins"]

    def stats(self) -> dict[str, int]:
        """See RowCache."""
        counters = self._counters()
        return counters | {"bytes": self.memory_bytes, "capacity_rows": self.capacity_rows}

    # Rows by key.

    def erase(self, keys: AnyArray) -> NDArray[np.uint8]:
        """See RowCache. Waits."""
        if len(keys) == 0:
            self.epoch += 1
            return np.empty(0, np.uint8)
        host: HostArray = np.ascontiguousarray(on_host(keys))
        with self._verb():
            pinned = self._part.memory[:4].view(torch.int32)
            self._device.fill(pinned, -1)
            given, slots = self._host_arrays.put(host), self._host_arrays.take(8 * len(host))
            found, unused = (self._host_arrays.take(len(host)) for _ in range(2))
            fields = {
                "keys": given.address,
                "slots": slots.address,
                "first_pinned": self._part.address,
            }
            for kernel, presence in (("FindErased", found), ("Erase", unused)):
                args = self._new_args(kernel, presence=presence.address, **fields)
                self._device.launch(kernel, args, len(host))
            for piece in (given, slots, found, unused):
                piece.note_point()
            first_pinned = HostCopy(self._device, pinned)
        first = int(first_pinned.wait().view(np.uint32)[0])
        if first != _NONE_PINNED:
            key = int(host.view(np.uint64)[first])
            raise ConfigError(
                f"key {key} is in use by a batch of an open pipeline; erase it after that batch"
            )
        self.epoch += 1
        return written(found)

    def initial_weights(self, keys: AnyArray, out: Floats) -> None:
        """See RowCache. Waits."""
        if len(keys) == 0:
            return
        with self._verb():
            weights = self._host_arrays.take(out.nbytes)
            given = self._host_arrays.put(np.asarray(on_host(keys)))
            args = self._new_args("InitialWeights", keys=given.address, out=weights.address)
            self._device.launch("InitialWeights", args, len(keys))
            weights.note_point()
            given.note_point()
        out[:] = written(weights)[: out.nbytes].view(np.float32).reshape(out.shape)

    # Rows by slot.

    def scan(self, cursor: int, what: str, rows: Images) -> tuple[int, int]:
        """See RowCache. Waits."""
        if what not in ("stored", "dirty") or rows.shape[1] != self.row_bytes:
            raise ValueError("what must be 'stored' or 'dirty', rows uint8 [n, row_bytes]")
        most, num_rows, slot = len(rows), 0, cursor
        images, result = self._host_arrays.take(rows.nbytes), self._host_arrays.take(16)
        at_once = len(self._part.memory) // 4
        while slot < self.capacity_rows and num_rows < most:
            count = min(at_once, self.capacity_rows - slot)
            with self._verb():
                ranks = self._part.memory[: 4 * count].view(torch.int32)
                args = self._new_args(
                    "CopyScanned",
                    first=slot,
                    count=count,
                    most=most - num_rows,
                    dirty_only=what == "dirty",
                    ranks=self._part.address,
                    rows=images.address + num_rows * self.row_bytes,
                    result=result.address,
                )
                for piece in (images, result):
                    piece.note_queued()
                self._device.launch("FlagScanned", args, count)
                self._device.prefix_sum(ranks)
                self._device.launch("CopyScanned", args, count)
                result.note_point()
                images.note_point()
            found, slot = (int(number) for number in written(result).view(np.int64))
            num_rows += found
        if num_rows:
            found_rows = written(images)[: num_rows * self.row_bytes]
            rows[:num_rows] = found_rows.reshape(num_rows, self.row_bytes)
        return num_rows, slot if slot < self.capacity_rows else -1

    @property
    def num_growths(self) -> int:
        """See RowCache."""
        return 0

    def mark_clean(self, first_cursor: int, end_cursor: int) -> None:
        """See RowCache."""
        end = self.capacity_rows if end_cursor < 0 else end_cursor
        assert 0 <= first_cursor <= end <= self.capacity_rows
        with self._verb():
            args = self._new_args("MarkClean", first=first_cursor, count=end - first_cursor)
            self._device.launch("MarkClean", args, end - first_cursor)

    def clear(self) -> None:
        """See RowCache. Waits."""
        counters = self._counters()
        assert counters["pins"] == 0, "clear while rows are pinned"
        table = self._args["table"]
        with self._verb():
            self._fill(table["digests"], self.capacity_rows)
            self._fill(table["marks"], 2 * self.capacity_rows)
            self._fill(table["spilled"], self.num_buckets)
            # The counts of what was here are what is taken away, in the first stripe.
            words = self._counter_words()[:_WORDS_A_STRIPE]
            gone = np.zeros(_WORDS_A_STRIPE, np.int64)
            copy = HostCopy(self._device, words)
            for name in ("rows", "fresh", "dirty"):
                gone[_COUNTERS.index(name)] = counters[name]
            to_device(self._device, copy.wait() - gone, words)
        self.epoch += 1

    # What the verbs share.

    def _verb(
        self, plan: DevicePlan | None = None, *memory: torch.Tensor
    ) -> AbstractContextManager[object]:
        """A context in which work on the table, a plan's memory and `memory` is queued."""
        if plan is None:
            return self._order.verb(self.piece, self._arena.piece, *memory)
        return plan.verb(self.piece, self._arena.piece, *memory)

    def _new_args(self, kernel: str, **fields: float) -> HostArray:
        """The argument struct of a kernel without a batch."""
        args = self._device.args.new(kernel)
        args["cache"] = self._args
        for name, value in fields.items():
            args[name] = value
        return args

    def _counters(self) -> dict[str, int]:
        with self._verb():
            copy = HostCopy(self._device, self._counter_words())
        sums = copy.wait().reshape(_STRIPES, _WORDS_A_STRIPE).sum(axis=0)
        return {name: int(sums[i]) for i, name in enumerate(_COUNTERS)}

    def _counter_words(self) -> torch.Tensor:
        offset = self._offset(self._args["counters"])
        return self._memory[offset : offset + 8 * _STRIPES * _WORDS_A_STRIPE].view(torch.int64)

    def _offset(self, address: HostArray) -> int:
        """Where an array of the table starts, from its pointer in CacheArgs."""
        return int(address[0]) - self._base

    def _fill(self, address: HostArray, num_bytes: int) -> None:
        offset = self._offset(address)
        self._device.fill(self._memory[offset : offset + num_bytes], 0)
