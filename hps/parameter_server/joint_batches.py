"""JointBatches: the verbs of a ParameterServer for batches of several tables at once.

Above it: ParameterServer, and through it SparseEmbeddings, RowOptimizer and Pipeline. Below it:
tables.py, tiers/joint_rows.py.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from hps import _C
from hps.contracts.joint import JointIds, JointUpdate, Places
from hps.errors import CapacityError, ConfigError
from hps.parameter_server.tables import Tables
from hps.tiers.joint_rows import JointBatchRows

if TYPE_CHECKING:
    import torch

_MAX_IDLE = 16  # batches whose memory is kept


class JointBatches:
    """Look-ups, pins and steps of several tables, whose rows lie in native caches of the host.

    Args:
        tables: of the server.
        make_room: asks open pipelines to give slots back; True if one did.
    """

    def __init__(self, tables: Tables, make_room: Callable[[], bool]) -> None:
        self._tables = tables
        self._make_room = make_room
        # Batches that nobody uses now, by their tables, youngest last. Each step on a deque is
        # whole by itself, for a collector may give one back at any time.
        self._idle: dict[tuple[str, ...], deque[_C.TableBatch]] = {}

    def look_up(self, ids: JointIds, places: Places, out: "torch.Tensor") -> JointBatchRows:
        """As JointServer has it."""
        rows = self._take(places.tables)
        rows.look_up(ids, places, out)
        return rows

    def pin(self, ids: JointIds, tables: Sequence[str]) -> JointBatchRows:
        """As JointServer has it."""
        rows = self._take(tuple(tables))
        rows.pin(ids)
        return rows

    def apply(self, update: JointUpdate, applied: Callable[[], object] | None = None) -> None:
        """As JointServer has it."""
        tables, rows = self._tables, update.rows
        if not isinstance(rows, JointBatchRows) or not rows.belongs_to(tables.stacks):
            raise ConfigError("apply: the rows given are those of another server")
        with tables.updates:
            tables.begin_change("apply")
            rates = [tables.learning_rates[table] for table in rows.tables]
            were_pinned = not rows.is_released
            try:
                while True:
                    with tables.lock:  # one moment for those who read meanwhile
                        absent = rows.find()
                        if not absent:
                            rows.sum(update.places, update.grads, rates)
                            calls = [rows.applying(rates), *([applied] if applied else [])]
                            _C.call_all(calls)
                            return
                    for table in absent:
                        self._pin_now(rows, table)
            finally:
                if not were_pinned:
                    rows.release()

    def _pin_now(self, rows: JointBatchRows, table: int) -> None:
        """For the training loop, which batches that wait ahead of it make room for."""
        while True:
            try:
                return rows.pin_table(table)
            except CapacityError:
                if not self._make_room():
                    raise

    def _take(self, tables: tuple[str, ...]) -> JointBatchRows:
        idle = self._idle.setdefault(tables, deque(maxlen=_MAX_IDLE))
        stacks = [self._tables.stack(table) for table in tables]
        try:
            batch = idle.pop()
        except IndexError:
            batch = _C.TableBatch([cast("_C.DramCache", stack.cache) for stack in stacks])
        return JointBatchRows(stacks, batch, self._tables.lock, idle.append)
