"""DashboardServer: the page, its files, and the stream of what the collector finds.

Above it: `hps dashboard`, tests. Below it: the HTTP server of the service's figures (its limits,
TLS and tokens), web/, whose files a browser is given, collector.py. Only GET is answered.
"""

import asyncio
import json
import secrets
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from pathlib import Path
from urllib.parse import parse_qs

from hps.common.json_text import Json
from hps.dashboard.collector import Collector
from hps.dashboard.panels import panels_json
from hps.errors import ConfigError
from hps.service.messages.addresses import check_exposure, is_loopback, split_address
from hps.service.messages.status import Refusal
from hps.service.server.admission import Admissions
from hps.service.server.auth import TokenFile
from hps.service.server.host_header import names_this_machine
from hps.service.server.http_server import HttpReply, HttpRequest, HttpServer, HttpStream
from hps.service.server.limits import ServerLimits
from hps.service.server.tls import TlsFiles, server_context

COOKIE = "hps_dashboard"
EVENTS = "/events"
MOST_KEPT = 24  # rounds that a page may have missed and still be given one by one
_STREAM_SECONDS = 3600.0  # then the browser comes back by itself
_ALIVE_SECONDS = 15.0
_RETRY_MS = 2000
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
_WRONG_HOST = (
    b"this page is asked for by a name that is none of this machine's own; open it as "
    b"http://localhost:PORT/, or give --tokens to serve it under other names\n"
)
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, kw_only=True)
class DashboardOptions:
    """How the page is served.

    Args:
        listen: HOST:PORT; port 0 takes a free one.
        tls: None serves in the clear.
        tokens: a file of tokens, any of which may look; None: everyone may.
        allow_insecure: listen beyond this machine without TLS.

    Raises:
        ConfigError: no such address, or others can reach it and there is no TLS.
    """

    listen: str
    tls: TlsFiles | None = None
    tokens: Path | None = None
    allow_insecure: bool = False

    def __post_init__(self) -> None:
        host, _ = split_address("--listen", self.listen, "127.0.0.1:8080")
        what = "figures, tables' names and tokens"
        insecure = self.allow_insecure
        check_exposure(
            "--listen", host, what, has_tls=self.tls is not None, allow_insecure=insecure
        )


class DashboardServer:
    """Listens from the moment it is made, answers from `start` until `stop`.

    Args:
        collector: what is shown.
        options: see there.

    Attributes:
        url: of the page.

    Raises:
        ConfigError: the address cannot be listened on; tokens or certificates that cannot be used.
    """

    def __init__(self, collector: Collector, options: DashboardOptions) -> None:
        self._collector = collector
        self._rounds = Rounds()
        self._name = secrets.token_hex(4)  # a page of another dashboard has missed everything
        self._tokens = None if options.tokens is None else TokenFile(options.tokens)
        self._admissions = Admissions(ServerLimits(), self._tokens)
        self._tls = options.tls
        self._files = _web_files()
        self._making = threading.Lock()
        self._made: tuple[int, bytes] | None = None  # all that is kept, as of a round
        host, port = split_address("--listen", options.listen)
        # Pages of others, whose names an attacker leads here, are to read nothing of it.
        self._is_private = self._tokens is None and is_loopback(host)
        self._host = host
        context = None if options.tls is None else server_context(options.tls)
        try:
            self._http = HttpServer((host, port), self._answer)
        except OSError as error:
            why = error.strerror or str(error)
            raise ConfigError(f"--listen {options.listen}: {why}; give another port") from error
        self._http.context = context
        scheme = "http" if context is None else "https"
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{scheme}://{shown}:{self._http.port}/"

    def start(self) -> None:
        """Begins to answer."""
        self._http.start()

    def tell(self, state: Json) -> None:
        """Sends what a round has found to every page that is open."""
        self._rounds.add(int(state["id"]), json.dumps(state).encode())

    def reload(self) -> None:
        """Reads tokens and certificates again.

        Raises:
            ConfigError: they cannot be used; the old ones stay.
        """
        if self._tokens is not None:
            self._tokens.reread()
        if self._tls is not None:
            self._http.context = server_context(self._tls)

    def stop(self) -> None:
        """Closes the address and all pages; nothing to do the second time."""
        self._rounds.close()
        self._http.stop()

    def _answer(self, request: HttpRequest) -> HttpReply | HttpStream:
        if request.path == "/healthz":
            return HttpReply(200, b"ok\n", headers=_HEADERS)
        if self._is_private and not names_this_machine(request.headers.get("host"), self._host):
            return HttpReply(403, _WRONG_HOST, headers=_HEADERS)
        asked = parse_qs(request.query).get("token")
        header = f"Bearer {asked[0]}" if asked else _authorization(request)
        try:
            self._admissions.identify(header, "page")
        except Refusal as refusal:
            what = f"{refusal.detail.message.partition(';')[0]}; open /?token=TOKEN once\n"
            return HttpReply(401, what.encode(), headers={"WWW-Authenticate": "Bearer", **_HEADERS})
        if asked:
            return self._kept(asked[0], request.path)
        if request.path == EVENTS:
            return self._events(request.headers.get("last-event-id"))
        name = request.path.removeprefix("/") or "index.html"
        if name not in self._files:
            return HttpReply(404, b"there is nothing here; the page is /\n", headers=_HEADERS)
        kind, body = self._files[name]
        return HttpReply(200, body, kind, _HEADERS)

    def _kept(self, token: str, path: str) -> HttpReply:
        """Has the browser keep a token where no script sees it, and go on without it."""
        cookie: SimpleCookie = SimpleCookie()
        cookie[COOKIE] = token
        cookie[COOKIE]["path"] = "/"
        cookie[COOKIE]["httponly"] = True
        cookie[COOKIE]["samesite"] = "Strict"
        if self._tls is not None:
            cookie[COOKIE]["secure"] = True
        said = cookie[COOKIE].OutputString()
        place = path if path.removeprefix("/") in self._files else "/"
        return HttpReply(303, b"", headers={"Location": place, "Set-Cookie": said, **_HEADERS})

    def _events(self, last: str | None) -> HttpStream:
        name, _, number = (last or "").partition("-")
        seen = int(number) if name == self._name and number.isdecimal() else None
        return HttpStream(
            lambda: self._give(seen), "text/event-stream", _HEADERS, seconds=_STREAM_SECONDS
        )

    async def _give(self, seen: int | None) -> AsyncGenerator[bytes]:
        """All that is kept, then each round; to a page that comes back what it has missed."""
        yield f"retry: {_RETRY_MS}\n\n".encode()
        loop = asyncio.get_running_loop()
        come = asyncio.Event()
        with self._rounds.listening(lambda: loop.call_soon_threadsafe(come.set)):
            if seen is None or not self._rounds.has_after(seen):
                # Before the first round there is nothing to show, and no number to begin with.
                number, body = await loop.run_in_executor(None, self._everything)
                yield self._event("history", number, body)
                seen = number
            while not self._rounds.is_closed:
                come.clear()
                for number, body in self._rounds.after(seen):
                    yield self._event("round", number, body)
                    seen = number
                try:
                    async with asyncio.timeout(_ALIVE_SECONDS):
                        await come.wait()
                except TimeoutError:
                    yield b": still here\n\n"

    def _event(self, kind: str, number: int, body: bytes) -> bytes:
        """One of a stream; JSON has no line breaks."""
        head = f"event: {kind}\nid: {self._name}-{number}\ndata: "
        return head.encode() + body + b"\n\n"

    def _everything(self) -> tuple[int, bytes]:
        # Once a round for all pages: it may be some megabytes a target.
        with self._making:
            state = self._collector.state()
            number = int(state["id"])
            if self._made is None or self._made[0] != number:
                told = {**state, "panels": panels_json(), "history": self._collector.histories()}
                self._made = number, json.dumps(told).encode()
            return self._made


