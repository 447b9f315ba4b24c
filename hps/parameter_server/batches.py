"""Batches: the verbs of a ParameterServer for batches in flight: pinned ahead, updated together.

Above it: ParameterServer, and through it SparseEmbedding, RowOptimizer and Pipeline; a rank of a
cluster; logged.py. Below it: tables.py, tiers/batch_rows.py, tiers/top_tier.py,
dram_cache/tier.py.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from hps import _C
from hps.common.arrays import AnyArray, OutputPool, PoolArguments, as_keys, on_host
from hps.common.locks import assert_held
from hps.common.occurrences import Occurrences
from hps.common.row_layout import Floats, Keys, Labels
from hps.contracts.admission import Gate
from hps.contracts.row_cache import ABSENT, FRESH, BatchPlan
from hps.contracts.training import Pending
from hps.contracts.updates import RowUpdate, by_table, join_updates, joined_clicks
from hps.dram_cache.tier import WarmRows
from hps.errors import BatchMemoryError, CapacityError, ConfigError
from hps.parameter_server.tables import Tables
from hps.table.waiting import records_of
from hps.tiers.batch_rows import BatchRows
from hps.tiers.top_tier import TableStack
from hps.types import PinnedRows, Pins

if TYPE_CHECKING:
    from hps.contracts.joint import JointUpdate
    from hps.parameter_server.joint_batches import JointBatches
    from hps.tiers.placed_rows import PlacedRows
    from hps.types import Ids

# Pinned rows, gradients, bags, clicks and occurrences of one table's update.
_Update = tuple[
    TableStack, BatchRows, Floats, PoolArguments | None, Labels | None, Occurrences | None
]
_NATIVE_CACHES = (_C.DramCache, _C.GpuCache)  # of the host


class Batches:
    """Pin, warm, want, apply.

    Args:
        tables: of the server; their top tiers ask here for room.
        pool: of buffers for what is gathered.
    """

    def __init__(self, tables: Tables, pool: OutputPool) -> None:
        self._tables = tables
        self._pool = pool
        self._device = tables.device
        # Of the training loop: kept here, read and written by hps.nn.gradients.
        self.pending_gradients: Pending | None = None
        for stack in tables.stacks.values():
            stack.pieces.make_room = self._make_room
        caches = [stack.cache for stack in tables.stacks.values()]
        self._has_native_caches = all(isinstance(cache, _NATIVE_CACHES) for cache in caches)
        self._joint: JointBatches | None = None
        # Of what warming asks for nothing, and of what it always asks.
        self._without_dram = {name for name, tier in tables.tiers.items() if tier.dram is None}
        self._with_records = {name for name in tables.stacks if records_of(name) in tables.tiers}

    @property
    def queued(self) -> "Batches | None":
        """As ParameterServer.queued."""
        return None if self._tables.together is None else self

    @property
    def joint(self) -> "JointBatches | None":
        """As ParameterServer.joint."""
        if self._joint is None and self._has_native_caches:
            from hps.parameter_server.joint_batches import JointBatches  # which needs torch

            self._joint = JointBatches(self._tables, self._make_room)
        return self._joint

    def count(self) -> None:
        """Brings the tables' counters up to date."""
        if self._joint is not None:
            self._joint.count()
        if self._tables.together is not None:
            self._tables.together.count()

    @property
    def num_open_pipelines(self) -> int:
        """Pipelines whose `with` block is entered."""
        return 0 if self.pending_gradients is None else len(self.pending_gradients.listeners)

    def pin(self, table: str, keys: AnyArray) -> BatchRows:
        """As ParameterServer.pin."""
        stack = self._tables.stack(table)
        stack.raise_failed(wait=False)
        array = as_keys(keys, self._device)
        return BatchRows(stack, array, keys, self._pool, self._tables.lock, self._device)

    def pinning(self, keys: Mapping[str, AnyArray]) -> dict[str, PinnedRows]:
        """As QueuedServer has it."""
        together = self._tables.together
        assert together is not None, "there is no QueuedServer"
        stacks, found = self._read_keys(keys)
        together.raise_failed()
        begun: list[BatchRows] = []
        try:
            begun = together.begin(stacks, found, list(keys.values()), self._pool)
            together.look_up(begun, found)
            together.end_look_up(begun)
            missing = together.pin_found(begun)
            if missing:
                together.bring(missing)
        except BaseException:
            self.release(begun)
            raise
        return dict(zip(keys, begun, strict=True))

    def pin_joint(self, features: "Mapping[str, Ids]", num_examples: int) -> "PlacedRows":
        """As QueuedServer has it.

        Raises:
            ConfigError: offsets that divide the keys of a table into no bags, or a weight that is
                not finite; nothing is pinned.
        """
        from hps.tiers.placed_rows import PlacedRows, poolings_of  # which needs torch

        together = self._tables.together
        assert together is not None, "there is no QueuedServer"
        poolings = poolings_of(features, self._device)
        rows = self.pinning({table: ids.keys_L for table, ids in features.items()})
        try:
            pinned = cast("dict[str, BatchRows]", rows)
            return PlacedRows(together, pinned, features, poolings, num_examples)
        except BaseException:  # an interrupt
            self.release(list(rows.values()))
            raise

    def apply_joint(
        self, update: "JointUpdate", applied: Callable[[], object] | None = None
    ) -> bool:
        """As QueuedServer has it."""
        tables, rows = self._tables, update.rows
        together = tables.together
        assert together is not None, "there is no QueuedServer"
        is_own: bool = getattr(rows, "together", None) is together
        if not is_own:
            raise ConfigError("apply: the rows given are those of another server")
        find = partial(together.find_placed, update, tables.learning_rates)
        with tables.updates:
            tables.begin_change("apply")
            return self._apply_with_room(find, applied, None)

    def _read_keys(self, keys: Mapping[str, AnyArray]) -> tuple[list[TableStack], _C.DeviceKeys]:
        """The stacks of tables, and their keys as the verbs over several tables take them."""
        tables, together = self._tables, self._tables.together
        assert together is not None
        try:
            stacks = list(map(tables.stacks.__getitem__, keys))
        except KeyError:
            stacks = [tables.stack(table) for table in keys]  # which says what is wrong
        given = list(keys.values())
        found = together.keys_of(given)
        if found is None:
            found = together.keys_of([as_keys(own, self._device) for own in given])
        assert found is not None
        return stacks, found

    def release(self, rows: Sequence[PinnedRows]) -> None:
        """As QueuedServer has it."""
        together = self._tables.together
        assert together is not None, "there is no QueuedServer"
        if together.release(rows):
            return
        together.release([one for one in rows if isinstance(one, BatchRows)])
        for one in rows:  # those of another kind
            if not one.is_released:
                one.release()

    def warming(self, keys: Mapping[str, AnyArray]) -> dict[str, Pins]:
        """As QueuedServer has it."""
        tables, together = self._tables, self._tables.together
        assert together is not None, "there is no QueuedServer"
        if self._without_dram:
            keys = {table: own for table, own in keys.items() if table not in self._without_dram}
        stacks, found = self._read_keys(keys)
        with tables.lock:
            asked = together.ask(stacks, found)
        presence, lengths, names = asked(), found.lengths, list(keys)
        # Of tables that lack no row, which are most once training is under way, nothing is asked.
        wanted = {names[at] for at in _C.find_parts(presence, lengths, ABSENT)}
        wanted |= self._with_records & keys.keys()
        if not wanted:
            return {}
        warm: dict[str, Pins] = {}
        try:
            for table, own, end, length in zip(
                names, keys.values(), accumulate(lengths), lengths, strict=True
            ):
                if table in wanted:
                    array = on_host(as_keys(own, self._device))
                    warm[table] = self._warm_missing(table, array, presence[end - length : end])
        except BaseException:
            for rows in warm.values():
                rows.release()
            raise
        return warm

    def warm(self, table: str, keys: AnyArray) -> WarmRows:
        """As ParameterServer.warm."""
        given = self._asked(table, keys)
        with self._tables.lock:
            asked = self._tables.stacks[table].ask(given)
        return self._warm_missing(table, given, asked())

    def _asked(self, table: str, keys: AnyArray) -> Keys:
        """The keys that are to be warmed, of the host; none of a table without a dram_cache."""
        self._tables.stack(table)
        array = on_host(as_keys(keys, self._device))
        return array if self._tables.tiers[table].dram is not None else array[:0]

    def _warm_missing(self, table: str, keys: Keys, found: NDArray[np.uint8]) -> WarmRows:
        """Warms those of the keys that the gpu_cache lacks, of what its `contains` has found."""
        dram = self._tables.tiers[table].dram
        if dram is None or not len(keys):
            return WarmRows(None)
        warm = dram.warm(np.unique(keys[found == ABSENT]))
        records = self._tables.tiers.get(records_of(table))
        if records is not None and records.dram is not None:
            try:
                waiting = np.setdiff1d(keys[(found == ABSENT) | (found == FRESH)], warm.keys())
                with self._tables.lock:
                    waiting = waiting[records.stack.cache.contains(waiting) == ABSENT]
                warm.beside = records.dram.warm(waiting, gives_way=True)
            except BaseException:
                warm.release()
                raise
        return warm

    def want(self, table: str, keys: AnyArray) -> None:
        """As ParameterServer.want."""
        array = on_host(as_keys(keys, self._device))
        with self._tables.lock:
            self._tables.stack(table)
            for tier in self._tables.tiers[table].caches.values():
                tier.want(array)

    def holds(self, rows: PinnedRows) -> bool:
        """As ParameterServer.holds."""
        return isinstance(rows, BatchRows) and rows.belongs_to(self._tables.stacks)

    def apply(
        self,
        updates: Sequence[RowUpdate],
        applied: Callable[[], object] | None = None,
        checked: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """As ParameterServer.apply."""
        tables = self._tables
        with tables.updates:
            tables.begin_change("apply")
            if tables.together is not None:
                find = partial(tables.together.find_bags, updates, tables.learning_rates)
                if self._apply_with_room(find, applied, checked):
                    return
            held: list[BatchRows] = []
            try:
                work = [
                    (tables.stack(table), *self._one_update(group, held))
                    for table, group in by_table(updates).items()
                ]
                work = [one for one in work if one[1].num_occurrences]
                for stack in tables.stacks.values():
                    stack.raise_failed(wait=False)
                lacking: list[tuple[Gate, BatchPlan]] = []
                while True:
                    try:
                        with tables.lock:  # one moment for those who read meanwhile
                            lacking = _gates_that_lack(work)
                            if not lacking:
                                return self._apply_now(work, applied, checked)
                    except BatchMemoryError:  # for the sums; nothing has changed
                        if checked is not None or not self._make_room():
                            raise
                    for gate, plan in lacking:
                        self._hold_gate(gate, plan)
            finally:
                tables.release_gates()
                for rows in held:
                    rows.release()

    def _apply_with_room(
        self,
        find: Callable[[], _C.DeviceBags | None],
        applied: Callable[[], object] | None,
        checked: Callable[[Callable[[], None]], object] | None,
    ) -> bool:
        """_apply_pinned; batches that wait ahead give way where there is no memory for the sums.
        (Of several ranks each would do so by itself.)"""
        while True:
            try:
                return self._apply_pinned(find, applied, checked)
            except BatchMemoryError:
                if checked is not None or not self._make_room():
                    raise

    def _apply_pinned(
        self,
        find: Callable[[], _C.DeviceBags | None],
        applied: Callable[[], object] | None,
        checked: Callable[[Callable[[], None]], object] | None,
    ) -> bool:
        """As apply, of gradients of pinned rows on a device, found under the lock; False, and
        nothing is done, if some are of another kind. Within the updates."""
        tables = self._tables
        assert_held(tables.updates)
        assert tables.together is not None
        tables.together.raise_failed()
        with tables.lock:
            bags = find()
            if bags is None:
                return False
            self._apply_bags(bags, bags.stacks, applied, checked)
            return True

    def _apply_bags(
        self,
        bags: _C.DeviceBags,
        stacks: Sequence[TableStack],
        applied: Callable[[], object] | None,
        checked: Callable[[Callable[[], None]], object] | None,
    ) -> None:
        """Sums, tries and updates all tables together. Within the updates, under the lock."""
        together = self._tables.together
        assert together is not None

        def check() -> None:
            together.sum_gradients(bags, stacks)
            for stack in stacks if checked is not None else ():
                stack.raise_failed(wait=True)

        (checked or _check)(check)
        together.apply(bags, stacks, applied)
        for stack in stacks if self._tables.num_updates else ():  # else nobody asks
            self._tables.count_update(stack.name)

    def _apply_now(
        self,
        work: Sequence[_Update],
        applied: Callable[[], object] | None,
        checked: Callable[[Callable[[], None]], object] | None,
    ) -> None:
        """Sums, checks, decides and updates. Within the updates, under the lock."""
        assert_held(self._tables.lock)
        if self._tables.together is not None:
            bags = self._tables.together.bags_of([one[:4] for one in work])
            return self._apply_bags(bags, [one[0] for one in work], applied, checked)

        def check() -> None:
            for stack, rows, grads, bags, clicks, occurrences in work:
                stack.sum_gradients(rows.held_plan(), grads, bags, clicks, occurrences)
            for stack, *_ in work if checked is not None else ():
                stack.raise_failed(wait=True)

        (checked or _check)(check)
        plans = [(stack, rows.held_plan()) for stack, rows, *_ in work]
        # By rows as they are before the step, whatever the order of the tables.
        gates = [gate for stack, plan in plans for gate in stack.deciding(plan)]
        calls = [stack.applying(plan) for stack, plan in plans]
        seconds = _C.call_all([*gates, *calls, *([applied] if applied else [])])
        for at, (stack, *_) in enumerate(work, len(gates)):
            stack.counters.seconds += seconds[at]
        for stack, *_ in work:
            self._tables.count_update(stack.name)

    def _one_update(
        self, group: list[RowUpdate], held: list[BatchRows]
    ) -> tuple[BatchRows, Floats, PoolArguments | None, Labels | None, Occurrences | None]:
        """The pinned rows, gradients, bags, clicks and occurrences of one table's updates; adds
        what it pins to `held`. Within the updates."""
        assert_held(self._tables.updates)
        table = group[0].table
        layout = self._tables.stack(table).layout
        keys, grads, pooling = join_updates(group, layout.dim, self._device)
        bags = None if pooling is None else pooling.arguments(self._device)
        clicks = joined_clicks(group) if layout.has_statistics else None
        occurrences = group[0].occurrences if layout.has_statistics else None
        assert occurrences is None or len(group) == 1, "several updates, of keys summed before"
        rows = group[0].rows
        if len(group) == 1 and rows is not None:
            is_own = self.holds(rows) and not rows.is_released and rows.table == table
            if isinstance(rows, BatchRows) and is_own and rows.are_of(keys):
                return rows, grads, bags, clicks, occurrences
            raise ConfigError(
                f"apply: the rows given for table {table!r} were released, or are those of "
                f"other keys or of another server; pass rows=None to have them looked up"
            )
        held.append(self.pin_now(table, keys))
        return held[-1], grads, bags, clicks, occurrences

    def pin_now(self, table: str, keys: AnyArray) -> BatchRows:
        """pin() for the training loop, which batches that wait ahead of it make room for."""
        while True:
            try:
                return self.pin(table, keys)
            except CapacityError:
                if not self._make_room():
                    raise

    def _hold_gate(self, gate: Gate, plan: BatchPlan) -> None:
        """Prepares a gate, for which batches that wait ahead make room."""
        while True:
            try:
                return gate.require(plan)
            except CapacityError:
                if not self._make_room():
                    raise

    def tries_updates(self, table: str) -> bool:
        """True if each step of the table is tried before it is applied, whatever its gradients."""
        with self._tables.lock:
            return self._tables.stack(table).tries_updates()

    def _make_room(self) -> bool:
        """Has open pipelines release batches that are not handed out yet; True if one did.

        Not under the lock or with a turn: a pipeline's thread may want them before it gives way.
        """
        pending = self.pending_gradients
        listeners = [] if pending is None else list(pending.listeners)
        return any([listener.give_back_ahead() for listener in listeners])


def _check(check: Callable[[], None]) -> None:
    check()


def _gates_that_lack(work: Sequence[_Update]) -> list[tuple[Gate, BatchPlan]]:
    """Those whose new keys wait by rows that are not in place, with their plans. Under the lock."""
    gates = [(stack.gate, rows.held_plan()) for stack, rows, *_ in work if stack.gate is not None]
    return [
        (gate, plan) for gate, plan in gates if not (gate.is_prepared or gate.prepare_here(plan))
    ]
