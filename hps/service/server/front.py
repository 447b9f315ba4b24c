"""GrpcFront: a gRPC server with limits, credentials, health, figures and end, whatever it serves.

Above it: server.py over a shard, `hps.serving` over a model. Below it: calls.py, admission.py,
auth.py, tls.py, health.py, metrics_http.py.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from hps.common.field_checks import require_number
from hps.errors import ConfigError
from hps.publish.places import PublishPlaces
from hps.service.messages.addresses import check_exposure, is_loopback, split_address
from hps.service.server.admission import Admissions
from hps.service.server.auth import TokenFile
from hps.service.server.call_counts import CallCounts
from hps.service.server.calls import Handler, Service
from hps.service.server.descriptors import room_for_connections
from hps.service.server.health import Health, open_handlers
from hps.service.server.limits import ServerLimits
from hps.service.server.log_lines import LogLines
from hps.service.server.tls import TlsCredentials, TlsFiles
from hps.service.server.watchdog import Watchdog

if TYPE_CHECKING:
    from hps.service.server.metrics_http import Figures, MetricsServer

# Calls that need no token: few, small, and never in the way of the others.
_OPEN_LIMITS = ServerLimits(
    message_bytes="64KiB", requests=16, client_requests=8, streams=8, deadline_seconds=600.0
)
# Threads beyond the calls that may be in flight, so that the next one is refused at once.
_SPARE_THREADS = 4
_STOP_SECONDS = 1.0
_HANDSHAKE_MS = 10_000  # that a connection has to begin with TLS and HTTP/2
_IDLE_MS = 300_000  # that a connection may have no call; a client connects again by itself


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """How a shard is served.

    Args:
        listen: HOST:PORT; port 0 takes a free one.
        limits: what is taken at most.
        tls: None serves in the clear.
        tokens: a file of tokens; None lets everyone do everything.
        allow_insecure: listen beyond this machine without TLS.
        metrics: HOST:PORT of the figures for Prometheus; None: none.
        drain_seconds: how long calls in flight may take to end when the server stops.
        publish_to: what the places begin with that versions may be written to; see
            `hps.publish.places.PublishPlaces`.

    Raises:
        ConfigError: no such address; others can reach it and there is no TLS; a token file or
            certificate that cannot be used.
    """

    listen: str
    limits: ServerLimits = field(default_factory=ServerLimits)
    tls: TlsFiles | None = None
    tokens: Path | None = None
    allow_insecure: bool = False
    metrics: str | None = None
    drain_seconds: float = 30.0
    publish_to: Sequence[str] = ()

    def __post_init__(self) -> None:
        require_number("ServerOptions.drain_seconds", self.drain_seconds)
        for flag, address, example, what in (
            ("--listen", self.listen, "127.0.0.1:50051", "rows and tokens on the way"),
            ("--metrics", self.metrics, "127.0.0.1:9100", "figures, tokens and tables' names"),
        ):
            if address is not None:
                host, _ = split_address(flag, address, example)
                has_tls = self.tls is not None
                check_exposure(
                    flag, host, what, has_tls=has_tls, allow_insecure=self.allow_insecure
                )
        PublishPlaces(self.publish_to)
        # Looked at here, so that a mistake is told before a store is opened.
        if self.tokens is not None:
            TokenFile(self.tokens)
        if self.tls is not None:
            TlsCredentials(self.tls)


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a front is told of that which it serves.

    Args:
        names: of the gRPC services, for health checking and reflection.
        is_alive: False once nothing can be answered any more, whatever is asked.
        open_to_all: what anyone may do who reaches an address without tokens, in words.
        table_names: of tables whose names are not everyone's to read.
    """

    names: tuple[str, ...]
    is_alive: Callable[[], bool]
    open_to_all: str
    table_names: Callable[[], Collection[str]] = tuple


