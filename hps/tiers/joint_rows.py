"""JointBatchRows: the rows of one batch of several tables, looked up or pinned in one native call.

Above it: parameter_server/joint_batches.py. Below it: `hps._C.TableBatch`, and of each table its
TableStack, which brings the rows that are not in its cache.
"""

from collections import deque
from collections.abc import Callable, Mapping, MutableSet, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from hps import _C
from hps.common.arrays import OutputPool
from hps.common.bags import BagPooling, clicks_of_bags, make_bags, refuse_infinite_weights
from hps.common.locks import OwnedLock, assert_held
from hps.common.row_layout import Floats, Keys, Labels
from hps.contracts.admission import Gate
from hps.contracts.joint import JointIds, KeptIds, KeysByTable, Overlays, Places
from hps.contracts.updates import RowUpdate
from hps.errors import ConfigError
from hps.tiers.batch_rows import BatchRows

if TYPE_CHECKING:
    from hps.tiers.top_tier import TableStack
    from hps.types import Ids, PinnedRows

_MAX_IDLE = 16  # batches whose memory is kept


class TableGroup:
    """Tables that are looked up together, and the native batches over them.

    Args:
        stacks: of the tables; their caches are native.
        all_stacks: of the server, by table.
    """

    def __init__(
        self, stacks: "Sequence[TableStack]", all_stacks: "Mapping[str, TableStack]"
    ) -> None:
        self.all_stacks = all_stacks
        self.tables = tuple(stack.name for stack in stacks)
        self.stacks = tuple(stacks)
        # Of the tables whose keys may wait, with their numbers.
        gates = [(table, stack.gate) for table, stack in enumerate(stacks)]
        self.gates = [(table, gate) for table, gate in gates if gate is not None]
        self._counts = _C.TableCounts(len(stacks))
        for table, stack in enumerate(stacks):
            stack.joint_counts.append((self._counts, table))
        self._movers = stacks[0].movers if stacks else set()
        self.model = torch.empty(0)  # results of one table alone are tensors, too
        self.outputs = OutputPool()
        # Those that nobody uses, youngest last. Each step on a deque is whole by itself, for a
        # collector may give one back at any time.
        self._idle: deque[_C.TableBatch] = deque(maxlen=_MAX_IDLE)

    @property
    def is_moving(self) -> bool:
        """True while rows of one of the tables are on their way."""
        return bool(self._movers) and any(stack.is_moving for stack in self.stacks)

    def take(self) -> _C.TableBatch:
        """A batch for one caller."""
        try:
            return self._idle.pop()
        except IndexError:
            caches = [stack.cache for stack in self.stacks]
            return _C.TableBatch(cast("list[_C.DramCache]", caches), self._counts, self.tables)

    def give(self, batch: _C.TableBatch) -> None:
        """Nobody uses it any more."""
        self._idle.append(batch)

    def count(self) -> None:
        """Adds what the batches have counted to the counters of the tables. Under the lock."""
        for stack, (hits, seconds) in zip(self.stacks, self._counts.take(), strict=True):
            stack.counters.hits += hits
            stack.counters.seconds += seconds


