"""What the second look at a server calls a difference in TLS, and what it must not: an outage.

Above it: pytest. Below it: hps/service/client/probe.py, over sockets of the test's own.
"""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import hps
from hps.service.client.probe import tls_difference
from tests.service.server.test_server_access import certificates

__all__ = ["certificates"]  # a fixture


@contextmanager
def tls_place(
    certificates: Path, talk: Callable[[ssl.SSLSocket], object], most: int = 9
) -> Iterator[str]:
    """An address that shakes hands, at most so often, and ends what then talks as `talk` says."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError), listener:
            for _ in range(most):
                plain, _ = listener.accept()
                with suppress(OSError), context.wrap_socket(plain, server_side=True) as wrapped:
                    talk(wrapped)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def say_goodbye(wrapped: ssl.SSLSocket) -> None:
    wrapped.settimeout(1.0)
    wrapped.unwrap()


def just_end(_: ssl.SSLSocket) -> None:
    """As gRPC does with a client that shows no certificate, and whoever dies."""


def test_a_proxy_whose_server_is_away_is_no_difference_in_tls(certificates: Path) -> None:
    tls = hps.TlsConfig(ca=certificates / "ca.pem")
    with tls_place(certificates, say_goodbye) as address:
        assert tls_difference(address, tls) == ""


def test_a_server_that_ends_between_handshake_and_first_word_is_no_difference_in_tls(
    certificates: Path,
) -> None:
    tls = hps.TlsConfig(ca=certificates / "ca.pem")
    with tls_place(certificates, just_end, most=1) as address:
        assert tls_difference(address, tls) == ""
    with tls_place(certificates, just_end) as address:
        assert "takes only clients with a certificate" in tls_difference(address, tls)


def test_files_that_cannot_be_read_any_more_are_no_difference_in_tls(
    certificates: Path, tmp_path: Path
) -> None:
    """The channel has read them when it was made; they may be changed, or rights given up."""
    tls = hps.TlsConfig(ca=tmp_path / "gone.pem")
    with tls_place(certificates, just_end) as address:
        assert tls_difference(address, tls) == ""


@pytest.mark.parametrize("name", [".example", "a" * 64, "a\0b"])
def test_a_name_that_no_certificate_can_have_is_called_so(certificates: Path, name: str) -> None:
    tls = hps.TlsConfig(ca=certificates / "ca.pem", server_name=name)
    with tls_place(certificates, just_end) as address:
        assert "the certificate is of another name" in tls_difference(address, tls)
