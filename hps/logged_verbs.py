"""LoggedVerbs: what a ParameterServer does for the update log of a service.

Above it: parameter_server.py, which is one; hps/service/shard.py and update_log/replay.py, which
hand mutations in. Below it: update_log/history.py, table_stack.py.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from hps import checkpoint as cut
from hps.batch_verbs import BatchVerbs
from hps.errors import ConfigError, MismatchError
from hps.ssd_store import TableSchema
from hps.update_log import History, Kind, Mutation, OpenLog, ServedCut, replay
from hps.update_log.served_tables import tables_now

if TYPE_CHECKING:
    from hps.config import TableConfig
    from hps.table_stack import TableStack


def _log_nothing() -> None:
    """Where the log has the mutation already."""


class LoggedVerbs(BatchVerbs):
    """Opening with a log, and mutations that are logged; its fields are set by ParameterServer."""

    def change(self, mutation: Mutation, log: Callable[[], None] = _log_nothing) -> Any:
        """Applies one mutation whole, at its own learning rate.

        Args:
            mutation: its arrays are checked for shape and dtype, the table for being there.
            log: called once nothing can refuse the mutation any more, and before a row changes. Its
                rows are held in their slots all at once then. Without it they are worked off in
                pieces, with the same result.

        Returns:
            Of a CREATE float32 [L, dim], of an ERASE bool [L], else None.

        Raises:
            CapacityError, NonFiniteError: nothing was logged and no row has changed.
            StoreError: as those; but an ERASE may have been logged.
        """
        with self._updates:
            stack = self._stack(mutation.table)
            self._begin_change(mutation.kind.name.lower())
            with self._rate(mutation.table, mutation.lr):
                if log is _log_nothing or not len(mutation.keys):
                    log()
                    return self._change_in_pieces(stack, mutation)
                if mutation.kind == Kind.ERASE:
                    log()
                    return stack.erase(mutation.keys)
                if mutation.kind == Kind.PUSH:
                    stack.push_logged(mutation.keys, mutation.floats, log)
                    return None
                with self.pin(mutation.table, mutation.keys):
                    log()  # all that follows finds its rows in their slots
                    return self._change_in_pieces(stack, mutation)

    def _change_in_pieces(self, stack: "TableStack", mutation: Mutation) -> Any:
        keys = mutation.keys
        if mutation.kind == Kind.ERASE:
            return stack.erase(keys)
        if mutation.kind == Kind.CREATE:
            rows = np.empty((len(keys), stack.layout.dim), np.float32)
            if len(keys):
                stack.create(keys, rows)
            return rows
        if len(keys) and mutation.kind == Kind.PUSH:
            stack.push(keys, mutation.floats)
            stack.raise_failed(wait=True)
        elif len(keys):
            stack.assign(keys, mutation.floats, mutation.state)
        return None

    @contextmanager
    def _rate(self, table: str, lr: float) -> Iterator[None]:
        """The table's learning rate for one mutation; within the updates."""
        before = self.learning_rates[table]
        self.learning_rates[table] = lr
        try:
            yield
        finally:
            self.learning_rates[table] = before

    def check_rate(self, table: str, lr: float | None) -> float:
        """The learning rate to apply: the table's if none is given.

        Raises:
            ConfigError: no such table; a rate with which its optimizer cannot work.
        """
        self._stack(table)
        if lr is None:
            return self.learning_rates[table]
        optimizer = self.tables[table].optimizer
        numbers = {**vars(optimizer), "lr": lr}
        return type(optimizer)(**numbers).lr

    def check_new_table(self, table: "TableConfig") -> None:
        """Makes sure that the store can take a table that it does not serve yet.

        Raises:
            MismatchError: it holds one of that name with other numbers, which a crash left half
                made.
        """
        stored, asked = self._store.schemas.get(table.name), TableSchema.of(table)
        for part in ("dim", "optimizer", "initializer", "numbers"):
            old, new = getattr(stored or asked, part), getattr(asked, part)
            if old != new:
                raise MismatchError(
                    f"create_table({table.name!r}): the store has begun a table of that name, and "
                    f"its {part} is {old!r}, asked is {new!r}; use another name, or ask for that"
                )

    # Opening.

    @property
    def history(self) -> History | None:
        """What the store holds of a service's mutations; None if it was never served."""
        return self._history

    def begin_history(self, index: int | None, count: int | None, open_log: OpenLog) -> History:
        """Starts the history of a store that has none; its log is open.

        Raises:
            StoreError: the system refused. CorruptionError: the checkpoint is damaged.
        """
        with self._updates:
            self._check_writable("begin_history")
            if self._history is not None:
                raise ConfigError(f"{self.config.path} is served already")
            extras = self._store.extras(None)
            history = History.begin(self._store, index, count, ServedCut.of(extras))
            history.open_log(open_log)
            self._history = history
            return history

    def _find_history(self) -> None:
        """Right behind the store's opening: a restore that was cut short is brought to its end."""
        self._history = None
        if not self._is_read_only:
            self._history = History.find(self._store)

    def _replay_log(self, open_log: OpenLog, keeps_log: bool) -> None:
        """Applies what the log holds beyond the checkpoint."""
        history = self._history
        if history is None:
            return
        log = history.open_log(open_log)
        try:
            described = tables_now(self._store.extras(None), history.epoch)
            tables = [cut.table_from_json(value) for value in described]
            history.num_replayed = replay(self, history, log, tables)
        except BaseException:
            history.close_log()
            raise
        if not keeps_log:
            history.close_log()
