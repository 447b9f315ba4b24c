"""Eight hours of figures in memory that is known beforehand, and what is left of old points.

Above it: pytest. Below it: hps/dashboard/history.py, with a clock that is counted up.
"""

import math
import tracemalloc

import numpy as np
import pytest

from hps.dashboard.history import (
    HOURS,
    LEVELS,
    MOST_BYTES,
    MOST_FIGURES,
    POINTS,
    History,
)

STEP = 5.0
START = 1_700_000_000.0


def run(history: History, hours: float, names: int = 1, step: float = STEP) -> int:
    """Figures whose value is the minute since the start; how many points."""
    count = int(hours * 3600 / step)
    for idx in range(count):
        value = idx * step / 60
        history.add(START + idx * step, {f"figure/{one}": value for one in range(names)})
    return count


def test_eight_hours_of_all_figures_take_what_was_said_beforehand() -> None:
    tracemalloc.start()
    history = History()
    before = tracemalloc.get_traced_memory()[0]
    run(history, 2.5, MOST_FIGURES, step=20.0)
    after_some = history.nbytes()
    run_on = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert after_some == MOST_BYTES == 257 * POINTS * 8
    assert run_on < 1.5 * MOST_BYTES  # with what Python adds
    for idx in range(600):
        history.add(START + 3 * 3600 + idx * 60, {f"figure/{one}": 1.0 for one in range(256)})
    assert history.nbytes() == after_some


def test_eight_hours_are_told_in_a_few_hundred_points_in_order() -> None:
    history = History()
    assert run(history, 10) == 7200
    told = history.to_json()
    times, values = np.array(told["times"]), np.array(told["series"]["figure/0"])
    assert 400 < len(times) <= POINTS
    assert (np.diff(times) > 0).all()
    last = START + (7200 - 1) * STEP
    assert times[-1] == last and last - times[0] == pytest.approx(HOURS * 3600, abs=300)
    # A point of any width is the mean of what it stands for: here its own time.
    assert values == pytest.approx((times - START) / 60, abs=0.1)
    gaps = np.diff(times)
    assert gaps[-100:].max() == STEP and gaps[:50].min() == LEVELS[2][0]


def test_new_points_are_as_they_came() -> None:
    history = History()
    for idx in range(10):
        history.add(START + idx, {"auc": idx / 7})
    assert history.to_json()["series"]["auc"] == [idx / 7 for idx in range(10)]


def test_a_gap_is_told_at_every_width() -> None:
    history = History()
    for idx in range(int(5 * 3600 / 10)):
        time = START + idx * 10
        is_away = 3600 <= idx * 10 < 2 * 3600
        history.add(time, {} if is_away else {"rows": 1.0})
    told = history.to_json()
    assert told["series"]["rows"].count(None) >= 3600 / LEVELS[2][0] - 1
    for time, value in zip(told["times"], told["series"]["rows"], strict=True):
        since = time - START
        if 3600 + 240 <= since < 7200 - 240:
            assert value is None, since
        elif not 3600 - 240 <= since < 7200 + 240:
            assert value == 1.0, since


def test_what_is_not_finite_or_no_later_is_passed_over() -> None:
    history = History()
    history.add(START, {"a": 1.0, "b": math.nan})
    history.add(START, {"a": 2.0})
    history.add(START - 1, {"a": 3.0})
    history.add(START + 1, {"a": math.inf, "b": 4.0})
    assert history.to_json() == {
        "times": [START, START + 1],
        "series": {"a": [1.0, None], "b": [None, 4.0]},
    }


def test_names_beyond_the_most_are_left_out_until_old_ones_are_forgotten() -> None:
    history = History()
    history.add(START, {f"old/{idx}": 1.0 for idx in range(MOST_FIGURES)})
    history.add(START + 1, {"new": 1.0})
    assert history.num_left_out == 1 and "new" not in history.to_json()["series"]
    history.add(START + HOURS * 3600 + 2, {"new": 1.0})
    assert "new" in history.to_json()["series"]
    assert history.nbytes() <= MOST_BYTES
    for idx in range(10 * MOST_FIGURES):
        history.add(START + HOURS * 3600 + 3 + idx, {f"more/{idx}": 1.0})
    assert history.nbytes() <= MOST_BYTES and history.num_left_out <= MOST_FIGURES
