"""Types of what hps._C has for the verbs over tables on a device; csrc/bindings/device_plan.h,
device_keys.h, device_bags.h, device_verbs.h, launcher.h and pinned_rows.cc define it.

For type checkers alone: _C.pyi hands it on."""

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch

_Plan = TypeVar("_Plan", bound=DevicePlanState)
_Rows = TypeVar("_Rows", bound=HeldRows)

class PlanState(enum.Enum):
    KEYS = 0
    FOUND = 1
    RESERVING = 2
    RESERVED = 3
    PINNED = 4

class DeviceMemory:
    memory: Final[Any]  # a tensor
    def __init__(self, memory: object) -> None: ...
    def is_new_to(self, stream: int) -> bool: ...

class ArenaPart:
    address: Final[int]
    num_bytes: Final[int]
    memory: Final[Any]  # a tensor, which does not keep the part

class Arena:
    address: Final[int]
    num_bytes: Final[int]
    used_bytes: Final[int]
    peak_bytes: Final[int]
    largest_part: Final[int]
    def __init__(self, memory: object, address: int, num_bytes: int) -> None: ...
    def part(self, num_bytes: int, from_end: bool = False) -> ArenaPart | None: ...

class DeviceTable:
    epoch: int
    number: int
    is_watched: bool
    piece: Final[DeviceMemory]
    num_swept: Final[int]
    num_held: Final[int]
    has_pins: Final[bool]
    def __init__(self, args: bytes, piece: DeviceMemory) -> None: ...
    def note_held(self, plan: DevicePlanState) -> None: ...
    def let_go(self, plan: DevicePlanState) -> None: ...
    def take_hits(self) -> int: ...

class SumsLayout:
    num_pending: Final[int]
    def __init__(
        self, memory: DeviceMemory, addresses: Sequence[int], room: Sequence[int]
    ) -> None: ...

class DevicePlanState:
    state: PlanState
    epoch: int
    asked: Any
    asked_at: int
    victims: npt.NDArray[np.uint8] | None
    missing: npt.NDArray[np.uint8] | None
    incoming: npt.NDArray[np.uint8] | None
    table: Final[DeviceTable]
    memory: Final[DeviceMemory | None]
    part: Final[ArenaPart | None]
    sums: Final[SumsLayout | None]
    batch: Final[bytes]
    capacity: Final[int]
    is_held: Final[bool]
    pins_if_whole: Final[bool]
    first: Final[int]
    count: Final[int]
    known_unique: Final[int]
    has_numbers: Final[bool]
    told_missing: Final[int]
    bound: Final[int]
    bound_of_unique: Final[int]
    @property
    def is_looked_up(self) -> bool: ...
    def __init__(self, table: DeviceTable) -> None: ...
    @property
    def num_occurrences(self) -> int: ...
    @property
    def has_rows(self) -> bool | None: ...
    @has_rows.setter
    def has_rows(self, has_rows: bool) -> None: ...
    def set_arrays(
        self, batch: bytes, capacity: int, memory: DeviceMemory, part: ArenaPart
    ) -> None: ...
    def drop_arrays(self) -> None: ...
    def clear(self) -> None: ...
    def start_window(self, first: int, count: int) -> None: ...
    def take_numbers(self, words: npt.NDArray[np.uint8]) -> None: ...

class DeviceKeys:
    count: Final[int]
    num_of_host: Final[int]
    lengths: Final[list[int]]
    tensors: Final[list[Any]]  # those on the device
    def __init__(self, device_type: int, device_number: int) -> None: ...
    def __len__(self) -> int: ...
    def add(self, keys: Sequence[object]) -> bool: ...
    def piece(self, first: int, count: int) -> DeviceKeys: ...

