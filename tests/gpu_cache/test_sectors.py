"""No verb touches more memory than is recorded, in sectors of a warp's instructions.

Above it: pytest. Below it: sectors.py, simt_grid.py.
"""

import copy
from typing import Any

import pytest

from tests.gpu_cache.recorded_counts import differences
from tests.gpu_cache.sectors import (
    BAGS,
    DIMS,
    OCCURRENCES,
    RECORD,
    RENEW,
    VERBS,
    as_text,
    count_dim,
    floors,
    read_record,
)
from tests.gpu_cache.simt_grid import Grid, find_compiler

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no g++ here")


@needs_compiler
@pytest.mark.parametrize("dim", DIMS)
def test_no_verb_touches_more_memory_than_is_recorded(dim: int) -> None:
    name = str(dim)
    lines = differences({name: read_record()[name]}, {name: count_dim(dim, Grid())}, RENEW)
    assert not lines, "\n".join(lines)


def test_bytes_that_grow_are_told_with_their_kernel() -> None:
    record = read_record()
    changed: dict[str, Any] = copy.deepcopy(record)
    changed["64"]["pull"]["kernels"]["Gather"]["sectors_read"] += 1
    changed["16"]["push"]["bytes"] -= 8
    assert [line.partition(" from ")[0] for line in differences(record, changed, RENEW)] == [
        "16 / push / bytes fell",
        "64 / pull / kernels / Gather / sectors_read grew",
    ]


def test_the_record_is_as_its_command_writes_it() -> None:
    record = read_record()
    assert RECORD.read_text() == as_text(record)
    assert {dim: tuple(verbs) for dim, verbs in record.items()} == {str(dim): VERBS for dim in DIMS}


def test_what_is_counted_is_not_below_the_floor() -> None:
    """Else an access was missed, or the floor is wrong."""
    for dim, verbs in read_record().items():
        for verb, of in verbs.items():
            assert of["bytes"] >= of["distinct_bytes"], (dim, verb)
            assert of["distinct_bytes"] + of["library_bytes"] >= of["floor"], (dim, verb)


def test_a_floor_is_its_arithmetic() -> None:
    """Of half as many keys as occurrences, and a quarter as many bags, at dim 16."""
    assert BAGS / OCCURRENCES == 0.25
    assert floors(16, OCCURRENCES // 2) == {
        "find": 12 + 52,
        "pull": 64 + 4 + 36 + 64,
        "pool": 64 + 4 + 36 + 18,
        "push": 4 + 18 + 4 + 96,
    }


def test_a_gathers_sectors_are_those_of_its_rows() -> None:
    """A warp's eight groups of four lanes write eight rows; each sector of 32 bytes once."""
    for dim, verbs in read_record().items():
        assert verbs["pull"]["kernels"]["Gather"]["sectors_written"] == OCCURRENCES * int(dim) / 8
