"""What would die: the rows of a table that given rules make absent as the next period begins.

Above it: `hps expire`. Below it: server.items, table/life_rules.py. Nothing is changed.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hps.common.expiry import Expiry
from hps.common.json_text import Json
from hps.common.row_layout import Floats
from hps.parameter_server.server import ParameterServer
from hps.table.life_rules import native_rules

# Rows are counted from each of these up to the next; the last has no end.
_AGES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 14, 21, 30, 45, 60, 90, 180, 365)
_SCORES = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_PIECE_ROWS = 65536

Counts = NDArray[np.int64]


@dataclass
class DyingRows:
    """Of one table.

    Args:
        table: its name.
        expiry: the rules.
        row_bytes: of a row in memory.
        rows: that it has now.
        by_score, by_age, by_both: rows that would die because their score is below min_score,
            because they were unseen for too long, and for both reasons.
        scores, ages: rows by their decayed score, and by periods since their last one, in the
            period that would begin.
    """

    table: str
    expiry: Expiry
    row_bytes: int
    rows: int = 0
    by_score: int = 0
    by_age: int = 0
    by_both: int = 0
    scores: Counts = field(default_factory=lambda: np.zeros(len(_SCORES), np.int64))
    ages: Counts = field(default_factory=lambda: np.zeros(len(_AGES), np.int64))

    @property
    def dying(self) -> int:
        """Rows that would die."""
        return self.by_score + self.by_age + self.by_both

    def described(self) -> Json:
        """For --json."""
        return {
            "rules": self.expiry.described(),
            "rows": self.rows,
            "dying": self.dying,
            "bytes": self.dying * self.row_bytes,
            "by_reason": {"score": self.by_score, "unseen": self.by_age, "both": self.by_both},
            "scores": {"from": list(_SCORES), "rows": self.scores.tolist()},
            "ages": {"from": list(_AGES), "rows": self.ages.tolist()},
        }

    def add(self, show: Floats, click: Floats, gap: NDArray[np.uint32]) -> None:
        """Counts rows [n] whose last period is `gap` periods before the one that would begin."""
        scores = native_rules(self.expiry).scores(show, click, gap)
        is_low = scores < np.float32(self.expiry.min_score or 0)
        is_old = (
            np.zeros(len(gap), bool) if self.expiry.unseen is None else gap > self.expiry.unseen
        )
        self.rows += len(gap)
        self.by_both += int(np.count_nonzero(is_low & is_old))
        self.by_score += int(np.count_nonzero(is_low & ~is_old))
        self.by_age += int(np.count_nonzero(is_old & ~is_low))
        self.scores += _counted(scores, _SCORES)
        self.ages += _counted(gap, _AGES)


def _counted(values: NDArray[np.generic], edges: tuple[float, ...]) -> Counts:
    places = np.searchsorted(np.array(edges), values, side="right") - 1
    return np.bincount(np.maximum(places, 0), minlength=len(edges)).astype(np.int64)


def dying_rows(server: ParameterServer, table: str, expiry: Expiry) -> DyingRows:
    """What the next period would make absent of a table with statistics, by these rules.

    Rules that are in force already may kill more: those of a row that died stay as they were.

    Raises:
        ConfigError: unknown table, or one without statistics.

    Cost: reads every row once.
    """
    found = DyingRows(table, expiry, server.tables[table].layout.row_bytes)
    for _, _, show, click, last_period in server.items(table, _PIECE_ROWS, statistics=True):
        found.add(show, click, (server.period + 1 - last_period).astype(np.uint32))
    return found
