"""RestServer: the Open Inference Protocol over HTTP, and a plain form of it.

Above it: server.py. Below it: aiohttp, in a thread with its own loop; the work of a request is done
in a pool, a thread each; json_messages.py, scorer.py. Who may call, how much at a time, deadlines,
counts and log lines are those of the gRPC side: one `Service` for both.
"""

import asyncio
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from aiohttp import web

from hps.errors import ConfigError
from hps.service.messages.status import Code, Refusal, late, refusal_of, too_large
from hps.service.server.auth import Caller
from hps.service.server.calls import Service
from hps.service.server.descriptors import room_for_connections
from hps.service.server.tls import TlsFiles, server_context
from hps.serving.connections import FIRST_SECONDS, Connections
from hps.v1.parameter_server_pb2 import ErrorDetail

_STATUS = {
    Code.INVALID_ARGUMENT: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 412,
    Code.ABORTED: 409,
    Code.DEADLINE_EXCEEDED: 504,
    Code.UNAVAILABLE: 503,
}
_SPARE_THREADS = 4
_STOP_SECONDS = 5.0
_KEEPALIVE_SECONDS = 300.0
_MAX_HEAD_BYTES = 2**14


@dataclass(frozen=True)
class HttpRequest:
    """What a handler is given.

    Args:
        path: the parts of its path that have names.
        headers: of the request.
        body: all of it.
        caller: who asks.
        deadline: monotonic.
    """

    path: dict[str, str]
    headers: Any
    body: bytes
    caller: Caller
    deadline: float


@dataclass(frozen=True)
class HttpAnswer:
    """A reply of a handler."""

    body: bytes
    kind: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    status: int = 200


@dataclass(frozen=True)
class Route:
    """What is done where.

    Args:
        verb, path: of HTTP, as aiohttp has them.
        name: for counts and log lines.
        run: in a thread.
        is_open: needs no token, counts as no call and does not wait; runs in the loop.
    """

    verb: str
    path: str
    name: str
    run: Callable[[HttpRequest], HttpAnswer]
    is_open: bool = False


