"""The batch loops where they have corners: hot keys, several threads, large outputs, full tables.

What a push sums is compared bit for bit with the order that architecture's section on equal bits
sets: occurrences in order within runs of 32, run sums as a binary counter combines them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hps

RUN = 32
COUNTS = [31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 224, 1024, 4096, 4097]
SINGLES = 14_000
MIX = np.uint64(0x9E3779B97F4A7C15)

Floats = NDArray[np.float32]
Keys = NDArray[np.uint64]


def server_at(path: Path, dim: int, **others: Any) -> hps.ParameterServer:
    """Rows start at 0 and a step subtracts the sum, so a row is its negated sum."""
    table = hps.TableConfig(
        name="ads", dim=dim, optimizer=hps.SGD(lr=1.0), initializer=hps.Constant(0.0)
    )
    dram = hps.DramCacheConfig(bytes=others.pop("dram", "64MiB"))
    return hps.ParameterServer(hps.Config(path=path, tables=[table], dram=dram, **others))


def summed(grads: Floats) -> Floats:
    """The sum of one key's gradients [count, dim] in the order that is promised."""
    runs: list[tuple[int, Floats]] = []
    for first in range(0, len(grads), RUN):
        total = np.zeros(grads.shape[1], np.float32)
        for grad in grads[first : first + RUN]:
            total = total + grad
        size = 1
        while runs and runs[-1][0] == size:
            total = runs.pop()[1] + total
            size *= 2
        runs.append((size, total))
    total = runs.pop()[1]
    while runs:
        total = runs.pop()[1] + total
    return total


def hot_batch(seed: int) -> Keys:
    """Keys of every count of COUNTS, mixed with keys that stand once."""
    hot = np.repeat(np.arange(len(COUNTS), dtype=np.uint64), COUNTS)
    single = np.arange(1000, 1000 + SINGLES, dtype=np.uint64)
    return np.random.default_rng(seed).permutation(np.concatenate([hot, single])) * MIX


@pytest.mark.parametrize("dim", [1, 8, 16, 17, 64])
def test_sums_run_in_the_promised_order_on_any_number_of_threads(tmp_path: Path, dim: int) -> None:
    keys = hot_batch(dim)
    grads = np.random.default_rng(dim).normal(size=(len(keys), dim)).astype(np.float32)
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(keys[order]) > 0])
    expected = [-summed(grads[idx]) for idx in np.split(order, starts[1:])]
    for threads in (1, 2, 4):
        for instruction_set in ("auto", "avx2", "plain"):
            path = tmp_path / f"{threads}{instruction_set}"
            options = {"threads": threads, "instruction_set": instruction_set}
            with server_at(path, dim, **options) as server:
                server.pull("ads", keys)
                server.push("ads", keys, grads)
                rows = server.pull("ads", keys[order][starts])
                np.testing.assert_array_equal(rows, np.stack(expected))


@pytest.mark.parametrize("instruction_set", ["auto", "avx2", "plain"])
@pytest.mark.parametrize("dim", [3, 16, 17])
def test_a_negative_zero_sums_to_a_positive_one(
    tmp_path: Path, dim: int, instruction_set: str
) -> None:
    """Taken from a row of -0, +0 leaves -0 where -0 would leave +0."""
    with server_at(tmp_path, dim, instruction_set=instruction_set) as server:
        keys = np.array([1], np.uint64)
        zeros = np.full((1, dim), -0.0, np.float32)
        server.assign("ads", keys, zeros)
        server.push("ads", keys, zeros)
        assert np.signbit(server.pull("ads", keys)).all()


def known_rows(
    server: hps.ParameterServer, num_keys: int, dim: int, first: int = 0
) -> tuple[Keys, Floats]:
    keys = np.arange(first, first + num_keys, dtype=np.uint64) * MIX
    rows = np.random.default_rng(1).normal(size=(num_keys, dim)).astype(np.float32)
    server.assign("ads", keys, rows)
    return keys, rows


def hits(server: hps.ParameterServer) -> int:
    return int(server.stats()["dram_cache"]["hits"])


