"""HttpServer: short answers to GET requests, on a port that no client can hold for itself.

Above it: metrics_http.py, hps/dashboard/server.py. Below it: asyncio's streams, in one thread;
answers are made in a few others. A connection has one request and a deadline from its arrival to
its end: TLS handshake, head, answer and the reading of it. An answer may be a stream, whose parts
come one by one; then each 64 KiB of them have that deadline, and the stream one of its own. A
connection that begins in the clear where there is TLS is told so. There is room for so many; when
it is full, the oldest that has not asked yet is closed for a new one, and if all have asked, the
oldest of all.
"""

import asyncio
import http.client
import io
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus

_ASK_BY_TLS = b"this port speaks HTTPS: ask with https:// in the place of http://\n"
_THREADS = 4  # that make answers
_BACKLOG = 128
_HANDSHAKE = b"\x16"  # what TLS begins with
_PIECE_BYTES = 2**16  # of a part of a stream, each with the deadline
_PAUSE_SECONDS = 0.05  # before the next try, when the process has no descriptor left


@dataclass(frozen=True)
class HttpLimits:
    """What a client may take.

    Args:
        connections: at once.
        seconds: from the arrival of a connection to its end.
        head_bytes: of a request's line and headers.
    """

    connections: int = 64
    seconds: float = 10.0
    head_bytes: int = 2**14


