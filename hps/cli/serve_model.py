"""`hps serve-model`: the Open Inference Protocol over gRPC and HTTP, over a stored model.

Above it: `hps.cli.main`. Below it: `hps.serving.server`, imported when the command runs.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hps.cli import flags
from hps.cli.model_flags import gpu_of
from hps.cli.output import checkpoint_name
from hps.cli.serve import add_access_flags, serve_until_told, take_signals, tls_of
from hps.common.url_text import is_url

if TYPE_CHECKING:
    from hps.serving.server import ModelServerOptions
    from hps.train.model_places import LoadOptions

_ARENAS = 1  # one heap for all threads: what one frees another takes


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `serve-model`."""
    parser = subparsers.add_parser(
        "serve-model",
        help="serve a stored model's scores over gRPC and HTTP",
        description="Scores requests with a stored model, by the Open Inference Protocol v2 over "
        "gRPC and HTTP (as tritonclient and curl speak it), until SIGTERM or SIGINT. Prints "
        "'listening on HOST:PORT' (and ', http on HOST:PORT') when it is ready; logs as JSON lines "
        "to standard error. docs/serving.md has the inputs of a request.",
    )
    _add_model_flags(parser)
    _add_address_flags(parser)
    _add_limit_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit status."""
    from hps.common.process_memory import keep_freed_memory
    from hps.service.messages.addresses import check_free
    from hps.service.server.descriptors import raise_descriptor_limit
    from hps.service.server.log_lines import LogLines

    keep_freed_memory(arenas=_ARENAS)
    raise_descriptor_limit()
    options = _options(arguments)
    check_free(
        {"--listen": arguments.listen, "--http": arguments.http, "--metrics": arguments.metrics}
    )
    log = LogLines(sys.stderr, calls=arguments.log_calls)
    from hps.serving.server import ModelServer
    from hps.train.model import Model  # torch takes its time to import

    with Model.load(arguments.model, arguments.checkpoint, **_loading(arguments)) as model:
        signals = take_signals()
        server = ModelServer(model, options, log)
        http = "" if server.http_address is None else f", http on {server.http_address}"
        log.info(
            "listening",
            address=server.address,
            http=server.http_address,
            model=str(arguments.model),
            name=server.scorer.name,
            version=model.version,
        )
        print(f"listening on {server.address}{http}", flush=True)
        has_ended = serve_until_told(server, signals, log, options.front.drain_seconds)
    log.info("stopped", calls_cancelled=not has_ended)
    return 0


def _loading(arguments: argparse.Namespace) -> "LoadOptions":
    """How the model is loaded; a published one is followed unless a version is named."""
    from hps.train.model_places import is_published

    loading: LoadOptions = {"dram": arguments.dram, "gpu": gpu_of(arguments)}
    given = {name: getattr(arguments, name) for name in ("version", "cache_dir", "poll_seconds")}
    for name, value in given.items():
        if value is not None:
            loading[name] = value  # type: ignore[literal-required]
    if is_published(arguments.model):
        loading["follow"] = arguments.version is None
    return loading


def _options(arguments: argparse.Namespace) -> "ModelServerOptions":
    from hps.service.server.front import ServerOptions
    from hps.service.server.limits import ServerLimits
    from hps.serving.batcher import BatchOptions
    from hps.serving.scorer import ScoringOptions
    from hps.serving.server import ModelServerOptions

    limits = ServerLimits(
        message_bytes=arguments.max_message,
        keys=arguments.max_keys,
        requests=arguments.max_requests,
        client_requests=arguments.max_client_requests or arguments.max_requests,
        flight_bytes=arguments.max_flight,
        client_bytes=arguments.max_flight,
        connections=arguments.max_connections,
        deadline_seconds=arguments.deadline,
    )
    return ModelServerOptions(
        front=ServerOptions(
            listen=arguments.listen,
            limits=limits,
            tls=tls_of(arguments),
            tokens=arguments.tokens,
            allow_insecure=arguments.allow_insecure,
            metrics=arguments.metrics,
            drain_seconds=arguments.drain_seconds,
        ),
        scoring=ScoringOptions(
            name=arguments.name or _name_of(arguments.model),
            max_rows=arguments.max_rows,
            batch=BatchOptions(
                max_batch=arguments.max_batch,
                max_delay=arguments.max_delay_ms / 1000,
                at_once=arguments.batches_at_once,
            ),
        ),
        http=arguments.http,
        unready_seconds=arguments.unready_seconds,
    )


def _name_of(model: str) -> str:
    """The last part of its place."""
    if is_url(model):
        return model.partition("://")[2].rstrip("/").rsplit("/", 1)[-1]
    return Path(model).resolve().name


def _add_model_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("model").add_argument
    add(
        "model",
        type=flags.word,
        metavar="STORE|URL",
        help="folder of the store; or the folder or URL that 'hps publish' writes to, whose newest "
        "version is followed",
    )
    add(
        "--name",
        type=flags.word,
        metavar="NAME",
        help="name of the model in requests; if not given, that of the folder",
    )
    add(
        "--checkpoint",
        "--tag",
        type=checkpoint_name,
        metavar="TAG",
        help="tag of the checkpoint, or its id as id:N; if not given, the newest with a model",
    )
    add(
        "--version",
        type=flags.whole(1),
        metavar="N",
        help="of a published model: this version, and no newer one",
    )
    add(
        "--cache-dir",
        type=flags.path,
        metavar="DIR",
        help="of a published model: folder for local copies of its rows, from which another "
        "process begins; if not given, a temporary one",
    )
    add(
        "--poll-seconds",
        type=flags.number(above=0),
        metavar="SECONDS",
        help="of a published model: between two looks for a newer version; 1 if not given",
    )
    add("--dram", type=flags.dram, default="1GiB", metavar="BYTES", help=flags.DRAM_HELP)
    add("--gpu", type=flags.size, metavar="BYTES", help="GPU memory for rows; no GPU if not given")
    add("--gpu-batches", type=flags.size, metavar="BYTES", help=flags.GPU_BATCHES_HELP)
    add("--device", type=flags.device, help="device of --gpu and of the model: cuda:N or cpu")
    add(
        "--max-batch",
        type=flags.whole(1, 2**24),
        default=2048,
        metavar="N",
        help="examples of the requests that are scored together, at most; 1 to 2^24",
    )
    add(
        "--max-delay-ms",
        type=flags.number(0, 10_000),
        default=0.0,
        metavar="MS",
        help="how long a request may wait for others to be scored with; 0: it is scored with those "
        "that came while another batch was scored; 0 to 10000",
    )
    add(
        "--batches-at-once",
        type=flags.whole(1, 64),
        default=1,
        metavar="N",
        help="batches that are scored beside one another, each with torch's threads; 1 to 64",
    )


def _add_address_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("address and access")
    add = group.add_argument
    text = "address of gRPC; port 0: a free one"
    add("--listen", type=flags.word, default="127.0.0.1:8001", metavar="HOST:PORT", help=text)
    text = "address of REST; HTTPS with TLS; if not given, none"
    add("--http", type=flags.word, metavar="HOST:PORT", help=text)
    add_access_flags(group)
    add(
        "--unready-seconds",
        type=flags.number(0),
        default=0.0,
        metavar="SECONDS",
        help="at the end: how long requests are taken after readiness has become false",
    )


def _add_limit_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("limits").add_argument
    for name, default, text in (
        ("message", "32MiB", "most bytes of a request and of a reply; 64 KiB to 1 GiB"),
        ("flight", "512MiB", "most bytes of all requests in flight; at least 2 messages"),
    ):
        add(f"--max-{name}", type=flags.size, default=default, metavar="BYTES", help=text)
    for name, count, most, text in (
        ("rows", 4096, 2**24, "most examples of a request; 1 to 2^24"),
        ("keys", 2**20, 2**27, "most keys of a look-up; 1 to 2^27"),
        ("requests", 64, 1024, "most requests in flight, those that wait among them; 1 to 1024"),
        ("connections", 1024, 65536, "most open connections of either protocol; 1 to 65536"),
    ):
        kind = flags.whole(1, most)
        add(f"--max-{name}", type=kind, default=count, metavar="N", help=text)
    add(
        "--max-client-requests",
        type=flags.whole(1, 1024),
        metavar="N",
        help="most requests in flight of one client: a token, or a connection; if not given, that "
        "of all",
    )
    add(
        "--deadline",
        type=flags.number(above=0),
        default=60.0,
        metavar="SECONDS",
        help="deadline of a request that has none; above 0",
    )
