"""MetricsServer: the figures over HTTP, or HTTPS with the server's files, for who may see them; and
whether the server is serving, for everyone.

Above it: front.py, where --metrics is given. Below it: http_server.py, tls.py.
"""

from collections.abc import Callable
from typing import Protocol

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from hps.errors import ConfigError
from hps.service.messages.status import Refusal
from hps.service.server.auth import Caller
from hps.service.server.http_server import HttpReply, HttpServer
from hps.service.server.tls import TlsFiles, server_context

_PATH = "/metrics"
_HEALTH_PATH = "/healthz"


class Figures(Protocol):
    """What is shown."""

    def seen_by(self, caller: Caller) -> Collector:
        """The figures as one caller sees them."""


class MetricsServer:
    """Serves the figures from the moment it is made until `stop`.

    Args:
        figures: what is shown.
        address: host and port; port 0 takes a free one.
        tls: None serves in the clear.
        identify: given the `authorization` header, the caller; raises a Refusal for whom it does
            not let in.
        is_serving: what /healthz says, without a token.

    Raises:
        ConfigError: the address cannot be listened on, or a certificate not be used.
    """

    def __init__(
        self,
        figures: Figures,
        address: tuple[str, int],
        tls: TlsFiles | None,
        identify: Callable[[str | None], Caller],
        is_serving: Callable[[], bool],
    ) -> None:
        self._figures = figures
        self._tls = tls
        self._identify = identify
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

    def _answer(self, path: str, authorization: str | None) -> HttpReply:
        if path == _HEALTH_PATH:
            return (
                HttpReply(200, b"ok\n") if self._is_serving() else HttpReply(503, b"not serving\n")
            )
        if path != _PATH:
            return HttpReply(404, f"only {_PATH} and {_HEALTH_PATH} are here\n".encode())
        try:
            caller = self._identify(authorization)
        except Refusal as refusal:
            return HttpReply(401, f"{refusal}\n".encode(), headers={"WWW-Authenticate": "Bearer"})
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self._figures.seen_by(caller))
        return HttpReply(200, generate_latest(registry), CONTENT_TYPE_LATEST)
