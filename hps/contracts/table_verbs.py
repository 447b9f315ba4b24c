"""TableVerbs: a step's verbs over several caches of one device, each one call for all of them.

Above it: the servers' batches. Below it: hps/gpu_cache/device_batch.py. Each verb does what its
namesake of hps/contracts/row_cache.py does with one cache; that is the case of one table here.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hps.common.arrays import AnyArray, Offsets
from hps.common.row_layout import Floats, Images
from hps.contracts.row_cache import AnyRowCache, BatchPlan


class OfTable(NamedTuple):
    """A batch of one table.

    Args:
        cache: of the table.
        plan: a plan of that cache.
        lr: the learning rate, for verbs that take one.
    """

    cache: AnyRowCache
    plan: BatchPlan
    lr: float = 0.0


class KeysOfTable(NamedTuple):
    """Keys of one table.

    Args:
        cache: of the table.
        plan: a plan of that cache, which they are to become.
        keys: uint64 [L], or a tensor of the device.
        pins: they are to be pinned at once if every row is in its slot; none is on its way.
    """

    cache: AnyRowCache
    plan: BatchPlan
    keys: AnyArray
    pins: bool = False


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
        rows: uint8 [missing, row_bytes].
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


class TableVerbs(Protocol):
    """Of caches of one device, no cache twice in a call. None waits for the device but where that
    is said."""

    def ask(
        self, tables: Sequence[tuple[AnyRowCache, AnyArray]]
    ) -> list[Callable[[], NDArray[np.uint8]]]:
        """Queues `contains` of each; what it returns waits, and needs no lock."""

    def look_up(self, tables: Sequence[KeysOfTable]) -> None:
        """Queues make_plan, and find of all keys; and the pins of those that are to be pinned."""

    def look_again(self, tables: Sequence[OfTable]) -> None:
        """Queues find of all keys, of plans in whose tables slots have moved since they were looked
        up."""

    def begin_reserve(self, tables: Sequence[OfTable]) -> bool:
        """Queues a reserve of each, whose window was looked up. False, and nothing is queued, if
        slots of one have moved since: `look_again`. Waits for the look-ups, if they were not waited
        for."""

    def end_reserve(self, tables: Sequence[OfTable]) -> list[bool]:
        """Waits for what `begin_reserve` has queued, missing keys and victims with it; which were
        granted. Without the lock."""

    def fill(self, tables: Sequence[RowsOfTable]) -> None:
        """Publishes the missing rows of each."""

    def pin_found(self, tables: Sequence[OfTable]) -> list[bool]:
        """Which plans of those that were looked up to be pinned are. Waits for the look-ups, if
        they were not waited for."""

    def pool(self, tables: Sequence[BagsOfTable]) -> None:
        """Pools each batch, which the plan's window is."""

    def sum_gradients(self, tables: Sequence[BagsOfTable]) -> None:
        """Sums gradients by key into each plan."""

    def find_overflow(self, tables: Sequence[OfTable]) -> None:
        """Tries each plan's step; the first table that has a sum, or a row after its step, that is
        not finite tells it by `failed_key`."""

    def apply(self, tables: Sequence[OfTable]) -> None:
        """The optimizers, once a key. Changes nothing of any table while a refused gradient is
        unsaid."""

    def abandon(self, tables: Sequence[OfTable]) -> None:
        """Takes back what each plan holds, however far it came. Waits for a reserve that is
        queued."""


@runtime_checkable
class CacheBesideOthers(Protocol):
    """A cache on a device, which may be asked together with others there."""

    @property
    def together(self) -> TableVerbs | None:
        """The verbs over this cache and others of its device; None if it is to be asked alone."""
