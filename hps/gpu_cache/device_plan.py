"""DevicePlan: one batch of keys on a device: its arrays, its numbers, and how far it has come.

Above it: device_cache.py, and its callers, who see the BatchPlan of hps/contracts/row_cache.py.
Below it: device.py; csrc/gpu_cache/cache_args.h says what every array is for. The numbers of a
batch are on the device; the host asks for them only where it has to return one, and waits then.
"""

import enum
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray

from hps.common.arrays import AnyArray, HostArray
from hps.common.row_layout import Images, Keys
from hps.gpu_cache.answers import Answers
from hps.gpu_cache.device import Arena, Device, HostCopy, HostPart, Memory, VerbOrder
from hps.gpu_cache.device_sums import Sums

_MIN_ID_TABLE = 64
# Arrays with an element a key that BatchArgs points to, by the name of its field.
_ARRAYS = {
    "inverse": torch.int32,
    "unique_keys": torch.int64,
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
FLAGS_A_WORD, _FLAGS_A_SUM = 32, 2048  # csrc/gpu_cache/ranked_flags.h


class State(enum.Enum):
    """How far a plan has come."""

    KEYS = enum.auto()  # deduplicated
    FOUND = enum.auto()  # window looked up
    RESERVING = enum.auto()  # a reserve is queued, and what it answers is not known
    RESERVED = enum.auto()  # window pinned, missing keys hold slots without rows
    PINNED = enum.auto()  # window pinned, every row in place


class DevicePlan:
    """One batch of keys. Made by DeviceCache.make_plan; belongs to that cache.

    Args:
        device: where the arrays lie.
        order: of the verbs of the cache.
        cache_args: CacheArgs of the cache, an array of one.
    """

    def __init__(self, device: Device, order: VerbOrder, cache_args: HostArray) -> None:
        self._device = device
        self._order = order
        self._cache_args = cache_args
        self._args: dict[str, HostArray] = {}
        self._numbers: HostArray | None = None
        self._asked: HostCopy | HostPart | None = None  # the numbers, on their way
        self._num_unique: int | None = 0
        self._id_mask = 0
        self._capacity = -1
        self._batch: HostArray = np.zeros(1, device.args.dtype("BatchArgs"))
        # What the structs of many kernels have, as bytes.
        self.heads = {"cache": cache_args.tobytes(), "batch": b""}
        self.sums: Sums | None = None  # gradients by key, since they were summed
        self.state = State.KEYS
        self.epoch = -1
        self.is_held = False  # its cache counts it among those that may pin their window
        self.num_occurrences = 0
        self.first = 0
        self.count = 0  # of the window; negative: all from `first` on
        self.has_rows: bool | None = False  # all of the window's; None: the device knows
        self.pins_if_whole = False  # a look-up is queued that pins if it finds all rows
        self._victims: HostArray | None = None  # bytes
        self._missing: HostArray | None = None  # bytes
        # Of a reserve that is queued; the lock is for those who wait for it at once.
        self._settling = threading.Lock()
        self._answers: Answers | None = None
        self._answer_number = 0
        self.arena: Arena = Arena(device, {})

    # What the server sees.

    @property
    def num_unique(self) -> int:
        """N, distinct keys of the batch. Waits for the device, once a batch."""
        return int(self.numbers["num_unique"][0]) if self._num_unique is None else self._num_unique

    @property
    def num_looked_up(self) -> int:
        """Keys that the last pull looked up."""
        return self.num_unique

    @property
    def num_missing(self) -> int:
        """Keys of the window that had no row when it was looked up. Waits, once a look-up."""
        return int(self.numbers["num_missing"][0]) if self.num_occurrences else 0

    @property
    def found_full(self) -> bool:
        """True if no slot was free when the window was looked up. Waits, once a look-up."""
        return bool(self.numbers["is_full"][0])

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
        num_unique = self.num_unique
        with self.verb():
            given = keys.view(torch.int64).to(self._device.torch_device)
            ids = self.arena.tensor("inverse", len(given))
            own = self.arena.tensor("unique_keys", num_unique).index_select(0, ids)
            return self._device.equal(own, given)

    # What the cache does with it.

    def pieces(self) -> tuple[Memory, ...]:
        """The plan's memory."""
        own = self.arena.piece
        return (own,) if self.sums is None else (own, self.sums.arena.piece)

    def verb(self, *memory: Memory | torch.Tensor) -> AbstractContextManager[None]:
        """A context in which work on the plan's memory, and on `memory`, is queued."""
        return self._order.verb(*self.pieces(), *memory)

    def prepare(self, count: int) -> None:
        """Makes room for a batch of `count` keys; the batch before it is forgotten. Within a verb
        of the plan."""
        assert self.state in (State.KEYS, State.FOUND) and 0 <= count < 2**31
        self.state = State.KEYS
        self.num_occurrences = count
        self.first = self.count = 0
        self.has_rows = False
        self._victims = self._missing = self._numbers = self._asked = None
        self._num_unique = None if count else 0
        if count > self._capacity:
            self._grow(count + count // 8)
        self._id_mask = _id_table_entries(count) - 1
        for batch in (self._batch, *(args["batch"] for args in self._args.values())):
            batch["num_occurrences"] = count
            batch["id_mask"] = self._id_mask
        self.heads["batch"] = self._batch.tobytes()

    def set_window(self, first: int, count: int) -> None:
        """Unique keys [first, first + count) are looked up from now on; -1: all from `first` on."""
        # A negative window size on the device would be the end of it.
        assert first >= 0 and (first == 0 or first <= self.num_unique)
        assert count < 0 or count == 0 or first + count <= self.num_unique
        self.first, self.count = first, count
        self.has_rows = None
        self.pins_if_whole = False
        self._numbers = self._asked = None

    @property
    def bound(self) -> int:
        """At least the keys of the window; exact once the host knows how many there are."""
        if self.count >= 0:
            return self.count
        return self.bound_of_unique - self.first

    @property
    def bound_of_unique(self) -> int:
        """At least the keys of the batch; exact once the host knows how many there are."""
        return self.num_occurrences if self._num_unique is None else self._num_unique

    @property
    def is_whole_batch(self) -> bool:
        """True if the window is all of the batch. May wait."""
        return self.first == 0 and (self.count < 0 or self.count == self.num_unique)

    @property
    def numbers(self) -> HostArray:
        """BatchNumbers as they stood when first asked for after a look-up. Waits then."""
        if self._numbers is None:
            if self._asked is None:
                with self.verb():
                    self._asked = HostCopy(self._device, self.arena.tensor("numbers"))
            self._numbers = self._numbers_of(self._asked)
            self._num_unique = int(self._numbers["num_unique"][0])
        return self._numbers

    def found(self, numbers: HostPart, epoch: int) -> None:
        """A look-up of the window is queued, and its numbers are on their way to the host: what is
        queued later is not waited for."""
        self._asked = numbers
        self.state = State.FOUND
        self.epoch = epoch

    def end_pinning(self) -> bool:
        """True if the look-up has pinned what it found. Waits for it, if it was to pin."""
        if self.pins_if_whole and self.state is State.FOUND:
            is_whole = self.num_missing == 0
            self.pins_if_whole = False
            if is_whole:
                self._victims = self._missing = None
                self.state = State.PINNED
                self.has_rows = True
        return self.state is State.PINNED

    @property
    def num_id_entries(self) -> int:
        """Of the table that numbers the keys."""
        return self._id_mask + 1

    def _numbers_of(self, copy: HostCopy | HostPart) -> HostArray:
        return copy.wait().view(self._device.args.dtype("BatchNumbers"))

    def grant(self) -> None:
        """A reserve without missing keys is queued, which cannot be refused."""
        self._victims = self._missing = self._answers = None
        self.state = State.RESERVED

    def expect(self, answers: Answers, number: int) -> None:
        """A reserve is queued, which will tell there what it was granted, by the plan's number."""
        self._victims = self._missing = None
        self._answers, self._answer_number = answers, number
        self.state = State.RESERVING

    def settle(self, row_bytes: int) -> bool:
        """Waits for the answer of a reserve that is queued, for its missing keys and its victims;
        True if slots are reserved. Any thread; may be repeated, after an interrupt."""
        with self._settling:
            if self.state is State.RESERVING:
                self._settle(row_bytes)
            return self.state is State.RESERVED

    def _settle(self, row_bytes: int) -> None:
        assert self._answers is not None
        told, missing, victims = self._answers.wait(self._answer_number)
        numbers = told.view(self._device.args.dtype("BatchNumbers"))
        if numbers["refused"][0]:
            self.state = State.KEYS  # to be looked up again
        else:
            self._missing = missing
            self._victims = victims[: int(numbers["num_victims"][0]) * row_bytes]
            self.state = State.RESERVED
        self._answers = None

    def forget_reserve(self) -> None:
        """Its slots were given back."""
        self._victims = self._missing = None
        self.state = State.KEYS

    def args(self, kernel: str, **fields: float) -> HostArray:
        """The argument struct of a kernel, with cache, batch and `fields` filled in."""
        struct = self._device.args.struct_of(kernel)
        if struct not in self._args:
            args = self._device.args.new(kernel)
            names = args.dtype.names or ()
            if "cache" in names and args["cache"].dtype == self._cache_args.dtype:
                args["cache"] = self._cache_args
            args["batch"] = self._batch
            self._args[struct] = args
        args = self._args[struct]
        for name, value in fields.items():
            args[name] = value
        return args

    def missing_keys(self) -> Keys:
        """uint64 [M] of the last reserve; a view."""
        return np.empty(0, np.uint64) if self._missing is None else self._missing.view(np.uint64)

    def victim_images(self, row_bytes: int) -> Images:
        """uint8 [victims, row_bytes] of the last reserve; a view."""
        if self._victims is None:
            return np.empty((0, row_bytes), np.uint8)
        return self._victims.reshape(-1, row_bytes)

    def _by_id(self, name: str) -> NDArray[np.int64]:
        num_unique = self.num_unique
        if num_unique == 0:
            return np.empty(0, np.int64)
        with self.verb():
            copy = HostCopy(self._device, self.arena.tensor(name, num_unique))
        return copy.wait()

    def _grow(self, capacity: int) -> None:
        args = self._device.args
        arrays = {name: (dtype, capacity) for name, dtype in _ARRAYS.items()}
        arrays["reservations"] = (torch.uint8, capacity * args.dtype("Reservation").itemsize)
        arrays["id_table"] = (torch.int32, _id_table_entries(capacity))
        arrays["first_ranks"] = (torch.int64, capacity // FLAGS_A_WORD + 1)
        for name in _FLAGS:
            count = FLAGS_A_WORD if name.endswith("words") else _FLAGS_A_SUM
            arrays[name] = (torch.int32, capacity // count + 1)
        arrays["numbers"] = (torch.uint8, args.dtype("BatchNumbers").itemsize)
        self.arena = Arena(self._device, arrays)
        for name in ("missing_flags.words", "missing_flags.sums"):
            self._device.fill(self.arena.tensor(name), 0)
        self._capacity = capacity
        self._args.clear()
        for name, field in _fields(self._batch):
            field[:] = self.arena.address(name)


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