class Rounds:
    """The newest rounds as they are sent, and who waits for the next one; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=MOST_KEPT)
        self._listeners: list[Callable[[], object]] = []
        self.is_closed = False

    def add(self, number: int, body: bytes) -> None:
        """One more."""
        with self._lock:
            self._kept.append((number, body))
        self._wake()

    def close(self) -> None:
        """No more come: streams end."""
        self.is_closed = True
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for wake in listeners:
            try:
                wake()
            except RuntimeError:  # its loop has ended
                continue

    def has_after(self, number: int) -> bool:
        """True if all rounds after this one are here."""
        with self._lock:
            return any(number in (kept, kept - 1) for kept, _ in self._kept)

    def after(self, number: int) -> list[tuple[int, bytes]]:
        """Those that are newer."""
        with self._lock:
            return [one for one in self._kept if one[0] > number]

    def listening(self, wake: Callable[[], object]) -> "_Listening":
        """Calls `wake` for each that comes, within a `with` block."""
        return _Listening(self._listeners, self._lock, wake)


class _Listening:
    """A listener among others."""

    def __init__(
        self,
        listeners: list[Callable[[], object]],
        lock: threading.Lock,
        wake: Callable[[], object],
    ) -> None:
        self._listeners, self._lock, self._wake = listeners, lock, wake

    def __enter__(self) -> None:
        with self._lock:
            self._listeners.append(self._wake)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._listeners.remove(self._wake)


def _authorization(request: HttpRequest) -> str | None:
    """Of the header, else of the cookie."""
    header: str | None = request.headers.get("authorization")
    if header is not None:
        return header
    try:
        cookie = SimpleCookie(request.headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return None if cookie is None else f"Bearer {cookie.value}"


def _web_files() -> dict[str, tuple[str, bytes]]:
    """What a browser may ask for, by name: its type, and what it is."""
    folder = files("hps.dashboard") / "web"
    return {
        one.name: (_KINDS[Path(one.name).suffix], one.read_bytes())
        for one in folder.iterdir()
        if Path(one.name).suffix in _KINDS
    }


def run_rounds(
    collector: Collector, server: DashboardServer, every: float, stop: threading.Event
) -> None:
    """Asks and tells, again and again, until it is to stop.

    Args:
        every: seconds from the beginning of a round to that of the next.
    """
    while not stop.is_set():
        begun = time.monotonic()
        try:
            server.tell(collector.round())
        except Exception:  # of one round; those who look are to see the next one
            with suppress(OSError, ValueError):
                traceback.print_exc()
        stop.wait(max(0.0, begun + every - time.monotonic()))
