"""LoggedMutations: mutations that come with a record in the update log of a service.

Above it: hps/service/shard and update_log/replay.py, which hand mutations in. Below it: tables.py,
batches.py, tiers/top_tier.py.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from hps.common.arrays import HostArray
from hps.common.locks import assert_held
from hps.common.occurrences import Occurrences
from hps.config import TableConfig
from hps.errors import MismatchError
from hps.parameter_server.batches import Batches
from hps.parameter_server.erasing import erase_rows, refuse_unscored
from hps.parameter_server.periods import Periods
from hps.parameter_server.tables import Tables
from hps.ssd_store import TableSchema
from hps.tiers.top_tier import TableStack
from hps.update_log import Kind, Mutation


def _occurrences_of(stack: TableStack, mutation: Mutation) -> Occurrences | None:
    """What the keys of a push stand for, where the table counts."""
    return mutation.occurrences if stack.layout.has_statistics else None


def _log_nothing() -> None:
    """Where the log has the mutation already."""


class LoggedMutations:
    """Applies mutations, each at its own learning rate.

    Args:
        tables: of the server.
        batches: of the server, which pins what is changed in several steps.
        periods: of the server.
    """

    def __init__(self, tables: Tables, batches: Batches, periods: Periods) -> None:
        self._tables = tables
        self._batches = batches
        self._periods = periods

    @property
    def tables(self) -> Mapping[str, TableConfig]:
        """Those that the server names."""
        return self._tables.configs

    def change(
        self, mutation: Mutation, log: Callable[[], None] = _log_nothing
    ) -> HostArray | None:
        """Applies one mutation whole, at its own learning rate.

        Args:
            mutation: its arrays are checked for shape and dtype, the table for being there.
            log: called once nothing can refuse the mutation any more, and before a row changes. Its
                rows are held in their slots all at once then. Without it they are worked off in
                pieces, with the same result.

        Returns:
            Of a CREATE float32 [L, dim], of an ERASE bool [L], of an ERASE_WHERE int64 [1], the
            number of rows that went; else None.

        Raises:
            CapacityError, NonFiniteError: nothing was logged and no row has changed.
            StoreError: as those; but an ERASE, or ERASE_WHERE, may have been logged.
            ConfigError: rows do not have what an ERASE_WHERE asks for; nothing was logged.
        """
        tables = self._tables
        with tables.updates:
            if mutation.kind == Kind.PERIOD:
                tables.begin_change("advance_period")
                if mutation.period > tables.period:
                    self._periods.begin(mutation.period, None if log is _log_nothing else log)
                else:
                    log()
                return None
            stack = tables.stack(mutation.table)
            if mutation.kind == Kind.ERASE_WHERE:
                return self._erase_where(mutation, log)
            tables.begin_change(mutation.kind.name.lower())
            with self._rate(mutation.table, mutation.lr):
                if log is _log_nothing or not len(mutation.keys):
                    log()
                    return self._change_in_pieces(stack, mutation)
                if mutation.kind == Kind.ERASE:
                    log()
                    return stack.erase(mutation.keys)
                if mutation.kind == Kind.PUSH:
                    counted = _occurrences_of(stack, mutation)
                    stack.push_logged(mutation.keys, mutation.floats, log, counted)
                    tables.count_update(mutation.table)
                    return None
                with self._batches.pin(mutation.table, mutation.keys):
                    log()  # all that follows finds its rows in their slots
                    return self._change_in_pieces(stack, mutation)

    def _erase_where(self, mutation: Mutation, log: Callable[[], None]) -> HostArray:
        """Within the updates. Which rows go follows from the changes before it, so that a replay
        erases the same."""
        tables, name, where = self._tables, mutation.table, mutation.where
        assert_held(tables.updates)
        assert where is not None, "a predicate"
        refuse_unscored(tables.configs[name], tables.rules.get(name), where)
        tables.begin_change("erase")
        return np.array([erase_rows(tables, name, where, log=log)], np.int64)

    def _change_in_pieces(self, stack: TableStack, mutation: Mutation) -> HostArray | None:
        """Within the updates."""
        assert_held(self._tables.updates)
        keys = mutation.keys
        if mutation.kind == Kind.ERASE:
            return stack.erase(keys)
        if mutation.kind == Kind.CREATE:
            rows = np.empty((len(keys), stack.layout.dim), np.float32)
            if len(keys):
                stack.create(keys, rows)
            return rows
        if len(keys) and mutation.kind == Kind.PUSH:
            stack.push(keys, mutation.floats, None, _occurrences_of(stack, mutation))
            self._tables.count_update(mutation.table)
            stack.raise_failed(wait=True)
        elif len(keys):
            stack.assign(keys, mutation.floats, mutation.state, mutation.statistics)
        return None

    @contextmanager
    def _rate(self, table: str, lr: float) -> Iterator[None]:
        """The table's learning rate for one mutation; within the updates."""
        assert_held(self._tables.updates)
        rates = self._tables.learning_rates
        before = rates[table]
        rates[table] = lr
        try:
            yield
        finally:
            rates[table] = before

    def check_rate(self, table: str, lr: float | None) -> float:
        """The learning rate to apply: the table's if none is given.

        Raises:
            ConfigError: no such table; a rate with which its optimizer cannot work.
        """
        self._tables.stack(table)
        if lr is None:
            return self._tables.learning_rates[table]
        optimizer = self._tables.configs[table].optimizer
        numbers = {**vars(optimizer), "lr": lr}
        return type(optimizer)(**numbers).lr

    def check_new_table(self, table: TableConfig) -> None:
        """Makes sure that the store can take a table that it does not serve yet.

        Raises:
            MismatchError: it holds one of that name with other numbers, which a crash left half
                made.
        """
        stored, asked = self._tables.store.schemas.get(table.name), TableSchema.of(table)
        for part in ("dim", "dtype", "optimizer", "statistics", "initializer", "numbers"):
            old, new = getattr(stored or asked, part), getattr(asked, part)
            if old != new:
                raise MismatchError(
                    f"create_table({table.name!r}): the store has begun a table of that name, and "
                    f"its {part} is {old!r}, requested is {new!r}; use "
                    "another name, or the stored one"
                )
