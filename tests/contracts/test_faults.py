"""Bad arguments, full disks, damage: typed errors that say what to do; the store opens again."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import hps
from hps.parameter_server.server import ParameterServer
from tests.lab import Lab, dump, evictions, keys_of, table


def ones(count: int, dim: int = 4) -> np.ndarray:
    return np.ones((count, dim), np.float32)


BAD_CALLS = {
    "unknown table": (lambda s: s.pull("nope", keys_of(1)), "no table 'nope'.*ads"),
    "list of keys": (lambda s: s.pull("ads", [1]), "list.*numpy array"),
    "int32 keys": (lambda s: s.pull("ads", np.zeros(1, np.int32)), "int32.*64 bits"),
    "float keys": (lambda s: s.push("ads", torch.zeros(1), ones(1)), "float32.*int64"),
    "2-d keys": (lambda s: s.pull("ads", np.zeros((1, 1), np.uint64)), "flatten"),
    "big-endian keys": (lambda s: s.pull("ads", np.zeros(1, ">u8")), "dtype >u8"),
    "wrong dim": (lambda s: s.push("ads", keys_of(1), ones(1, 5)), r"\[1, 5\].*\[1, 4\]"),
    "wrong count": (lambda s: s.push("ads", keys_of(1, 2), ones(1)), r"\[1, 4\].*\[2, 4\]"),
    "double gradients": (
        lambda s: s.push("ads", keys_of(1), np.ones((1, 4))),
        "float64.*float32",
    ),
    "half gradients": (
        lambda s: s.push("ads", keys_of(1), torch.ones(1, 4).half()),
        "float16.*float32",
    ),
    "double out": (lambda s: s.pull("ads", keys_of(1), np.empty((1, 4))), "float64.*float32"),
    "narrow out": (lambda s: s.pull("ads", keys_of(1), ones(1, 3)), r"\[1, 3\].*\[1, 4\]"),
    "strided out": (lambda s: s.pull("ads", keys_of(1, 2), ones(4)[::2]), "contiguous"),
    "assign state": (lambda s: s.assign("ads", keys_of(1), ones(1), ones(1, 9)), r"\[1, 9\]"),
    "batch of items": (lambda s: s.items("ads", batch=0), "batch=0"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_arguments_are_config_errors_that_say_what_to_do(lab: Lab, name: str) -> None:
    call, message = BAD_CALLS[name]
    with lab.server(table()) as server:
        with pytest.raises(hps.ConfigError, match=message):
            call(server)
        assert server.num_rows("ads") == 0
        server.push("ads", keys_of(1), ones(1))
    with lab.server(table()) as server:
        assert server.num_rows("ads") == 1


def test_a_budget_below_the_smallest_cache_names_both_numbers(lab: Lab) -> None:
    config = lab.config(table(), table(name="users"), scale=0.5)
    least = lab.smallest_budget(table())
    share = config.shares(int(config.dram.bytes))["ads"]
    with pytest.raises(hps.ConfigError, match=rf"'ads'.*{share} bytes.*{least}"):
        lab.server(table(), table(name="users"), scale=0.5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("is_large", [False, True])
def test_a_non_finite_gradient_changes_no_row(lab: Lab, value: float, is_large: bool) -> None:
    count = 400 if is_large else 5
    keys = np.arange(count, dtype=np.uint64)
    with lab.server(table()) as server:
        server.push("ads", keys, ones(count))
        digest = server.digest("ads")
        grads = ones(count)
        grads[count - 1, 3] = value
        with pytest.raises(hps.NonFiniteError, match=f"'ads', key {count - 1}:"):
            server.push("ads", keys, grads)
        assert server.digest("ads") == digest
        assert (evictions(server) > 0) == is_large


def test_a_sum_that_overflows_is_refused_too(lab: Lab) -> None:
    with lab.server(table()) as server:
        with pytest.raises(hps.NonFiniteError, match="key 3"):
            server.push("ads", keys_of(3, 3), ones(2) * np.float32(3e38))
        assert server.num_rows("ads") == 0


def fill(server: ParameterServer, count: int) -> None:
    server.push("ads", np.arange(count, dtype=np.uint64), ones(count))


@pytest.mark.parametrize("free_rows", [0, 1, 9])
def test_with_a_full_disk_nothing_is_lost_and_pulls_go_on(
    twin_disk_lab: Lab, free_rows: int
) -> None:
    lab = twin_disk_lab
    keys = np.arange(700, dtype=np.uint64)
    with lab.server(table()) as server:
        fill(server, 600)
        server.checkpoint("good")
        server.push("ads", keys[:300], ones(300))
        expected = server.pull("ads", keys).copy()
        server.push("ads", keys[300:400], ones(100))
        digest, rows = server.digest("ads"), dump(server)
        expected[300:400] -= np.float32(1)
        lab.disk.free_rows = free_rows
        for _ in range(3):
            np.testing.assert_array_equal(server.pull("ads", keys), expected)
            assert server.num_rows("ads") == 600
        assert server.digest("ads") == digest and dump(server) == rows
        assert server.stats()["ssd_store"]["rows_read_through"] > 0
        with pytest.raises(hps.StoreError, match="no space"):
            for first in range(10**6, 10**6 + 10000, 100):
                server.push("ads", np.arange(first, first + 100, dtype=np.uint64), ones(100))
        np.testing.assert_array_equal(server.pull("ads", keys), expected)
        assert server.pins == 0
        with pytest.raises(hps.StoreError, match="no space"):
            server.checkpoint("bad")
        assert [info["tag"] for info in server.checkpoints()] == ["good"]
        lab.disk.free_rows = None  # space returns
        fill(server, 10)
        expected[:10] -= np.float32(1)
        np.testing.assert_array_equal(server.pull("ads", keys), expected)
        assert len(dump(server)) == server.num_rows("ads")
    with lab.server(table()) as server:
        np.testing.assert_array_equal(server.pull("ads", keys), expected)


@contextmanager
def no_file_may_grow() -> Iterator[None]:
    """The operating system refuses every write, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_when_native_writes_are_refused_pulls_go_on(tmp_path: Path) -> None:
    lab = Lab("native", tmp_path)
    keys = np.arange(700, dtype=np.uint64)
    many = np.arange(10**6, 10**6 + 20000, dtype=np.uint64)
    with lab.server(table()) as server:
        fill(server, 600)
        server.checkpoint("good")
        server.push("ads", keys[:400], ones(400))
        digest = server.digest("ads")
        expected = server.pull("ads", keys).copy()
        server.push("ads", keys[300:400], np.zeros((100, 4), np.float32))
        errors = []
        with no_file_may_grow():
            pulled = [server.pull("ads", keys).copy() for _ in range(3)]
            is_same = server.digest("ads") == digest
            for call in (
                lambda: server.push("ads", many, ones(20000)),
                lambda: server.checkpoint("bad"),
            ):
                try:
                    call()
                except hps.StoreError as error:
                    errors.append(error)
            pulled.append(server.pull("ads", keys).copy())
        assert len(errors) == 2 and is_same
        for rows in pulled:
            np.testing.assert_array_equal(rows, expected)
        assert server.stats()["ssd_store"]["rows_read_through"] > 0
        server.push("ads", keys[:10], ones(10))  # writes are possible again
        expected[:10] -= np.float32(1)
        assert len(dump(server)) == server.num_rows("ads")
    with lab.server(table()) as server:
        np.testing.assert_array_equal(server.pull("ads", keys), expected)
        assert [info["tag"] for info in server.checkpoints()] == ["good", "last"]


