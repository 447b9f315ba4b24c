"""Keys that seem distinct travel to the only shard as they are, and what comes of them is the same.

Above it: pytest. Below it: `hps.RemoteParameterServer` over real shards; what a client sends is
looked at on its way.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.errors import NonFiniteError
from hps.service.client.parameter_server import RemoteParameterServer
from hps.service.client.transport import GrpcTransport
from hps.service.client.window import METHODS
from tests.service.client.client_lab import ADS, service

NUM_KEYS = 6000  # fewer than 4,096 are deduplicated, however distinct they seem
DIM = ADS.dim
KEYS_AT = {"Pull": 15, "Push": 14}  # the number of a message's field


class Watched(GrpcTransport):
    """Notes how many keys each pull and push has."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sent: list[tuple[str, int]] = []

    def _note(self, method: str, request: bytes) -> None:
        if method in KEYS_AT:
            keys_at = KEYS_AT[method]
            self.sent.append(
                (method, METHODS[method].request.split(request).num_bytes(keys_at) // 8)
            )

    def call(self, method: str, request: bytes, timeout: float) -> bytes:
        self._note(method, request)
        return super().call(method, request, timeout)

    def start(self, method: str, request: bytes, timeout: float) -> Any:
        self._note(method, request)
        return super().start(method, request, timeout)


class WatchedClient(RemoteParameterServer):
    _connect = Watched

    @property
    def sent(self) -> list[tuple[str, int]]:
        return [
            one for session in self._connections.sessions for one in vars(session.transport)["sent"]
        ]


@contextmanager
def both(folder: Path, count: int = 1, **options: Any) -> Iterator[tuple[Any, WatchedClient]]:
    """A store in this process, and a service."""
    dram = hps.DramCacheConfig(bytes="4MiB")
    local = hps.ParameterServer(hps.Config(path=folder / "local", tables=[ADS], dram=dram))
    with (
        local,
        service(folder, count) as servers,
        WatchedClient(servers.addresses, "trainer-0", **options) as remote,
    ):
        yield local, remote


def batch(seed: int, num_repeats: int = 0) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    keys = generator.permutation(2 * NUM_KEYS)[:NUM_KEYS].astype(np.uint64)
    if num_repeats:
        keys[-num_repeats:] = keys[:num_repeats]
    return keys, generator.normal(size=(NUM_KEYS, DIM)).astype(np.float32)


@pytest.mark.parametrize("num_repeats", [0, 20])
def test_keys_go_as_they_are_and_rows_come_out_as_in_one_process(
    tmp_path: Path, num_repeats: int
) -> None:
    with both(tmp_path) as (local, remote):
        for seed in range(4):
            keys, grads = batch(seed, num_repeats)
            grads[::5] = -0.0
            local.push("ads", keys, grads)
            remote.push("ads", keys, grads, ack="memory")
            assert np.array_equal(remote.pull("ads", keys), local.pull("ads", keys))
        assert remote.digest("ads") == local.digest("ads")
        assert remote.sent == [("Push", NUM_KEYS), ("Pull", NUM_KEYS)] * 4


def test_rows_of_a_pull_are_the_callers_own(tmp_path: Path) -> None:
    with both(tmp_path) as (local, remote):
        keys, grads = batch(0)
        local.push("ads", keys, grads)
        remote.push("ads", keys, grads)
        expected = local.pull("ads", keys)
        rows = remote.pull("ads", keys)
        again = remote.pull("ads", keys)
        rows[:] = 7
        assert np.array_equal(again, expected) and (rows == 7).all()
        given = np.empty_like(rows)
        assert remote.pull("ads", keys, given) is given
        assert np.array_equal(given, expected)
        assert remote.sent == [("Push", NUM_KEYS)] + [("Pull", NUM_KEYS)] * 3


@pytest.mark.parametrize("wire", ["float16", "int8"])
def test_rows_of_narrow_formats_go_as_they_are_and_gradients_as_their_sums(
    tmp_path: Path, wire: str
) -> None:
    with both(tmp_path, wire=wire) as (_, remote):
        keys, grads = batch(0, 20)
        remote.push("ads", keys, grads)
        rows = remote.pull("ads", keys)
        with RemoteParameterServer(remote.config.addresses, "other") as exact:
            assert np.allclose(rows, exact.pull("ads", keys), rtol=0.01, atol=0.01)
        assert remote.sent == [("Push", NUM_KEYS - 20), ("Pull", NUM_KEYS)]


def test_keys_that_repeat_are_deduplicated_first_and_so_are_those_of_several_shards(
    tmp_path: Path,
) -> None:
    keys = np.arange(NUM_KEYS, dtype=np.uint64) % 100
    with both(tmp_path / "one") as (_, remote):
        remote.push("ads", keys, np.ones((NUM_KEYS, DIM), np.float32))
        remote.pull("ads", keys)
        assert remote.sent == [("Push", 100), ("Pull", 100)]
    keys, grads = batch(0, 20)
    with both(tmp_path / "two", count=2) as (local, remote):
        local.push("ads", keys, grads)
        remote.push("ads", keys, grads)
        assert remote.digest("ads") == local.digest("ads")
        assert len(remote.sent) == 2
        assert sum(num_keys for _, num_keys in remote.sent) == NUM_KEYS - 20


def test_a_gradient_that_is_not_finite_is_refused_before_it_travels(tmp_path: Path) -> None:
    with both(tmp_path) as (local, remote):
        keys, grads = batch(0)
        bad = grads.copy()
        bad[4321, 5] = np.nan
        with pytest.raises(NonFiniteError, match=rf"key {keys[4321]}:"):
            remote.push_async("ads", keys, bad)
        assert remote.sent == []
        local.push("ads", keys, grads)
        remote.push("ads", keys, grads)
        assert remote.digest("ads") == local.digest("ads")


def test_a_sum_that_is_not_finite_is_refused_by_the_shard_and_the_next_push_is_applied(
    tmp_path: Path,
) -> None:
    with both(tmp_path) as (local, remote):
        keys, grads = batch(0, 1)
        bad = grads.copy()
        bad[0], bad[-1] = 3e38, 3e38  # each is finite
        with pytest.raises(NonFiniteError, match=rf"key {keys[0]}:"):
            remote.push("ads", keys, bad)
        assert remote.num_rows("ads") == 0 and remote.sent == [("Push", NUM_KEYS)]
        for _ in range(2):
            local.push("ads", keys, grads)
            remote.push("ads", keys, grads)
        assert remote.digest("ads") == local.digest("ads")
