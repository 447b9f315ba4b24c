"""DeviceRows: the memory of a DeviceCache, its counters, and its verbs outside of batches.

Above it: device_cache.py. Below it: device.py, the kernels of csrc/gpu_cache/scan_kernels.h.
"""

from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray

from hps import _C
from hps.common.arrays import AnyArray, HostArray
from hps.common.row_layout import Floats, Images
from hps.errors import ConfigError
from hps.gpu_cache.device import Device, HostCopy, Memory, VerbOrder, to_device
from hps.gpu_cache.device_plan import DevicePlan
from hps.gpu_cache.options import CacheOptions

_BUCKET_SLOTS = 64  # csrc/table/table_view.h
_STRIPES, _WORDS_A_STRIPE = 64, 16  # csrc/gpu_cache/cache_args.h, as the counters' order
_COUNTERS = (
    "rows", "fresh", "pending", "dirty", "pins", "hits", "misses", "evictions", "write_backs",
    "refusals", "second_bucket", "created", "spared",
)  # fmt: skip
_SLOTS_AT_ONCE = 1 << 16  # of a scan
_NONE_PINNED = 2**32 - 1


class DeviceRows(_C.DeviceTable):
    """A table in one allocation of a device; see DeviceCache."""

    def __init__(
        self, device: Device, order: VerbOrder, memory: torch.Tensor, options: CacheOptions
    ) -> None:
        self.memory_bytes, words = _C.gpu_cache_args(**options, base=memory.data_ptr())
        self._device = device
        super().__init__(bytes(words), Memory(memory))
        self._memory = memory
        self._order = order
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
        with self._verb():
            given = self._keys(keys)
            slots = self._device.empty(8 * len(keys))
            pinned = self._device.empty(4).view(torch.int32)
            self._device.fill(pinned, -1)
            fields = {"slots": slots.data_ptr(), "first_pinned": pinned.data_ptr()}
            copy = HostCopy(self._device, self._presence("FindErased", given, **fields))
            self._presence("Erase", given, **fields)
            first_pinned = HostCopy(self._device, pinned)
        first = int(first_pinned.wait().view(np.uint32)[0])
        if first != _NONE_PINNED:
            with self._verb():
                culprit = HostCopy(self._device, given[first : first + 1])
            key = int(culprit.wait().view(np.uint64)[0])
            raise ConfigError(
                f"key {key} is in use by a batch of an open pipeline; erase it after that batch"
            )
        self.epoch += 1
        return copy.wait()

    def initial_weights(self, keys: AnyArray, out: Floats) -> None:
        """See RowCache. Waits."""
        if len(keys) == 0:
            return
        with self._verb():
            given = self._keys(keys)
            weights = self._device.empty(out.nbytes)
            args = self._new_args("InitialWeights", keys=given, out=weights)
            self._device.launch("InitialWeights", args, len(keys))
            copy = HostCopy(self._device, weights)
        out[:] = copy.wait().view(np.float32).reshape(out.shape)

    # Rows by slot.

    def scan(self, cursor: int, what: str, rows: Images) -> tuple[int, int]:
        """See RowCache. Waits."""
        if what not in ("stored", "dirty") or rows.shape[1] != self.row_bytes:
            raise ValueError("what must be 'stored' or 'dirty', rows uint8 [n, row_bytes]")
        most, num_rows, slot = len(rows), 0, cursor
        target = self._device.empty(max(1, rows.nbytes))
        while slot < self.capacity_rows and num_rows < most:
            count = min(_SLOTS_AT_ONCE, self.capacity_rows - slot)
            with self._verb():
                ranks = self._device.empty(4 * count).view(torch.int32)
                result = self._device.empty(16).view(torch.int64)
                args = self._new_args(
                    "CopyScanned",
                    first=slot,
                    count=count,
                    most=most - num_rows,
                    dirty_only=what == "dirty",
                    ranks=ranks,
                    rows=target[num_rows * self.row_bytes :],
                    result=result,
                )
                self._device.launch("FlagScanned", args, count)
                self._device.prefix_sum(ranks)
                self._device.launch("CopyScanned", args, count)
                copy = HostCopy(self._device, result)
            found, slot = (int(number) for number in copy.wait())
            num_rows += found
        with self._verb():
            images = HostCopy(self._device, target[: num_rows * self.row_bytes])
        rows[:num_rows] = images.wait().reshape(num_rows, self.row_bytes)
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
            return self._order.verb(self.piece, *memory)
        return plan.verb(self.piece, *memory)

    def _new_args(self, kernel: str, **fields: torch.Tensor | float) -> HostArray:
        """The argument struct of a kernel without a batch; tensors are given by their address."""
        args = self._device.args.new(kernel)
        args["cache"] = self._args
        for name, value in fields.items():
            args[name] = value.data_ptr() if isinstance(value, torch.Tensor) else value
        return args

    def _presence(self, kernel: str, keys: torch.Tensor, **fields: int) -> torch.Tensor:
        """Runs a kernel over keys [n]; uint8 [n] on the device."""
        presence = self._device.empty(len(keys))
        args = self._new_args(kernel, keys=keys, presence=presence, **fields)
        self._device.launch(kernel, args, len(keys))
        return presence

    def _keys(self, keys: AnyArray) -> torch.Tensor:
        """int64 [n] on the device."""
        if isinstance(keys, torch.Tensor) and keys.device == self._device.torch_device:
            return keys.view(torch.int64)
        return self._from_host(np.asarray(keys)).view(torch.int64)

    def _from_host(self, array: HostArray) -> torch.Tensor:
        """uint8 on the device, with the bytes of an array of the host, which may change at once."""
        target = self._device.empty(max(1, array.nbytes))[: array.nbytes]
        to_device(self._device, array, target)
        return target

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