class RestServer:
    """Serves from the moment it is made until `stop`.

    Args:
        address: host and port; port 0 takes a free one.
        routes: what is served.
        calls: who may call, limits, counts, log.
        tls: None serves in the clear.

    Attributes:
        port: that it listens on.

    Raises:
        ConfigError: the address cannot be listened on, or a certificate not be used.
    """

    def __init__(
        self, address: tuple[str, int], routes: list[Route], calls: Service, tls: TlsFiles | None
    ) -> None:
        self._calls = calls
        self._tls = tls
        self._context: ssl.SSLContext | None = None if tls is None else server_context(tls)
        host, port = address
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._listener = socket.create_server(address, family=family, backlog=1024)
        except OSError as error:
            raise ConfigError(f"--http {host}:{port}: {error.strerror or error}") from error
        self.port = int(self._listener.getsockname()[1])
        limits = calls.limits
        self._threads = ThreadPoolExecutor(limits.requests + _SPARE_THREADS, "hps-http")
        self._loop = asyncio.new_event_loop()
        # A connection that broke off is no news; a trace on standard error is no log line.
        self._loop.set_exception_handler(lambda loop, what: None)
        self._stopping = asyncio.Event()
        is_up = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(routes, is_up), name="hps-http", daemon=True
        )
        self._thread.start()
        is_up.wait()

    def reload(self) -> None:
        """Takes the certificate files as they are now, for connections from now on.

        Raises:
            ConfigError: they cannot be used; the old ones stay.
        """
        if self._tls is None or self._context is None:
            return
        server_context(self._tls)  # which looks whether they belong together
        self._context.load_cert_chain(self._tls.cert, self._tls.key, password=lambda: b"")

    def stop(self) -> None:
        """Closes the address and all connections; nothing to do the second time."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, routes: list[Route], is_up: threading.Event) -> None:
        try:
            self._loop.run_until_complete(self._serve(routes, is_up))
        finally:
            is_up.set()
            self._listener.close()
            self._loop.close()

    async def _serve(self, routes: list[Route], is_up: threading.Event) -> None:
        limits = self._calls.limits
        connections = Connections(room_for_connections(limits.connections))
        application = web.Application(
            client_max_size=int(limits.message_bytes), middlewares=[_noting(connections)]
        )
        application.on_response_prepare.append(_without_versions)
        for route in routes:
            application.router.add_route(route.verb, route.path, self._handler(route))
        runner = web.AppRunner(
            application,
            access_log=None,
            keepalive_timeout=_KEEPALIVE_SECONDS,
            max_line_size=_MAX_HEAD_BYTES,
            max_field_size=_MAX_HEAD_BYTES,
        )
        await runner.setup()
        assert runner.server is not None
        connections.server = runner.server
        server = await self._loop.create_server(
            connections.make,
            sock=self._listener,
            ssl=self._context,
            ssl_handshake_timeout=None if self._context is None else FIRST_SECONDS,
        )
        watch = self._loop.create_task(connections.watch())
        is_up.set()
        await self._stopping.wait()
        watch.cancel()
        server.close()
        runner.server.pre_shutdown()  # idle connections, which would be waited for, end now
        await runner.server.shutdown(_STOP_SECONDS)
        await runner.cleanup()

    def _handler(self, route: Route) -> Callable[[web.Request], Awaitable[web.Response]]:
        if route.is_open:

            async def answer_at_once(request: web.Request) -> web.Response:
                try:
                    found = HttpRequest(
                        dict(request.match_info), request.headers, b"", _NOBODY, 0.0
                    )
                    return _response(route.run(found))
                except Refusal as refusal:
                    return _refused(refusal)

            return answer_at_once

        async def answer(request: web.Request) -> web.Response:
            return await self._answer(route, request)

        return answer

    async def _answer(self, route: Route, request: web.Request) -> web.Response:
        """Lets a request in, does its work, and turns what ends it into a status and counts."""
        calls, started = self._calls, time.monotonic()
        deadline = started + calls.limits.deadline_seconds
        who, num_bytes, admission = _peer(request), 0, None
        response: web.Response | None = None
        refusal: Refusal | None = None
        try:
            caller = calls.admissions.identify(request.headers.get("Authorization"), who)
            who = caller.name
            admission = calls.admissions.enter(who)
            try:
                async with asyncio.timeout_at(self._loop.time() + calls.limits.deadline_seconds):
                    body = await request.read()
            except TimeoutError:
                raise late("the request did not arrive in time") from None
            except web.HTTPRequestEntityTooLarge:
                most = int(calls.limits.message_bytes)
                raise too_large(f"the request is longer than {most} bytes; send several") from None
            num_bytes = len(body)
            admission.take(num_bytes)
            found = HttpRequest(dict(request.match_info), request.headers, body, caller, deadline)
            reply = await self._loop.run_in_executor(self._threads, route.run, found)
            response = _response(reply)
        except (web.HTTPException, asyncio.CancelledError):
            raise
        except Exception as error:
            refusal = refusal_of(error) or self._internal(route, error)
            response = _refused(refusal)
        finally:
            if admission is not None:
                admission.let_go()
                admission.let_go()
            code = Code.CANCELLED if response is None else Code.OK
            code = code if refusal is None else refusal.code
            seconds = time.monotonic() - started
            self._count(route, who, (code, refusal, seconds, num_bytes, response))
        return response

    def _internal(self, route: Route, error: BaseException) -> Refusal:
        trace = "".join(traceback.format_exception(error))
        self._calls.log.error("internal", method=route.name, trace=trace)
        return Refusal(
            Code.INTERNAL, ErrorDetail.OTHER, "internal error; the server's log has the trace"
        )

    def _count(self, route: Route, who: str, ended: Any) -> None:
        code, refusal, seconds, num_bytes, response = ended
        body = getattr(response, "body", None)
        replied = len(body) if isinstance(body, bytes) else 0
        self._calls.counts.count(route.name, code.name, seconds, num_bytes, replied)
        if code is not Code.OK or self._calls.log.has_calls:
            self._calls.log.call(
                method=route.name,
                client=who,
                status=code.name,
                seconds=round(seconds, 6),
                request_bytes=num_bytes,
                reply_bytes=replied,
                **({} if refusal is None else {"message": refusal.detail.message}),
            )


_NOBODY = Caller("", {})


def _peer(request: web.Request) -> str:
    transport = request.transport
    peer = None if transport is None else transport.get_extra_info("peername")
    return "http" if not peer else f"http:{peer[0]}:{peer[1]}"


def _response(reply: HttpAnswer) -> web.Response:
    headers = dict(reply.headers)
    return web.Response(
        status=reply.status, body=reply.body, content_type=reply.kind, headers=headers
    )


def _refused(refusal: Refusal) -> web.Response:
    status = _STATUS.get(refusal.code, 500)
    headers = {}
    if refusal.code is Code.RESOURCE_EXHAUSTED and not refusal.detail.retry_after_ms:
        status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE  # a retry does not help
    if refusal.detail.retry_after_ms:
        headers["Retry-After"] = str(-(-refusal.detail.retry_after_ms // 1000))
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return web.json_response({"error": refusal.detail.message}, status=status, headers=headers)


async def _without_versions(request: web.Request, response: web.StreamResponse) -> None:
    """aiohttp would tell its own and Python's."""
    response.headers["Server"] = "hps"


def _noting(connections: Connections) -> Any:
    """Notes that a connection has asked, and puts what aiohttp itself refuses, such as an unknown
    path, into the form of the other errors."""

    @web.middleware
    async def note(request: web.Request, handler: Any) -> web.StreamResponse:
        connections.has_asked(request)
        try:
            response: web.StreamResponse = await handler(request)
            return response
        except web.HTTPException as error:
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            text = f"{error.reason}: {request.method} {request.path[:200]}; see docs/serving.md"
            return web.json_response({"error": text}, status=error.status, headers=headers)

    return note
