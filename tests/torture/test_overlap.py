"""Recipe C2, the short form: that a series finds what is planted, and counts what it met.

Above it: pytest. Below it: overlap.py. The sound cases of `make test` are those of
tests/pipeline/test_parity.py.
"""

import pytest

from tests.pipeline.planted import PLANTED
from tests.torture.overlap import fresh_seed, run_overlaps


def test_sound_cases_hold_and_meet_what_they_need() -> None:
    report = run_overlaps(1, 5)  # a series that evicts; other seeds are for the full count
    assert report.violations == [] and report.runs == 5 and report.evictions > 0


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_fault_is_found_by_a_series(plant: str) -> None:
    report = run_overlaps(fresh_seed(), 200, plant=plant)  # to the first find
    assert report.violations != []
    print(f"after {report.runs}: {report.violations[0]}")
