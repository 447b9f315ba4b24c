"""What pull, push, assign, erase, contains, items and digest promise, over every kind of tiers."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import hps
from hps.parameter_server.server import ParameterServer
from tests.lab import OPTIMIZERS, Lab, dump, evictions, keys_of, random_floats, random_keys, table

EDGE_KEYS = (0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)


def ones(count: int, dim: int = 4) -> np.ndarray:
    return np.ones((count, dim), np.float32)


def test_push_sums_duplicates_and_creates(lab: Lab) -> None:
    with lab.server(table()) as server:
        before = server.pull("ads", keys_of(7, 8)).copy()
        assert server.num_rows("ads") == 0
        server.push("ads", keys_of(7, 8, 7), ones(3))
        after = server.pull("ads", keys_of(7, 8))
        np.testing.assert_array_equal(after[0], before[0] - np.float32(2))
        np.testing.assert_array_equal(after[1], before[1] - np.float32(1))
        assert server.num_rows("ads") == 2


def test_every_64_bit_key_is_legal_and_has_its_own_row(lab: Lab) -> None:
    keys = np.array(EDGE_KEYS, np.uint64)
    stamps = np.arange(len(keys), dtype=np.float32)[:, None] + ones(len(keys))
    with lab.server(table()) as server:
        server.assign("ads", keys, stamps)
        for turn in range(40):  # push them out of the cache and fetch them again
            others = np.arange(turn * 50, turn * 50 + 50, dtype=np.uint64) + np.uint64(1000)
            server.push("ads", others, ones(50))
        assert evictions(server) > 0
        np.testing.assert_array_equal(server.pull("ads", keys), stamps)
        assert server.contains("ads", keys).all()
        assert server.erase("ads", keys[:3]).all()
        assert server.contains("ads", keys).tolist() == [False] * 3 + [True] * 3
        np.testing.assert_array_equal(server.pull("ads", keys[3:]), stamps[3:])


def test_reading_creates_nothing_and_create_does(lab: Lab) -> None:
    keys = np.arange(1000, dtype=np.uint64)
    with lab.server(table()) as server:
        first = server.pull("ads", keys).copy()
        assert server.num_rows("ads") == 0 and not server.contains("ads", keys).any()
        assert not dump(server) and int(server.digest("ads"), 16) == 0
        created = server.pull("ads", keys, create=True)
        np.testing.assert_array_equal(created, first)
        assert server.num_rows("ads") == 1000 and server.contains("ads", keys).all()
        server.pull("ads", keys, create=True)
        assert server.num_rows("ads") == 1000 == len(dump(server))


def test_batches_larger_than_the_cache_give_the_same_rows(lab: Lab) -> None:
    generator = np.random.default_rng(3)
    digests = []
    keys = random_keys(generator, 1500, 700)
    grads = random_floats(generator, 1500, 4)
    for scale in (1.0, 60.0):
        small = Lab(lab.kind, lab.path / str(scale))
        with small.server(table(hps.Adagrad(lr=0.1)), scale=scale) as server:
            for _ in range(3):
                server.pull("ads", keys)
                server.push("ads", keys, grads)
            assert (evictions(server) > 0) == (scale == 1.0)
            assert server.num_rows("ads") == len(np.unique(keys))
            digests.append((server.digest("ads"), server.pull("ads", keys).tobytes()))
    assert digests[0] == digests[1]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: one.kind)
def test_budget_never_shows_in_rows_though_rates_change(
    lab: Lab, optimizer: hps.common.optimizers.Optimizer
) -> None:
    """Rows are read under one learning rate and updated under another, some evicted in between."""
    digests = []
    for scale in (1.0, 40.0):
        generator = np.random.default_rng(5)
        small = Lab(lab.kind, lab.path / str(scale))
        with small.server(table(optimizer), scale=scale) as server:
            for step in range(12):
                server.learning_rates["ads"] = 0.1 / (step + 1)
                server.pull("ads", random_keys(generator, 80, 400))
                keys = random_keys(generator, 60, 400)
                server.push("ads", keys, random_floats(generator, 60, 4))
                server.pull("ads", random_keys(generator, 8, 500), create=step % 3 == 0)
            assert (evictions(server) > 0) == (scale == 1.0)
            digests.append(server.digest("ads"))
    assert digests[0] == digests[1]


def test_push_after_evictions_uses_no_stale_plan(lab: Lab) -> None:
    keys = np.arange(10, dtype=np.uint64)
    others = np.arange(100, 1100, dtype=np.uint64)
    with lab.server(table()) as server:
        before = server.pull("ads", keys).copy()
        server.push("ads", keys, ones(10))
        server.pull("ads", keys)
        server.push("ads", others, ones(1000))  # evicts the keys of the plan
        assert evictions(server) > 0
        server.push("ads", keys, ones(10))
        expected = before - np.float32(1) - np.float32(1)
        np.testing.assert_array_equal(server.pull("ads", keys), expected)


def test_empty_batches_are_fine(lab: Lab) -> None:
    none = np.empty(0, np.uint64)
    with lab.server(table()) as server:
        assert server.pull("ads", none).shape == (0, 4)
        assert server.pull("ads", none, create=True).shape == (0, 4)
        server.push("ads", none, ones(0))
        server.assign("ads", none, ones(0))
        assert server.contains("ads", none).shape == server.erase("ads", none).shape == (0,)
        with server.pin("ads", none) as rows:
            assert rows.gather().shape == (0, 4)
        assert server.num_rows("ads") == 0


def test_assign_takes_the_last_row_of_a_key_and_its_state(lab: Lab) -> None:
    with lab.server(table(hps.Adagrad(lr=1.0, initial_accumulator_value=0.25))) as server:
        rows = np.arange(12, dtype=np.float32).reshape(3, 4)
        server.assign("ads", keys_of(5, 6, 5), rows)
        np.testing.assert_array_equal(server.pull("ads", keys_of(5, 6)), rows[[2, 1]])
        for _, _, state in server.items("ads", state=True):
            np.testing.assert_array_equal(state, np.full((2, 4), 0.25, np.float32))
        server.assign("ads", keys_of(5), rows[:1], rows[:1] + np.float32(9))
        found = {int(k[0]): s for k, _, s in server.items("ads", batch=1, state=True)}
        np.testing.assert_array_equal(found[5], rows[:1] + np.float32(9))
        assert server.num_rows("ads") == 2


def test_erase_sees_every_tier_and_counts_exactly(lab: Lab) -> None:
    keys = np.arange(600, dtype=np.uint64)
    with lab.server(table()) as server:
        server.push("ads", keys, ones(600))
        initial = Lab(lab.kind, lab.path / "other")
        assert evictions(server) > 0
        twice = np.concatenate([keys[::2], keys[::2]])
        assert server.erase("ads", twice).all()
        assert not server.erase("ads", keys[::2]).any()
        assert server.num_rows("ads") == 300 == len(dump(server))
        with initial.server(table()) as untouched:
            erased = server.pull("ads", keys[::2])
            np.testing.assert_array_equal(erased, untouched.pull("ads", keys[::2]))
        assert server.num_rows("ads") == 300


def test_items_and_digest_agree_and_ignore_where_rows_lie(lab: Lab) -> None:
    keys = np.arange(500, dtype=np.uint64)
    with lab.server(table(hps.Adam(lr=0.1))) as server:
        server.push("ads", keys, ones(500))
        written = server.stats()["tables"]["ads"]["ssd_store"]["rows_appended"]
        digest, rows = server.digest("ads"), dump(server)
        assert len(digest) == 32 and len(rows) == 500
        after = server.stats()["tables"]["ads"]["ssd_store"]["rows_appended"]
        assert after == written  # neither of them writes
        server.pull("ads", keys[::-1].copy())
        assert server.digest("ads") == digest and dump(server) == rows
        server.checkpoint()
        assert server.digest("ads") == digest and dump(server) == rows
        server.push("ads", keys[:1], ones(1))
        assert server.digest("ads") != digest


def test_items_survives_reads_and_refuses_changes(lab: Lab) -> None:
    keys = np.arange(500, dtype=np.uint64)
    with lab.server(table()) as server:
        server.push("ads", keys, ones(500))
        seen: list[int] = []
        for number, (piece, rows) in enumerate(server.items("ads", batch=16)):
            seen.extend(piece.tolist())
            assert rows.shape == (len(piece), 4) and len(piece) <= 16
            server.pull("ads", np.roll(keys, 37 * number)[:120].copy())  # moves rows up and down
        assert sorted(seen) == keys.tolist()
        with pytest.raises(hps.ConfigError, match="changed while items"):
            for piece, _ in server.items("ads", batch=16):
                server.push("ads", piece, ones(len(piece)))


def test_several_tables_share_the_budget_and_nothing_else(lab: Lab) -> None:
    tables = [table(name="ads"), table(hps.Adam(lr=0.1), name="users", dim=7)]
    keys = np.arange(300, dtype=np.uint64)
    with lab.server(*tables, scale=1.5) as server:
        server.push("ads", keys, ones(300))
        server.push("users", keys[:100], ones(100, 7))
        assert (server.num_rows("ads"), server.num_rows("users")) == (300, 100)
        assert not np.array_equal(
            server.pull("ads", keys[200:]), server.pull("users", keys[200:])[:, :4]
        )
        stats = server.stats()
        assert stats["dram_cache"]["bytes"] <= stats["dram_cache"]["budget_bytes"]
        assert set(stats["tables"]) == {"ads", "users"}
        assert stats["ssd_store"]["hits"] + stats["ssd_store"]["misses"] > 0


def test_numpy_and_torch_give_the_same_rows_in_kind(lab: Lab) -> None:
    keys = np.array([3, 2**63 + 5, 3], np.uint64)
    tensor = torch.from_numpy(keys.view(np.int64))
    with lab.server(table()) as server:
        rows = server.pull("ads", tensor)
        assert isinstance(rows, torch.Tensor) and rows.dtype == torch.float32
        np.testing.assert_array_equal(rows.numpy(), server.pull("ads", keys))
        server.push("ads", tensor, torch.ones(3, 4))
        assert server.contains("ads", tensor).tolist() == [True] * 3
        out = torch.empty(3, 4)
        assert server.pull("ads", tensor, out=out) is out
        np.testing.assert_array_equal(out.numpy(), server.pull("ads", keys))
        strided = np.repeat(keys, 2)[::2]
        np.testing.assert_array_equal(server.pull("ads", strided), out.numpy())
        with_grad = torch.ones(3, 4, requires_grad=True)
        server.push("ads", keys.view(np.int64), with_grad)
        assert isinstance(server.erase("ads", tensor), torch.Tensor)


def test_results_are_never_overwritten_while_they_are_held(lab: Lab) -> None:
    keys = np.arange(8, dtype=np.uint64)
    with lab.server(table()) as server:
        held = []
        for turn in range(12):
            server.assign("ads", keys, np.full((8, 4), turn, np.float32))
            rows = server.pull("ads", torch.from_numpy(keys.view(np.int64)))
            held.append(rows[2:3] if turn % 2 else server.pull("ads", keys)[5:])
            del rows
        for turn, rows in enumerate(held):
            assert float(rows.min()) == float(rows.max()) == turn


def push_and_pull(server: ParameterServer, seed: int) -> None:
    generator = np.random.default_rng(seed)
    for _ in range(10):
        keys = random_keys(generator, 40, 300)
        server.push("ads", keys, ones(40))
        server.pull("ads", keys)
        server.num_rows("ads")


def test_threads_may_call_in_parallel(lab: Lab) -> None:
    """Integer gradients: any serial order gives the same sums."""
    digests = []
    for parallel in (True, False):
        small = Lab(lab.kind, lab.path / str(parallel))
        one = hps.TableConfig(
            name="ads", dim=4, optimizer=hps.SGD(lr=1.0), initializer=hps.Constant(0.0)
        )
        with small.server(one) as server:
            threads = [threading.Thread(target=push_and_pull, args=(server, i)) for i in range(4)]
            for thread in threads:
                thread.start()
                if not parallel:
                    thread.join()
            for thread in threads:
                thread.join()
            digests.append((server.digest("ads"), server.num_rows("ads")))
    assert digests[0] == digests[1]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: one.kind)
def test_threads_and_instruction_sets_never_show(
    tmp_path: Path, optimizer: hps.common.optimizers.Optimizer
) -> None:
    digests = set()
    for options in (
        {"threads": 1},
        {"threads": 4},
        {"instruction_set": "plain"},
        {"instruction_set": "avx2"},
        {"instruction_set": "avx512"},
    ):
        lab = Lab("native", tmp_path / str(len(digests)) / "-".join(map(str, options.values())))
        generator = np.random.default_rng(31)
        try:
            server = lab.server(table(optimizer, dim=17), scale=3.0, **options)
        except hps.ConfigError as error:
            assert options["instruction_set"] in str(error)  # not on this machine
            continue
        with server:
            for _ in range(8):
                keys = np.concatenate(
                    [random_keys(generator, 300, 900), random_keys(generator, 100, 2)]
                )
                server.pull("ads", keys)
                server.push("ads", keys, random_floats(generator, 400, 17))
            assert evictions(server) > 0
            digests.add(server.digest("ads"))
    assert len(digests) == 1
