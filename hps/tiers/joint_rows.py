"""JointBatchRows: the rows of one batch of several tables, looked up or pinned in one native call.

Above it: parameter_server/joint_batches.py. Below it: `hps._C.TableBatch`, and of each table its
TableStack, which brings the rows that are not in its cache.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from hps import _C
from hps.common.bags import BagPooling, make_bags, refuse_infinite_weights
from hps.common.locks import OwnedLock, assert_held
from hps.common.row_layout import Floats
from hps.contracts.joint import JointIds, Places
from hps.contracts.updates import RowUpdate
from hps.errors import ConfigError
from hps.tiers.batch_rows import BatchRows

if TYPE_CHECKING:
    from hps.tiers.top_tier import TableStack
    from hps.types import PinnedRows


class JointBatchRows:
    """The rows of one batch, of the keys of several tables.

    Args:
        stacks: of the tables; their caches are native.
        batch: over those caches, nobody else's; given back in the end.
        lock: the server's.
        give_back: takes the batch when nobody needs it any more.
    """

    # What an interrupted __init__ leaves.
    _batch: _C.TableBatch | None = None

    def __init__(
        self,
        stacks: "Sequence[TableStack]",
        batch: _C.TableBatch,
        lock: OwnedLock,
        give_back: Callable[[_C.TableBatch], object],
    ) -> None:
        self.tables = tuple(stack.name for stack in stacks)
        self.num_examples = 0
        self._stacks = stacks
        self._lock = lock
        self._give_back = give_back
        # All below are guarded by the lock.
        self._holds = False  # slots may be pinned
        self._rows: dict[str, BatchRows] = {}  # that were pinned for others, by table
        self._batch = batch

    def look_up(self, ids: JointIds, places: Places, out: torch.Tensor) -> None:
        """Bags of `ids` to their places in out [B, width]; the rows are not pinned.

        Raises:
            ConfigError: offsets that do not rise, or a weight that is not finite.
            StoreError, CorruptionError: a row could not be read.
        """
        batch, target = self._held(), out.numpy()
        with self._lock:
            self._take(ids)
            is_whole = batch.pull(places.native, target)
            absent = [] if self._count(is_whole) else self._absent()
        self._refuse_bad(batch)
        for table in absent:
            self._pool_again(table, places, target)

    def pin(self, ids: JointIds) -> None:
        """Fetches the rows of `ids` and pins them.

        Raises:
            CapacityError: the cache of a table cannot hold its rows at once; nothing is pinned.
            ConfigError, StoreError, CorruptionError: as look_up; nothing is pinned.
        """
        batch = self._held()
        try:
            with self._lock:
                self._take(ids)
                for table, stack in enumerate(self._stacks):
                    rows = BatchRows.part_of(self, stack, batch.plan(table), self._lock)
                    self._rows[stack.name] = rows
                self._holds = True
                is_whole = batch.hold()
                absent = [] if self._count(is_whole) else self._absent()
                for table in absent:  # its rows may be on their way
                    self._stacks[table].unpin(batch.plan(table))
            self._refuse_bad(batch)
            for table in absent:
                self._stacks[table].pin(batch.plan(table))
        except BaseException:
            self.release()
            raise

    def belongs_to(self, stacks: "Mapping[str, TableStack]") -> bool:
        """True if the rows lie in a server's stacks (by table), not in another server's."""
        return all([stacks.get(stack.name) is stack for stack in self._stacks])

    def find(self) -> list[int]:
        """Looks up again what may have moved; the tables of which a row is not in place. Under the
        lock."""
        assert_held(self._lock)
        is_moving = any([stack.is_moving for stack in self._stacks])
        return [] if self._held().find() and not is_moving else self._absent()

    def pin_table(self, table: int) -> None:
        """Fetches and pins the rows of one table, until `release`. Without the lock."""
        self._holds = True
        self._stacks[table].pin(self._held().plan(table))

    def sum(self, places: Places, grads: torch.Tensor, rates: list[float]) -> None:
        """Sums gradients [B, width] by key, of rows in place. Under the lock.

        Raises:
            NonFiniteError: a sum, or what the step would make of its row, is NaN or infinite.
        """
        assert_held(self._lock)
        batch = self._held()
        table, culprit = batch.sum(places.native, grads.numpy(), rates)
        for stack, seconds in zip(self._stacks, batch.take_seconds(), strict=True):
            stack.counters.seconds += seconds
        if table >= 0:
            self._stacks[table].refuse_non_finite(batch.plan(table), culprit)

    def applying(self, rates: list[float]) -> Callable[[], None]:
        """To be called next: the optimizer once a key, with the sums; one native call. Under the
        lock."""
        assert_held(self._lock)
        for stack in self._stacks:
            stack.version += 1
        return partial(self._held().apply, rates)

    def pool(self, places: Places, out: torch.Tensor) -> None:
        """As JointRows has it."""
        batch = self._held()
        with self._lock:
            if self.is_released:
                raise ConfigError(f"the rows of this batch of {list(self.tables)} were released")
            batch.pool(places.native, out.numpy())
            for stack, seconds in zip(self._stacks, batch.take_seconds(), strict=True):
                stack.counters.seconds += seconds

    def of_tables(self) -> "Mapping[str, PinnedRows]":
        """As JointRows has it."""
        return self._rows

    @property
    def is_released(self) -> bool:
        """As JointRows has it."""
        return not self._rows or any([rows.is_released for rows in self._rows.values()])

    def updates(self, places: Places, grads: torch.Tensor) -> list[RowUpdate]:
        """As JointRows has it."""
        batch, found = self._held(), []
        for table, name in enumerate(self.tables):
            dim, columns = places.dims[table], places.columns[table]
            by_feature = [grads[:, column : column + dim] for column in columns]
            keys, offsets, weights = batch.keys(table), batch.offsets(table), batch.weights(table)
            bags = make_bags(torch.from_numpy(offsets), len(keys), f"table {name!r}")
            factors = None if weights is None else torch.from_numpy(weights)
            # Where bags are single, a bag's gradient is its occurrence's.
            is_plain = bags.are_single and factors is None
            pooling = None if is_plain else BagPooling(bags, factors, places.are_means[table])
            rows = self._rows.get(name)
            found.append(
                RowUpdate(
                    name,
                    torch.from_numpy(keys.view(np.int64)),
                    torch.cat(by_feature),
                    None if rows is None or rows.is_released else rows,
                    pooling,
                )
            )
        return found

    def release(self) -> None:
        """As JointRows has it. Also what `pin_table` has pinned."""
        with self._lock:
            if self._holds:
                self._held().release()
                self._holds = False
            for rows in self._rows.values():
                rows.plan = None
            self._rows = {}

    def __del__(self) -> None:
        if self._batch is None:
            return
        self.release()
        self._give_back(self._batch)

    def _held(self) -> _C.TableBatch:
        assert self._batch is not None
        return self._batch

    def _take(self, ids: JointIds) -> None:
        try:
            ids.give_to(self._held())
        except ValueError as error:
            raise ConfigError(f"tables {list(self.tables)}: {error}") from None
        self.num_examples = ids.num_examples

    def _count(self, is_whole: bool) -> bool:
        """Adds a look-up to the counters; True if all rows were in place. Under the lock."""
        assert_held(self._lock)
        batch = self._held()
        is_moving = any([stack.is_moving for stack in self._stacks])
        seconds, uniques = batch.take_seconds(), batch.num_unique
        absent = [] if is_whole and not is_moving else self._absent()
        for table, stack in enumerate(self._stacks):
            counters = stack.counters
            counters.seconds += seconds[table]
            counters.hits += 0 if table in absent else uniques[table]
        return not absent

    def _absent(self) -> list[int]:
        """Tables of which a row was not there, or may be on its way. Under the lock."""
        batch = self._held()
        return [
            table
            for table, num_missing in enumerate(batch.num_missing)
            if num_missing or self._stacks[table].has_pending(batch.plan(table))
        ]

    def _refuse_bad(self, batch: _C.TableBatch) -> None:
        """ConfigError if what was taken is no look-up."""
        for table, refusal in enumerate(batch.refusals):
            if not refusal:
                continue
            where = f"table {self.tables[table]!r}"
            weights = batch.weights(table)
            make_bags(torch.from_numpy(batch.offsets(table)), batch.num_keys[table], where)
            refuse_infinite_weights(weights, where)

    def _pool_again(self, table: int, places: Places, out: Floats) -> None:
        """The bags of one table, whose rows the stack brings."""
        batch, stack, dim = self._held(), self._stacks[table], places.dims[table]
        columns = places.columns[table]
        pooled: Floats = np.empty((self.num_examples, len(columns) * dim), np.float32)
        bags = batch.offsets(table), batch.weights(table), places.are_means[table]
        stack.pull_pooled(batch.keys(table), bags, pooled)
        for feature, column in enumerate(columns):
            out[:, column : column + dim] = pooled[:, feature * dim : (feature + 1) * dim]
