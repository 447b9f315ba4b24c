"""MetricsServer: the figures over HTTP, or HTTPS with the server's files, for who may see them; and
whether the server is serving, for everyone.

Above it: front.py and hps/train/run_metrics.py, where --metrics is given. Below it:
http_server.py, tls.py.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from hps.common.json_text import Json
from hps.errors import ConfigError
from hps.service.messages.addresses import is_loopback
from hps.service.messages.status import Refusal
from hps.service.server.auth import Caller
from hps.service.server.host_header import names_this_machine
from hps.service.server.http_server import HttpReply, HttpRequest, HttpServer
from hps.service.server.tls import TlsFiles, server_context

_PATH = "/metrics"
_HEALTH_PATH = "/healthz"
_WRONG_HOST = (
    b"these figures are asked for by a name that is none of this machine's own; ask localhost, or "
    b"give tokens to serve them under other names\n"
)


class Figures(Protocol):
    """What is shown."""

    def seen_by(self, caller: Caller) -> Collector:
        """The figures as one caller sees them."""


@dataclass(frozen=True)
class MetricsAccess:
    """Who may see the figures.

    Args:
        identify: given the `authorization` header, the caller; raises a Refusal for whom it does
            not let in.
        has_tokens: it asks for some. Without, an address that this machine alone reaches answers
            only requests whose Host header names this machine.
    """

    identify: Callable[[str | None], Caller]
    has_tokens: bool


class MetricsServer:
    """Serves the figures from the moment it is made until `stop`.

    Args:
        figures: what is shown.
        address: host and port; port 0 takes a free one.
        tls: None serves in the clear.
        access: who may see them.
        is_serving: what /healthz says, without a token.
        pages: JSON that is served beside, by path, made when it is asked for.

    Raises:
        ConfigError: the address cannot be listened on, or a certificate not be used.
    """

    def __init__(
        self,
        figures: Figures,
        address: tuple[str, int],
        tls: TlsFiles | None,
        access: "MetricsAccess",
        is_serving: Callable[[], bool],
        pages: Mapping[str, Callable[[], Json]] | None = None,
    ) -> None:
        self._host = address[0]
        # Pages of others, whose names an attacker leads here, are to read nothing of it.
        self._is_private = not access.has_tokens and is_loopback(self._host)
        self._figures = figures
        self._pages = dict(pages or {})
        self._tls = tls
        self._identify = access.identify
        self._is_serving = is_serving
        try:
            self._http = HttpServer(address, self._answer)
        except OSError as error:
            host, port = address
            raise ConfigError(f"--metrics {host}:{port}: {error.strerror or error}") from error
        self.port = self._http.port
        try:
            self.reload()
        except BaseException:
            self._http.stop()
            raise
        self._http.start()

    def reload(self) -> None:
        """Takes the certificate files as they are now, for connections from now on.

        Raises:
            ConfigError: they cannot be used; the old ones stay.
        """
        if self._tls is not None:
            self._http.context = server_context(self._tls)

    def stop(self) -> None:
        """Closes the address."""
        self._http.stop()

    def _answer(self, request: HttpRequest) -> HttpReply:
        path = request.path
        if path == _HEALTH_PATH:
            return (
                HttpReply(200, b"ok\n") if self._is_serving() else HttpReply(503, b"not serving\n")
            )
        if self._is_private and not names_this_machine(request.headers.get("host"), self._host):
            return HttpReply(403, _WRONG_HOST)
        known = (_PATH, *self._pages)
        if path not in known:
            here = ", ".join((*known, _HEALTH_PATH))
            return HttpReply(404, f"only these are here: {here}\n".encode())
        try:
            caller = self._identify(request.headers.get("authorization"))
        except Refusal as refusal:
            return HttpReply(401, f"{refusal}\n".encode(), headers={"WWW-Authenticate": "Bearer"})
        if path != _PATH:
            return HttpReply(200, json.dumps(self._pages[path]()).encode(), "application/json")
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self._figures.seen_by(caller))
        return HttpReply(200, generate_latest(registry), CONTENT_TYPE_LATEST)
