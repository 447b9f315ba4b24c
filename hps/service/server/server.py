"""A running server: gRPC over one shard, with its limits, credentials, health, metrics and end.

Above it: `hps serve`, tests. Below it: the handlers, calls.py, `hps.service.shard.shard`.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from hps.common.field_checks import require_number
from hps.errors import ConfigError
from hps.service.messages.addresses import check_exposure, is_loopback, split_address
from hps.service.server.admission import Admissions
from hps.service.server.auth import TokenFile
from hps.service.server.call_counts import CallCounts
from hps.service.server.calls import Handler, Service
from hps.service.server.descriptors import room_for_connections
from hps.service.server.health import Health, open_handlers
from hps.service.server.limits import ServerLimits
from hps.service.server.log_lines import LogLines
from hps.service.server.row_handlers import RowHandlers
from hps.service.server.store_handlers import StoreHandlers
from hps.service.server.tls import TlsCredentials, TlsFiles
from hps.service.server.watchdog import Watchdog
from hps.service.shard.shard import Shard
from hps.v1.parameter_server_pb2 import DESCRIPTOR

if TYPE_CHECKING:
    from hps.service.server.metrics_http import MetricsServer

SERVICE_NAME = DESCRIPTOR.services_by_name["ParameterServer"].full_name
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
        # Looked at here, so that a mistake is told before a store is opened.
        if self.tokens is not None:
            TokenFile(self.tokens)
        if self.tls is not None:
            TlsCredentials(self.tls)


class Server:
    """Serves a shard from the moment it is made until `stop`.

    Args:
        shard: what applies; stays open after `stop`.
        options: see there.
        log: where lines go.

    Raises:
        ConfigError: an address that is taken.
    """

    def __init__(self, shard: Shard, options: ServerOptions, log: LogLines) -> None:
        host, port = split_address("--listen", options.listen)
        self._options = options
        self._log = log
        self._tokens = None if options.tokens is None else TokenFile(options.tokens)
        self._tls = None if options.tls is None else TlsCredentials(options.tls)
        self._admissions = Admissions(options.limits, self._tokens)
        self._health = Health((SERVICE_NAME,), lambda: not shard.is_dead)
        self._metrics: MetricsServer | None = None
        counts = CallCounts()
        if options.metrics is not None:
            self._metrics = self._serve_metrics(counts, shard)
        self._watchdog = Watchdog()
        calls = Service(
            self._admissions,
            self._watchdog,
            counts,
            log,
            options.limits,
            table_names=lambda: [table.name for table in shard.tables],
        )
        handlers = {**_own_handlers(calls, shard), **self._open_handlers(calls)}
        self._threads = ThreadPoolExecutor(
            options.limits.requests + _OPEN_LIMITS.requests + _SPARE_THREADS, "hps-call"
        )
        self._grpc = grpc.server(
            self._threads,
            handlers=[_Methods(handlers)],
            options=_channel_options(options.limits),
            maximum_concurrent_rpcs=4 * (options.limits.requests + _OPEN_LIMITS.requests),
        )
        self.address = self._listen(host, port)
        self._grpc.start()
        self._warn_of_openness(host)

    def reload(self) -> None:
        """Reads tokens and certificates again; those that cannot be read stay as they were."""
        things: tuple[tuple[str, Callable[[], object] | None], ...] = (
            ("tokens", self._tokens.reread if self._tokens else None),
            ("certificate", self._tls.reload if self._tls else None),
            (
                "certificate of metrics",
                self._metrics.reload if self._metrics and self._tls else None,
            ),
        )
        for what, reread in things:
            if reread is None:
                continue
            try:
                reread()
                self._log.info("reload", what=what)
            except ConfigError as error:
                self._log.error("reload", what=what, message=str(error))

    def stop(self) -> bool:
        """Lets calls in flight end and no new ones in, then closes the address.

        Returns:
            True if all of them ended in time, `drain_seconds`; the others were cancelled, and one
            or the other may go on in the shard until that is closed.
        """
        self._health.stop()
        self._admissions.drain()
        self._watchdog.end_idle_streams()
        has_ended = self._admissions.wait_empty(self._options.drain_seconds)
        self._grpc.stop(_STOP_SECONDS).wait(2 * _STOP_SECONDS)
        # A call that was cancelled may still be in the shard, which ends it when it is closed.
        self._threads.shutdown(wait=has_ended, cancel_futures=True)
        self._watchdog.close()
        if self._metrics is not None:
            self._metrics.stop()
        return has_ended

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

    def _serve_metrics(self, counts: CallCounts, shard: Shard) -> "MetricsServer":
        from hps.service.server.metrics import ServerCollector  # only where it is wanted
        from hps.service.server.metrics_http import MetricsServer

        options = self._options
        host, port = split_address("--metrics", options.metrics or "")
        collector = ServerCollector(counts, self._admissions, shard)
        identify = partial(self._admissions.identify, peer="metrics")
        server = MetricsServer(
            collector, host, port, options.tls, identify, self._health.is_serving
        )
        self._log.info("metrics", address=f"{host}:{server.port}")
        return server

    def _open_handlers(self, calls: Service) -> dict[str, Handler]:
        admissions = Admissions(_OPEN_LIMITS, None)
        service = Service(admissions, self._watchdog, calls.counts, calls.log, _OPEN_LIMITS)
        return open_handlers(service, self._health, (SERVICE_NAME,))

    def _warn_of_openness(self, host: str) -> None:
        if is_loopback(host):
            return
        if self._options.tls is None:
            self._log.warning("insecure", message="rows and tokens travel in the clear")
        if self._options.tokens is None and (
            self._options.tls is None or self._options.tls.client_ca is None
        ):
            self._log.warning("open", message="anyone who reaches this address may change rows")


class _Methods(grpc.GenericRpcHandler):
    """Finds the handler of a method by its full name."""

    def __init__(self, handlers: dict[str, Handler]) -> None:
        self._handlers = handlers

    def service(self, details: grpc.HandlerCallDetails) -> "Handler | None":
        return self._handlers.get(details.method)


def _own_handlers(calls: Service, shard: Shard) -> dict[str, Handler]:
    rows = RowHandlers(shard, calls.limits)
    store = StoreHandlers(shard, calls.limits, calls.log)
    unary = {
        "Describe": store.describe,
        "OpenSession": store.open_session,
        "Pull": rows.pull,
        "Contains": rows.contains,
        "NumRows": store.num_rows,
        "Digest": store.digest,
        "Statistics": rows.statistics,
        "Push": rows.push,
        "Assign": rows.assign,
        "Erase": rows.erase,
        "EraseWhere": rows.erase_where,
        "Create": rows.create,
        "AdvancePeriod": store.advance_period,
        "Skip": store.skip,
        "Flush": store.flush,
        "CreateTable": store.create_table,
        "ListTables": store.list_tables,
        "Checkpoint": store.checkpoint,
        "Restore": store.restore,
        "ListCheckpoints": store.list_checkpoints,
        "DeleteCheckpoint": store.delete_checkpoint,
        "CheckpointState": store.checkpoint_state,
        "Stats": store.stats,
    }
    handlers = {name: calls.unary(name, run) for name, run in unary.items()}
    handlers["Items"] = calls.server_stream("Items", rows.items)
    handlers["PushStream"] = calls.both_streams("PushStream", rows.push)
    return {f"/{SERVICE_NAME}/{name}": handler for name, handler in handlers.items()}


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
