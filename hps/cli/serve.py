"""`hps serve`: flags to a server over a store, until it is told to stop.

Above it: `hps.cli.main`. Below it: `hps.service`. Torch is imported by nothing here unless there is
a GPU: a server that was killed should be back within a second.
"""

import argparse
import queue
import re
import signal
import sys
from typing import TYPE_CHECKING, Protocol

from hps.cli import flags
from hps.common.byte_sizes import parse_bytes
from hps.config import (
    MAX_DIM,
    MAX_TABLES,
    DramCacheConfig,
    GpuCacheConfig,
    num_cores,
)
from hps.errors import ConfigError

if TYPE_CHECKING:
    from hps.service.server.log_lines import LogLines
    from hps.service.server.server import ServerOptions
    from hps.service.server.tls import TlsFiles
    from hps.service.shard.location import StoreLocation

_ARENAS = 1  # one heap for all threads: what one frees another takes


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `serve`."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a store over gRPC",
        description="Serves one store over gRPC until SIGTERM or SIGINT, with a checkpoint 'last' "
        "at the end. Prints 'listening on HOST:PORT' when it is ready; logs as JSON lines to "
        "standard error. docs/service.md says more; proto/hps/v1/parameter_server.proto, beside "
        "docs/, is what clients in other languages need.",
    )
    _add_store_flags(parser)
    _add_address_flags(parser)
    _add_limit_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit status."""
    from hps.cli.table_text import parse_table
    from hps.common.process_memory import keep_freed_memory
    from hps.service.messages.addresses import check_free
    from hps.service.server.descriptors import raise_descriptor_limit
    from hps.service.server.log_lines import LogLines
    from hps.service.server.server import Server
    from hps.service.shard.shard import Shard, ShardOptions
    from hps.ssd_store.new_store import check_new_store

    keep_freed_memory(arenas=_ARENAS)
    raise_descriptor_limit()
    options = _server_options(arguments)
    log = LogLines(sys.stderr, calls=arguments.log_calls)
    index, count = _shard(arguments.shard)
    tables = [parse_table(text) for text in arguments.table]
    check_new_store(arguments.store)
    check_free({"--listen": arguments.listen, "--metrics": arguments.metrics})
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
        signals = take_signals()
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
    has_ended = serve_until_told(server, signals, log, options.drain_seconds)
    shard.close(checkpoint=True)
    log.info("stopped", calls_cancelled=not has_ended)
    return 0


class Reloadable(Protocol):
    """A server that runs until it is stopped."""

    def reload(self) -> None:
        """Reads tokens and certificates again."""

    def stop(self) -> bool:
        """Drains; whether all that was in flight has ended."""


def take_signals() -> "queue.SimpleQueue[int]":
    """Those that end a server, or have it reload, from now on."""
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: signals.put(number))
    return signals


def serve_until_told(
    server: Reloadable, signals: "queue.SimpleQueue[int]", log: "LogLines", drain_seconds: float
) -> bool:
    """Reloads at each SIGHUP, drains at any other signal; whether all in flight has ended."""
    while signals.get() == signal.SIGHUP:
        server.reload()
    log.info("draining", seconds=drain_seconds)
    return server.stop()


def _shard(text: str | None) -> tuple[int, int] | tuple[None, None]:
    """(index, count); what is stored if nothing is said."""
    if text is None:
        return None, None
    found = re.fullmatch(r"([0-9]{1,5})/([0-9]{1,5})", text)
    if found is None or not int(found[1]) < int(found[2]):
        raise ConfigError(f"--shard {text[:80]!r}: write I/N, such as 0/2 and 1/2 for two servers")
    return int(found[1]), int(found[2])


def _location(arguments: argparse.Namespace) -> "StoreLocation":
    from hps.service.shard.location import StoreLocation

    gpu = None
    if arguments.gpu is not None:
        gpu = GpuCacheConfig(
            bytes=arguments.gpu, device=arguments.device, batch_bytes=arguments.gpu_batches
        )
    elif arguments.gpu_batches is not None:
        raise ConfigError("--gpu-batches is a part of the GPU tier's budget; give that (--gpu) too")
    return StoreLocation(
        path=arguments.store,
        dram=DramCacheConfig(bytes=arguments.dram),
        gpu=gpu,
        seed=arguments.seed,
        threads=arguments.threads,
    )


def _server_options(arguments: argparse.Namespace) -> "ServerOptions":
    from hps.service.server.limits import ServerLimits
    from hps.service.server.server import ServerOptions

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
        connections=arguments.max_connections,
        deadline_seconds=arguments.deadline,
    )
    return ServerOptions(
        listen=arguments.listen,
        limits=limits,
        tls=tls_of(arguments),
        tokens=arguments.tokens,
        allow_insecure=arguments.allow_insecure,
        metrics=arguments.metrics,
        drain_seconds=arguments.drain_seconds,
        publish_to=arguments.publish_to,
    )


def tls_of(arguments: argparse.Namespace) -> "TlsFiles | None":
    """The certificate files that were given; None for none.

    Raises:
        ConfigError: one of them without the other.
    """
    from hps.service.server.tls import TlsFiles

    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        raise ConfigError("--tls-cert and --tls-key: give both or none")
    if arguments.tls_cert is not None:
        return TlsFiles(
            cert=arguments.tls_cert, key=arguments.tls_key, client_ca=arguments.tls_client_ca
        )
    if arguments.tls_client_ca is not None:
        raise ConfigError(
            "--tls-client-ca needs --tls-cert: clients show certificates only over TLS"
        )
    return None


def _add_store_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("store").add_argument
    add(
        "--store",
        type=flags.path,
        required=True,
        metavar="DIR",
        help="folder of the store; created if missing",
    )
    add(
        "--shard",
        type=flags.word,
        metavar="I/N",
        help="index of this server and number of servers, such as 0/2; stored when first given; "
        "0/1 if never given",
    )
    add("--dram", type=flags.dram, default="1GiB", metavar="BYTES", help=flags.DRAM_HELP)
    add("--gpu", type=flags.size, metavar="BYTES", help="GPU memory for rows; no GPU if not given")
    add("--gpu-batches", type=flags.size, metavar="BYTES", help=flags.GPU_BATCHES_HELP)
    add("--device", type=flags.device, default="cuda:0", help="device of --gpu: cuda:N or cpu")
    add(
        "--table",
        type=flags.word,
        action="append",
        default=[],
        metavar="name=..,dim=..",
        help="a table of the store, created if missing; also optimizer=, its numbers (lr=, "
        "eps= ...), init=normal:STD, uniform:LOW:HIGH or constant:VALUE, features=A+B, share=, "
        "statistics=true (rows count shows and clicks), its rules and rows by the flags of hps "
        "train (expire-unseen= ..., admit-count= ..., max-rows=, max-bytes=, row-dtype=), "
        "admit-by=TABLE with admit-score=, rounding=, negative-rate=; may be repeated",
    )
    add(
        "--seed",
        type=flags.whole(0, 2**64 - 1),
        metavar="N",
        help="seed of a new store's rows, 0 to 2^64 - 1; if not given, the stored one or 0",
    )
    add(
        "--threads",
        type=flags.whole(0, 64),
        default=max(1, num_cores() // 4),
        metavar="N",
        help="threads of the native core for one call (several calls run at once), 0 to 64; 0: all "
        "cores",
    )
    add(
        "--log-bytes",
        type=flags.size,
        default="1GiB",
        metavar="BYTES",
        help="size of the update log at which a checkpoint is taken",
    )


def _add_address_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("address and access")
    group.add_argument(
        "--publish-to",
        type=flags.word,
        action="append",
        default=[],
        metavar="URL",
        help="what clients may have versions written to: this place and those below it, by the "
        "credentials of the server's own environment; may be repeated; nowhere if not given",
    )
    text = "address of the server; port 0: a free one"
    group.add_argument(
        "--listen", type=flags.word, default="127.0.0.1:50051", metavar="HOST:PORT", help=text
    )
    add_access_flags(group)


def add_access_flags(group: flags.Flags) -> None:
    """Adds the flags of figures, credentials, drain and log, which every server has."""
    add = group.add_argument
    text = "address of the figures for Prometheus; HTTPS with TLS"
    add("--metrics", type=flags.word, metavar="HOST:PORT", help=text)
    add("--tls-cert", type=flags.path, metavar="FILE", help="the server's certificate (PEM)")
    add("--tls-key", type=flags.path, metavar="FILE", help="key of --tls-cert (PEM)")
    add(
        "--tls-client-ca",
        type=flags.path,
        metavar="FILE",
        help="authority (PEM); only clients with a certificate of it may connect",
    )
    add(
        "--tokens",
        type=flags.path,
        metavar="FILE",
        help="tokens and their rights, JSON; see docs/service.md",
    )
    add("--allow-insecure", action="store_true", help="listen beyond this machine without TLS")
    add(
        "--drain-seconds",
        type=flags.number(0),
        default=30.0,
        metavar="SECONDS",
        help="time for calls in flight at the end; then they are cancelled",
    )
    add("--log-calls", action="store_true", help="log every call, not only refused ones")


def _add_limit_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("limits").add_argument
    for name, default, text in (
        ("message", "32MiB", "most bytes of a request and of a reply; 64 KiB to 1 GiB"),
        (
            "flight",
            "512MiB",
            "most bytes of all requests and replies in flight; at least 2 messages",
        ),
        ("client-flight", "256MiB", "most bytes in flight of one client; at least 2 messages"),
    ):
        add(f"--max-{name}", type=flags.size, default=default, metavar="BYTES", help=text)
    for name, count, least, most, text in (
        ("keys", 2**20, 1, 2**27, "most keys of a request; 1 to 2^27"),
        (
            "dim",
            MAX_DIM,
            1,
            MAX_DIM,
            f"largest dim of a table that a client creates; 1 to {MAX_DIM}",
        ),
        ("tables", MAX_TABLES, 1, MAX_TABLES, f"most tables of the store; 1 to {MAX_TABLES}"),
        ("sessions", 10_000, 1, 2**31, "most clients whose marks are kept; at least 1"),
        ("client-sessions", 1000, 1, 2**31, "most of those that one token has opened; at least 1"),
        ("requests", 64, 1, 1024, "most calls in flight; 1 to 1024"),
        ("client-requests", 16, 1, 1024, "most calls in flight of one client; 1 to 1024"),
        ("streams", 16, 0, 1024, "most open push streams; 0 to 1024"),
        (
            "connections",
            1024,
            1,
            65536,
            "most open connections; 1 to 65536, at most half of the descriptors",
        ),
    ):
        kind = flags.whole(least, most)
        add(f"--max-{name}", type=kind, default=count, metavar="N", help=text)
    add(
        "--deadline",
        type=flags.number(above=0),
        default=60.0,
        metavar="SECONDS",
        help="deadline of a call that has none; above 0",
    )
