"""Pulls of keys that hardly repeat, which are not deduplicated: the same rows as any other pull."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import hps

ROWS = 20_000
BATCH = 9000
REPEATED = 40


def keys_of(generator: np.random.Generator) -> NDArray[np.uint64]:
    """A batch in which a few keys stand twice."""
    keys = generator.permutation(ROWS)[: BATCH - REPEATED].astype(np.uint64)
    return np.concatenate([keys, keys[:REPEATED]]) * np.uint64(0x9E3779B97F4A7C15)


def server_at(path: Path, dim: int, dram: str = "64MiB", **others: object) -> hps.ParameterServer:
    table = hps.TableConfig(name="ads", dim=dim, optimizer=hps.Adagrad(lr=0.1))
    config = hps.Config(path=path, tables=[table], dram=hps.DramCacheConfig(bytes=dram), **others)
    return hps.ParameterServer(config)


def fill(server: hps.ParameterServer, dim: int) -> None:
    keys = np.arange(ROWS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    rows = np.random.default_rng(1).normal(size=(ROWS, dim)).astype(np.float32)
    server.assign("ads", keys, rows)


def in_pieces(server: hps.ParameterServer, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
    """The same pull in pieces too small to be looked up key by key."""
    pieces = np.array_split(keys, 9)
    return np.concatenate([np.array(server.pull("ads", piece)) for piece in pieces])


def looked_up(server: hps.ParameterServer) -> int:
    dram = server.stats()["dram_cache"]
    return int(dram["hits"])


@pytest.mark.parametrize("dim", [1, 16, 20, 64, 128])
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("instruction_set", ["auto", "avx2", "plain"])
def test_distinct_keys_read_as_in_small_pulls(
    tmp_path: Path, dim: int, threads: int, instruction_set: str
) -> None:
    keys = keys_of(np.random.default_rng(dim))
    with server_at(tmp_path, dim, threads=threads, instruction_set=instruction_set) as server:
        fill(server, dim)
        before = looked_up(server)
        rows = np.array(server.pull("ads", keys))
        assert looked_up(server) - before == len(keys), "the pull deduplicated"
        np.testing.assert_array_equal(rows, in_pieces(server, keys))


def test_missing_keys_are_brought_from_below(tmp_path: Path) -> None:
    keys = keys_of(np.random.default_rng(0))
    with server_at(tmp_path, 16, dram="1MiB") as server:
        fill(server, 16)
        rows = np.array(server.pull("ads", keys))
        dram = server.stats()["dram_cache"]
        assert dram["evictions"] > 0 and dram["misses"] > 0
        np.testing.assert_array_equal(rows, in_pieces(server, keys))


def test_a_push_after_such_a_pull_sums_duplicates_and_the_next_pull_deduplicates(
    tmp_path: Path,
) -> None:
    keys = keys_of(np.random.default_rng(0))
    grads = np.random.default_rng(2).normal(size=(BATCH, 16)).astype(np.float32)
    results = []
    for pulls_first in (True, False):
        with server_at(tmp_path / str(pulls_first), 16) as server:
            fill(server, 16)
            before = looked_up(server)
            if pulls_first:
                server.pull("ads", keys)
                assert looked_up(server) - before == BATCH, "the pull deduplicated"
            server.push("ads", keys, grads)
            if pulls_first:
                before = looked_up(server)
                server.pull("ads", keys)
                assert looked_up(server) - before == BATCH - REPEATED, "the pull did not learn"
            results.append(server.digest("ads"))
    assert results[0] == results[1]


def test_repeated_keys_are_deduplicated(tmp_path: Path) -> None:
    keys = np.random.default_rng(0).integers(0, 500, BATCH).astype(np.uint64)
    with server_at(tmp_path, 16) as server:
        server.pull("ads", keys, create=True)
        before = looked_up(server)
        server.pull("ads", keys)
        assert looked_up(server) - before == len(np.unique(keys))


def test_distinct_keys_after_repeated_ones_are_deduplicated_once(tmp_path: Path) -> None:
    keys = keys_of(np.random.default_rng(0))
    with server_at(tmp_path, 16) as server:
        fill(server, 16)
        server.pull("ads", np.tile(keys[: BATCH // 3], 3))
        counts, rows = [], []
        for _ in range(2):
            before = looked_up(server)
            rows.append(np.array(server.pull("ads", keys)))
            counts.append(looked_up(server) - before)
    assert counts == [BATCH - REPEATED, BATCH]
    np.testing.assert_array_equal(rows[0], rows[1])
