"""A step of several ranks asks no more of a device than is recorded, and waits where it must.

Above it: pytest. Below it: rank_counts.py.
"""

import pytest

from tests.cluster.rank_counts import (
    CASES,
    RECORD,
    RENEW,
    TABLES,
    count_step,
    read_record,
    waits_by_stage,
)
from tests.gpu_cache.recorded_counts import differences
from tests.gpu_cache.step_counts import as_text


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("num_tables", TABLES)
def test_a_step_of_ranks_asks_no_more_of_a_device_than_is_recorded(
    num_tables: int, case: str
) -> None:
    recorded = {case: read_record()[str(num_tables)][case]}
    lines = differences(recorded, {case: count_step(num_tables, case)}, RENEW)
    assert not lines, "\n".join(lines)


def test_each_stage_waits_once_for_any_number_of_tables_and_under_no_lock() -> None:
    record = read_record()
    assert list(record) == [str(tables) for tables in TABLES]
    for cases in record.values():
        assert list(cases) == list(CASES)
        for case, counts in cases.items():
            staged = 2 if case.startswith("staged") else 0  # rows, and gradients
            expected = {"network": 1, "fetch": 1, "copy": 1, "training": 1 + staged}
            assert waits_by_stage(counts) == expected
            assert all(place.endswith("[]") for place in counts["waits"])


def test_the_record_is_as_its_command_writes_it() -> None:
    assert RECORD.read_text() == as_text(read_record())
