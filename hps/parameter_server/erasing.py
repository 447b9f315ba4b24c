"""Erasure of the rows that are as a predicate over their statistics says.

Above it: ParameterServer, a rank of a cluster, `hps erase`. Below it: tables.py, the table's stack,
whose `erase` drops keys from every tier; table/life_rules.py. The rows are read once, in pieces.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from hps.common.expiry import Expiry
from hps.common.field_checks import require_number, require_whole
from hps.common.json_text import Json
from hps.common.row_layout import Floats, Keys, Statistics
from hps.errors import ConfigError
from hps.parameter_server.batches import Batches
from hps.parameter_server.periods import refuse_uncounted
from hps.parameter_server.tables import Tables
from hps.table.life_rules import native_rules

_PIECE_BYTES = 2**23


class WhereFields(TypedDict, total=False):
    """The fields of `RowsWhere`, as a verb takes them by keyword."""

    show_below: float | None
    click_below: float | None
    unseen_for: int | None
    score_below: float | None


@dataclass(frozen=True, kw_only=True)
class RowsWhere:
    """Which rows are meant: those for which all that is given holds.

    Args:
        show_below, click_below: their shows, or clicks, are fewer.
        unseen_for: so many periods, or more, have passed since their last one.
        score_below: their score, as hps.Expiry has it, is below this.

    Shows, clicks and scores are those of the current period: decayed in tables with expiry.

    Raises:
        ConfigError: nothing is given, or a number that none can be below.
    """

    show_below: float | None = None
    click_below: float | None = None
    unseen_for: int | None = None
    score_below: float | None = None

    def __post_init__(self) -> None:
        if not self.described():
            raise ConfigError(
                "erase_where: show_below=, click_below=, unseen_for= or score_below= is needed; "
                "rows of given keys go with erase()"
            )
        if self.unseen_for is not None:
            require_whole("erase_where: unseen_for", self.unseen_for, 1, 2**31 - 1)
        for name in ("show_below", "click_below", "score_below"):
            if (value := getattr(self, name)) is not None:
                require_number(f"erase_where: {name}", value, above=0)

    def described(self) -> Json:
        """What is given, as plain values."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def holds(self, counts: Statistics, period: int, expiry: Expiry | None) -> NDArray[np.bool_]:
        """Of rows [n] of a table with these rules."""
        gap = (period - counts.last_period).astype(np.uint32)
        held = np.ones(len(gap), np.bool_)
        if self.unseen_for is not None:
            held &= gap >= self.unseen_for
        if self.show_below is not None:
            held &= _decayed(counts.show, gap, expiry) < self.show_below
        if self.click_below is not None:
            held &= _decayed(counts.click, gap, expiry) < self.click_below
        if self.score_below is not None:
            assert expiry is not None, "a score without rules"
            held &= native_rules(expiry).scores(counts.show, counts.click, gap) < self.score_below
        return held


def _decayed(numbers: Floats, gap: NDArray[np.uint32], expiry: Expiry | None) -> Floats:
    """Shows or clicks as the next update will make up for the gap."""
    if expiry is None:
        return numbers
    alone = native_rules(replace(expiry, nonclick=1.0, click=1.0))
    return alone.scores(numbers, np.zeros_like(numbers), gap)


def check_erasable(tables: Tables, batches: Batches, table: str, where: RowsWhere) -> None:
    """Raises ConfigError if `erase_where` would refuse; nothing has changed. Within the updates."""
    tables.stack(table)
    tables.check_writable("erase_where")
    refuse_uncounted(tables.configs[table], "erase_where")
    if where.score_below is not None and tables.rules.get(table) is None:
        raise ConfigError(
            f"erase_where(score_below={where.score_below!r}): table {table!r} has no expiry, whose "
            "numbers make the score; give show_below=, click_below= or unseen_for="
        )
    num_open, pins = batches.num_open_pipelines, tables.pins
    if num_open or pins:
        raise ConfigError(
            f"erase_where: {num_open} open pipeline(s) and {pins} pins of batches in flight; leave "
            "the pipeline's `with` block, and end or drop the step, first"
        )


def erase_where(
    tables: Tables,
    batches: Batches,
    table: str,
    where: RowsWhere,
    told: Callable[[Keys], object] | None = None,
) -> int:
    """As ParameterServer.erase_where; `told` is given the keys that were erased, in pieces."""
    with tables.updates:
        check_erasable(tables, batches, table, where)
        stack = tables.stack(table)
        stack.raise_failed(wait=True)
        tables.begin_change("erase")
        stack.write_back()  # so that all are read from the store, while rows go from the caches
        layout, count = stack.layout, 0
        pieces = stack.scan(max(1, _PIECE_BYTES // layout.row_bytes))
        try:
            while True:
                with stack.still():
                    images = next(pieces, None)
                if images is None:
                    return count
                held = where.holds(
                    layout.statistics(images), tables.period, tables.rules.get(table)
                )
                keys = layout.keys(images)[held]
                if not len(keys):
                    continue
                count += int(np.count_nonzero(stack.erase(keys)))
                if told is not None:
                    told(keys)
        except BaseException as error:
            if count:
                error.add_note(f"erase_where: {count} rows of table {table!r} were erased before")
            raise
