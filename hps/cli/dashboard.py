"""`hps dashboard`: one live page over trainers, servers, ranks and published models.

Above it: `hps.cli.main`. Below it: `hps.dashboard`, imported when the command runs.
"""

import argparse
import queue
import signal
import sys
import threading
from typing import TYPE_CHECKING

from hps.cli import flags
from hps.cli.serve import take_signals, tls_of
from hps.cli.server_flags import read_token
from hps.errors import ConfigError

if TYPE_CHECKING:
    from hps.dashboard.server import DashboardServer


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `dashboard`."""
    parser = subparsers.add_parser(
        "dashboard",
        help="a live page over trainers, servers, ranks and published models",
        description="Serves one page that shows trainers, servers, ranks and published models as "
        "they run, until SIGTERM or SIGINT. It asks each target every few seconds, keeps eight "
        "hours of figures in memory, and changes nothing anywhere. docs/dashboard.md says what "
        "each plot means.",
    )
    watch = parser.add_argument_group("what is watched")
    watch.add_argument(
        "--watch",
        action="append",
        required=True,
        type=flags.word,
        metavar="STORE|RUN|HOST:PORT,...",
        help="stores, folders of 'hps train --report', and addresses of --metrics (of hps train, "
        "serve, serve-model; https://HOST:PORT with TLS); may be repeated",
    )
    watch.add_argument(
        "--every",
        type=flags.number(1, 60),
        default=5.0,
        metavar="SECONDS",
        help="from one look at all targets to the next, 1 to 60",
    )
    watch.add_argument(
        "--watch-deadline",
        type=flags.number(above=0, most=60),
        default=3.0,
        metavar="SECONDS",
        help="that a target has to answer; then it is shown as away, and asked again",
    )
    for name, text in (
        ("token", "file that holds the token of the targets"),
        ("ca", "authority (PEM) of the targets' certificates; the system's if not given"),
        ("cert", "certificate (PEM) that targets are shown, with --watch-key"),
        ("key", "key of --watch-cert (PEM)"),
    ):
        watch.add_argument(f"--watch-{name}", type=flags.path, metavar="FILE", help=text)
    _add_page_flags(parser)
    parser.set_defaults(run=run)


def _add_page_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the page").add_argument
    text = "address of the page; port 0: a free one; HTTPS with TLS"
    add("--listen", type=flags.word, default="127.0.0.1:8080", metavar="HOST:PORT", help=text)
    add(
        "--tokens",
        type=flags.path,
        metavar="FILE",
        help="tokens of those who may look, JSON as hps serve takes it; a browser is given one by "
        "/?token=TOKEN and keeps it in a cookie; everyone may look if not given",
    )
    add("--tls-cert", type=flags.path, metavar="FILE", help="the page's certificate (PEM)")
    add("--tls-key", type=flags.path, metavar="FILE", help="key of --tls-cert (PEM)")
    add(
        "--tls-client-ca",
        type=flags.path,
        metavar="FILE",
        help="authority (PEM); only browsers with a certificate of it may connect",
    )
    add(
        "--allow-insecure",
        action="store_true",
        help="listen beyond this machine without TLS, and send the token of the targets in the "
        "clear",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit status."""
    from hps.dashboard.collector import Collector
    from hps.dashboard.fetch import Credentials
    from hps.dashboard.server import DashboardOptions, DashboardServer, run_rounds
    from hps.dashboard.watched import Asking, parse_watched

    if (arguments.watch_cert is None) != (arguments.watch_key is None):
        raise ConfigError("--watch-cert and --watch-key: give both or none")
    options = DashboardOptions(
        listen=arguments.listen,
        tls=tls_of(arguments),
        tokens=arguments.tokens,
        allow_insecure=arguments.allow_insecure,
    )
    credentials = Credentials(
        token=None
        if arguments.watch_token is None
        else read_token(arguments.watch_token, "--watch-token"),
        ca=arguments.watch_ca,
        cert=arguments.watch_cert,
        key=arguments.watch_key,
    )
    asking = Asking(
        credentials=credentials,
        seconds=arguments.watch_deadline,
        allow_insecure=arguments.allow_insecure,
    )
    watched = parse_watched(arguments.watch, asking)
    collector = Collector(watched, arguments.watch_deadline, say=_say)
    server = DashboardServer(collector, options)
    signals = take_signals()
    stop = threading.Event()
    rounds = threading.Thread(
        target=run_rounds, args=(collector, server, arguments.every, stop), daemon=True
    )
    rounds.start()
    server.start()
    names = ", ".join(one.name for one in watched)
    print(f"dashboard on {server.url} (watches {names})", flush=True)
    _wait(signals, server)
    stop.set()
    server.stop()
    collector.close()
    return 0


def _wait(signals: "queue.SimpleQueue[int]", server: "DashboardServer") -> None:
    """Reloads at each SIGHUP; returns at any other signal."""
    while signals.get() == signal.SIGHUP:
        try:
            server.reload()
            _say("tokens and certificates are read again")
        except ConfigError as error:
            _say(f"error: {error}; the old ones stay")


def _say(line: str) -> None:
    print(f"hps: {line}", file=sys.stderr, flush=True)
