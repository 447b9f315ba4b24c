"""DevicePlan: one batch of keys on a device: its arrays, its numbers, and how far it has come.

Above it: device_cache.py, and its callers, who see the BatchPlan of hps/contracts/row_cache.py.
Below it: arena.py; csrc/gpu_cache/cache_args.h says what every array is for. The numbers of a
batch are on the device; the host asks for them only where it has to return one, and waits then.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from hps import _C
from hps.common.arrays import AnyArray, HostArray
from hps.common.row_layout import Images, Keys
from hps.gpu_cache.answers import Answers
from hps.gpu_cache.arena import DeviceArena, Layout
from hps.gpu_cache.device import Device, HostCopy, Memory, VerbOrder
from hps.gpu_cache.kernels import KernelArgs

_MIN_ID_TABLE = 64
_COMPARED_AT_ONCE = 2**16  # keys, by memory of torch's
# Arrays with an element a key that BatchArgs points to, by the name of its field.
_ARRAYS = {
    "inverse": torch.int32,
    "unique_keys": torch.int64,
    "counts": torch.int32,
    "slots": torch.int64,
    "pinned": torch.uint8,
    "missing": torch.int32,
    "missing_keys": torch.int64,
    "emptier": torch.uint8,
    "links": torch.int32,
    "other_links": torch.int32,
    "entries": torch.int32,
}
_FLAGS = [
    f"{flags}.{name}"
    for flags in ("first_flags", "missing_flags", "victims")
    for name in ("words", "sums")
]
# Arrays of other lengths.
_OTHERS = ("reservations", "id_table", "first_ranks", "numbers", *_FLAGS)
_FLAGS_A_WORD, _FLAGS_A_SUM = 32, 2048  # csrc/gpu_cache/ranked_flags.h


State = _C.PlanState  # how far a plan has come


class DevicePlan(_C.DevicePlanState):
    """One batch of keys. Made by DeviceCache.make_plan; belongs to that cache.

    Args:
        device: of the cache.
        order: of the verbs of the cache.
        arena: of which the arrays are a part.
        table: the cache.
        cache_args: CacheArgs of the cache, an array of one.
    """

    def __init__(
        self,
        device: Device,
        order: VerbOrder,
        arena: DeviceArena,
        table: _C.DeviceTable,
        cache_args: HostArray,
    ) -> None:
        super().__init__(table)
        self._device = device
        self._order = order
        self._arena = arena
        self._cache_args = cache_args
        self._args: dict[str, HostArray] = {}
        # Of a reserve that is queued; the lock is for those who wait for it at once.
        self._settling = threading.Lock()
        self.answers: Answers | None = None
        self._answer_number = 0
        self._layout = Layout({})  # of its part of the arena

    # What the server sees.

    @property
    def num_unique(self) -> int:
        """N, distinct keys of the batch. Waits for the device, once a batch."""
        if self.known_unique < 0:
            self._know()
        return self.known_unique

    @property
    def num_looked_up(self) -> int:
        """Keys that the last pull looked up."""
        return self.num_unique

    @property
    def num_missing(self) -> int:
        """Keys of the window that had no row when it was looked up. Waits, once a look-up."""
        if not self.num_occurrences:
            return 0
        self._know()
        return self.told_missing

    @property
    def unique_keys(self) -> Keys:
        """uint64 [N], a copy. Waits for the device."""
        return self._by_id("unique_keys").view(np.uint64)

    @property
    def slots(self) -> NDArray[np.int64]:
        """int64 [N], the slots of the window's keys, -1 for none; a copy. Waits for the device."""
        return self._by_id("slots")

    def matches(self, keys: AnyArray) -> bool:
        """True if `keys` equal the plan's keys byte for byte. Waits for the device."""
        if len(keys) != self.num_occurrences:
            return False
        if len(keys) == 0:
            return True
        if not isinstance(keys, torch.Tensor):
            keys = torch.from_numpy(keys.view(np.int64))
        own, ids = self.array("unique_keys", self.num_unique), self.array("inverse", len(keys))
        for first in range(0, len(keys), _COMPARED_AT_ONCE):
            part = slice(first, first + _COMPARED_AT_ONCE)
            with self.verb():
                given = keys[part].view(torch.int64).to(self._device.torch_device)
                if not self._device.equal(own.index_select(0, ids[part]), given):
                    return False
        return True

    # What the cache does with it.

    def verb(self, *memory: Memory | torch.Tensor) -> AbstractContextManager[object]:
        """A context in which work on the plan's memory, and on `memory`, is queued."""
        return self._order.verb(*memory, plans=[self])

    def set_window(self, first: int, count: int) -> None:
        """Unique keys [first, first + count) are looked up from now on; -1: all from `first` on."""
        # A negative window size on the device would be the end of it.
        assert first >= 0 and (first == 0 or first <= self.num_unique)
        assert count < 0 or count == 0 or first + count <= self.num_unique
        self.start_window(first, count)

    @property
    def is_whole_batch(self) -> bool:
        """True if the window is all of the batch. May wait."""
        return self.first == 0 and (self.count < 0 or self.count == self.num_unique)

    def _know(self) -> None:
        """The numbers as they stood when first asked for after a look-up. Waits then."""
        if self.has_numbers:
            return
        if self.asked is None:
            with self.verb():
                self.asked, self.asked_at = HostCopy(self._device, self.array("numbers")), 0
        self.take_numbers(self.asked.wait())

    def expect(self, answers: Answers, number: int) -> None:
        """A reserve is to be queued next, which will tell there what it was granted, by the plan's
        number."""
        self.answers, self._answer_number = answers, number
        self.state = State.RESERVING

    def settle(self, row_bytes: int) -> bool:
        """Waits for the answer of a reserve that is queued, for its missing keys and its victims;
        True if slots are reserved. Any thread; may be repeated, after an interrupt."""
        with self._settling:
            if self.state is State.RESERVING:
                self._settle(row_bytes)
            return self.state is State.RESERVED

    def _settle(self, row_bytes: int) -> None:
        assert self.answers is not None
        if not self.answers.are_queued:  # an interrupt came before
            self.state = State.KEYS
            return
        told, missing, victims, rows = self.answers.wait(self._answer_number)
        dtype = self._device.args.dtype("BatchNumbers")
        numbers = told[: dtype.itemsize].view(dtype)
        if numbers["refused"][0]:
            self.state = State.KEYS  # to be looked up again
            self.answers = None
        else:
            self.missing, self.incoming = missing, rows
            self.victims = victims[: int(numbers["num_victims"][0]) * row_bytes]
            self.state = State.RESERVED

    def args(self, kernel: str, **fields: float) -> HostArray:
        """The argument struct of a kernel, with cache, batch and `fields` filled in."""
        struct = self._device.args.struct_of(kernel)
        if struct not in self._args:
            args = self._device.args.new(kernel)
            names = args.dtype.names or ()
            if "cache" in names and args["cache"].dtype == self._cache_args.dtype:
                args["cache"] = self._cache_args
            self._args[struct] = args
        args = self._args[struct]
        args["batch"] = np.frombuffer(self.batch, args["batch"].dtype)
        for name, value in fields.items():
            args[name] = value
        return args

    def missing_keys(self) -> Keys:
        """uint64 [M] of the last reserve; a view."""
        return np.empty(0, np.uint64) if self.missing is None else self.missing.view(np.uint64)

    def missing_rows(self, row_bytes: int) -> Images:
        """uint8 [M, row_bytes], memory for the rows of those; a view."""
        if self.incoming is None:
            return np.empty((0, row_bytes), np.uint8)
        return self.incoming.reshape(-1, row_bytes)

    def arriving(self, rows: Images) -> tuple[Answers, int]:
        """The missing rows are in that memory, or are put there; whose it is, and where it lies."""
        assert self.answers is not None and self.incoming is not None
        if rows.ctypes.data != self.incoming.ctypes.data:
            self.incoming[:] = rows.reshape(-1)
        return self.answers, self.incoming.ctypes.data

    def victim_images(self, row_bytes: int) -> Images:
        """uint8 [victims, row_bytes] of the last reserve; a view."""
        if self.victims is None:
            return np.empty((0, row_bytes), np.uint8)
        return self.victims.reshape(-1, row_bytes)

    def _by_id(self, name: str) -> NDArray[np.int64]:
        num_unique = self.num_unique
        if num_unique == 0:
            return np.empty(0, np.int64)
        with self.verb():
            copy = HostCopy(self._device, self.array(name, num_unique))
        return copy.wait()

    def array(self, name: str, count: int = -1) -> torch.Tensor:
        """View of an array on the device, or of its first `count` elements."""
        assert self.part is not None, "a plan without memory"
        return self._layout.tensor(self.part, name, count)

    def grow(self, count: int) -> None:
        """Takes memory for so many keys, and for some more if there is; the plan is one of no keys
        then. Within a verb, for which nothing was taken yet.

        Raises:
            BatchMemoryError: there is not as much; the plan has none.
        """
        self.drop_arrays()
        args, more = self._device.args, count + count // 8
        layouts = [Layout(_arrays(args, capacity)) for capacity in (more, count)]
        sizes = [layout.num_bytes for layout in layouts]
        part = self._arena.take(*sizes, plans=[self], tidy=True)
        has_more = part.num_bytes >= sizes[0]
        layout = layouts[0] if has_more else layouts[1]
        for name in ("missing_flags.words", "missing_flags.sums", "counts"):
            self._device.fill(layout.tensor(part, name), 0)
        batch: HostArray = np.zeros(1, args.dtype("BatchArgs"))
        for name, field in _fields(batch):
            field[:] = layout.address(part, name)
        words, capacity = batch.tobytes(), more if has_more else count
        known = partial(self.set_arrays, words, capacity, self._arena.piece, part)
        _C.call_all([known, partial(setattr, self, "_layout", layout)])


