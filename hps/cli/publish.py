"""`hps publish`: versions for serving of the checkpoints of a store, or of servers.

Above it: `hps.cli.main`. Below it: `hps.publish.publisher`, `hps.RemoteParameterServer.publishing`.
"""

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from hps.cli import flags
from hps.cli.output import JSON_HELP, check_out_path, stream_for_people, write_json
from hps.cli.server_flags import add_server_flags, client_config
from hps.common.json_text import Json
from hps.errors import ConfigError, HpsError
from hps.stops import Stops

if TYPE_CHECKING:
    from hps.train.checkpoint_graphs import CheckpointGraphs

_MOMENT_SECONDS = 0.1
_TOLD_SECONDS = 10.0  # from one line about how far servers are to the next


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `publish`."""
    parser = subparsers.add_parser(
        "publish",
        help="publish the newest checkpoint of a store, or of servers, for serving",
        description="Publishes a checkpoint for serving at URL: all rows and the dense part (a "
        "base), or what changed since the version before (a delta). The store, or the folder of "
        "several ranks, is read beside a training; with --server each server writes its own rows, "
        "where its --publish-to allows it. A version is seen there whole or not at all; "
        "'hps serve-model URL' and hps.Model.load(URL, follow=True) follow.",
    )
    add = parser.add_argument
    help_ = "folder of the store; or --server"
    add("store", nargs="?", type=flags.path, metavar="DIR", help=help_)
    flags.add_no_store_flag(parser)
    add("url", type=flags.word, metavar="URL", help="a folder, or a URL such as s3://bucket/ctr")
    flags.add_checkpoint(parser)
    add(
        "--every",
        type=flags.number(above=0),
        metavar="SECONDS",
        help="go on: look for a newer checkpoint every so many seconds, until a signal",
    )
    add(
        "--dtype",
        choices=["float32", "float16", "bfloat16", "int8", "int4"],
        default="float32",
        help="of weights; int8 and int4 have a scale a row; float32 if not given",
    )
    add(
        "--table",
        action="append",
        type=flags.word,
        metavar="NAME",
        help="only this table; may be repeated",
    )
    add(
        "--min-score",
        type=flags.number(0),
        metavar="S",
        help="leave out rows whose score is below S, of tables whose rows die by a score",
    )
    add(
        "--kind",
        choices=["auto", "base", "delta"],
        default="auto",
        help="auto takes a delta where one is possible and small",
    )
    add(
        "--onnx",
        action="store_true",
        help="the dense part as an ONNX graph, too, of a checkpoint of 'hps train'; needs "
        "pip install 'hps-ctr[onnx]'",
    )
    add("--keep", type=flags.whole(1), default=10, metavar="N", help="versions that stay; 10")
    add(
        "--now",
        action="store_true",
        help="with --server: the rows as they are, of a checkpoint that is taken for it where rows "
        "have changed since the newest one",
    )
    add("--json", type=flags.path, metavar="OUT", help=JSON_HELP)
    add_server_flags(parser.add_argument_group("servers instead of a store"))
    flags.add_quiet(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Publishes once, or for as long as nobody stops it."""
    check_out_path(arguments.json)
    remote = client_config(arguments)
    if (remote is None) == (arguments.store is None):
        raise ConfigError("checkpoints lie in a store or on servers; give DIR or --server, and URL")
    if arguments.every is not None and arguments.checkpoint is not None:
        raise ConfigError("--every publishes the newest checkpoint; leave --checkpoint out")
    if arguments.now and (remote is None or arguments.checkpoint is not None):
        raise ConfigError("--now takes a checkpoint of servers: give --server, no --checkpoint")
    from hps.publish.options import PublishOptions  # numpy and pyarrow take their time to import
    from hps.publish.publisher import Publisher
    from hps.publish.store_origin import StoreOrigin

    options = PublishOptions(
        dtype=arguments.dtype,
        tables=arguments.table,
        min_score=arguments.min_score,
        kind=arguments.kind,
        keep=arguments.keep,
        graph=_graphs(arguments),
    )
    if remote is None:
        with Publisher(StoreOrigin(arguments.store), arguments.url, options) as publisher:
            _publish(arguments, lambda: publisher.publish(arguments.checkpoint))
        return 0
    from hps.service.client.parameter_server import RemoteParameterServer

    with RemoteParameterServer.of(remote) as client:
        publishing, told = client.publishing, _Progress(stream_for_people(arguments.json))
        with publishing.publisher(arguments.url, options, told) as of_servers:

            def publish() -> Json:
                checkpoint = publishing.take_if_changed() if arguments.now else arguments.checkpoint
                return of_servers.publish(checkpoint)

            _publish(arguments, publish)
    return 0


def _publish(arguments: argparse.Namespace, publish: Callable[[], Json]) -> None:
    out = stream_for_people(arguments.json)
    made = publish()
    _tell(made, arguments.url, out)
    write_json(arguments.json, made)
    if arguments.every is None:
        return
    with Stops() as stops:
        stops.defer()
        while not _is_asked_within(stops, arguments.every):
            _publish_again(publish, arguments.url, out)


class _Progress:
    """Tells now and then how far the servers are."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._next = time.monotonic() + _TOLD_SECONDS

    def __call__(self, rows: int, num_bytes: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _TOLD_SECONDS
            print(f"{rows:,} rows so far, {num_bytes:,} bytes", file=self._out, flush=True)


def _graphs(arguments: argparse.Namespace) -> "CheckpointGraphs | None":
    if not arguments.onnx:
        return None
    from hps.train.checkpoint_graphs import CheckpointGraphs  # torch takes its time to import

    return CheckpointGraphs(arguments.store)


def _is_asked_within(stops: Stops, seconds: float) -> bool:
    """Waits so long, or until a signal asks to stop; whether one has."""
    end = time.monotonic() + seconds
    while not stops.asked and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _MOMENT_SECONDS))
    return bool(stops.asked)


def _publish_again(publish: Callable[[], Json], url: str, out: TextIO) -> None:
    try:
        made = publish()
    except HpsError as error:  # the next look may do better
        print(f"{time.strftime('%H:%M:%S')} not published: {error}", file=out, flush=True)
        return
    if made["kind"] is not None:
        _tell(made, url, out)


def _tell(made: Json, url: str, out: TextIO) -> None:
    what = f"version {made['version']} of {url}"
    if made["kind"] is None:
        print(f"{what} is of checkpoint {made['checkpoint']} already", file=out, flush=True)
        return
    changes = ""
    if made["changed"] is not None:
        changes = f", {made['changed']:,} changed, {made['removed']:,} removed"
    print(
        f"{what}: {made['kind']} of checkpoint {made['checkpoint']}, {made['rows']:,} rows"
        f"{changes}, {made['bytes']:,} bytes in {made['seconds']:.2f} s",
        file=out,
        flush=True,
    )
