"""Readable twin of csrc/table/life_rules.h: when a row dies, gap by gap, in float32.

Above it: tests/twins/dram_cache.py, tests/parameter_server. Below it: numpy.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_GAP = 65535
Float = np.float32


@cache
def powers(decay: float) -> NDArray[np.float32]:
    """decay^gap of gaps 0 to MAX_GAP, each the product before it times decay."""
    factors = np.full(MAX_GAP + 1, decay, np.float32)
    factors[0] = 1
    return np.multiply.accumulate(factors, dtype=np.float32)


class Counts(NamedTuple):
    """What a row knows of its updates; dies_at 0: never."""

    show: float = 0.0
    click: float = 0.0
    last_period: int = 0
    dies_at: int = 0


def score(rules: Any, show: float, click: float) -> Any:
    """Of such counts, float32, as of the period in which they are so."""
    nonclicks = Float(show) - Float(click)
    return Float(rules.nonclick) * nonclicks + Float(rules.click) * Float(click)


def dies_at(rules: Any, show: float, click: float, last_period: int) -> int:
    """The first period after the last one in which a row is dead; 0 if there is none.

    Args:
        rules: with unseen, min_score, decay, nonclick and click, as hps._C.LifeRules.
        show, click, last_period: of the row.
    """
    is_dead = score(rules, show, click) * powers(rules.decay)[1:] < Float(rules.min_score)
    if rules.unseen < MAX_GAP:
        is_dead[rules.unseen :] = True  # gaps begin at 1
    return last_period + 1 + int(np.argmax(is_dead)) if is_dead.any() else 0


def shows_of(occurrences: int, clicks: int, more_shows: float) -> Any:
    """What occurrences count as, each that is no click as so many shows more than one; float32."""
    return Float(occurrences) + Float(more_shows) * Float(occurrences - clicks)


def counted(
    rules: Any, before: Counts, occurrences: int, clicks: int, period: int, more_shows: float = 0.0
) -> Counts:
    """A row's counts after an update of so many occurrences in a period; rules None: no decay."""
    show, click = Float(before.show), Float(before.click)
    if rules is not None:
        power = powers(rules.decay)[min(period - before.last_period, MAX_GAP)]
        show, click = show * power, click * power
    show = show + shows_of(occurrences, clicks, more_shows)
    click = click + Float(clicks)
    death = 0 if rules is None else dies_at(rules, show, click, period)
    return Counts(float(show), float(click), period, death)
