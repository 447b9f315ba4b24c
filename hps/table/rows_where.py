"""Which rows are meant by a predicate over what they have counted.

Above it: parameter_server/erasing.py, update_log/records.py, a service's client and server, `hps
erase`. Below it: life_rules.py.
"""

from dataclasses import asdict, dataclass, replace
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from hps.common.expiry import Expiry
from hps.common.field_checks import require_number, require_whole
from hps.common.json_text import Json
from hps.common.row_layout import Floats, Statistics
from hps.errors import ConfigError
from hps.table.life_rules import native_rules


class WhereFields(TypedDict, total=False):
    """The fields of `RowsWhere`, as a verb takes them by keyword."""

    show_below: float | None
    click_below: float | None
    unseen_for: int | None
    score_below: float | None


WHERE_FIELDS = tuple(WhereFields.__annotations__)  # in the order of the update log's records


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
                # A number of numpy would be compared in its own dtype.
                object.__setattr__(self, name, float(value))

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
