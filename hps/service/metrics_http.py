"""MetricsServer: the figures over HTTP, or HTTPS with the server's files, for who may see them.

Above it: server.py, where --metrics is given. Below it: metrics.py, tls.py, Python's http.server.
A thread for each of a few connections, which end after ten seconds whatever they do.
"""

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from hps.errors import ConfigError
from hps.service.metrics import ServerCollector
from hps.service.status import Refusal
from hps.service.tls import TlsFiles, server_context

_PATH = "/metrics"
_MOST_CONNECTIONS = 8
_SECONDS = 10.0  # that a connection may stand still


class MetricsServer:
    """Serves the figures from the moment it is made until `stop`.

    Args:
        collector: of the figures.
        host, port: where; port 0 takes a free one.
        tls: None serves in the clear.
        identify: given the `authorization` header; raises a Refusal for whom it does not let in.

    Raises:
        ConfigError: the address cannot be listened on, or a certificate not be used.
    """

    def __init__(
        self,
        collector: ServerCollector,
        host: str,
        port: int,
        tls: TlsFiles | None,
        identify: Callable[[str | None], object],
    ) -> None:
        self._tls = tls
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        try:
            self._http = _HttpServer(host, port, registry, identify)
        except OSError as error:
            raise ConfigError(f"--metrics {host}:{port}: {error.strerror or error}") from error
        self.port = int(self._http.server_address[1])
        try:
            self.reload()
        except BaseException:
            self._http.server_close()
            raise
        self._thread = threading.Thread(
            target=self._http.serve_forever, name="hps-metrics", daemon=True
        )
        self._thread.start()

    def reload(self) -> None:
        """Takes the certificate files as they are now, for connections from now on.

        Raises:
            ConfigError: they cannot be used; the old ones stay.
        """
        if self._tls is not None:
            self._http.context = server_context(self._tls)

    def stop(self) -> None:
        """Closes the address."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a connection that stands still keeps nobody

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        identify: Callable[[str | None], object],
    ) -> None:
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self.registry = registry
        self.identify = identify
        self.context: Any = None
        self._room = threading.Semaphore(_MOST_CONNECTIONS)
        super().__init__((host, port), _Answer)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's would look the host's name up, and wait

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(_SECONDS)
        if self.context is None:
            super().finish_request(request, client_address)
            return
        with self.context.wrap_socket(request, server_side=True) as wrapped:
            super().finish_request(wrapped, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke off is no news; a trace on standard error is no log line."""


class _Answer(BaseHTTPRequestHandler):
    """One request; the names are those that http.server calls."""

    timeout = _SECONDS
    server: _HttpServer

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != _PATH:
            self._answer(404, f"only {_PATH} is here\n".encode())
            return
        try:
            self.server.identify(self.headers.get("authorization"))
        except Refusal as refusal:
            self._answer(401, f"{refusal}\n".encode())
            return
        self._answer(200, generate_latest(self.server.registry), CONTENT_TYPE_LATEST)

    def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Who looks at figures is not logged."""
