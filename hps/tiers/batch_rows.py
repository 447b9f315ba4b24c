"""BatchRows: the rows of one batch, pinned in their slots until its step is done; RowUpdate: the
step.

Above it: SparseEmbedding, RowOptimizer, Pipeline. Below it: top_tier.py.
"""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from hps import _C
from hps.common.arrays import HOST, AnyArray, OutputPool, as_output, is_on, like, new_output
from hps.common.locks import OwnedLock, assert_held
from hps.common.row_layout import Floats, Keys
from hps.contracts.row_cache import BatchPlan
from hps.errors import ConfigError
from hps.tiers.top_tier import TableStack
from hps.types import Pins

if TYPE_CHECKING:
    import torch

    from hps.common.bags import BagPooling
    from hps.contracts.joint import JointRows


class SharesPins(Protocol):
    """A batch of several tables, as those who show one table of it know it."""

    @property
    def is_released(self) -> bool:
        """True if rows of a table of it are not pinned, or not any more."""

    def release_table(self, table: str) -> None:
        """Drops the pins of one table. Under the lock."""


class BatchRows(_C.HeldRows):
    """The rows of one batch of keys of one table: fetched, in their slots, pinned.

    Made by `ParameterServer.pin`. A pinned row is never evicted. Dropping the object releases it,
    too, but only `release` says when. What it holds is kept in native fields, so that a step reads
    those of all tables in one call; `plan` is guarded by the server's lock.
    """

    stack: TableStack
    plan: BatchPlan | None
    # The batch of several tables of which these rows are a part, if there is one; it pins them.
    shared: "SharesPins | None" = None
    # That of a device, whose tables each pin their own; None when nobody else has it.
    placed: "Callable[[], JointRows | None]" = staticmethod(lambda: None)

    def __init__(
        self,
        stack: TableStack,
        keys: Keys,
        model: object,
        pool: OutputPool,
        lock: OwnedLock,
        device: str = HOST,
    ) -> None:
        super().__init__(stack, model, pool, lock, device)
        self._note_keys(keys, _state_of(keys, device))
        try:
            with lock:
                plan = self._take_plan(keys)
            stack.pin(plan)
        except BaseException:
            self.release()
            raise

    def _take_plan(self, keys: Keys) -> BatchPlan:
        """Before it holds anything: an interrupt, or an erase, may come at any time. Under the
        lock."""
        assert_held(self._lock)
        self.plan = self.stack.plan_of(keys)
        self.stack.hold_plan(self.plan)
        return self.plan

    @classmethod
    def part_of(
        cls,
        joint: "SharesPins",
        stack: TableStack,
        plan: BatchPlan,
        model: object,
        pool: OutputPool,
        lock: OwnedLock,
    ) -> "BatchRows":
        """The rows of one table that a batch of several has pinned by that plan. Under the
        lock."""
        assert_held(lock)
        rows = cls.__new__(cls)
        _C.HeldRows.__init__(rows, stack, model, pool, lock, HOST)
        rows.shared, rows.plan = joint, plan
        return rows

    @property
    def table(self) -> str:
        """Name of the table."""
        return self.stack.name

    def belongs_to(self, stacks: Mapping[str, TableStack]) -> bool:
        """True if the rows lie in one of a server's stacks (by table), not in another server's."""
        return stacks.get(self.table) is self.stack

    @property
    def joint(self) -> "SharesPins | JointRows | None":
        """The batch of several tables of which these rows are a part, if there is one."""
        return self.shared or self.placed()

    @property
    def num_occurrences(self) -> int:
        """L, keys of the batch with their repetitions; 0 after the release."""
        with self._lock:
            return 0 if self.is_released else self.held_plan().num_occurrences

    def are_of(self, keys: AnyArray) -> bool:
        """True if these are the keys that were pinned, byte for byte, in their order.

        On a device the very tensor that was pinned is believed, for comparing would wait for it.
        """
        if self._pinned_at is not None and self._pinned_at == _state_of(keys, self._device):
            return True
        with self._lock:
            return bool(self.held_plan().matches(cast("Keys", keys)))

    @property
    def is_released(self) -> bool:
        """True when the pins are gone."""
        return self.plan is None or (self.shared is not None and self.shared.is_released)

    def unique_keys(self) -> Keys:
        """The distinct keys that are pinned, uint64 [N]; none after the release."""
        with self._lock:
            return self.pinned_keys(self.table)

    def pinned_keys(self, table: str) -> Keys:
        """As HoldsRows has it. Under the lock."""
        assert_held(self._lock)
        if self.is_released or table != self.table:
            return np.empty(0, np.uint64)
        return self.held_plan().unique_keys

    def gather(self, out: AnyArray | None = None) -> AnyArray:
        """The rows as they are now: float32 [L, D], a tensor if the keys were one.

        Args:
            out: float32 [L, D], contiguous, to write into; None takes a buffer of the pool.

        Raises:
            ConfigError: the rows were released, or `out` does not fit.
        """
        dim = self.stack.layout.dim
        with self._lock:
            plan = self.held_plan()
            num_rows = plan.num_occurrences
            if out is not None:
                self.stack.gather(plan, as_output(out, num_rows, dim, self._device))
                return out
            rows = new_output(self._model, num_rows, dim, self._device)
            rows = self._pool.take(num_rows, dim) if rows is None else rows
            self.stack.gather(plan, rows)
            return like(rows, self._model)

    def pool(self, pooling: "BagPooling", out: "torch.Tensor") -> None:
        """Sums or means of bags, straight from the slots.

        Args:
            pooling: of all occurrences, where the rows lie.
            out: float32 tensor [B, F * D], contiguous, there too.

        Raises:
            ConfigError: the rows were released, or are of another number of keys.
        """
        bags = pooling.arguments(self._device)
        target: Floats = out.numpy() if self._device == HOST else cast("Floats", out)
        with self._lock:
            plan = self.held_plan()
            pooling.check(plan.num_occurrences, f"the pinned rows of table {self.table!r}")
            self.stack.pool(plan, bags, target)

    def bring_ahead(self) -> Pins | None:
        """As PinnedRows has it: what the table's new keys wait by."""
        gate = self.stack.gate
        if gate is None or self.num_occurrences == 0:
            return None
        with self._lock:
            plan = self.held_plan()
        return gate.bring_ahead(plan)

    def held_plan(self) -> BatchPlan:
        """The pinned plan; ConfigError after the release. Under the lock."""
        assert_held(self._lock)
        if self.plan is None or self.is_released:
            raise ConfigError(f"the rows of this batch of table {self.table!r} were released")
        return self.plan

    def release(self) -> None:
        """Drops the pins; nothing to do the second time."""
        with self._lock:
            if self.plan is None:
                return
            if self.shared is not None:
                self.shared.release_table(self.table)
                self.plan = None
                return
            self.stack.unpin(self.plan)
            self.give_up_plan()

    def _drop(self) -> None:
        """What HeldRows calls where nobody has the object any more, if it has a plan."""
        if self.shared is None:
            self.release()

    def give_up_plan(self) -> None:
        """The plan, which pins nothing, is the stack's again. Under the lock."""
        assert_held(self._lock)
        plan = self.plan
        if plan is not None:
            # First of all, and by a builtin: what an interrupt leaves is in no erase's way.
            self.stack.plans_in_flight.discard(plan)
            self.plan = None
            self.stack.keep_plan(plan)

    def __enter__(self) -> "BatchRows":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def _state_of(keys: AnyArray, device: str) -> tuple[int, int, int] | None:
    """What tells a tensor on `device`, as it is, from all others while it lives.

    None for anything else, and for a tensor of torch.inference_mode: it does not count its changes.
    """
    if not is_on(keys, device) or keys.is_inference():
        return None
    return keys.data_ptr(), len(keys), keys._version