@dataclass(frozen=True)
class HttpReply:
    """An answer; `headers` come beside the type and the length."""

    status: int
    body: bytes
    kind: str = "text/plain; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        """As it travels."""
        length = {"Content-Length": str(len(self.body))}
        return _head_of(self.status, self.kind, {**length, **self.headers}) + self.body


@dataclass(frozen=True)
class HttpStream:
    """An answer whose parts come one by one, until they end, the client goes, or time is up.

    Args:
        parts: gives them, in the server's loop; closed when the stream ends.
        kind: of all of them.
        headers: beside the type.
        seconds: from the head to the end.
    """

    parts: Callable[[], AsyncGenerator[bytes]]
    kind: str
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 600.0

    def head(self) -> bytes:
        """What comes before the first part."""
        return _head_of(HTTPStatus.OK, self.kind, self.headers)


def _head_of(status: int, kind: str, headers: dict[str, str]) -> bytes:
    lines = [
        f"HTTP/1.1 {int(status)} {HTTPStatus(status).phrase}",
        f"Content-Type: {kind}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


@dataclass(frozen=True)
class HttpRequest:
    """What a client has asked for.

    Args:
        path: without the query.
        query: what follows the "?", as it came; empty for none.
        headers: by any spelling of their names.
    """

    path: str
    query: str = ""
    headers: Message = field(default_factory=Message)


# Called in threads.
Answer = Callable[[HttpRequest], HttpReply | HttpStream]


@dataclass(eq=False)
class _Connection:
    """One that is open."""

    socket: socket.socket
    has_asked: bool = False
    task: "asyncio.Task[None] | None" = None


class HttpServer:
    """Serves from the moment it is made until `stop`.

    Args:
        address: host and port; port 0 takes a free one.
        answer: what is answered.
        limits: see there.

    Raises:
        OSError: the address cannot be listened on.
    """

    def __init__(
        self, address: tuple[str, int], answer: Answer, limits: HttpLimits | None = None
    ) -> None:
        family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server(address, family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self.context: ssl.SSLContext | None = None  # of connections from now on
        self._answer = answer
        self._limits = limits or HttpLimits()
        self._open: dict[_Connection, None] = {}  # the oldest first
        self._threads = ThreadPoolExecutor(_THREADS, "hps-metrics")
        self._loop = asyncio.new_event_loop()
        # A connection that broke off is no news; a trace on standard error is no log line.
        self._loop.set_exception_handler(lambda loop, what: None)
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="hps-metrics", daemon=True)

    def start(self) -> None:
        """Begins to take connections."""
        self._thread.start()

    def stop(self) -> None:
        """Closes the address and all connections; nothing to do the second time."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        if self._thread.ident is None:  # never started
            self._run()
        else:
            self._thread.join()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve_all())
        finally:
            self._listener.close()
            self._loop.close()

    async def _serve_all(self) -> None:
        self._listen()
        await self._stopping.wait()
        self._loop.remove_reader(self._listener)
        ended = [self._end(connection) for connection in list(self._open)]
        await asyncio.gather(*ended, return_exceptions=True)

    def _listen(self) -> None:
        if not self._stopping.is_set():
            self._loop.add_reader(self._listener, self._take)

    def _take(self) -> None:
        """A connection has come."""
        try:
            accepted, _ = self._listener.accept()
            accepted.setblocking(False)
        except (BlockingIOError, InterruptedError, ConnectionError):  # it has gone again
            return
        except OSError:  # no descriptor is left
            self._make_room()
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_PAUSE_SECONDS, self._listen)
            return
        if len(self._open) >= self._limits.connections:
            self._make_room()
        connection = _Connection(accepted)
        self._open[connection] = None
        connection.task = self._loop.create_task(self._serve(connection))

    def _make_room(self) -> None:
        idle = (one for one in self._open if not one.has_asked)
        oldest = next(idle, next(iter(self._open), None))
        if oldest is not None:
            self._end(oldest)

    def _end(self, connection: _Connection) -> "asyncio.Task[None]":
        assert connection.task is not None
        self._open.pop(connection, None)
        connection.task.cancel()
        # Else a task that has not begun would leave it open; it does not close it twice.
        with suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)
        return connection.task

    async def _serve(self, connection: _Connection) -> None:
        writer = None
        try:
            async with asyncio.timeout(self._limits.seconds) as limit:
                context = self.context
                is_in_the_clear = context is not None and not await _begins_tls(connection.socket)
                if is_in_the_clear:
                    context = None
                reader, writer = await self._streams(connection, context)
                if is_in_the_clear:
                    reply: HttpReply | HttpStream | None = HttpReply(400, _ASK_BY_TLS)
                else:
                    reply = await self._reply_to(connection, await self._head(reader))
                if isinstance(reply, HttpStream):
                    limit.reschedule(self._loop.time() + reply.seconds)
                    await self._stream(reply, writer)
                elif reply is not None:
                    writer.write(reply.encoded())
                    await writer.drain()
                    if reply.status != HTTPStatus.OK:
                        await self._let_it_be_read(reader, writer)
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, EOFError):  # late, or it broke off
            pass
        finally:
            self._open.pop(connection, None)
            if writer is not None:
                writer.transport.abort()
            connection.socket.close()

    async def _streams(
        self, connection: _Connection, context: ssl.SSLContext | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Of a connection, after its TLS handshake where there is a context."""
        seconds = self._limits.seconds if context is not None else None
        reader = asyncio.StreamReader(self._limits.head_bytes, loop=self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: protocol,
            connection.socket,
            ssl=context,
            ssl_handshake_timeout=seconds,
            ssl_shutdown_timeout=seconds,
        )
        if context is None:  # drain() waits until all is with the system
            transport.set_write_buffer_limits(0)  # with TLS that would hold close_notify back
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)

    async def _stream(self, stream: HttpStream, writer: asyncio.StreamWriter) -> None:
        """Writes the parts as they come; a client that does not read them is left alone."""
        writer.write(stream.head())
        async with aclosing(stream.parts()) as parts:
            async for part in parts:
                # A long part in pieces: its time is to be no matter of its length.
                for first in range(0, len(part), _PIECE_BYTES):
                    writer.write(part[first : first + _PIECE_BYTES])
                    async with asyncio.timeout(self._limits.seconds):
                        await writer.drain()

    async def _let_it_be_read(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Of a request that may go on: to close before its end would take the answer back."""
        if writer.can_write_eof():  # not with TLS
            writer.write_eof()
            while await reader.read(self._limits.head_bytes):
                pass

    async def _head(self, reader: asyncio.StreamReader) -> bytes | HttpReply | None:
        """Line and headers of a request; a refusal; None if there is none."""
        head = b""
        while not head.endswith((b"\r\n\r\n", b"\n\n")):
            try:
                line = await reader.readline()
            except ValueError:  # a line beyond the reader's limit
                line = b" " * self._limits.head_bytes + b"\n"
            if not line.endswith(b"\n"):
                return None
            head += line
            if len(head) > self._limits.head_bytes:
                text = f"a request has {self._limits.head_bytes} bytes of headers at most\n"
                return HttpReply(431, text.encode())
        return head

    async def _reply_to(
        self, connection: _Connection, head: bytes | HttpReply | None
    ) -> HttpReply | HttpStream | None:
        if not isinstance(head, bytes):
            return head
        connection.has_asked = True
        line, _, rest = head.partition(b"\n")
        words = line.decode("latin-1").split()
        if len(words) != 3 or not words[2].startswith("HTTP/"):
            return HttpReply(400, b"this is not an HTTP request\n")
        if words[0] != "GET":
            return HttpReply(405, b"only GET is answered\n", headers={"Allow": "GET"})
        try:
            headers = http.client.parse_headers(io.BytesIO(rest))
        except http.client.HTTPException as error:
            return HttpReply(400, f"{error}\n".encode())
        path, _, query = words[1].partition("?")
        request = HttpRequest(path, query, headers)
        try:
            return await self._loop.run_in_executor(self._threads, self._answer, request)
        except Exception:  # told by a status; a client's request is to end no server
            return HttpReply(500, b"the answer could not be made\n")


async def _begins_tls(connection: socket.socket) -> bool:
    """Waits for the first byte, which stays to be read; True also if the other side has gone."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return connection.recv(1, socket.MSG_PEEK) in (b"", _HANDSHAKE)
        except (BlockingIOError, InterruptedError):
            come = asyncio.Event()
            loop.add_reader(connection, come.set)
            try:
                await come.wait()
            finally:
                loop.remove_reader(connection)
