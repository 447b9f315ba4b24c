"""Periods: the counter of periods of a store, which rows die as one begins, and what they counted.

Above it: ParameterServer, whose docstrings say what each verb promises. Below it: tables.py, which
has the period and tells the caches of it; life.py, which changes rules; batches.py;
tiers/statistics.py.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

from hps import _C
from hps.common.arrays import AnyArray, as_keys, as_numpy, like, on_host
from hps.common.expiry import Expiry
from hps.common.field_checks import require_whole
from hps.common.row_layout import Statistics
from hps.config import TableConfig
from hps.errors import ConfigError
from hps.parameter_server.batches import Batches
from hps.parameter_server.bounds import (
    DeathCounts,
    EarlyDeaths,
    find_lead,
    most_rows,
    warn_if_over,
)
from hps.parameter_server.life import RuleChange, pinned_meanwhile
from hps.parameter_server.tables import Tables
from hps.tiers.statistics import read_statistics

_DTYPES = {
    "show": np.dtype(np.float32),
    "click": np.dtype(np.float32),
    "last_period": np.dtype(np.int64),
}


class Periods:
    """The verbs of a ParameterServer for time.

    Args:
        tables: of the server.
        batches: of the server: the period stays while a pipeline is open.
    """

    def __init__(self, tables: Tables, batches: Batches) -> None:
        self._tables = tables
        self._batches = batches

    def advance(self, to: int | None, allow_empty: bool) -> int:
        """As ParameterServer.advance_period."""
        tables = self._tables
        with tables.updates:
            changed = tables.changed_rules()
            self._begin(self.check(to), changed, allow_empty=allow_empty)
            return tables.period

    # The same in parts, of which each may fail before the next is begun: over ranks.

    def count_dying(self, target: int, names: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Of tables that get the rules of their config in a period: rows that would die as it
        begins, and all, as far as they were looked at: until one lives on."""
        tables = self._tables
        with tables.updates:
            changes = self._changes(self._rules_of(names), target)
            with tables.still():
                return {name: change.num_dying() for name, change in changes.items()}

    def change_rules(self, target: int, names: Iterable[str]) -> None:
        """Rows of these tables carry their periods of death by the rules of their config, which
        hold from that period on. May be repeated, and is with the next period if this fails."""
        tables = self._tables
        with tables.updates:
            changes = self._changes(self._rules_of(names), target)
            tables.begin_change("advance_period")
            with tables.still():
                self._apply(changes)

    def count_bounded(self, target: int, names: Iterable[str] = ()) -> dict[str, DeathCounts]:
        """Of tables with bounds the rows that will live beyond a period, by their deaths, where
        these tables have the rules of their config."""
        tables = self._tables
        with tables.updates:
            rules = self._rules_with(self._rules_of(names))
            bounded = [name for name in rules if self._most(name) is not None]
            for name in bounded:
                tables.stacks[name].write_back()
            return {name: tables.store.count_deaths(name, target) for name in bounded}

    def find_early(self, target: int, counts: Mapping[str, DeathCounts]) -> dict[str, EarlyDeaths]:
        """Which rows die early, as bounds want it of these counts: of all ranks. Makes sure that
        the store can begin the period so; nothing changes."""
        tables = self._tables
        with tables.updates:
            early = {name: self._early_of(name, of_table) for name, of_table in counts.items()}
            tables.check_period(target, early)
            return early

    def advance_as(
        self, target: int, names: Iterable[str], early: Mapping[str, EarlyDeaths]
    ) -> int:
        """As `advance`, where rows of these tables have their new periods of death already, and
        it is known which rows die early."""
        with self._tables.updates:
            changed = self._rules_of(names)
            self._begin(self.check(target), changed, is_applied=True, early=early)
            return self._tables.period

    @property
    def early(self) -> dict[str, EarlyDeaths]:
        """What bounds did as the period began, by table."""
        with self._tables.updates:
            return dict(self._tables.early)

    def _rules_of(self, names: Iterable[str]) -> dict[str, Expiry | None]:
        """What the config says of tables."""
        return {name: self._tables.stored[name].expiry for name in names}

    def _rules_with(self, changed: Mapping[str, Expiry | None]) -> dict[str, Expiry]:
        """The rules by which rows die once some have changed."""
        now = {**self._tables.rules, **changed}
        return {name: expiry for name, expiry in now.items() if expiry is not None}

    def _changes(self, changed: Mapping[str, Expiry | None], target: int) -> dict[str, RuleChange]:
        """Of tables whose rows are all in the store. Within the updates."""
        stacks = self._tables.stacks
        for name in changed:
            stacks[name].write_back()
        return {name: RuleChange(stacks[name], expiry, target) for name, expiry in changed.items()}

    def _apply(self, changes: Mapping[str, RuleChange]) -> None:
        """Within the updates and `still`."""
        self._tables.unsettled |= changes.keys()
        for change in changes.values():
            change.apply(self._tables.store)

    def check(self, to: int | None) -> int:
        """The period that `advance` would begin; nothing changes. Errors as `advance`."""
        tables = self._tables
        with tables.updates, tables.lock:
            return self._target(to)

    def changed(self) -> list[str]:
        """Tables whose config has other rules than are in force."""
        with self._tables.lock:
            return list(self._tables.changed_rules())

    def begin(self, period: int, log: Callable[[], None] | None) -> None:
        """The store is at that period from now on, and rows die as before; `log`, if any, is called
        once nothing refuses it any more. Within the updates."""
        self._begin(period, {}, log=log)

    def _begin(
        self,
        target: int,
        changed: Mapping[str, Expiry | None],
        *,
        allow_empty: bool = False,
        is_applied: bool = False,
        early: Mapping[str, EarlyDeaths] | None = None,
        log: Callable[[], None] | None = None,
    ) -> None:
        """Begins a period with other rules of some tables, which their rows carry already if they
        are applied; None for what dies early finds it out. Within the updates."""
        tables = self._tables
        tables.begin_change("advance_period")
        mortal = {*changed, *tables.rules} & tables.stacks.keys()
        # So that a row that dies is the same in all tiers, and no cache has the only image.
        for name in mortal:
            tables.stacks[name].write_back()
        changes = self._changes({} if is_applied else changed, target)
        with tables.still():
            for name, change in changes.items():  # all are looked at before any row changes
                if name in tables.configs and not allow_empty:  # of keys that wait no row goes
                    refuse_emptied(tables.configs[name], *change.num_dying())
            self._apply(changes)
            rules = self._rules_with(changed)
            if early is None:
                early = self._early_deaths(target, rules.keys() & mortal, allow_empty)
            if log is not None:
                with tables.lock:
                    self._refuse_pinned(mortal)
                tables.check_period(target, early)
                log()
            with tables.lock:
                self._refuse_pinned(mortal)
                tables.begin_period(target, rules, early)

    def _refuse_pinned(self, mortal: Collection[str]) -> None:
        """Of pins that may have come since it was checked. Under the lock."""
        if mortal and (pins := self._tables.pins):
            raise pinned_meanwhile(pins)

    def _most(self, table: str) -> int | None:
        """How many rows this store may have of a table as a period begins."""
        config = self._tables.configs.get(table)
        return None if config is None else most_rows(config, self._tables.num_shards)

    def _early_deaths(
        self, target: int, names: Iterable[str], allow_empty: bool
    ) -> dict[str, EarlyDeaths]:
        """What bounds want of tables whose rows are all in the store, by the rules of the period.
        Within `still`, so that none changes before it begins."""
        count = self._tables.store.count_deaths
        bounded = [name for name in names if self._most(name) is not None]
        return {name: self._early_of(name, count(name, target), allow_empty) for name in bounded}

    def _early_of(self, table: str, counts: DeathCounts, allow_empty: bool = False) -> EarlyDeaths:
        """What the bound of a table wants of these counts."""
        most = self._most(table)
        assert most is not None, "a bound"
        early = find_lead(counts, most, allow_empty)
        num_left = int(counts.sum()) - early.rows
        warn_if_over(table, num_left, most, num_left > int(counts[0]))
        return early

    def _target(self, to: int | None) -> int:
        """The period to begin, if it may begin now. Under the lock."""
        tables = self._tables
        tables.check_writable("advance_period")
        now = tables.period
        if to is not None:
            require_whole("advance_period: to", to, 0, _C.MAX_PERIOD)
            if to <= now:
                raise ConfigError(
                    f"advance_period(to={to}): the store is at period {now}, and periods only "
                    f"go forward; restore a checkpoint to go back"
                )
        elif now == _C.MAX_PERIOD:
            raise ConfigError(f"advance_period: period {now} is the last one")
        num_open, pins = self._batches.num_open_pipelines, tables.pins
        may_die = tables.rules or tables.changed_rules()
        if num_open or (pins and may_die):
            raise ConfigError(
                f"advance_period: {num_open} open pipeline(s) and {pins} pins of batches in "
                "flight; leave the pipeline's `with` block, and end or drop the step, first"
            )
        for stack in tables.stacks.values():
            stack.raise_failed(wait=True)
        return now + 1 if to is None else int(to)

    def statistics(self, table: str, keys: AnyArray) -> dict[str, AnyArray]:
        """As ParameterServer.statistics."""
        tables = self._tables
        with tables.lock:
            stack = tables.stack(table)
            refuse_uncounted(tables.configs[table], "statistics")
            array = on_host(as_keys(keys, tables.device))
        stack.raise_failed(wait=True)
        found, dies_at = read_statistics(stack, array)
        parts = {**found._asdict(), "dies_at": dies_at}
        return {name: like(part, keys) for name, part in parts.items()}


