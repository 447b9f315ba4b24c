"""TableVerbs: a step's verbs over several caches of one device, each one call for all of them.

Above it: the servers' batches. Below it: hps/gpu_cache/device_batch.py. Each verb does what its
namesake of hps/contracts/row_cache.py does with one cache; that is the case of one table here.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hps.common.arrays import Offsets
from hps.common.row_layout import Floats
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


class TableVerbs(Protocol):
    """Of caches of one device, no cache twice in a call. Only `abandon` may wait for the device."""

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
