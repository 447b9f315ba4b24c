"""JointBatches: the verbs of a ParameterServer for batches of several tables at once.

Above it: ParameterServer, and through it SparseEmbeddings, RowOptimizer and Pipeline. Below it:
tables.py, tiers/joint_rows.py.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast
from weakref import WeakSet

from hps import _C
from hps.contracts.joint import JointIds, JointUpdate, Overlays, Places
from hps.errors import CapacityError, ConfigError
from hps.parameter_server.tables import Tables
from hps.tiers.joint_rows import JointBatchRows, TableGroup

if TYPE_CHECKING:
    import torch

    from hps.types import Ids


class JointBatches:
    """Look-ups, pins and steps of several tables, whose rows lie in native caches of the host.

    Args:
        tables: of the server.
        make_room: asks open pipelines to give slots back; True if one did.
    """

    def __init__(self, tables: Tables, make_room: Callable[[], bool]) -> None:
        self._tables = tables
        self._make_room = make_room
        self._groups: dict[tuple[str, ...], TableGroup] = {}
        self._in_order: dict[tuple[str, ...], tuple[str, ...]] = {}  # tables of batches, by theirs
        # Some may have been released. Guarded by the server's lock.
        self._pinned: WeakSet[JointBatchRows] = WeakSet()

    @property
    def threads(self) -> _C.ThreadPool:
        """As JointServer has it."""
        cache = next(iter(self._tables.stacks.values())).cache
        return cast("_C.DramCache", cache).threads

    def look_up(
        self,
        ids: JointIds,
        places: Places,
        out: "torch.Tensor",
        overlays: Overlays | None = None,
    ) -> JointBatchRows:
        """As JointServer has it."""
        rows = self._take(places.tables)
        rows.look_up(ids, places, out, overlays)
        return rows

    def pin(self, features: "Mapping[str, Ids]", num_examples: int) -> JointBatchRows:
        """As JointServer has it."""
        names = tuple(features)
        in_order = self._in_order.get(names)
        rows = self._take(in_order or self._order(names))
        rows.pin(features, num_examples, self._pinned)
        return rows

    def pinned(self, features: "Mapping[str, Ids]", num_examples: int) -> JointBatchRows | None:
        """As JointServer has it."""
        with self._tables.lock:
            held = list(self._pinned)
        return next((rows for rows in held if rows.lie_at(features, num_examples)), None)

    def apply(self, update: JointUpdate, applied: Callable[[], object] | None = None) -> None:
        """As JointServer has it."""
        tables, rows = self._tables, update.rows
        if not isinstance(rows, JointBatchRows) or not rows.belongs_to(tables.stacks):
            raise ConfigError("apply: the rows given are those of another server")
        with tables.updates:
            tables.begin_change("apply")
            args = update.places, update.grads, tables.learning_rates, update.clicks
            were_pinned = not rows.is_released
            pinned: set[int] = set()  # here
            try:
                while True:
                    with tables.lock:  # one moment for those who read meanwhile
                        absent, lacking = rows.step(*args, applied)
                        if not absent and not lacking:
                            if tables.num_updates:  # else nobody asks how many there were
                                for name in rows.updated():
                                    tables.count_update(name)
                            return
                    # Rows whose keys wait by others stay in place until they are updated.
                    for table in absent or ([] if were_pinned else sorted({*lacking} - pinned)):
                        self._pin_now(rows, table)
                        pinned.add(table)
                    for table in lacking:
                        self._hold_now(partial(rows.prepare_gate, table))
            finally:
                tables.release_gates()
                if not were_pinned:
                    rows.release()

    def _pin_now(self, rows: JointBatchRows, table: int) -> None:
        self._hold_now(partial(rows.pin_table, table))

    def _hold_now(self, hold: Callable[[], None]) -> None:
        """For the training loop, which batches that wait ahead of it make room for."""
        while True:
            try:
                return hold()
            except CapacityError:
                if not self._make_room():
                    raise

    def count(self) -> None:
        """Adds what was counted to the counters of the tables."""
        with self._tables.lock:
            for group in list(self._groups.values()):
                group.count()

    def _order(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The tables in the server's order, so that batches of the same ones are of one group."""
        known = self._tables.stacks
        in_order = [table for table in known if table in names]
        unknown = [table for table in names if table not in known]
        if not unknown:
            self._in_order[names] = tuple(in_order)
        return (*in_order, *unknown)

    def _take(self, tables: tuple[str, ...]) -> JointBatchRows:
        self._tables.check_open()
        group = self._groups.get(tables)
        if group is None:
            known = self._tables
            made = TableGroup([known.stack(table) for table in tables], known.stacks)
            group = self._groups.setdefault(tables, made)
        return JointBatchRows(group, self._tables.lock)
