"""RemoteRows: a batch's keys by shard, planned ahead.

Above it: parameter_server.py; SparseEmbedding, RowOptimizer and Pipeline hold RemoteRows. Below it:
common/plan_pool.py.
"""

from typing import TYPE_CHECKING, Protocol

import numpy as np

from hps import _C
from hps.common.arrays import AnyArray, as_keys, as_output, like
from hps.common.locks import assert_held, new_lock
from hps.common.plan_pool import PlanPool
from hps.common.row_layout import Floats, Keys
from hps.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from hps.common.bags import BagPooling

MAX_IDLE_PLANS = 8  # that are kept for later


class NothingWarmed:
    """What `warm` gives where no tier of this process could be warmed."""

    is_released = True

    def release(self) -> None:
        """Nothing is held."""


class RowReader(Protocol):
    """Reads what RemoteRows are asked for."""

    def read_planned(self, table: str, plan: _C.ShardPlan, out: Floats) -> None:
        """Rows of a plan's occurrences as they are now, into out float32 [L, dim]."""

    def pool_planned(
        self, table: str, plan: _C.ShardPlan, pooling: "BagPooling", out: Floats
    ) -> None:
        """Sums or means of the bags of a plan's occurrences, into out float32 [B, F * dim]."""

    def new_rows(self, table: str, num_rows: int) -> Floats:
        """A buffer float32 [num_rows, dim]."""


class RemoteRows:
    """The keys of one batch of one table, deduplicated and divided over the shards.

    Made by `RemoteParameterServer.pin`, which may be long before the batch is handed out. The rows
    are pulled when they are asked for, and so after every step before: no shard holds them.
    """

    plan: _C.ShardPlan | None = None
    joint = None  # there is no native batch over the rows of servers

    def __init__(self, reader: RowReader, pool: PlanPool, table: str, keys: AnyArray) -> None:
        self.reader = reader
        self.table = table
        self._pool = pool
        self._model = keys
        # Guards `plan`, and is held while the plan is used: a pipeline that closes releases what a
        # loop may use.
        self.lock = new_lock()
        array = as_keys(keys)
        self.num_occurrences = len(array)
        self.plan = pool.take(array)

    @property
    def is_released(self) -> bool:
        """True when the plan is gone."""
        return self.plan is None

    def are_of(self, keys: AnyArray) -> bool:
        """True if these are the keys, byte for byte, in their order."""
        with self.lock:
            return self.held_plan().matches(as_keys(keys))

    def unique_keys(self) -> Keys:
        """The distinct keys, uint64 [N], shard after shard; none after the release."""
        with self.lock:
            plan = self.plan
            return np.empty(0, np.uint64) if plan is None else plan.unique_keys.copy()

    def bring_ahead(self) -> None:
        """The shards see to what a step waits for."""

    def gather(self, out: AnyArray | None = None) -> AnyArray:
        """The rows as they are now: float32 [L, D], a tensor if the keys were one.

        Args:
            out: float32 [L, D], contiguous, to write into; None takes a new buffer.

        Raises:
            ConfigError: the rows were released, or `out` does not fit.
            RemoteError: a shard did not answer within the deadline.
        """
        self._refuse_released()
        rows = self.reader.new_rows(self.table, self.num_occurrences) if out is None else out
        target = as_output(rows, self.num_occurrences, rows.shape[1])
        with self.lock:
            self.reader.read_planned(self.table, self.held_plan(), target)
        return like(rows, self._model) if out is None else out

    def pool(self, pooling: "BagPooling", out: "torch.Tensor") -> None:
        """Sums or means of bags of the rows as they are now.

        Args:
            pooling: of all occurrences.
            out: float32 tensor [B, F * D], contiguous, written.

        Raises:
            ConfigError: the rows were released.
            RemoteError: a shard did not answer within the deadline.
        """
        with self.lock:
            self.reader.pool_planned(self.table, self.held_plan(), pooling, out.numpy())

    def held_plan(self) -> _C.ShardPlan:
        """The plan. Needs `lock`: a release hands the plan to the next call.

        Raises:
            ConfigError: the rows were released.
        """
        assert_held(self.lock)
        return self._refuse_released()

    def _refuse_released(self) -> _C.ShardPlan:
        plan = self.plan
        if plan is None:
            raise ConfigError(f"the rows of this batch of table {self.table!r} were released")
        return plan

    def release(self) -> None:
        """Gives the plan up; nothing to do the second time."""
        with self.lock:
            plan, self.plan = self.plan, None
        if plan is not None:
            self._pool.give(plan)

    def __del__(self) -> None:
        if self.plan is not None:
            self.release()