def refuse_emptied(table: TableConfig, num_dying: int, num_rows: int) -> None:
    """Raises ConfigError if all rows of a table would die at once by its new rules."""
    if num_rows and num_dying == num_rows:
        raise ConfigError(
            f"advance_period: by the new rules of table {table.name!r}, {table.expiry!r}, all "
            f"{num_rows} rows would die at once; `hps expire --dry-run` tells of other rules "
            "(TableConfig.expiry; --expire-unseen and --expire-below of `hps train`), and "
            "advance_period(allow_empty=True) of hps.ParameterServer goes on"
        )


def refuse_uncounted(table: TableConfig, what: str) -> None:
    """Raises ConfigError if the rows of a table have no statistics."""
    if not table.statistics:
        raise ConfigError(
            f"{what}: table {table.name!r} has no statistics; a new store has them with "
            "TableConfig(statistics=True)"
        )


def as_statistics(given: Mapping[str, AnyArray], num_rows: int) -> Statistics:
    """Statistics [num_rows] as ParameterServer.statistics gives them; dies_at does not count.

    Raises:
        ConfigError: an array is missing, or of another dtype or shape.
    """
    parts = []
    for name, dtype in _DTYPES.items():
        if name not in given:
            raise ConfigError(
                f"statistics has {sorted(given)}; {sorted(_DTYPES)} are needed, as statistics() "
                "of a server gives them"
            )
        array = as_numpy(given[name], f"statistics[{name!r}]")
        if array.dtype != dtype or array.shape != (num_rows,):
            raise ConfigError(
                f"statistics[{name!r}] is {array.dtype} {list(array.shape)}; {dtype} [{num_rows}] "
                "is needed"
            )
        parts.append(array)
    return Statistics(*parts)
