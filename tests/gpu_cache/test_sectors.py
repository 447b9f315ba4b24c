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
    Batch,
    as_text,
    count_dim,
    floors,
    ratio,
    read_record,
)
from tests.gpu_cache.simt_grid import Grid, find_compiler

# By verb, how much of a floor may come from a device's memory, and to and from the kernels.
MOST_MEMORY = {"find": 1.25, "pull": 1.4, "pool": 1.7, "push": 1.6}
MOST_DISTINCT = {"find": 4.4, "pull": 2.85, "pool": 3.7, "push": 3.3}

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no g++ here")


@needs_compiler
@pytest.mark.parametrize("dim", DIMS)
def test_no_verb_touches_more_memory_than_is_recorded(dim: int) -> None:
    name = str(dim)
    lines = differences({name: read_record()[name]}, {name: count_dim(dim, Grid())}, RENEW)
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_stays_within_its_share_of_the_floor(verb: str) -> None:
    for dim, verbs in read_record().items():
        assert ratio(verbs[verb], "memory_bytes") <= MOST_MEMORY[verb], dim
        assert ratio(verbs[verb], "distinct_bytes") <= MOST_DISTINCT[verb], dim


@needs_compiler
def test_arrays_have_the_bytes_of_their_kernels() -> None:
    """Of both kinds of kernels: those given Tables, and those given a struct."""
    grid = Grid()
    batch = Batch(16, grid)
    counts, _, _ = batch.count(batch.pull)
    for kernel in ("NumberKey", "Gather"):
        found = {array: n for (name, array, what), n in grid.of_arrays.items()
                 if name == kernel and what == "sectors"}  # fmt: skip
        of = counts[kernel]
        assert sum(found.values()) == of["sectors_read"] + of["sectors_written"]
        # The ids of a warp's 32 occurrences are four sectors; eight groups read one together.
        assert found["batch.inverse"] == OCCURRENCES // (4 if kernel == "NumberKey" else 8)


@needs_compiler
def test_the_cache_reads_once_what_fits_and_writes_back_what_was_written() -> None:
    grid = Grid()
    batch = Batch(16, grid)
    counts, _, last = batch.count(batch.find)
    read, written = (
        sum(of[name] for of in counts.values()) for name in ("memory_read", "memory_written")
    )
    # Keys are read and ids written by several kernels; once each is what the memory sees.
    assert read + written + last < sum(of["distinct_read"] for of in counts.values()) / 2
    assert read >= OCCURRENCES * 8 // 32  # the keys, at least
    assert written + last >= OCCURRENCES * 4 // 32  # the ids, at least
    assert grid.flush_cache() == 0


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
