"""Connections that do nothing take neither the descriptors of the store nor the place of others.

Above it: pytest. Below it: hps.service.server.server over a shard of dicts, and sockets.
"""

import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

import hps
from hps.service.server import front
from hps.service.server.descriptors import raise_descriptor_limit, room_for_connections
from hps.service.server.limits import ServerLimits
from tests.service.client.fake_shard import FakeShard
from tests.service.server.test_http_server import ended
from tests.service.server.test_server_access import certificates, server_files
from tests.service.server.test_server_calls import pull
from tests.service.serving import Channel, serving

__all__ = ["certificates"]  # a fixture


@pytest.mark.parametrize("has_tls", [False, True])
def test_connections_beyond_the_limit_are_closed_and_silent_ones_after_their_time(
    certificates: Path, monkeypatch: pytest.MonkeyPatch, has_tls: bool
) -> None:
    monkeypatch.setattr(front, "_HANDSHAKE_MS", 1000)
    options = {"tls": server_files(certificates)} if has_tls else {}
    limits = ServerLimits(connections=8)
    with serving(FakeShard(), limits=limits, **options) as local, ExitStack() as stack:
        host, _, port = local.server.address.rpartition(":")
        held = [
            stack.enter_context(socket.create_connection((host, int(port)), 10)) for _ in range(30)
        ]
        # Some at once, for want of room; the others because they say nothing.
        assert all(map(ended, held))
        credentials = None
        if has_tls:
            roots = (certificates / "ca.pem").read_bytes()
            credentials = grpc.ssl_channel_credentials(roots)
        channel = Channel(f"localhost:{port}", credentials)
        assert channel.call("Pull", pull([1])).dim == 4
        channel.close()


def test_connections_leave_half_of_the_descriptors_to_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for soft, wanted, room in (
        (1024, 1024, 512),
        (65536, 1024, 1024),
        (20, 1024, 16),
        (resource.RLIM_INFINITY, 70, 70),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, soft=soft: (soft, soft))
        assert room_for_connections(wanted) == room


@pytest.mark.parametrize(
    ("soft", "hard", "now"),
    [
        (1024, 4096, 4096),
        (1024, 2**20, 65536),
        (1024, resource.RLIM_INFINITY, 65536),
        (2**19, 2**20, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_serving_takes_the_descriptors_that_it_may_have(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, now: int | None
) -> None:
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: taken.append(limits))
    raise_descriptor_limit()
    assert taken == ([] if now is None else [(now, hard)])


def test_a_limit_of_connections_that_cannot_be_is_named() -> None:
    with pytest.raises(hps.ConfigError, match="limit connections=0"):
        ServerLimits(connections=0)
