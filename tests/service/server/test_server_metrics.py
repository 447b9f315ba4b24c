"""Who may see the figures, over what, and that nobody who connects keeps others from them.

Above it: pytest. Below it: hps.service.server.metrics_http over a shard of dicts.
"""

import socket
import ssl
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

import hps
from hps.errors import DeadlineError
from hps.service.server.http_server import HttpLimits
from hps.service.server.tls import TlsFiles
from tests.service.client.fake_shard import FakeShard
from tests.service.server.test_http_server import ended
from tests.service.server.test_server_access import (
    OLD,
    READER,
    certificates,
    make_certificates,
    server_files,
    tokens,
)
from tests.service.serving import Local, serving

__all__ = ["certificates", "tokens"]  # fixtures


def look(
    local: Local,
    token: str | None = None,
    ca: Path | None = None,
    client: Path | None = None,
    path: str = "/metrics",
) -> tuple[int, str]:
    """(status, body) of a GET."""
    port = local.log("metrics")[0]["address"].rpartition(":")[2]
    context = None
    if ca is not None:
        context = ssl.create_default_context(cafile=str(ca))
        if client is not None:
            context.load_cert_chain(client / "client.pem", client / "client.key")
    request = urllib.request.Request(f"http{'s' if ca else ''}://localhost:{port}{path}")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_figures_are_for_who_brings_a_token_where_there_are_tokens(tokens: Path) -> None:
    with serving(FakeShard(), tokens=tokens, metrics="127.0.0.1:0") as local:
        for token, words in (
            (None, "no token"),
            ("wrong-secret-0123456789", "unknown token"),
            (OLD, "expired"),
        ):
            status, body = look(local, token)
            assert status == 401 and words in body and "hps_" not in body
        status, body = look(local, READER)
        assert status == 200 and "hps_in_flight_requests 0.0" in body
        assert look(local, READER, path="/")[0] == 404


def test_healthz_says_without_a_token_whether_the_server_is_serving(tokens: Path) -> None:
    shard = FakeShard()
    with serving(shard, tokens=tokens, metrics="127.0.0.1:0") as local:
        assert look(local, path="/healthz") == (200, "ok\n")
        shard.is_dead = True
        assert look(local, path="/healthz") == (503, "not serving\n")
        shard.is_dead = False
        local.server.front.health.stop()  # as the server does first when it drains
        assert look(local, path="/healthz") == (503, "not serving\n")


def test_figures_have_the_certificate_of_the_server_and_its_renewal(
    certificates: Path, tmp_path: Path
) -> None:
    for path in certificates.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    old_ca = certificates / "ca.pem"
    with serving(FakeShard(), tls=server_files(tmp_path), metrics="127.0.0.1:0") as local:
        assert look(local, ca=old_ca)[0] == 200
        status, words = look(local)  # in the clear
        assert status == 400 and "ask with https://" in words
        make_certificates(tmp_path)
        assert look(local, ca=old_ca)[0] == 200  # until it is told
        local.server.reload()
        assert "certificate of metrics" in [line["what"] for line in local.log("reload")]
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            look(local, ca=old_ca)
        assert look(local, ca=tmp_path / "ca.pem")[0] == 200
        (tmp_path / "server.key").write_bytes((certificates / "client.key").read_bytes())
        local.server.reload()
        assert {line["level"] for line in local.log("reload")[-2:]} == {"error"}
        assert look(local, ca=tmp_path / "ca.pem")[0] == 200


def test_with_mutual_tls_figures_are_for_clients_with_a_certificate(certificates: Path) -> None:
    files = server_files(certificates, client_ca=True)
    with serving(FakeShard(), tls=files, metrics="127.0.0.1:0") as local:
        with pytest.raises(OSError):
            look(local, ca=certificates / "ca.pem")
        assert look(local, ca=certificates / "ca.pem", client=certificates)[0] == 200


@pytest.mark.parametrize("has_tls", [False, True])
def test_connections_that_say_nothing_make_way_for_one_that_asks(
    certificates: Path, has_tls: bool
) -> None:
    """With TLS they do not even shake hands."""
    tls = server_files(certificates) if has_tls else None
    ca = certificates / "ca.pem" if has_tls else None
    with (
        serving(FakeShard(), tls=tls, metrics="127.0.0.1:0") as local,
        ExitStack() as stack,
    ):
        host, _, port = local.log("metrics")[0]["address"].rpartition(":")
        most = HttpLimits().connections
        held = [
            stack.enter_context(socket.create_connection((host, int(port)), 10))
            for _ in range(most + 20)
        ]
        assert look(local, ca=ca)[0] == 200
        for connection in held[:21]:  # the oldest went first
            assert ended(connection)
        held[-1].settimeout(0.01)
        with pytest.raises(TimeoutError):
            held[-1].recv(1)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (
            "0.0.0.0",
            r"--metrics '0.0.0.0': the port is missing; write HOST:PORT, as 127.0.0.1:9100",
        ),
        ("9100", r"--metrics '9100': write HOST:PORT, such as 127.0.0.1:9100"),
        (
            "0.0.0.0:9100",
            r"--metrics 0.0.0.0: other machines can reach it.* figures, tokens and tables'",
        ),
    ],
)
def test_an_address_for_figures_that_cannot_be_is_explained(address: str, words: str) -> None:
    with pytest.raises(hps.ConfigError, match=words), serving(FakeShard(), metrics=address):
        pass


def test_a_root_for_clients_that_is_none_is_refused(certificates: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n")
    files = TlsFiles(
        cert=certificates / "server.pem", key=certificates / "server.key", client_ca=bad
    )
    with (
        pytest.raises(hps.ConfigError, match=r"--tls-client-ca .*bad.pem"),
        serving(FakeShard(), tls=files),
    ):
        pass


def test_a_store_that_is_gone_shows_in_the_figures_and_one_that_is_reopened_does_not() -> None:
    shard = FakeShard()
    with serving(shard, metrics="127.0.0.1:0") as local:
        for error, shown in ((hps.StoreError(5, "planted"), True), (DeadlineError("late"), False)):

            def fail(timeout: float, error: Exception = error) -> None:
                raise error

            shard.stats = fail  # type: ignore[method-assign, assignment]
            assert ("hps_failed 1.0" in look(local)[1]) is shown
