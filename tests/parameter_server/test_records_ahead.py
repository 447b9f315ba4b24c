"""What new keys wait by comes ahead of their step, as their rows do, and gives way to whoever is in
need of its slots.

Above it: pytest. Below it: hps/tiers/rows_ahead.py, the stages of hps.Pipeline.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import hps
from hps.table.waiting import records_of
from hps.tiers.rows_ahead import RowsAhead
from hps.tiers.top_tier import TableStack
from tests.front import wait_until

DIM, NUM_KEYS, SIZE, ROUNDS = 4, 4000, 200, 3
SMALL = hps.DramCacheConfig(bytes=60_000)
SMALL_GPU = hps.GpuCacheConfig(bytes=70_000, device="cpu")
TIERS: dict[str, dict[str, Any]] = {"dram": {"dram": SMALL}, "gpu": {"dram": SMALL}}
TIERS["gpu"]["gpu"] = SMALL_GPU
COUNT = hps.Admission(count=ROUNDS)
SCORE = hps.Admission(by="first", min_score=0.2)
FIRST = hps.TableConfig(name="first", dim=1, optimizer=hps.SGD(lr=1.0), statistics=True)


def tables(rule: hps.Admission) -> list[hps.TableConfig]:
    own = hps.TableConfig(name="ads", dim=DIM, optimizer=hps.SGD(lr=0.5), admission=rule)
    return [own, FIRST] if rule.by else [own]


def log() -> list[hps.Batch]:
    """Each key once a round, in another order in each."""
    generator, batches = np.random.default_rng(3), []
    for _ in range(ROUNDS):
        for keys in generator.permutation(NUM_KEYS).reshape(-1, SIZE):
            ids = hps.Ids(torch.from_numpy(keys.astype(np.int64)), torch.arange(SIZE + 1))
            batches.append(hps.Batch({"ads": ids}, torch.zeros(SIZE, 0), torch.ones(SIZE)))
    return batches


def config(path: Path, rule: hps.Admission, tiers: str) -> hps.Config:
    return hps.Config(path=path / "store", tables=tables(rule), threads=2, **TIERS[tiers])


def train(server: hps.ParameterServer, depth: int, is_joint: bool = True) -> None:
    looked_up: Any = (
        hps.SparseEmbeddings(server) if is_joint else hps.SparseEmbedding(server, "ads")
    )
    optimizer = hps.RowOptimizer(server)
    with hps.Pipeline(log(), server, depth) as batches:
        for number, batch in enumerate(batches):
            if server.tables["ads"].admission == SCORE and number % 2:
                server.push("first", batch.features["ads"].keys_L[::3], torch.ones(67, 1))
            looked_up(batch).square().mean().backward()
            optimizer.step()


@contextmanager
def fetching_threads(server: hps.ParameterServer, table: str) -> Iterator[Counter[str]]:
    """How many rows each thread, by its name, has read of what a table has on the SSD."""
    store, seen = server.parts.tables.tiers[table].store, Counter[str]()
    fetch = store.fetch

    def spied(keys: Any, rows: Any, found: Any) -> None:
        fetch(keys, rows, found)
        seen[threading.current_thread().name] += int(found.sum())

    with mock.patch.object(store, "fetch", spied):
        yield seen


@pytest.mark.parametrize("tiers", TIERS)
@pytest.mark.parametrize("is_joint", [True, False])
@pytest.mark.parametrize("rule", [COUNT, SCORE], ids=str)
def test_no_step_reads_what_its_keys_wait_by(
    tmp_path: Path, rule: hps.Admission, is_joint: bool, tiers: str
) -> None:
    beside, found = rule.by or records_of("ads"), {}
    for depth in (0, 1, 3):
        with hps.ParameterServer(config(tmp_path / str(depth), rule, tiers)) as server:
            if rule.by:
                ones = np.ones((NUM_KEYS, 1), np.float32)
                server.push("first", np.arange(NUM_KEYS, dtype=np.uint64), ones)
            with fetching_threads(server, beside) as threads:
                train(server, depth, is_joint)
            assert server.pins == 0
            found[depth] = server.num_rows("ads"), server.digest("ads")
        read = {name for name, count in threads.items() if count}
        if depth == 0:
            assert read == {"MainThread"}
        elif rule.by:  # the loop pushes to that table, too
            assert ("hps copy" if tiers == "gpu" else "hps fetch") in read
        else:  # what waits in the dram_cache is what there are slots for
            assert "MainThread" not in read and threads["hps fetch"] > threads["hps copy"]
    assert found[0][0] > NUM_KEYS // 4
    assert found[1] == found[0] and found[3] == found[0]


def records_of_ads(server: hps.ParameterServer) -> TableStack:
    return server.parts.tables.stacks[records_of("ads")]


def wait_for_two(records: TableStack) -> None:
    """Until what a batch ahead waits by is held, beside that of the batch that is out."""
    wait_until(lambda: len(records.ahead) > 1)


@pytest.mark.parametrize("tiers", TIERS)
@pytest.mark.parametrize("verb", ["assign", "create", "push"])
def test_it_gives_way_to_other_verbs_of_the_loop(tmp_path: Path, verb: str, tiers: str) -> None:
    """Of keys whose batch is ahead; or of so many that their records want all slots."""
    found = []
    for depth in (0, 3):
        with hps.ParameterServer(config(tmp_path / str(depth), COUNT, tiers)) as server:
            embeddings, optimizer = hps.SparseEmbeddings(server), hps.RowOptimizer(server)
            batches, records = log(), records_of_ads(server)
            with hps.Pipeline(batches, server, depth) as pipeline:
                for number, batch in enumerate(pipeline):
                    if number % 7 == 3 and number + 2 < len(batches):
                        if depth:
                            wait_for_two(records)
                        later = batches[number + 2].features["ads"].keys_L.numpy().view(np.uint64)
                        if verb == "assign":
                            server.assign("ads", later[:9], np.full((9, DIM), 2.0, np.float32))
                        elif verb == "create":
                            server.pull("ads", later[:9], create=True)
                        else:
                            keys = np.arange(600, dtype=np.uint64) + np.uint64(10**6)
                            server.push("ads", keys, np.ones((600, DIM), np.float32))
                    embeddings(batch).square().mean().backward()
                    optimizer.step()
            assert server.pins == 0 and not records.ahead
            found.append((server.num_rows("ads"), server.digest("ads")))
    assert found[0] == found[1]


def test_a_step_that_finds_no_room_takes_what_is_held_ahead(tmp_path: Path) -> None:
    with hps.ParameterServer(config(tmp_path, COUNT, "dram")) as server:
        records = records_of_ads(server)
        many = records.cache.capacity_rows * 6 // 10
        held = RowsAhead(records, np.arange(many, dtype=np.uint64) + np.uint64(10**6))
        assert server.pins == many and not held.is_released
        keys = np.arange(many, dtype=np.uint64)
        for _ in range(ROUNDS):
            assert server.num_rows("ads") == 0
            server.push("ads", keys, np.ones((many, DIM), np.float32))
        assert held.is_released and server.pins == 0 and server.num_rows("ads") == many


def test_nothing_comes_ahead_while_an_update_relies_on_what_it_found(tmp_path: Path) -> None:
    with hps.ParameterServer(config(tmp_path, COUNT, "dram")) as server:
        known, new = np.arange(50, dtype=np.uint64), np.arange(50, 90, dtype=np.uint64)
        server.push("ads", known, np.ones((50, DIM), np.float32))
        gate = server.parts.tables.stacks["ads"].gate
        assert gate is not None
        with server.pin("ads", known) as first, server.pin("ads", new) as second:
            with server.parts.tables.lock:
                plan = first.held_plan()
            assert gate.prepare(plan) and not gate.is_prepared
            assert first.bring_ahead() is None and second.bring_ahead() is None
            gate.release()
            assert first.bring_ahead() is None  # all are here
            ahead = second.bring_ahead()
            assert ahead is not None and server.pins == 50 + 40 + 40
            ahead.release()
            assert server.pins == 50 + 40


@pytest.mark.parametrize("tiers", TIERS)
def test_a_record_that_cannot_be_read_fails_its_batch(tmp_path: Path, tiers: str) -> None:
    with hps.ParameterServer(config(tmp_path, COUNT, tiers)) as server:
        first = np.arange(10**6, 10**6 + SIZE, dtype=np.uint64)
        server.push("ads", first, np.ones((SIZE, DIM), np.float32))
        train(server, 0)  # which puts their records out
        store = server.parts.tables.tiers[records_of("ads")].store
        embeddings, optimizer = hps.SparseEmbeddings(server), hps.RowOptimizer(server)
        ids = hps.Ids(torch.arange(10**6, 10**6 + SIZE), torch.arange(SIZE + 1))
        fresh = hps.Batch({"ads": ids}, torch.zeros(SIZE, 0), torch.ones(SIZE))
        num_done = 0
        with (
            mock.patch.object(store, "fetch", side_effect=hps.CorruptionError("a bad sector")),
            pytest.raises(hps.CorruptionError, match="a bad sector") as raised,
            hps.Pipeline([fresh, *log()], server, 2) as batches,
        ):
            for batch in batches:
                embeddings(batch).mean().backward()
                optimizer.step()
                num_done += 1
        assert server.pins == 0 and num_done == 0
        assert "raised in pipeline stage" in "".join(raised.value.__notes__)