def test_a_damaged_row_is_an_error_and_its_neighbours_are_not(twin_disk_lab: Lab) -> None:
    lab = twin_disk_lab
    with lab.server(table()) as server:
        fill(server, 600)
    lab.disk.damaged_keys.add(5)
    with lab.server(table()) as server:
        with pytest.raises(hps.CorruptionError, match="damaged"):
            server.pull("ads", keys_of(4, 5, 6))
        with pytest.raises(hps.CorruptionError, match="damaged"):
            server.push("ads", keys_of(4, 5, 6), ones(3))
        assert server.pins == 0
        server.push("ads", keys_of(4, 6), ones(2))
        assert server.pull("ads", keys_of(4, 6)).shape == (2, 4)
        assert server.num_rows("ads") == 600


def test_a_second_writer_is_told_the_first_ones_pid(lab: Lab) -> None:
    with lab.server(table()) as server:
        fill(server, 3)
        server.checkpoint()
        with pytest.raises(hps.StoreError, match=str(os.getpid())):
            lab.server(table())
        fill(server, 3)
    with lab.server(table()) as server:
        assert server.num_rows("ads") > 0


def test_there_is_nothing_to_open_where_no_store_is(lab: Lab) -> None:
    with pytest.raises(hps.HpsError):
        lab.open()