class JointBatchRows:
    """The rows of one batch, of the keys of several tables.

    Args:
        group: of the tables.
        lock: the server's.
    """

    # What an interrupted __init__ leaves.
    _batch: _C.TableBatch | None = None

    def __init__(self, group: TableGroup, lock: OwnedLock) -> None:
        self.tables = group.tables
        self.num_examples = 0
        self._group = group
        self._stacks = group.stacks
        self._lock = lock
        # All below are guarded by the lock.
        self._holds = False  # slots may be pinned
        self._is_whole = False  # all are
        self._pinned: KeptIds | None = None  # what was
        self._given_up: set[str] = set()  # tables whose pins were dropped before the others'
        self._batch = group.take()

    def look_up(
        self, ids: JointIds, places: Places, out: torch.Tensor, overlays: Overlays | None = None
    ) -> None:
        """Bags of `ids` to their places in out [B, width], float32 or bfloat16; the rows are not
        pinned.

        Args:
            overlays: by table, rows that are read in place of its own.

        Raises:
            ConfigError: offsets that do not rise, or a weight that is not finite.
            StoreError, CorruptionError: a row could not be read.
        """
        batch = self._held()
        with self._lock:
            try:
                ids.give_to(batch)
                is_whole = batch.pull(places.native, out)
            except ValueError as error:
                raise self._refused(error) from None
            self.num_examples = ids.num_examples
            absent = self._absent(is_whole)
        for table in absent:
            self._pool_again(table, places, out)
        if overlays:
            self._lay_over(overlays, places, out)

    def pin(
        self,
        features: "Mapping[str, Ids]",
        num_examples: int,
        pinned: "MutableSet[JointBatchRows]",
    ) -> None:
        """Fetches the rows of a batch, by table, and pins them.

        Args:
            pinned: to which these rows are added; the lock guards it.

        Raises:
            CapacityError: the cache of a table cannot hold its rows at once; nothing is pinned.
            ConfigError, StoreError, CorruptionError: as look_up; nothing is pinned.
        """
        batch = self._held()
        self._pinned = KeptIds(features, num_examples)
        ids = KeysByTable([features[table] for table in self.tables], num_examples)
        try:
            with self._lock:
                pinned.add(self)
                try:
                    ids.give_to(batch)
                except ValueError as error:
                    raise self._refused(error) from None
                self.num_examples = num_examples
                for stack in self._stacks:  # before anything is: an erase may come at any time
                    stack.hold(self)
                self._holds = True
                absent = self._absent(batch.hold())
                for table in absent:  # its rows may be on their way
                    self._stacks[table].unpin(batch.plan(table))
            for table in absent:
                self._stacks[table].pin(batch.plan(table))
            self._is_whole = True
        except BaseException:
            self.release()
            raise

    def belongs_to(self, stacks: "Mapping[str, TableStack]") -> bool:
        """True if the rows lie in a server's stacks (by table), not in another server's."""
        return self._group.all_stacks is stacks

    def are_of(self, features: "Mapping[str, Ids]", num_examples: int) -> bool:
        """As JointRows has it."""
        pinned = self._pinned
        return self._is_whole and pinned is not None and pinned.are(features, num_examples)

    def lie_at(self, features: "Mapping[str, Ids]", num_examples: int) -> bool:
        """As `are_of`, of tensors that lie where those lie that were pinned."""
        pinned = self._pinned
        return self._is_whole and pinned is not None and pinned.lie_at(features, num_examples)

    def step(
        self,
        places: Places,
        grads: torch.Tensor,
        rates: dict[str, float],
        clicks: Labels | None,
        applied: Callable[[], object] | None,
    ) -> tuple[list[int], list[int]]:
        """One optimizer step of all tables, with gradients [B, width], float32 or bfloat16, summed
        by key; counts, where rows do, with clicks [B] of the examples. Looks up again before what
        may have moved. Under the lock.

        Args:
            rates: of the tables, by name.
            applied: called as soon as rows have changed, and no interrupt comes between.

        Returns:
            The tables of which a row is not in place, and those whose new keys wait by rows that
            are not; if there are any, no row has changed.

        Raises:
            NonFiniteError: a sum, or what the step would make of its row, is NaN or infinite.
        """
        assert_held(self._lock)
        batch, group = self._held(), self._group
        deciding = None
        if group.gates or group.is_moving:
            absent = self._absent(batch.find())
            lacking = [] if absent else self._gates_that_lack()
            if absent or lacking:
                return absent, lacking
            deciding = self._deciding
        bad = batch.step(places.native, grads, rates, clicks, deciding, applied)
        if bad is None:
            return self._absent(False), []
        table, culprit = bad
        if table >= 0:
            self._stacks[table].refuse_non_finite(batch.plan(table), culprit)
        return [], []

    def pin_table(self, table: int) -> None:
        """Fetches and pins the rows of one table, until `release`. Without the lock."""
        self._holds = True
        self._given_up.discard(self.tables[table])
        self._stacks[table].pin(self._held().plan(table))

    def _gates_that_lack(self) -> list[int]:
        """The tables whose new keys wait by rows that are not in place."""
        batch = self._held()
        return [
            table
            for table, gate in self._gates()
            if not gate.is_prepared and not gate.prepare_here(batch.plan(table))
        ]

    def prepare_gate(self, table: int) -> None:
        """Holds what the new keys of a table wait by; the table's rows are pinned.

        Raises:
            CapacityError: it cannot be held at once.
        """
        gate = self._stacks[table].gate
        assert gate is not None
        gate.require(self._held().plan(table))

    def _gates(self) -> list[tuple[int, Gate]]:
        """Of the tables that have one, and keys in the batch."""
        gates = self._group.gates
        if not gates:
            return gates
        num_keys = self._held().num_keys
        return [(table, gate) for table, gate in gates if num_keys[table]]

    def updated(self) -> list[str]:
        """The tables that the batch has keys of. Under the lock."""
        num_keys = self._held().num_keys
        return [table for table, count in zip(self.tables, num_keys, strict=True) if count]

    def _deciding(self) -> list[Callable[[], None]]:
        """To be called right before rows change, of gates that have prepared."""
        batch = self._held()
        return [gate.deciding(batch.plan(table)) for table, gate in self._gates()]

    def pool(self, places: Places, out: torch.Tensor) -> None:
        """As JointRows has it."""
        batch = self._held()
        with self._lock:
            if self.is_released:
                raise ConfigError(f"the rows of this batch of {list(self.tables)} were released")
            batch.pool(places.native, out)

    def of_tables(self) -> "Mapping[str, PinnedRows]":
        """As JointRows has it."""
        batch, group = self._held(), self._group
        with self._lock:
            return {
                stack.name: BatchRows.part_of(
                    self, stack, batch.plan(table), group.model, group.outputs, self._lock
                )
                for table, stack in enumerate(self._stacks)
            }

    @property
    def is_released(self) -> bool:
        """As JointRows has it."""
        return not self._is_whole

    def pinned_keys(self, table: str) -> Keys:
        """As HoldsRows has it. Under the lock."""
        assert_held(self._lock)
        if not self._holds or table in self._given_up:
            return np.empty(0, np.uint64)
        return self._held().plan(self.tables.index(table)).unique_keys

    def release_table(self, table: str) -> None:
        """Drops the pins of one table. Under the lock."""
        assert_held(self._lock)
        if self._holds:
            self._is_whole = False
            place = self.tables.index(table)
            self._stacks[place].unpin(self._held().plan(place))
            self._given_up.add(table)

    def updates(
        self, places: Places, grads: torch.Tensor, clicks: Labels | None
    ) -> list[RowUpdate]:
        """As JointRows has it."""
        batch, found = self._held(), []
        of_tables = {} if self.is_released else self.of_tables()
        for table, name in enumerate(self.tables):
            dim, columns = places.dims[table], places.columns[table]
            by_feature = [grads[:, column : column + dim] for column in columns]
            keys, offsets, weights = batch.keys(table), batch.offsets(table), batch.weights(table)
            bags = make_bags(torch.from_numpy(offsets), len(keys), f"table {name!r}")
            factors = None if weights is None else torch.from_numpy(weights)
            # Where bags are single, a bag's gradient is its occurrence's.
            is_plain = bags.are_single and factors is None
            pooling = None if is_plain else BagPooling(bags, factors, places.are_means[table])
            own = clicks if self._stacks[table].layout.has_statistics else None
            found.append(
                RowUpdate(
                    name,
                    torch.from_numpy(keys.view(np.int64)),
                    torch.cat(by_feature).float(),
                    of_tables.get(name),
                    pooling,
                    None if own is None else clicks_of_bags(own, offsets),
                )
            )
        return found

    def release(self) -> None:
        """As JointRows has it. Also what `pin_table` has pinned."""
        with self._lock:
            self._is_whole = False
            self._pinned = None
            if self._holds:
                self._held().release()
                self._holds = False

    def __del__(self) -> None:
        if self._batch is None:
            return
        self.release()
        self._group.give(self._batch)

    def _held(self) -> _C.TableBatch:
        assert self._batch is not None
        return self._batch

    def _refused(self, error: ValueError) -> ConfigError:
        return ConfigError(f"tables {list(self.tables)}: {error}")

    def _absent(self, is_whole: bool) -> list[int]:
        """Tables of which a look-up did not find each row, or one that may be on its way. Under
        the lock.

        Raises:
            ConfigError: what was to be looked up has no sense.
        """
        assert_held(self._lock)
        if is_whole and not self._group.is_moving:
            return []
        batch = self._held()
        self._refuse_bad(batch)
        absent = [
            table
            for table, num_missing in enumerate(batch.num_missing)
            if num_missing or self._stacks[table].has_pending(batch.plan(table))
        ]
        for table in absent:  # the stack counts them again
            batch.take_back_hits(table)
        return absent

    def _refuse_bad(self, batch: _C.TableBatch) -> None:
        """ConfigError if what was taken is no look-up."""
        for table, is_refused in enumerate(batch.are_refused):
            if not is_refused:
                continue
            where = f"table {self.tables[table]!r}"
            weights = batch.weights(table)
            make_bags(torch.from_numpy(batch.offsets(table)), batch.num_keys[table], where)
            refuse_infinite_weights(weights, where)
            raise ConfigError(f"{where}: these keys, offsets and weights are no bags")

    def _lay_over(self, overlays: Overlays, places: Places, out: torch.Tensor) -> None:
        """Overlays over what was pooled. Without the lock: neither they nor the batch change."""
        batch, laid = self._held(), [overlays.get(name) for name in self.tables]
        for table in batch.lay_over(laid, places.native, out):
            keys = batch.keys(table)
            values: Floats = np.empty((len(keys), places.dims[table]), np.float32)
            self._stacks[table].pull(keys, values)
            batch.pool_over(table, overlays[self.tables[table]], values, places.native, out)

    def _pool_again(self, table: int, places: Places, out: torch.Tensor) -> None:
        """The bags of one table, whose rows the stack brings."""
        batch, stack, dim = self._held(), self._stacks[table], places.dims[table]
        columns = places.columns[table]
        pooled: Floats = np.empty((self.num_examples, len(columns) * dim), np.float32)
        bags = batch.offsets(table), batch.weights(table), places.are_means[table]
        stack.pull_pooled(batch.keys(table), bags, pooled)
        values = torch.from_numpy(pooled)
        for feature, column in enumerate(columns):
            out[:, column : column + dim] = values[:, feature * dim : (feature + 1) * dim]
