"""No client holds the port of the figures: not by silence, not byte by byte, not by not reading.

Above it: pytest. Below it: hps.service.server.http_server, spoken to over sockets.
"""

import asyncio
import errno
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hps.service.server.http_server import (
    Answer,
    HttpLimits,
    HttpReply,
    HttpRequest,
    HttpServer,
    HttpStream,
)
from hps.service.server.tls import server_context
from tests.service.server.test_server_access import certificates, server_files

__all__ = ["certificates"]  # a fixture

ASK = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
LARGE = b"x" * (64 * 2**20)  # more than the system takes for a client that does not read


def say(request: HttpRequest) -> HttpReply:
    return HttpReply(200, f"{request.path} {request.headers.get('authorization')}".encode())


def say_much(request: HttpRequest) -> HttpReply:
    return HttpReply(200, LARGE)


@contextmanager
def http(answer: Answer = say, **limits: Any) -> Iterator[HttpServer]:
    server = HttpServer(("127.0.0.1", 0), answer, HttpLimits(**limits))
    server.start()
    try:
        yield server
    finally:
        server.stop()


def connect(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), 10)


def ended(connection: socket.socket) -> bool:
    """Waits for the other side to close."""
    connection.settimeout(60)
    try:
        while connection.recv(2**20):
            pass
    except ConnectionError:
        pass
    return True


def ask(server: HttpServer, request: bytes = ASK) -> bytes:
    """Everything that comes back."""
    with connect(server) as connection:
        connection.sendall(request)
        parts = []
        while part := connection.recv(2**20):
            parts.append(part)
        return b"".join(parts)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (ASK, b"200 OK"),
        (b"GET /metrics\n\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.0\n\n", b"200 OK"),
        (b"\xff\xfe\r\n\r\n", b"400 Bad Request"),
        (b"\r\n\r\n", b"400 Bad Request"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"405 Method Not Allowed"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"400 Bad Request"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 4000 + b"\r\n", b"431 "),
        (b"GET /" + b"a" * 2**15 + b" HTTP/1.1\r\n\r\n", b"431 "),
    ],
)
def test_a_request_is_answered_by_what_it_is(request_bytes: bytes, status: bytes) -> None:
    with http() as server:
        assert ask(server, request_bytes).startswith(b"HTTP/1.1 " + status)


def test_an_answer_has_path_and_token_and_a_fault_has_a_status() -> None:
    def fail(request: HttpRequest) -> HttpReply:
        raise RuntimeError("planted")

    with http() as server:
        token = b"GET /metrics?a=b HTTP/1.1\r\nAuthorization: Bearer c\r\n\r\n"
        assert ask(server, token).endswith(b"\r\n\r\n/metrics Bearer c")
    with http(fail) as server:
        assert ask(server).startswith(b"HTTP/1.1 500 ") and b"planted" not in ask(server)


def test_a_request_that_comes_byte_by_byte_has_one_deadline() -> None:
    with http(seconds=2.0) as server, connect(server) as slow:
        slow.settimeout(0.02)
        slow.sendall(b"GET /metrics HTTP/1.1\r\na: ")
        for _ in range(1000):
            try:
                slow.sendall(b"b")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            raise AssertionError("each byte has bought it more time")
        assert ask(server).startswith(b"HTTP/1.1 200")


def test_an_answer_that_nobody_reads_is_given_up() -> None:
    with http(say_much, seconds=2.0, connections=1) as server, connect(server) as idle:
        idle.sendall(ASK)
        assert idle.recv(1) == b"H"
        while server._open:  # until its deadline
            idle.getpeername()
        read = 0
        try:
            while part := idle.recv(2**20):
                read += len(part)
        except ConnectionError:
            pass
        assert read < len(LARGE)


def test_of_those_that_have_asked_the_oldest_goes_when_there_is_no_other() -> None:
    with http(say_much, connections=2) as server:
        first, second = connect(server), connect(server)
        for connection in (first, second):
            connection.sendall(ASK)
            assert connection.recv(1) == b"H"  # it is being answered
        with first, second, connect(server) as third:
            third.sendall(ASK)
            assert third.recv(1) == b"H"
            assert ended(first) and second.recv(1) == b"T"
            with connect(server) as idle:
                assert ended(second)
                with connect(server) as last:
                    last.sendall(ASK)
                    assert last.recv(1) == b"H"
                assert ended(idle) and third.recv(1) == b"T"


