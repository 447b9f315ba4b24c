"""pin, gather, apply, release: what SparseEmbedding, RowOptimizer and Pipeline are built on."""

import gc

import numpy as np
import pytest
import torch

import hps
from hps.parameter_server.server import RowUpdate
from tests.lab import Lab, evictions, keys_of, random_floats, random_keys, table, top_stats


def ones(count: int, dim: int = 4) -> np.ndarray:
    return np.ones((count, dim), np.float32)


def test_pinned_rows_stay_while_others_come_and_go(lab: Lab) -> None:
    keys = np.arange(8, dtype=np.uint64)
    with lab.server(table()) as server:
        rows = server.pin("ads", keys)
        before = rows.gather().copy()
        assert server.pins == 8 and rows.num_occurrences == 8 and rows.table == "ads"
        for turn in range(20):
            others = np.arange(1000 + turn * 50, 1050 + turn * 50, dtype=np.uint64)
            server.push("ads", others, ones(50))
        assert evictions(server) > 0
        np.testing.assert_array_equal(rows.gather(), before)
        server.apply([RowUpdate("ads", keys, ones(8), rows)])
        np.testing.assert_array_equal(rows.gather(), before - np.float32(1))
        rows.release()
        rows.release()
        assert server.pins == 0
        with pytest.raises(hps.ConfigError, match="released"):
            rows.gather()


def test_gather_gives_tensors_for_tensors_and_fills_out(lab: Lab) -> None:
    keys = torch.tensor([5, -1, 5])
    with lab.server(table()) as server, server.pin("ads", keys) as rows:
        out = torch.empty(3, 4)
        assert rows.gather(out) is out
        assert torch.equal(rows.gather(), out) and torch.equal(out[0], out[2])
        np.testing.assert_array_equal(server.pull("ads", keys_of(5, 2**64 - 1)), out[:2].numpy())


def test_a_batch_that_cannot_be_pinned_takes_nothing(lab: Lab) -> None:
    with lab.server(table()) as server:
        capacity = top_stats(server)["capacity_rows"]
        with pytest.raises(hps.CapacityError, match=rf"{capacity + 1} distinct.*{capacity} slots"):
            server.pin("ads", np.arange(capacity + 1, dtype=np.uint64))
        assert server.pins == 0
        held = server.pin("ads", np.arange(8, dtype=np.uint64))
        with pytest.raises(hps.CapacityError, match="8 pins"):
            server.pin("ads", np.arange(100, 100 + capacity, dtype=np.uint64))
        held.release()
        server.pin("ads", np.arange(100, 110, dtype=np.uint64)).release()
        assert server.pins == 0


def test_with_every_slot_pinned_pull_reads_through_and_push_says_why(lab: Lab) -> None:
    with lab.server(table()) as server:
        keys = np.arange(5000, 5100, dtype=np.uint64)
        server.assign("ads", keys, np.arange(400, dtype=np.float32).reshape(100, 4))
        held = []
        for key in range(2000):
            try:
                held.append(server.pin("ads", keys_of(key)))
            except hps.CapacityError:
                continue
        wanted = np.concatenate([keys, keys_of(9999, 9999, 0)])
        rows = server.pull("ads", wanted).copy()
        np.testing.assert_array_equal(rows[:100].reshape(-1), np.arange(400))
        assert server.stats()["ssd_store"]["rows_read_through"] > 0
        with pytest.raises(hps.CapacityError, match="pins"):
            server.push("ads", keys, ones(100))
        for one in held:
            one.release()
        np.testing.assert_array_equal(server.pull("ads", wanted), rows)


def test_erase_of_a_pinned_key_raises_and_erases_nothing(lab: Lab) -> None:
    with lab.server(table()) as server:
        server.push("ads", keys_of(1, 2, 3), ones(3))
        with server.pin("ads", keys_of(2)):
            with pytest.raises(hps.ConfigError, match="key 2 is pinned"):
                server.erase("ads", keys_of(1, 2, 3))
            assert server.num_rows("ads") == 3
            assert server.erase("ads", keys_of(3)).all()
        assert server.erase("ads", keys_of(1, 2)).all() and server.num_rows("ads") == 0


def test_apply_changes_all_tables_or_none(lab: Lab) -> None:
    tables = [table(), table(name="users")]
    bad = ones(2)
    bad[1, 2] = np.inf
    with lab.server(*tables) as server:
        before = [server.pull(name, keys_of(1, 2)).copy() for name in ("ads", "users")]
        updates = [
            RowUpdate("ads", keys_of(1, 2), ones(2)),
            RowUpdate("users", keys_of(1, 2), bad, server.pin("users", keys_of(1, 2))),
        ]
        with pytest.raises(hps.NonFiniteError, match="'users', key 2"):
            server.apply(updates)
        for name, rows in zip(("ads", "users"), before, strict=True):
            np.testing.assert_array_equal(server.pull(name, keys_of(1, 2)), rows)
            assert server.num_rows(name) == 0
        updates[1].grads = ones(2)
        server.apply(updates)
        for name, rows in zip(("ads", "users"), before, strict=True):
            expected = rows - np.float32(1)
            np.testing.assert_array_equal(server.pull(name, keys_of(1, 2)), expected)
        assert updates[1].rows is not None
        updates[1].rows.release()
        assert server.pins == 0


def test_updates_of_one_table_are_one_step_in_their_order(lab: Lab) -> None:
    generator = np.random.default_rng(11)
    keys = random_keys(generator, 300, 12)
    grads = random_floats(generator, 300, 4)
    digests = []
    for cuts in ([], [100], [7, 99, 250]):
        part = Lab(lab.kind, lab.path / str(len(cuts)))
        with part.server(table(hps.Adagrad(lr=0.1))) as server:
            pieces = zip(np.split(keys, cuts), np.split(grads, cuts), strict=True)
            server.apply([RowUpdate("ads", key, grad) for key, grad in pieces])
            digests.append(server.digest("ads"))
    assert digests[0] == digests[1] == digests[2]


def test_apply_refuses_rows_that_are_not_those_of_the_keys(lab: Lab) -> None:
    with lab.server(table()) as server:
        rows = server.pin("ads", keys_of(1, 2))
        with pytest.raises(hps.ConfigError, match="other keys"):
            server.apply([RowUpdate("ads", keys_of(2, 1), ones(2), rows)])
        rows.release()
        with pytest.raises(hps.ConfigError, match="released"):
            server.apply([RowUpdate("ads", keys_of(1, 2), ones(2), rows)])
        assert server.num_rows("ads") == 0 == server.pins


def test_rows_that_are_dropped_release_their_pins(lab: Lab) -> None:
    with lab.server(table()) as server:
        rows = server.pin("ads", keys_of(1, 2))
        del rows
        gc.collect()
        assert server.pins == 0


def test_fetched_and_never_trained_leaves_no_trace(lab: Lab) -> None:
    with lab.server(table()) as server:
        server.push("ads", keys_of(1), ones(1))
        digest = server.digest("ads")
        for first in range(0, 2000, 10):
            server.pin("ads", np.arange(first, first + 10, dtype=np.uint64)).release()
        assert top_stats(server)["misses"] > 1000
        assert server.digest("ads") == digest and server.num_rows("ads") == 1
        assert server.checkpoint()["rows_written"] <= 1