class HeldRows:
    plan: Any
    stack: Any
    _model: Final[Any]
    _pool: Final[Any]
    _lock: Final[Any]
    _device: str
    _pinned_at: Final[tuple[int, int, int] | None]
    def __init__(
        self, stack: object, model: object, pool: object, lock: object, device: str
    ) -> None: ...
    def _note_keys(self, keys: object, state: tuple[int, int, int] | None) -> None: ...

class DeviceBags:
    tensors: Final[list[Any]]
    plans: Final[list[DevicePlanState]]
    stacks: Final[list[Any]]
    def __init__(self, device_type: int, device_number: int) -> None: ...
    def __len__(self) -> int: ...
    def add(
        self,
        plan: DevicePlanState,
        offsets: object,
        weights: object,
        mean: bool,
        values: object,
        lr: float = 0.0,
    ) -> None: ...
    def add_step(self, plan: DevicePlanState, lr: float) -> None: ...
    def keep(self, part: ArenaPart) -> None: ...
    def drop_empty(self) -> None: ...

class Launcher:
    num_launches: Final[int]
    def __init__(
        self, *, launch: int, copy: int, functions: Mapping[str, int], most_blocks: int
    ) -> None: ...
    def launch(self, kernel: str, args: bytes, count: int, stream: int) -> None: ...

class BlockRing:
    def __init__(self, next: Callable[[int, bool], tuple[int, int, int]]) -> None: ...

class TableBlock:
    def launch(self, *launches: str | int) -> None: ...
    def launch_kinds(self, prefix: str) -> None: ...

class DeviceVerbs:
    def __init__(
        self, launcher: Launcher, ring: BlockRing, device_type: int, device_number: int
    ) -> None: ...
    def prepare(self, plans: Sequence[DevicePlanState], keys: DeviceKeys) -> int: ...
    def place(
        self, plans: Sequence[DevicePlanState], keys: DeviceKeys, copied: int, stream: int
    ) -> TableBlock: ...
    def contains(
        self,
        tables: Sequence[DeviceTable],
        keys: DeviceKeys,
        presence: int,
        copied: int,
        stream: int,
    ) -> TableBlock: ...
    def find(self, plans: Sequence[DevicePlanState], told: int, stream: int) -> TableBlock: ...
    def reserve(
        self,
        plans: Sequence[DevicePlanState],
        told: Sequence[int],
        told_keys: Sequence[int],
        victims: Sequence[int],
        stream: int,
    ) -> TableBlock: ...
    def release(self, plans: Sequence[DevicePlanState], stream: int) -> TableBlock: ...
    def fill(
        self,
        plans: Sequence[DevicePlanState],
        images: Sequence[int],
        found: Sequence[npt.NDArray[np.uint8]],
        creates: Sequence[bool],
        rates: Sequence[float],
        stream: int,
    ) -> TableBlock: ...
    def pool(self, bags: DeviceBags, stream: int) -> TableBlock | None: ...
    def sum_sizes(self, bags: DeviceBags) -> list[int]: ...
    def sizes_to_sum(self, plans: Sequence[DevicePlanState]) -> list[int]: ...
    def sum(self, bags: DeviceBags, layout: SumsLayout, stream: int) -> TableBlock: ...
    def try_updates(self, bags: DeviceBags, stream: int) -> TableBlock: ...
    def note_failure(self, block: TableBlock, failure: int) -> None: ...
    def apply(self, bags: DeviceBags, failure: int, stream: int) -> TableBlock: ...

class RestSlots:
    def __init__(self, keys: int, is_used: int, last: int, rows: int, num_slots: int) -> None: ...

class SentTable:
    def __init__(
        self,
        plan: DevicePlanState | None,
        values: int,
        ids: int,
        dim: int,
        kept: RestSlots | None = None,
    ) -> None: ...