class NoDescriptors:
    """A listener whose first `accept` fails for want of a descriptor."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.has_failed = False

    def accept(self) -> Any:
        if not self.has_failed:
            self.has_failed = True
            raise OSError(errno.EMFILE, "planted")
        return self._listener.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


def test_without_descriptors_the_oldest_goes_and_the_next_is_served() -> None:
    with http() as server, connect(server) as idle:
        while not server._open:
            idle.getpeername()
        without = NoDescriptors(server._listener)
        server._listener = without  # type: ignore[assignment]
        assert ask(server).startswith(b"HTTP/1.1 200") and without.has_failed
        assert ended(idle)


@pytest.mark.parametrize("answer", [say, say_much])
def test_with_tls_an_answer_ends_with_the_close_and_not_at_the_deadline(
    certificates: Path, answer: Answer
) -> None:
    trusted = ssl.create_default_context(cafile=certificates / "ca.pem")
    with http(answer, seconds=3600) as server:  # the client gives up long before
        server.context = server_context(server_files(certificates))
        with (
            connect(server) as plain,
            trusted.wrap_socket(
                plain, server_hostname="localhost", suppress_ragged_eofs=False
            ) as connection,
        ):
            connection.sendall(ASK)
            num_bytes = 0
            while part := connection.recv(2**20):  # an end without close_notify raises
                num_bytes += len(part)
    assert num_bytes > len(answer(HttpRequest("/metrics")).body)


def test_a_second_stop_does_nothing() -> None:
    with http() as server:
        server.stop()
    server.stop()


def test_stopping_ends_all_connections_and_frees_the_address() -> None:
    with http() as server:
        held = [connect(server) for _ in range(5)]
        port = server.port
    assert all(map(ended, held))
    with socket.create_server(("127.0.0.1", port)):
        pass
    HttpServer(("127.0.0.1", port), say).stop()  # that was never started
    for connection in held:
        connection.close()


def stream_of(*parts: bytes, pause: float = 0.0, **more: Any) -> tuple[Answer, list[str]]:
    """An answer in parts, and what became of it."""
    said: list[str] = []

    async def give() -> AsyncGenerator[bytes]:
        try:
            for part in parts:
                yield part
                await asyncio.sleep(pause)
            said.append("given")
        finally:
            said.append("closed")

    return lambda request: HttpStream(give, "text/event-stream", **more), said


def test_a_stream_comes_part_by_part_and_without_a_length() -> None:
    answer, said = stream_of(b"one ", b"two", headers={"A": "b"})
    with http(answer) as server:
        head, _, body = ask(server).partition(b"\r\n\r\n")
    assert body == b"one two" and said == ["given", "closed"]
    assert b"200 OK" in head and b"A: b" in head and b"Content-Length" not in head


def test_a_stream_outlives_the_deadline_of_a_connection_but_not_its_own() -> None:
    answer, said = stream_of(*[b"x"] * 100, pause=0.05, seconds=0.6)
    with http(answer, seconds=0.2) as server:
        body = ask(server).partition(b"\r\n\r\n")[2]
    assert 4 < len(body) < 90 and said == ["closed"]


def test_a_stream_ends_when_its_client_goes_and_when_it_does_not_read() -> None:
    answer, said = stream_of(*[LARGE] * 100, pause=0.01)
    with http(answer, seconds=0.5) as server:
        for goes in (True, False):
            connection = connect(server)
            connection.sendall(ASK)
            connection.recv(10)
            if goes:
                connection.close()
            until = time.monotonic() + 20
            while not said and time.monotonic() < until:
                time.sleep(0.01)
            assert said == ["closed"]
            said.clear()
            connection.close()


def test_streams_end_when_the_server_stops() -> None:
    answer, said = stream_of(*[b"x"] * 1000, pause=0.05)
    with http(answer) as server:
        connection = connect(server)
        connection.sendall(ASK)
        connection.recv(10)
    assert said == ["closed"] and ended(connection)


def test_what_a_client_asks_for_is_taken_apart() -> None:
    seen: list[HttpRequest] = []

    def note(request: HttpRequest) -> HttpReply:
        seen.append(request)
        return HttpReply(200, b"")

    with http(note) as server:
        ask(server, b"GET /a/b?token=x%20y&z HTTP/1.1\r\nCookie: c=d\r\n\r\n")
    (request,) = seen
    assert (request.path, request.query) == ("/a/b", "token=x%20y&z")
    assert request.headers.get("cookie") == "c=d"
