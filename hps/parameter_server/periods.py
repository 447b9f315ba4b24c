"""Periods: the counter of periods of a store, which rows die as one begins, and what they counted.

Above it: ParameterServer, whose docstrings say what each verb promises. Below it: tables.py, which
has the period and tells the caches of it; life.py, which changes rules; batches.py;
tiers/statistics.py.
"""

from collections.abc import Iterable, Mapping

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
            self._begin(self.check(to), tables.changed_rules(), allow_empty)
            return tables.period

    def count_bounded(self, target: int) -> dict[str, DeathCounts]:
        """Of tables with bounds the rows that will live beyond a period, by their deaths."""
        tables = self._tables
        with tables.updates:
            names = [name for name in tables.rules if self._most(name) is not None]
            for name in names:
                tables.stacks[name].write_back()
            return {name: tables.store.count_deaths(name, target) for name in names}

    def advance_as(self, target: int, counts: Mapping[str, DeathCounts]) -> int:
        """As `advance`, where rows die early as bounds want it of these counts: of all ranks."""
        with self._tables.updates:
            self._begin(self.check(target), {}, allow_empty=False, counts=counts)
            return self._tables.period

    def check(self, to: int | None) -> int:
        """The period that `advance` would begin; nothing changes. Errors as `advance`."""
        tables = self._tables
        with tables.updates, tables.lock:
            return self._target(to)

    def changed(self) -> list[str]:
        """Tables whose config has other rules than are in force."""
        with self._tables.lock:
            return list(self._tables.changed_rules())

    def begin(self, period: int) -> None:
        """The store is at that period from now on, and rows die as before. Within the updates."""
        self._begin(period, {}, allow_empty=False)

    def _begin(
        self,
        target: int,
        changed: Mapping[str, Expiry | None],
        allow_empty: bool,
        counts: Mapping[str, DeathCounts] | None = None,
    ) -> None:
        """Begins a period with other rules of some tables. Within the updates."""
        tables = self._tables
        tables.begin_change("advance_period")
        # So that a row that dies is the same in all tiers, and no cache has the only image.
        for name in {*changed, *tables.rules} & tables.stacks.keys():
            tables.stacks[name].write_back()
        mortal = {*changed, *tables.rules} & tables.stacks.keys()
        with tables.still():
            changes = {
                name: RuleChange(tables.stacks[name], expiry, target)
                for name, expiry in changed.items()
            }
            for name, change in changes.items():  # all are looked at before any row changes
                if name in tables.configs:  # of keys that wait no row goes
                    self._refuse_emptied(change, name, allow_empty)
            tables.unsettled |= changed.keys()
            for change in changes.values():
                change.apply(tables.store)
            now = {**tables.rules, **changed}
            rules = {name: expiry for name, expiry in now.items() if expiry is not None}
            early = self._early_deaths(target, rules.keys() & mortal, allow_empty, counts)
            with tables.lock:
                if mortal and (pins := tables.pins):  # which may have come since it was checked
                    raise pinned_meanwhile(pins)
                tables.begin_period(target, rules, early)

    def _most(self, table: str) -> int | None:
        """How many rows this store may have of a table as a period begins."""
        config = self._tables.configs.get(table)
        return None if config is None else most_rows(config, self._tables.num_shards)

    def _early_deaths(
        self,
        target: int,
        names: Iterable[str],
        allow_empty: bool,
        counts: Mapping[str, DeathCounts] | None,
    ) -> dict[str, EarlyDeaths]:
        """What bounds want of tables whose rows are all in the store, by the rules of the period.
        Within `still`, so that none changes before it begins."""
        found = {}
        for name in names:
            if (most := self._most(name)) is None:
                continue
            if counts is None:
                of_table = self._tables.store.count_deaths(name, target)
            else:
                of_table = counts[name]
            found[name] = early = find_lead(of_table, most, allow_empty)
            num_left = int(of_table.sum()) - early.rows
            warn_if_over(name, num_left, most, num_left > int(of_table[0]))
        return found

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

    def _refuse_emptied(self, change: RuleChange, name: str, allow_empty: bool) -> None:
        num_dying, num_rows = change.num_dying()
        if num_rows and num_dying == num_rows and not allow_empty:
            table = self._tables.configs[name]
            raise ConfigError(
                f"advance_period: by the new rules of table {name!r}, {table.expiry!r}, all "
                f"{num_rows} rows would die at once; `hps expire --dry-run` tells of other rules "
                "(TableConfig.expiry; --expire-unseen and --expire-below of `hps train`), and "
                "advance_period(allow_empty=True) of hps.ParameterServer goes on"
            )

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