class PeerVerbs:
    def __init__(
        self, launcher: Launcher, ring: BlockRing, num_ranks: int, num_virtual: int
    ) -> None: ...
    def divide(
        self,
        plans: Sequence[DevicePlanState],
        scratch: Sequence[int],
        ids: int,
        told_keys: int,
        told_starts: int,
        stream: int,
    ) -> TableBlock: ...
    def judge(
        self, tables: Sequence[SentTable], ordinary: int, limit: int, verdicts: int, stream: int
    ) -> TableBlock: ...
    def send(
        self,
        tables: Sequence[SentTable],
        counts: npt.NDArray[np.int64],
        wire: int,
        message: int,
        stream: int,
    ) -> TableBlock: ...
    def receive(
        self,
        rows: Sequence[int],
        dims: Sequence[int],
        counts: npt.NDArray[np.int64],
        wire: int,
        message: int,
        stream: int,
    ) -> TableBlock: ...
    def pool(self, bags: DeviceBags, rows: Sequence[int], stream: int) -> TableBlock | None: ...
    @staticmethod
    def message_bytes(counts: npt.NDArray[np.int64], dims: Sequence[int], wire: int) -> int: ...

def rows_args(dim: int) -> bytes: ...
def gpu_kernel_source() -> str: ...
def run_gpu_kernel(kernel: str, args: bytes, count: int) -> None: ...
def idle_driver() -> tuple[int, int]: ...
def start_windows(plans: Sequence[DevicePlanState], pins: Sequence[bool]) -> None: ...
def note_found(plans: Sequence[DevicePlanState], copy: object) -> None: ...
def uncertain_plans(plans: Sequence[_Plan], whole: bool) -> list[_Plan]: ...
def holding_plans(plans: Sequence[_Plan]) -> list[_Plan]: ...
def plans_in(plans: Sequence[_Plan], state: PlanState) -> list[_Plan]: ...
def take_numbers(plans: Sequence[_Plan]) -> list[_Plan]: ...
def end_pinning(plans: Sequence[_Plan]) -> list[_Plan]: ...
def are_reservable(plans: Sequence[DevicePlanState]) -> bool: ...
def set_pinned(plans: Sequence[DevicePlanState]) -> None: ...
def set_released(plans: Sequence[DevicePlanState]) -> None: ...
def end_updates(plans: Sequence[DevicePlanState]) -> None: ...
def memory_of(
    plans: Sequence[DevicePlanState], stream: int, all: bool
) -> list[DeviceMemory | torch.Tensor]: ...
def begin_rows(
    kind: type[_Rows],
    stacks: Sequence[object],
    keys: DeviceKeys,
    models: Sequence[object],
    pool: object,
    lock: object,
    device: str,
) -> list[_Rows]: ...
def pinned_reads(
    bags: DeviceBags, reads: Sequence[object], stacks: Mapping[str, object], kind: type
) -> bool: ...
def pinned_updates(
    bags: DeviceBags,
    updates: Sequence[object],
    stacks: Mapping[str, object],
    kind: type,
    rates: Mapping[str, float],
) -> bool: ...
def placed_bags(
    bags: DeviceBags,
    rows: Sequence[object],
    poolings: Sequence[object],
    are_means: Sequence[bool],
    columns: Sequence[int],
    counts: Sequence[int],
    values: object,
    rates: Sequence[float],
    kind: type,
) -> bool: ...
def held_plans(rows: Sequence[object], kind: type) -> list[DevicePlanState] | None: ...
def give_up_plans(rows: Sequence[object], most_idle: int) -> None: ...
def find_parts(values: npt.NDArray[np.uint8], lengths: Sequence[int], value: int) -> list[int]: ...

# --- gpu_cache's kernels

_Fields = list[tuple[str, str, int]]

def gpu_kernels() -> tuple[dict[str, tuple[int, _Fields]], dict[str, tuple[str, int, str]]]: ...
def gpu_cache_args(
    *,
    optimizer_kind: str,
    hyperparameters: list[float],
    dim: int,
    capacity_bytes: int,
    initializer_kind: str,
    initializer_numbers: tuple[float, float],
    stream: int,
    base: int,
    statistics: bool = False,
) -> tuple[int, bytes]: ...