@pytest.mark.parametrize("dim", [16, 32, 64, 128])
@pytest.mark.parametrize("shift", [0, 1])
def test_large_outputs_of_repeated_keys(tmp_path: Path, dim: int, shift: int) -> None:
    length = (1 << 20) // dim + 777
    with server_at(tmp_path, dim, threads=2) as server:
        keys, rows = known_rows(server, length // 5, dim)
        idx = np.random.default_rng(2).integers(0, len(keys), length)
        buffer = np.zeros(length * dim + 32, np.float32)
        first = (-buffer.ctypes.data % 64) // 4 + shift  # from a boundary of 64 bytes on, or not
        out = buffer[first : first + length * dim].reshape(length, dim)
        before = hits(server)
        server.pull("ads", keys[idx], out=out)
        assert hits(server) - before == len(np.unique(idx))
        np.testing.assert_array_equal(out, rows[idx])
        assert not buffer[:first].any() and not buffer[first + length * dim :].any()


def test_a_batch_that_outgrows_the_id_table_starts_again(tmp_path: Path) -> None:
    with server_at(tmp_path, 16, threads=2) as server:
        keys, rows = known_rows(server, 30_000, 16)
    with hps.open(tmp_path, dram="64MiB") as reader:
        reader.pull("ads", keys)  # brings all rows up
        for _ in range(2):
            small = np.repeat(keys[:3], 2000)
            np.testing.assert_array_equal(
                reader.pull("ads", small), np.repeat(rows[:3], 2000, axis=0)
            )
            large = np.random.default_rng(3).permutation(np.repeat(np.arange(30_000), 3))
            np.testing.assert_array_equal(reader.pull("ads", keys[large]), rows[large])


def test_distinct_keys_of_a_table_that_is_nearly_full(tmp_path: Path) -> None:
    for attempt in range(40):  # until so many keys happen to fit without an eviction
        with server_at(tmp_path / str(attempt), 16, dram="512KiB", threads=2) as server:
            capacity = server.stats()["dram_cache"]["capacity_rows"]
            num_keys = 7 * capacity // 8 + 1
            assert num_keys > 4096
            keys, rows = known_rows(server, num_keys, 16, attempt << 32)
            if server.stats()["dram_cache"]["evictions"] == 0:
                before = hits(server)
                np.testing.assert_array_equal(server.pull("ads", keys), rows)
                assert hits(server) - before == len(keys)
                return
    pytest.fail("no set of keys filled seven eighths of the table without an eviction")


def test_one_missing_key_among_distinct_ones(tmp_path: Path) -> None:
    with server_at(tmp_path, 16, threads=2) as server:
        keys, rows = known_rows(server, 10_000, 16)
        absent = np.uint64(123)
        server.pull("ads", keys)
        found = server.pull("ads", np.append(keys, absent))
        np.testing.assert_array_equal(found[:-1], rows)
        assert not found[-1].any() and server.num_rows("ads") == len(keys)


def test_a_first_column_without_repetitions_does_not_deceive_the_sample(tmp_path: Path) -> None:
    examples, features = 4096, 64  # as many as there are keys to one that is sampled
    idx = np.random.default_rng(0).integers(0, 100, (examples, features))
    idx[:, 0] = 100 + np.arange(examples)
    flat = idx.reshape(-1)
    with server_at(tmp_path, 1, threads=1) as server:
        keys, rows = known_rows(server, int(flat.max()) + 1, 1)
        before = hits(server)
        np.testing.assert_array_equal(server.pull("ads", keys[flat]), rows[flat])
        assert hits(server) - before == len(np.unique(flat))


def test_a_push_of_other_keys_leaves_distinct_pulls_alone(tmp_path: Path) -> None:
    with server_at(tmp_path, 4, threads=2) as server:
        keys, _ = known_rows(server, 10_000, 4)
        server.pull("ads", keys)
        server.push("ads", keys[:5], np.zeros((5, 4), np.float32))
        before = hits(server)
        twice = np.concatenate([keys, keys[:20]])
        server.pull("ads", twice)
        assert hits(server) - before == len(twice)
