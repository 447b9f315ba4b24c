"""A checkpoint costs what changed: bytes written, records in the manifest, rows taken from DRAM."""

from pathlib import Path

import numpy as np
import pytest
from ssd_twin import keys_of, make_rows, schema

import hps
from hps.ssd_store import SsdStore

TABLE = hps.TableConfig(name="ads", dim=4, optimizer=hps.SGD(lr=1.0), features=["C1"])
NUM_KEYS = 30_000


def test_a_checkpoint_of_few_dirty_rows_writes_few_bytes(tmp_path: Path) -> None:
    keys = keys_of(range(NUM_KEYS)) * np.uint64(0x9E3779B97F4A7C15)
    grads = np.ones((NUM_KEYS, 4), np.float32)
    dram = hps.DramCacheConfig(bytes="16MiB")
    with hps.ParameterServer(hps.Config(path=tmp_path, tables=[TABLE], dram=dram)) as server:
        written = []
        for count in (NUM_KEYS, NUM_KEYS, 300, 300, 0):
            server.push("ads", keys[:count], grads[:count])
            before = server.stats()["ssd_store"]["bytes_written"]
            assert server.checkpoint("kept")["rows_written"] == count
            written.append(server.stats()["ssd_store"]["bytes_written"] - before)
        assert server.stats()["dram_cache"]["evictions"] == 0
    layout = server.parts.tables.stacks["ads"].layout
    record = layout.row_bytes + 4 + 8  # checksum, key in the footer
    assert written[1] >= NUM_KEYS * record
    assert 300 * record <= written[3] <= 300 * record + 4096
    assert written[4] <= 4096


@pytest.mark.parametrize("piece", [1, 7, 63, 64, 65, 1000])
def test_a_scan_finds_each_dirty_row_once_and_cleans_those_alone(
    tmp_path: Path, piece: int
) -> None:
    keys = keys_of(range(2000)) * np.uint64(0x9E3779B97F4A7C15)
    dirty = np.random.default_rng(5).choice(keys, 130, replace=False)
    dram = hps.DramCacheConfig(bytes="1MiB")
    server = hps.ParameterServer(hps.Config(path=tmp_path, tables=[TABLE], dram=dram))
    server.push("ads", keys, np.ones((2000, 4), np.float32))
    server.checkpoint()
    server.push("ads", dirty, np.ones((130, 4), np.float32))
    cache = server.parts.tables.stacks["ads"].cache
    assert (cache.num_dirty, cache.num_rows) == (130, 2000)
    out = np.zeros((piece, 32), np.uint8)
    seen: list[int] = []
    cursor = 0
    while cursor >= 0:
        count, end = cache.scan(cursor, "dirty", out)
        seen += out[:count].view(np.uint64)[:, 0].tolist()
        cache.mark_clean(cursor, end)
        assert cache.num_dirty == len(dirty) - len(seen), "those of later pieces stay dirty"
        cursor = end
    assert sorted(seen) == sorted(dirty.tolist())
    server.close()


def test_the_syncs_of_a_checkpoint_do_not_depend_on_the_threads(tmp_path: Path) -> None:
    for threads in (1, 4):
        path = tmp_path / str(threads)
        with SsdStore.open(path, [schema()], threads=threads, segment_bytes=2**12) as store:
            for value in range(3):
                store.append("ads", make_rows(keys_of(range(600)), value))
                store.checkpoint("kept", {"dense": bytes(5000), "other": bytes(6000)})
            assert store.verify() == []
        with SsdStore.open(path, [], read_only=True) as reader:
            assert reader.num_rows("ads") == 600 and len(reader.extras()) == 2
