"""Bounds on the rows of a table: how much earlier they die as a period begins, so that they fit.

Above it: periods.py, which counts the rows of a table by their periods of death, tables.py,
stats.py. Below it: hps/config.py, which says what the bounds are. A period that begins at a bound
takes the rows whose death is nearest: all of one period of death, or none of them.
"""

import logging
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hps.common.expiry import MAX_GAP
from hps.common.json_text import Json
from hps.config import TableConfig

# Rows by periods of life that are left from the period that begins: [0] never die, [i] die in the
# i-th period after it.
DeathCounts = NDArray[np.uint64]
NUM_COUNTS = MAX_GAP + 1


class EarlyDeaths(NamedTuple):
    """What a bound did to a table as its period began.

    Args:
        lead: rows whose period of death was at most so many periods away died early.
        rows: how many those were.
    """

    lead: int = 0
    rows: int = 0


def most_rows(table: TableConfig, num_shards: int = 1) -> int | None:
    """How many rows a table may have as a period begins; None: any number.

    Args:
        table: with its bounds; bytes count as rows of `layout.row_bytes` each.
        num_shards: servers that the table is divided among: each one keeps to its share.
    """
    given = [] if table.max_rows is None else [table.max_rows]
    if table.max_bytes is not None:
        given.append(int(table.max_bytes) // table.layout.row_bytes)
    return max(1, min(given) // num_shards) if given else None


def find_lead(counts: DeathCounts, most: int, allow_empty: bool) -> EarlyDeaths:
    """The least lead by which at most so many rows are left; where there is none, or where it would
    leave no row at all (but for allow_empty), the greatest that is of use and leaves a row.

    >>> counts = np.zeros(NUM_COUNTS, np.uint64)
    >>> counts[[0, 3, 7]] = 1, 20, 30
    >>> find_lead(counts, 40, False), find_lead(counts, 60, False)
    (EarlyDeaths(lead=3, rows=20), EarlyDeaths(lead=0, rows=0))
    >>> counts[0] = 0
    >>> find_lead(counts, 10, False), find_lead(counts, 10, True)
    (EarlyDeaths(lead=3, rows=20), EarlyDeaths(lead=7, rows=50))
    """
    num_rows = int(counts.sum())
    if num_rows <= most:
        return EarlyDeaths()
    gone = np.cumsum(counts)
    gone -= counts[0]  # by lead
    left = num_rows - gone.astype(np.int64)
    least = 0 if allow_empty else 1
    may_be = np.flatnonzero(left >= least)
    fits = may_be[left[may_be] <= most]
    # Of those that do not fit the least that leaves as few rows as can be.
    lead = int(fits[0]) if len(fits) else int(np.argmin(np.where(left >= least, left, num_rows)))
    return EarlyDeaths(lead, int(gone[lead]))


def bound_stats(table: TableConfig, num_shards: int, early: EarlyDeaths | None) -> Json:
    """Of a table with bounds: max_rows, of this store; lead, and rows that died early, as the
    period began; else nothing."""
    if (most := most_rows(table, num_shards)) is None:
        return {}
    early = early or EarlyDeaths()
    return {"max_rows": most, "lead": early.lead, "rows_bounded": early.rows}


def warn_if_over(table: str, num_left: int, most: int, can_be_emptied: bool) -> None:
    """Says that a table is above its bound although a period has begun."""
    if num_left <= most:
        return
    why = (
        "all of these die in one period, and a table is not emptied at once, unless "
        "advance_period(allow_empty=True) of hps.ParameterServer says so"
        if can_be_emptied
        else "these never die by the table's expiry"
    )
    logging.getLogger(__name__).warning(
        "hps: warning: table %r has %d rows, and may have %d (TableConfig.max_rows, max_bytes; "
        "--max-rows, --max-bytes of `hps train`): %s",
        table,
        num_left,
        most,
        why,
    )
