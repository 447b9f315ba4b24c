"""Periods: the counter of periods of a store, and what rows have counted in them.

Above it: ParameterServer, whose docstrings say what each verb promises. Below it: tables.py, which
has the period and tells the caches of it; batches.py; tiers/statistics.py.
"""

from collections.abc import Mapping

import numpy as np

from hps import _C
from hps.common.arrays import AnyArray, as_keys, as_numpy, like, on_host
from hps.common.field_checks import require_whole
from hps.common.row_layout import Statistics
from hps.config import TableConfig
from hps.errors import ConfigError
from hps.parameter_server.batches import Batches
from hps.parameter_server.tables import Tables
from hps.tiers.statistics import read_statistics

_DTYPES = {
    "show": np.dtype(np.float32),
    "click": np.dtype(np.float32),
    "last_period": np.dtype(np.int64),
}
NEVER = -1  # what dies_at says of a row that lives for ever, and of a key without one


class Periods:
    """The verbs of a ParameterServer for time.

    Args:
        tables: of the server.
        batches: of the server: the period stays while a pipeline is open.
    """

    def __init__(self, tables: Tables, batches: Batches) -> None:
        self._tables = tables
        self._batches = batches

    def advance(self, to: int | None) -> int:
        """As ParameterServer.advance_period."""
        with self._tables.updates:
            self.begin(self.check(to))
            return self._tables.period

    def check(self, to: int | None) -> int:
        """The period that `advance` would begin; nothing changes. Errors as `advance`."""
        tables = self._tables
        with tables.updates:
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
            if num_open := self._batches.num_open_pipelines:
                raise ConfigError(
                    f"advance_period: {num_open} open pipeline(s); leave the pipeline's `with` "
                    "block first"
                )
            return now + 1 if to is None else int(to)

    def begin(self, period: int) -> None:
        """The store is at that period from now on. Within the updates."""
        tables = self._tables
        tables.begin_change("advance_period")
        with tables.lock:
            tables.set_period(period)

    def statistics(self, table: str, keys: AnyArray) -> dict[str, AnyArray]:
        """As ParameterServer.statistics."""
        tables = self._tables
        with tables.lock:
            stack = tables.stack(table)
            refuse_uncounted(tables.configs[table], "statistics")
            array = on_host(as_keys(keys, tables.device))
        stack.raise_failed(wait=True)
        found = read_statistics(stack, array)
        dies_at = np.full(len(array), NEVER, np.int64)
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
