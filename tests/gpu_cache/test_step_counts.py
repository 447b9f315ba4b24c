"""A step asks no more of a device than is recorded: launches, copies, memory, waits, their locks.

Above it: pytest. Below it: step_counts.py.
"""

import copy

import pytest

from benchmarks.gpu_cache.null_device import measure
from tests.gpu_cache.recorded_counts import differences
from tests.gpu_cache.step_counts import (
    CASES,
    RECORD,
    RENEW,
    TABLES,
    Sums,
    as_text,
    count_steps,
    read_record,
)


@pytest.mark.parametrize("num_tables", TABLES)
def test_a_step_asks_no_more_of_a_device_than_is_recorded(num_tables: int) -> None:
    lines = differences(read_record()[str(num_tables)], count_steps(num_tables), RENEW)
    assert not lines, "\n".join(lines)


def test_the_training_thread_waits_for_nothing_and_no_wait_has_the_servers_lock() -> None:
    record = read_record()
    assert {name: sorted(cases) for name, cases in record.items()} == {
        str(number): sorted(CASES) for number in TABLES
    }
    waits = {
        (tables, case): Sums.of(counts).num_training + Sums.of(counts).num_locked
        for tables, cases in record.items()
        for case, counts in cases.items()
    }
    assert not any(waits.values()), waits


def test_a_count_that_changes_is_told_with_its_place() -> None:
    record = read_record()
    changed = copy.deepcopy(record)
    verbs = changed["1"]["all hits"]["verbs"]
    verbs["copy: look_up"]["launches"] += 1
    verbs["training: pool"]["waits"] = 1
    changed["10"]["misses, full"]["kernels"]["FillRow"] -= 1
    assert [line.partition(";")[0] for line in differences(record, changed, RENEW)] == [
        "1 / all hits / verbs / copy: look_up / launches grew from 7 to 8",
        "1 / all hits / verbs / training: pool / waits grew from 0 to 1",
        "10 / misses, full / kernels / FillRow fell from 1 to 0",
    ]


def test_the_record_is_as_its_command_writes_it() -> None:
    assert RECORD.read_text() == as_text(read_record())


def test_the_null_device_of_the_benchmark_is_asked_for_the_launches_recorded() -> None:
    _, launches = measure(num_tables=1, repetitions=1)
    assert launches == Sums.of(read_record()["1"]["all hits"]).counts["launches"]