class GrpcFront:
    """Everything of a server but what its calls do. It is made, is given `serve_metrics` where that
    is wanted, then `start`, and in the end `stop`.

    Args:
        options: see there.
        served: see there.
        log: where lines go.

    Attributes:
        calls: makes handlers of what calls do.
        admissions, counts, health: of all calls; a front of another protocol may share them.
        address: HOST:PORT, from `start` on.
        metrics_port: of the figures, from `serve_metrics` on; None: they are not served.
    """

    def __init__(self, options: ServerOptions, served: Served, log: LogLines) -> None:
        self._options = options
        self._served = served
        self._log = log
        self._tokens = None if options.tokens is None else TokenFile(options.tokens)
        self._tls = None if options.tls is None else TlsCredentials(options.tls)
        self._metrics: MetricsServer | None = None
        self.admissions = Admissions(options.limits, self._tokens)
        self.counts = CallCounts()
        self.health = Health(served.names, served.is_alive)
        self.watchdog = Watchdog()
        self.calls = Service(
            self.admissions,
            self.watchdog,
            self.counts,
            log,
            options.limits,
            table_names=served.table_names,
        )
        limits = options.limits
        self.threads = ThreadPoolExecutor(
            limits.requests + _OPEN_LIMITS.requests + _SPARE_THREADS, "hps-call"
        )
        self.address = ""
        self.metrics_port: int | None = None

    def start(self, handlers: dict[str, Handler], open_calls: dict[str, Handler]) -> None:
        """Begins to listen.

        Args:
            handlers: by the full names of their methods.
            open_calls: those that `open_calls` has made, which need no token.

        Raises:
            ConfigError: an address that is taken.
        """
        limits = self._options.limits
        host, port = split_address("--listen", self._options.listen)
        all_handlers = {
            **handlers,
            **open_calls,
            **open_handlers(self.open_service(), self.health, self._served.names),
        }
        self._grpc = grpc.server(
            self.threads,
            handlers=[_Methods(all_handlers)],
            options=_channel_options(limits),
            maximum_concurrent_rpcs=4 * (limits.requests + _OPEN_LIMITS.requests),
        )
        self.address = self._listen(host, port)
        self._grpc.start()
        self._warn_of_openness(host)

    def open_service(self) -> Service:
        """Makes handlers of calls that need no token and count by themselves."""
        admissions = Admissions(_OPEN_LIMITS, None)
        return Service(admissions, self.watchdog, self.counts, self._log, _OPEN_LIMITS)

    def serve_metrics(self, figures: "Figures") -> None:
        """Serves figures for Prometheus where the options ask for them.

        Raises:
            ConfigError: the address cannot be listened on.
        """
        options = self._options
        if options.metrics is None:
            return
        from hps.service.server.metrics_http import (
            MetricsAccess,
            MetricsServer,
        )  # only where it is wanted

        host, port = split_address("--metrics", options.metrics)
        identify = partial(self.admissions.identify, peer="metrics")
        self._metrics = MetricsServer(
            figures,
            (host, port),
            options.tls,
            MetricsAccess(identify, self._tokens is not None),
            self.health.is_serving,
        )
        self.metrics_port = self._metrics.port
        self._log.info("metrics", address=f"{host}:{self.metrics_port}")

    def reload(self, **others: Callable[[], object]) -> None:
        """Reads tokens and certificates again; those that cannot be read stay as they were.

        Args:
            others: what is read again beside them, by its name.
        """
        things: tuple[tuple[str, Callable[[], object] | None], ...] = (
            ("tokens", self._tokens.reread if self._tokens else None),
            ("certificate", self._tls.reload if self._tls else None),
            (
                "certificate of metrics",
                self._metrics.reload if self._metrics and self._tls else None,
            ),
            *others.items(),
        )
        for what, reread in things:
            if reread is None:
                continue
            try:
                reread()
                self._log.info("reload", what=what)
            except ConfigError as error:
                self._log.error("reload", what=what, message=str(error))

    def drain(self) -> bool:
        """Lets calls in flight end and no new ones in.

        Returns:
            True if all of them ended in time, `drain_seconds`.
        """
        self.health.stop()
        self.admissions.drain()
        self.watchdog.end_idle_streams()
        return self.admissions.wait_empty(self._options.drain_seconds)

    def close(self, *, has_ended: bool) -> None:
        """Closes the addresses, after `drain` and with what it said; calls that have not ended are
        cancelled, and may go on in what is served until that is closed."""
        self._grpc.stop(_STOP_SECONDS).wait(2 * _STOP_SECONDS)
        # A call that was cancelled may still be in what is served, which ends it when it is closed.
        self.threads.shutdown(wait=has_ended, cancel_futures=True)
        self.watchdog.close()
        if self._metrics is not None:
            self._metrics.stop()

    def _listen(self, host: str, port: int) -> str:
        name = f"[{host}]" if ":" in host else host
        reason: Exception | None = None
        try:
            if self._tls is None:
                bound = self._grpc.add_insecure_port(f"{name}:{port}")
            else:
                bound = self._grpc.add_secure_port(f"{name}:{port}", self._tls.credentials())
        except RuntimeError as error:
            bound, reason = 0, error
        if not bound:
            raise ConfigError(
                f"--listen {name}:{port}: cannot listen there; check whether another "
                "server uses this port"
            ) from reason
        return f"{name}:{bound}"

    def _warn_of_openness(self, host: str) -> None:
        if is_loopback(host):
            return
        if self._options.tls is None:
            self._log.warning("insecure", message="rows and tokens travel in the clear")
        if self._options.tokens is None and (
            self._options.tls is None or self._options.tls.client_ca is None
        ):
            self._log.warning("open", message=self._served.open_to_all)


class _Methods(grpc.GenericRpcHandler):
    """Finds the handler of a method by its full name."""

    def __init__(self, handlers: dict[str, Handler]) -> None:
        self._handlers = handlers

    def service(self, details: grpc.HandlerCallDetails) -> "Handler | None":
        return self._handlers.get(details.method)


def _channel_options(limits: ServerLimits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", int(limits.message_bytes)),
        ("grpc.max_send_message_length", int(limits.message_bytes)),
        ("grpc.max_concurrent_streams", limits.requests + _OPEN_LIMITS.requests),
        # Connections hold descriptors, which the store needs, too.
        ("grpc.max_allowed_incoming_connections", room_for_connections(limits.connections)),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        # Two servers on one port would each get half of the calls.
        ("grpc.so_reuseport", 0),
        # Messages that unpack to a thousand times their size are refused: identity only.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # A client whose machine has gone holds its calls no longer than this.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ]
