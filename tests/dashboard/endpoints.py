"""Fake endpoints: figures for Prometheus that a test writes, on a port that can go and come back.

Above it: the tests of the dashboard. Below it: the HTTP server of the service.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hps.dashboard.fetch import Credentials
from hps.dashboard.watched import Asking, Watched, parse_watched
from hps.service.server.http_server import HttpReply, HttpRequest, HttpServer

ASKING = Asking(credentials=Credentials(), seconds=2.0)


class Endpoint:
    """Answers with what `text` is; 0 is a free port.

    Attributes:
        asked: the requests so far.
        pause: seconds before each answer.
    """

    def __init__(self, text: str = "", port: int = 0) -> None:
        self.text, self.status, self.pause = text, 200, 0.0
        self.pages: dict[str, str] = {}
        self.asked: list[HttpRequest] = []
        self._server = HttpServer(("127.0.0.1", port), self._answer)
        self.port = self._server.port
        self._server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _answer(self, request: HttpRequest) -> HttpReply:
        self.asked.append(request)
        time.sleep(self.pause)
        if request.path != "/metrics":
            page = self.pages.get(request.path)
            return HttpReply(404, b"") if page is None else HttpReply(200, page.encode())
        return HttpReply(self.status, self.text.encode())

    def set(self, **figures: float) -> None:
        """Figures by name; a part after "__" is a tier."""
        lines = []
        for name, value in figures.items():
            metric, _, tier = name.partition("__")
            lines.append(f'{metric}{{tier="{tier}"}} {value}' if tier else f"{metric} {value}")
        self.text = "\n".join([*lines, ""])

    def stop(self) -> None:
        self._server.stop()


@contextmanager
def endpoint(text: str = "", port: int = 0) -> Iterator[Endpoint]:
    made = Endpoint(text, port)
    try:
        yield made
    finally:
        made.stop()


def watched(*words: Any) -> list[Watched]:
    return parse_watched([str(word) for word in words], ASKING)


class Clock:
    """A clock that goes as it is told."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now
