"""`hps serve`: flags to a server over a store, until it is told to stop.

Above it: `hps.cli.main`. Below it: `hps.service`. Torch is imported by nothing here unless there is
a GPU: a server that was killed should be back within a second.
"""

import argparse
import queue
import signal
import sys
from pathlib import Path
from typing import Any

from hps.cli.output import HelpFormatter
from hps.config import DramCacheConfig, GpuCacheConfig, num_cores, parse_bytes
from hps.errors import ConfigError

_INITIALIZERS = {"constant": ("value",), "uniform": ("low", "high"), "normal": ("std", "mean")}
_OWN_FIELDS = ("name", "dim", "optimizer", "init", "features", "share")


def add_parsers(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `serve`."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a store over gRPC",
        formatter_class=HelpFormatter,
    )
    _add_store_flags(parser)
    _add_address_flags(parser)
    _add_limit_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit status."""
    from hps.service.log_lines import LogLines
    from hps.service.memory import keep_message_memory
    from hps.service.server import Server
    from hps.service.shard import Shard, ShardOptions

    keep_message_memory()
    options = _server_options(arguments)
    log = LogLines(sys.stderr, calls=arguments.log_calls)
    index, count = _shard(arguments.shard)
    tables = [parse_table(text) for text in arguments.table]
    shard = Shard(
        _location(arguments),
        ShardOptions(
            index=index,
            count=count,
            log_bytes=parse_bytes(arguments.log_bytes, "--log-bytes"),
            max_sessions=arguments.max_sessions,
            max_owned_sessions=arguments.max_client_sessions,
            max_tables=options.limits.tables,
        ),
    )
    try:
        for table in tables:
            shard.create_table(table)
        signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: signals.put(number))
        server = Server(shard, options, log)
    except BaseException:
        shard.close(checkpoint=False)
        raise
    log.info(
        "listening",
        address=server.address,
        store=str(arguments.store),
        shard=f"{shard.index}/{shard.count}",
    )
    print(f"listening on {server.address}", flush=True)
    while signals.get() == signal.SIGHUP:
        server.reload()
    log.info("draining", seconds=options.drain_seconds)
    has_ended = server.stop()
    shard.close(checkpoint=True)
    log.info("stopped", calls_cancelled=not has_ended)
    return 0


def parse_table(text: str) -> Any:
    """The TableConfig of `--table name=ads,dim=16,optimizer=adagrad,lr=0.05,init=normal:0.01`.

    Raises:
        ConfigError: a field that is missing, unknown or outside its limits.

    >>> parse_table("name=ads,dim=16,optimizer=adam,lr=0.01,beta1=0.8,init=uniform:-0.1:0.1").dim
    16
    """
    from hps.service.table_messages import from_message
    from hps.v1.parameter_server_pb2 import FeatureList, Table

    fields: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or name in fields:
            raise ConfigError(f"--table {text!r}: {part!r} is not NAME=VALUE, or stands twice")
        fields[name] = value
    for name in ("name", "dim"):
        if name not in fields:
            raise ConfigError(f"--table {text!r}: {name}= is missing")
    message = Table(name=fields["name"], share=_number(text, fields.get("share", "1")))
    message.dim = int(_number(text, fields["dim"]))
    message.optimizer.kind = fields.get("optimizer", "adagrad")
    for name, value in fields.items():
        if name not in _OWN_FIELDS:
            message.optimizer.numbers[name] = _number(text, value)
    if "init" in fields:
        message.initializer.kind, *numbers = fields["init"].split(":")
        names = _INITIALIZERS.get(message.initializer.kind, ())
        if len(numbers) > len(names):
            raise ConfigError(f"--table {text!r}: init={fields['init']!r} has too many numbers")
        for name, value in zip(names, numbers, strict=False):
            message.initializer.numbers[name] = _number(text, value)
    if "features" in fields:
        message.features.CopyFrom(FeatureList(names=fields["features"].split("+")))
    return from_message(message)


def _number(text: str, value: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise ConfigError(f"--table {text!r}: {value!r} is no number") from error


def _shard(text: str | None) -> tuple[int, int] | tuple[None, None]:
    """(index, count); what is stored if nothing is said."""
    if text is None:
        return None, None
    index, _, count = text.partition("/")
    if not index.isdecimal() or not count.isdecimal() or not int(index) < int(count):
        raise ConfigError(f"--shard {text!r}: write I/N, such as 0/2 and 1/2 for two servers")
    return int(index), int(count)


def _location(arguments: argparse.Namespace) -> Any:
    from hps.service.location import StoreLocation

    gpu = None
    if arguments.gpu is not None:
        gpu = GpuCacheConfig(bytes=arguments.gpu, device=arguments.device)
    return StoreLocation(
        path=arguments.store,
        dram=DramCacheConfig(bytes=arguments.dram),
        gpu=gpu,
        seed=arguments.seed,
        threads=arguments.threads,
    )


def _server_options(arguments: argparse.Namespace) -> Any:
    from hps.service.limits import ServerLimits
    from hps.service.server import ServerOptions
    from hps.service.tls import TlsFiles

    tls = None
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        raise ConfigError("--tls-cert and --tls-key: give both or none")
    if arguments.tls_cert is not None:
        tls = TlsFiles(
            cert=arguments.tls_cert, key=arguments.tls_key, client_ca=arguments.tls_client_ca
        )
    elif arguments.tls_client_ca is not None:
        raise ConfigError("--tls-client-ca: clients show certificates only with --tls-cert")
    limits = ServerLimits(
        message_bytes=arguments.max_message,
        keys=arguments.max_keys,
        dim=arguments.max_dim,
        tables=arguments.max_tables,
        requests=arguments.max_requests,
        client_requests=arguments.max_client_requests,
        flight_bytes=arguments.max_flight,
        client_bytes=arguments.max_client_flight,
        streams=arguments.max_streams,
        deadline_seconds=arguments.deadline,
    )
    return ServerOptions(
        listen=arguments.listen,
        limits=limits,
        tls=tls,
        tokens=arguments.tokens,
        allow_insecure=arguments.allow_insecure,
        metrics=arguments.metrics,
        drain_seconds=arguments.drain_seconds,
    )


def _add_store_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("store")
    group.add_argument("--store", type=Path, required=True, metavar="DIR", help="the store")
    group.add_argument(
        "--shard", default=None, metavar="I/N", help="which of how many servers; once is enough"
    )
    group.add_argument("--dram", default="1GiB", help="budget of the host tier")
    group.add_argument("--gpu", default=None, help="budget of the GPU tier")
    group.add_argument("--device", default="cuda:0", help="of the GPU tier")
    group.add_argument(
        "--table",
        action="append",
        default=[],
        metavar="name=..,dim=..",
        help="a table that is to be there; also optimizer=, its numbers (lr=, eps= ...), "
        "init=normal:STD, uniform:LOW:HIGH or constant:VALUE, features=A+B, share=",
    )
    group.add_argument("--seed", type=int, default=None, help="of a new store's initial values")
    group.add_argument(
        "--threads",
        type=int,
        default=max(1, num_cores() // 4),
        help="of the native core for one call (several calls run at once); 0: all cores",
    )
    group.add_argument(
        "--log-bytes", default="1GiB", help="a checkpoint is taken when the log has grown to this"
    )


def _add_address_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("address and access")
    group.add_argument("--listen", default="127.0.0.1:50051", help="HOST:PORT; port 0: a free one")
    group.add_argument("--metrics", default=None, metavar="HOST:PORT", help="Prometheus over HTTP")
    group.add_argument("--tls-cert", type=Path, default=None, metavar="FILE", help="PEM")
    group.add_argument("--tls-key", type=Path, default=None, metavar="FILE", help="PEM")
    group.add_argument(
        "--tls-client-ca", type=Path, default=None, metavar="FILE", help="clients must show one"
    )
    group.add_argument(
        "--tokens", type=Path, default=None, metavar="FILE", help="who may do what, as JSON"
    )
    group.add_argument(
        "--allow-insecure", action="store_true", help="listen beyond this machine without TLS"
    )
    group.add_argument(
        "--drain-seconds", type=float, default=30.0, help="for calls in flight at the end"
    )
    group.add_argument("--log-calls", action="store_true", help="a log line for every call")


def _add_limit_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    group.add_argument("--max-message", default="32MiB", help="bytes of a request, of a reply")
    group.add_argument("--max-keys", type=int, default=2**20, help="of a request")
    group.add_argument("--max-dim", type=int, default=4096, help="of a table that a client makes")
    group.add_argument("--max-tables", type=int, default=1024, help="in the store")
    group.add_argument("--max-sessions", type=int, default=10_000, help="of clients")
    group.add_argument(
        "--max-client-sessions", type=int, default=1000, help="of those, opened with one token"
    )
    group.add_argument("--max-requests", type=int, default=64, help="in flight")
    group.add_argument("--max-client-requests", type=int, default=16, help="of one client")
    group.add_argument("--max-flight", default="512MiB", help="bytes in flight")
    group.add_argument("--max-client-flight", default="256MiB", help="bytes of one client")
    group.add_argument("--max-streams", type=int, default=16, help="push streams that are open")
    group.add_argument(
        "--deadline", type=float, default=60.0, help="seconds of a call that brings none"
    )
