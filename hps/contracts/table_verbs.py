"""TableVerbs: a step's verbs over several caches of one device, each one call for all of them.

Above it: the servers' batches. Below it: hps/gpu_cache/device_batch.py. Each verb does what its
namesake of hps/contracts/row_cache.py does with one cache; that is the case of one table here. A
plan knows its cache.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hps import _C
from hps.common.arrays import AnyArray, Offsets
from hps.common.row_layout import Floats, Images
from hps.contracts.row_cache import AnyRowCache, BatchPlan


class BagsOfTable(NamedTuple):
    """Bags of a batch of one table, and where their values come from or go to.

    Args:
        cache: of the table.
        plan: a plan of that cache.
        offsets: int64 [F*B + 1], feature-major; None: values are of occurrences.
        weights: float32 [L], or None.
        mean: bags are divided by their lengths.
        values: float32 [B, F * D] that are written; gradients [F*B, D], or [L, D] without offsets.
    """

    cache: AnyRowCache
    plan: BatchPlan
    offsets: Offsets | None
    weights: Floats | None
    mean: bool
    values: Floats


class RowsOfTable(NamedTuple):
    """Missing rows of a batch of one table.

    Args:
        cache: of the table.
        plan: a plan of that cache, for which slots are reserved.
        rows: uint8 [missing, row_bytes]; best in the cache's own memory for them.
        found: uint8 [missing], 0: the row is initialised instead.
        lr: the learning rate.
        create: rows that are initialised are stored, too.
    """

    cache: AnyRowCache
    plan: BatchPlan
    rows: Images
    found: NDArray[np.uint8]
    lr: float
    create: bool = False


class BatchMemory(NamedTuple):
    """What a device has for what batches work on.

    Args:
        num_bytes: of it.
        used_bytes: that batches have now.
        peak_bytes: that they have had at once so far.
    """

    num_bytes: int
    used_bytes: int
    peak_bytes: int


class TableVerbs(Protocol):
    """Of caches of one device, no cache twice in a call. None waits for the device but where that
    is said. BatchMemoryError of look_up, pin_found and sum_gradients: the device's memory for
    batches is too small; nothing was taken and no row changed."""

    @property
    def has_failed(self) -> bool:
        """True if a cache has a failure to tell by `failed_key`; what is under way is not waited
        for."""

    def keys_of(self, keys: Sequence[AnyArray]) -> _C.DeviceKeys | None:
        """Keys of several tables as the verbs take them: uint64 or int64 [L] in one piece, tensors
        of the device or tensors or arrays of the host; None if some are not so."""

    @property
    def memory(self) -> BatchMemory:
        """Of the device, for batches."""

    def on_shortage(self, spare: Callable[[Sequence[BatchPlan]], None]) -> None:
        """`spare` is called when there is too little of it, within a verb: it drops plans that
        nobody needs, but for those that it is given."""

    def ask(
        self, caches: Sequence[AnyRowCache], keys: _C.DeviceKeys
    ) -> Callable[[], NDArray[np.uint8]]:
        """Queues `contains` of each cache's keys; what it returns waits, needs no lock, and has the
        answers one behind the other."""

    def look_up(
        self,
        plans: Sequence[BatchPlan],
        keys: _C.DeviceKeys,
        pins: Sequence[bool],
    ) -> None:
        """Queues make_plan, and find of all keys; and the pins of those that are to be pinned.

        Args:
            keys: which each plan's are to become; by tensors of the device a step will name them.
            pins: they are to be pinned at once if every row is in its slot; none is on its way.
        """

    def look_again(self, plans: Sequence[BatchPlan]) -> None:
        """Queues find of all keys, of plans in whose tables slots have moved since they were looked
        up."""

    def begin_reserve(self, plans: Sequence[BatchPlan]) -> bool:
        """Queues a reserve of each, whose window was looked up. False, and nothing is queued, if
        slots of one have moved since: `look_again`. Waits for the look-ups, if they were not waited
        for."""

    def end_reserve(self, plans: Sequence[BatchPlan]) -> list[bool]:
        """Waits for what `begin_reserve` has queued, missing keys and victims with it; which were
        granted. Without the lock."""

    def fill(self, tables: Sequence[RowsOfTable]) -> None:
        """Publishes the missing rows of each."""

    def pin_found(self, plans: Sequence[BatchPlan]) -> list[BatchPlan]:
        """Those plans of looked up ones which are pinned. Waits for the look-ups, if they were not
        waited for."""

    def new_bags(self) -> _C.DeviceBags:
        """Of no table yet."""

    def bags_of(self, tables: Sequence[BagsOfTable], rates: Sequence[float] = ()) -> _C.DeviceBags:
        """Of these, at these learning rates; tensors on the device, but for gradients, which may be
        arrays of the host.

        Raises:
            ValueError: another type or shape.
        """

    def pool(self, bags: _C.DeviceBags) -> None:
        """Pools each batch, which the plan's window is."""

    def sum_gradients(self, bags: _C.DeviceBags) -> None:
        """Sums gradients by key into each plan. What the bags name is to stay as it is until the
        step is applied or the plan is made of other keys: a device adds up then."""

    def find_overflow(self, bags: _C.DeviceBags) -> None:
        """Tries the step of each plan of bags at its learning rate; the first table that has a sum,
        or a row after its step, that is not finite tells it by `failed_key`."""

    def apply(self, bags: _C.DeviceBags, applied: Callable[[], object] | None = None) -> None:
        """The optimizers of bags that were summed, once a key. Changes nothing of any table while a
        refused gradient is unsaid. `applied`, a builtin, is called with the queueing: no interrupt
        comes between."""

    def abandon(self, plans: Sequence[BatchPlan]) -> None:
        """Takes back what each plan holds, however far it came. Waits for a reserve that is
        queued."""


@runtime_checkable
class CacheBesideOthers(Protocol):
    """A cache on a device, which may be asked together with others there."""

    @property
    def together(self) -> TableVerbs | None:
        """The verbs over this cache and others of its device; None if it is to be asked alone."""
