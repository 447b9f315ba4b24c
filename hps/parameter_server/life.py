"""By which rules the rows of a table die: which are in force, and what a change of them does.

Above it: tables.py, periods.py. Below it: hps/common/expiry.py, tiers/top_tier.py, the store. A row
carries its period of death, so a change of the rules is one pass over the rows of its table; it is
made when the period begins from which the new rules hold.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from hps.common.expiry import Expiry
from hps.common.row_layout import Images
from hps.config import TableConfig
from hps.contracts.tiers import RowTier
from hps.errors import ConfigError
from hps.table.life_rules import native_rules
from hps.tiers.top_tier import TableStack

_PIECE_BYTES = 2**23


def first_rules(
    tables: Iterable[TableConfig], store: RowTier, stored: Mapping[str, Expiry]
) -> dict[str, Expiry]:
    """The rules in force, by table, when a store is opened: those of its checkpoint, and of a table
    without rows its config's.

    Raises:
        ConfigError: rows of a table whose files do not tell when they die are to die.
    """
    rules = dict(stored)
    for table in tables:
        if table.expiry is not None and not store.has_deaths(table.name):
            raise ConfigError(
                f"table {table.name!r} has expiry={table.expiry!r}, but its store was made by a "
                "version of hps that knew no expiry; `hps export` its rows and `hps import` them "
                "into a new store"
            )
        if table.statistics and store.num_rows(table.name) == 0:
            rules.pop(table.name, None)
            if table.expiry is not None:
                rules[table.name] = table.expiry
    return rules


def changed_rules(
    tables: Mapping[str, TableConfig], rules: Mapping[str, Expiry], unsettled: Collection[str]
) -> dict[str, Expiry | None]:
    """What the next period changes: of tables whose config has other rules than are in force, or
    whose rows have those in part alone, the config's."""
    return {
        name: table.expiry
        for name, table in tables.items()
        if table.expiry != rules.get(name) or name in unsettled
    }


def pinned_meanwhile(pins: int) -> ConfigError:
    """The error of a period that cannot begin: rows must not go while a batch has them pinned."""
    return ConfigError(
        f"advance_period: {pins} pins of batches in flight; leave the pipeline's `with` block, and "
        "end or drop the step, first"
    )


class RuleChange:
    """Other rules for one table, from a period on.

    Args:
        stack: of the table, whose rows are all below its caches.
        expiry: the rules; None: rows live for ever.
        period: from which on they hold.
    """

    def __init__(self, stack: TableStack, expiry: Expiry | None, period: int) -> None:
        self._stack = stack
        self._native = None if expiry is None else native_rules(expiry)
        self._period = period

    def num_dying(self) -> tuple[int, int]:
        """(rows that would die as the period begins, all rows), as far as the first piece of them
        of which one lives on. Within `still`. Cost: reads as far."""
        num_dying = num_rows = 0
        for images in self._pieces():
            dies_at = self._dies_at(images)
            num_dying += int(np.count_nonzero((dies_at > 0) & (dies_at <= self._period)))
            num_rows += len(images)
            if num_dying < num_rows:
                break  # they do not all die, which is what is asked
        return num_dying, num_rows

    def apply(self, store: RowTier) -> None:
        """Rows carry their new periods of death from now on, in the store; what is cached is
        dropped. May be repeated. Within `still`. Cost: reads the table once, and writes the rows
        whose period of death changes."""
        layout = self._stack.layout
        for images in self._pieces():
            dies_at = self._dies_at(images)
            changed = np.flatnonzero(dies_at != layout.deaths(images))
            if len(changed):
                rows = np.ascontiguousarray(images[changed])
                layout.set_deaths(rows, dies_at[changed])
                store.append(self._stack.name, rows)
        with self._stack.lock:
            if pins := self._stack.num_pins:
                raise pinned_meanwhile(pins)
            self._stack.restart()

    def _pieces(self) -> Iterator[Images]:
        return self._stack.scan(max(1, _PIECE_BYTES // self._stack.layout.row_bytes))

    def _dies_at(self, images: Images) -> NDArray[np.uint32]:
        """As if the rules had held since each row's last period; but no row dies before they do."""
        if self._native is None:
            return np.zeros(len(images), np.uint32)
        show, click, last_period = self._stack.layout.statistics(images)
        dies_at = self._native.dies_at(show, click, last_period.astype(np.uint32))
        return np.where(dies_at == 0, dies_at, np.maximum(dies_at, np.uint32(self._period)))
