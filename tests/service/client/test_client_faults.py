"""What a client says of itself and of servers that it cannot reach, and what it does not tell them.

Above it: pytest. Below it: `hps.RemoteParameterServer` over real channels and fake_service.py.
"""

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import hps
from hps.contracts.updates import RowUpdate
from hps.errors import ConfigError, RemoteError
from hps.service.client import rounds as client_rounds
from hps.service.client.errors import Failure
from hps.service.client.options import ClientConfig
from hps.service.client.parameter_server import RemoteParameterServer
from hps.service.shard.location import StoreLocation
from hps.service.shard.shard import Shard, ShardOptions
from tests.ports import HeldPort
from tests.service.client.client_lab import ADS, service
from tests.service.client.fake_shard import FakeShard
from tests.service.client.test_client_sessions import KEYS, ONES, Lab
from tests.service.server.test_server_access import certificates, make_certificates, server_files
from tests.service.serving import serving

__all__ = ["certificates"]  # a fixture


@contextmanager
def refused_port() -> Iterator[str]:
    """An address where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def place(kind: str, certificates: Path) -> Iterator[str]:
    if kind == "nobody":
        with refused_port() as address:
            yield address
        return
    options: dict[str, Any] = {}
    if "tls" in kind:
        options["tls"] = server_files(certificates, client_ca="mutual" in kind)
    if kind == "expired tls":
        options["tls"] = replace(
            server_files(certificates), cert=certificates / "expired-server.pem"
        )
    with serving(FakeShard(), **options) as local:
        yield local.server.address


@pytest.mark.parametrize(
    ("kind", "tls", "hint"),
    [
        ("nobody", None, "nothing listens there"),
        ("nobody", "ca.pem", "nothing listens there"),
        ("other name", "ca.pem", "no host of that name"),
    ],
)
def test_what_is_probably_wrong_is_said_soon_and_in_the_error(
    certificates: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    tls: str | None,
    hint: str,
) -> None:
    monkeypatch.setattr(client_rounds, "_PATIENCE", 0.05)
    config = None if tls is None else hps.TlsConfig(ca=certificates / tls)
    with place(kind, certificates) as address, caplog.at_level(logging.WARNING):
        if kind == "other name":
            address = "no-such-host.invalid:1"
        with pytest.raises(RemoteError, match=rf"Describe: deadline passed.* - .*{hint}"):
            RemoteParameterServer([address], tls=config, deadline=3.0)
    (line,) = caplog.messages  # one for all attempts
    assert address in line and hint in line and "it is tried again for " in line


@pytest.mark.parametrize(
    ("kind", "tls", "hint"),
    [
        ("tls", None, "the server talks TLS: give --tls-ca"),
        ("mutual tls", None, "the server talks TLS: give --tls-ca"),
        ("clear", {"ca": "ca.pem"}, "does not use TLS"),
        ("tls", {"ca": "other.pem"}, "not signed by the authority"),
        ("tls", {"ca": "server.key"}, "not PEM files of a certificate"),
        ("tls", {"ca": "ca.pem", "server_name": "elsewhere"}, "of another name than the address"),
        ("mutual tls", {"ca": "ca.pem"}, "takes only clients with a certificate"),
        (
            "mutual tls",
            {"ca": "ca.pem", "cert": "other-client.pem", "key": "other-client.key"},
            "takes only clients with a certificate",
        ),
        ("expired tls", {"ca": "ca.pem"}, "the server's certificate has expired"),
        (
            "mutual tls",
            {"ca": "ca.pem", "cert": "expired-client.pem", "key": "client.key"},
            "signed by its --tls-client-ca and not out of date",
        ),
    ],
)
def test_sides_that_differ_in_tls_are_told_at_once_and_not_after_the_deadline(
    certificates: Path, tmp_path: Path, kind: str, tls: dict[str, str] | None, hint: str
) -> None:
    make_certificates(tmp_path)
    for name, other in (("other.pem", "ca.pem"), ("other-client.pem", "client.pem")):
        (certificates / name).write_bytes((tmp_path / other).read_bytes())
    (certificates / "other-client.key").write_bytes((tmp_path / "client.key").read_bytes())
    config = None
    if tls is not None:
        files = {name: certificates / file for name, file in tls.items() if name != "server_name"}
        config = hps.TlsConfig(**files, server_name=tls.get("server_name"))
    with place(kind, certificates) as address:
        start = time.monotonic()
        with pytest.raises(RemoteError, match=rf"a retry will not change.* - .*{hint}") as caught:
            RemoteParameterServer([address], tls=config, deadline=40.0)
        assert time.monotonic() - start < 20
        assert address in str(caught.value) and "deadline" not in str(caught.value)


def test_a_push_that_meets_another_certificate_is_kept_and_told_at_once(
    certificates: Path, tmp_path: Path
) -> None:
    """A server that is started again with a certificate that its clients do not trust."""
    make_certificates(tmp_path)
    config = hps.TlsConfig(ca=certificates / "ca.pem")
    location = StoreLocation(
        path=tmp_path / "store", dram=hps.DramCacheConfig(bytes="4MiB"), gpu=None, seed=0, threads=1
    )
    shard = Shard(location, ShardOptions(index=0, count=1))
    shard.create_table(hps.TableConfig(name="ads", dim=ONES.shape[1]))
    port = HeldPort()
    address = port.address
    with serving(shard, listen=address, tls=server_files(certificates)):
        client = RemoteParameterServer([address], tls=config, deadline=40.0)
        client.push("ads", KEYS, ONES)
    with serving(shard, listen=address, tls=server_files(tmp_path)):
        start = time.monotonic()
        with pytest.raises(RemoteError, match=r"a retry will not change.* is kept and goes first"):
            client.push("ads", KEYS, ONES)
        assert time.monotonic() - start < 20
    with serving(shard, listen=address, tls=server_files(certificates)):
        client.push("ads", KEYS, ONES)
        assert client._connections.sessions[0].window.last == 3, (
            "the one that was kept, and this one"
        )
        client.close()
    port.close()
    shard.close(checkpoint=False)


def test_a_shard_that_comes_back_soon_is_not_spoken_of(caplog: pytest.LogCaptureFixture) -> None:
    lab = Lab()
    with lab.client() as client, caplog.at_level(logging.WARNING):
        for _ in range(9):  # on a busy machine it may be away for long
            caplog.clear()
            lab.services[0].is_up = False
            start = time.monotonic()
            call = client.pull_async("ads", KEYS)
            time.sleep(0.2)
            lab.services[0].is_up = True
            call.result(60)
            seconds = time.monotonic() - start
            if seconds < client_rounds._PATIENCE:
                break
        assert seconds > 0.15 and not caplog.messages


def test_a_token_travels_in_the_clear_on_this_machine_only() -> None:
    secret = "t-secret-0123456789"
    for address in ("10.0.0.1:1", "[2001:db8::1]:1", "no-such-host.invalid:1", "0.0.0.0:1"):
        with pytest.raises(
            ConfigError, match=r"without TLS others can read the token.*allow_insecure"
        ) as caught:
            ClientConfig(addresses=["127.0.0.1:1", address], token=secret)
        assert address in str(caught.value) and secret not in str(caught.value)
        ClientConfig(addresses=[address], token=secret, tls=hps.TlsConfig())
        ClientConfig(addresses=[address], token=secret, allow_insecure=True)
        ClientConfig(addresses=[address])
    kept = ClientConfig(addresses=["127.0.0.1:1", "localhost:1", "[::1]:1"], token=secret)
    assert kept.token == secret and secret not in repr(kept)


def test_a_client_says_who_and_where_it_is_and_no_secret(tmp_path: Path) -> None:
    with service(tmp_path, 2, seed=5) as servers:
        client = servers.client("trainer-7", token="t-secret-0123456789")
        assert repr(client) == (
            f"RemoteParameterServer({', '.join(servers.addresses)}; client trainer-7, tables "
            f"['ads'])"
        )
        assert client.seed == 5
        client.close()
        assert repr(client).endswith(", closed)") and "secret" not in repr(client)


def test_the_order_of_shards_is_told_though_another_one_is_down() -> None:
    lab = Lab(count=2)
    lab.services.reverse()
    lab.services[1].is_up = False
    started = time.monotonic()
    with pytest.raises(ConfigError, match="in the order of their indices"):
        lab.client(deadline=30.0)
    assert time.monotonic() - started < 20


def test_logged_changes_that_are_gone_are_not_said_to_have_been_in_memory_only() -> None:
    """As after a loss of power, or with a copy of the store in its place."""
    lab = Lab()
    with lab.client(window=3000) as client:
        for _ in range(3):
            client.push("ads", KEYS, ONES)
        for _ in range(9):
            client.push("ads", KEYS, ONES, ack="memory")
        held = len(client._connections.sessions[0].window.changes)
        assert 0 < held < 9
        lab.services[0].num_logged = 1
        lab.services[0].restart()
        with pytest.raises(RemoteError) as caught:
            client.push("ads", KEYS, ONES)
        message = str(caught.value)
        assert f"changes 2 to {13 - held} of client 'trainer-0'" in message
        assert "2 to 3 had been logged" in message
        assert f"4 to {13 - held} were acknowledged in memory" in message


def test_an_answer_counts_for_the_sending_that_it_answers() -> None:
    """It is read while the change is on its way once more, to a shard that has forgotten it."""
    lab = Lab()
    with lab.client() as client:
        client.push("ads", KEYS, ONES)
        sent = client._pushes.begin("ads", KEYS, ONES, "memory")
        assert sent is not None
        lab.services[0].restart()
        session = client._connections.sessions[0]

        def answer_late(method: str, head: Any) -> None:
            session.receive(sent.pending[0][1])
            lab.services[0].refuse = None
            raise Failure(grpc.StatusCode.UNAVAILABLE, None, "the request was lost")

        lab.services[0].refuse = answer_late
        session.break_off()
        assert session.heal(time.monotonic() + 60) is not None
        change = session.window.changes[-1]
        assert lab.counts() == [1.0] * len(KEYS) and not change.is_acknowledged
        sent.wait()
        assert lab.counts() == [2.0] * len(KEYS)


def test_tables_that_differ_between_shards_are_told_field_by_field(tmp_path: Path) -> None:
    wide = hps.TableConfig(name="ads", dim=9, optimizer=hps.Adagrad(lr=0.05))
    with service(tmp_path, 2, tables=()) as servers:
        servers.shards[0].create_table(ADS)
        servers.shards[1].create_table(wide)
        with pytest.raises(ConfigError, match="table 'ads' differs") as caught:
            servers.client()
        assert "dim is 9, not 8" in str(caught.value) and "TableConfig" not in str(caught.value)


def test_rows_that_a_creating_pulls_answer_lacks_are_pulled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hps.service.server import row_handlers

    made = row_handlers._rows_reply
    failures = [MemoryError("planted")]

    def fails_once(*arguments: Any) -> bytes:
        if failures:
            raise failures.pop()
        return made(*arguments)

    monkeypatch.setattr(row_handlers, "_rows_reply", fails_once)
    keys = np.arange(50, dtype=np.uint64)
    with service(tmp_path, 2) as servers, servers.client() as client:
        rows = client.pull("ads", keys, create=True)
        assert not failures and client.num_rows("ads") == 50
        assert np.array_equal(rows, client.pull("ads", keys)) and rows.any()
        marks = [session.window.marks.applied for session in client._connections.sessions]
        assert marks == [1, 1]


def test_seconds_for_which_a_loop_waits_for_shards_are_counted() -> None:
    lab = Lab()
    with lab.client() as client:
        service = lab.services[0]
        pull, push = service._pull, service._push

        def slowly(answer: Any) -> Any:
            def handle(request: bytes) -> bytes:
                time.sleep(0.05)
                reply: bytes = answer(request)
                return reply

            return handle

        assert client._connections.wait_seconds == 0
        service._pull = slowly(pull)  # type: ignore[method-assign]
        client.pull("ads", KEYS)
        pulled = client._connections.wait_seconds
        assert pulled > 0.05
        service._push = slowly(push)  # type: ignore[method-assign]
        client.push("ads", KEYS, ONES)  # of no step: nobody's loop waits
        assert client._connections.wait_seconds == pulled
        client.apply([RowUpdate("ads", KEYS, ONES)])
        sent = client._connections.wait_seconds
        assert sent > pulled + 0.05
        service._push = push  # type: ignore[method-assign]
        start = lab.networks[0].start

        class Late:
            def __init__(self, *call: Any) -> None:
                self.reply = slowly(lambda _: start(*call).reply()).__get__(b"")

            def then(self, call: Any) -> None:
                """It is not told."""

        lab.networks[0].start = Late  # type: ignore[method-assign, assignment]
        client.apply([RowUpdate("ads", KEYS, ONES)])
        assert client._connections.wait_seconds > sent + 0.05 and lab.counts() == [3.0] * len(KEYS)