def plan_bytes(args: KernelArgs, count: int) -> int:
    """What a plan of so many keys takes of a device's memory."""
    return Layout(_arrays(args, count)).num_bytes


def _arrays(args: KernelArgs, capacity: int) -> dict[str, tuple[torch.dtype, int]]:
    """Of so many keys: type and elements by name."""
    arrays = {name: (dtype, capacity) for name, dtype in _ARRAYS.items()}
    arrays["reservations"] = (torch.uint8, capacity * args.dtype("Reservation").itemsize)
    arrays["id_table"] = (torch.int32, _id_table_entries(capacity))
    arrays["first_ranks"] = (torch.int64, capacity // _FLAGS_A_WORD + 1)
    for name in _FLAGS:
        count = _FLAGS_A_WORD if name.endswith("words") else _FLAGS_A_SUM
        arrays[name] = (torch.int32, capacity // count + 1)
    arrays["numbers"] = (torch.uint8, args.dtype("BatchNumbers").itemsize)
    return arrays


def _fields(batch: HostArray) -> Iterator[tuple[str, HostArray]]:
    """Every pointer of BatchArgs by the name of its array."""
    for name in (*_ARRAYS, *_OTHERS):
        field = batch
        for part in name.split("."):
            field = field[part]
        yield name, field


def _id_table_entries(count: int) -> int:
    """A power of two, twice `count` at least."""
    return max(_MIN_ID_TABLE, 1 << max(0, 2 * count - 1).bit_length())
