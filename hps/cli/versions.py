"""`hps versions`: what is published at a place, or what a model's server can go to, and the way.

Above it: `hps.cli.main`. Below it: `hps.publish.version_list`, `hps.serving.client`.
"""

import argparse
from datetime import UTC, datetime
from typing import TextIO

from hps.cli import flags
from hps.cli.output import (
    JSON_HELP,
    check_out_path,
    stream_for_people,
    write_json,
)
from hps.cli.server_flags import add_model_server_flags, client_config
from hps.common.json_text import Json, JsonView
from hps.common.terminal import printable, show_table
from hps.errors import ConfigError

_HEAD = ("version", "published (UTC)", "kind", "checkpoint", "rows", "bytes", "lineage")
_NUMBERS = ("version", "rows", "bytes")  # right in their columns


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `versions`."""
    parser = subparsers.add_parser(
        "versions",
        help="the versions that are published; which one a server scores with",
        description="Lists the versions that 'hps publish' keeps at URL, or with --server those "
        "that a running 'hps serve-model URL' can go to; * marks the one that it scores with. "
        "--set goes to one of them, an older or a newer one, and follows no more, until --follow. "
        "Requests are scored meanwhile. A server that is started again follows the newest one, or "
        "keeps to its own --version.",
    )
    add = parser.add_argument
    add(
        "url",
        nargs="?",
        type=flags.word,
        metavar="URL",
        help="the folder or URL that 'hps publish' writes to; or --server",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--set",
        type=flags.whole(1),
        metavar="N",
        help="of a server: score with version N, and follow no more",
    )
    what.add_argument(
        "--follow",
        action="store_true",
        help="of a server: take over the newest version, and those that come after it",
    )
    add(
        "--limit",
        type=flags.whole(1, 1000),
        default=100,
        metavar="N",
        help="most versions that are listed, the newest ones; 1 to 1000",
    )
    add("--json", type=flags.path, metavar="OUT", help=JSON_HELP)
    add_model_server_flags(parser.add_argument_group("a server instead of a URL"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Lists versions, or changes the one that a server scores with."""
    check_out_path(arguments.json)
    remote = client_config(arguments)
    if (remote is None) == (arguments.url is None):
        raise ConfigError("versions are published at a place or served; give URL or --server")
    out = stream_for_people(arguments.json)
    if remote is None:
        if arguments.set is not None or arguments.follow:
            raise ConfigError("--set and --follow change what a server scores with; give --server")
        from hps.publish.destination import open_destination
        from hps.publish.version_list import list_versions

        destination = open_destination(arguments.url)
        kept, listed = list_versions(destination, arguments.limit)
        if not kept:
            print(f"{destination.shown}: nothing is published here", file=out)
        _tell(listed, kept, None, out)
        write_json(arguments.json, {"kept": kept, "versions": listed})
        return 0
    from hps.serving.client import ModelServerClient

    with ModelServerClient(remote) as client:
        if arguments.set is not None:
            state = client.go_to(arguments.set)
            line = f"scores with version {state['served']}, and follows no more"
        elif arguments.follow:
            state = client.follow()
            line = f"follows; version {state['newest']} is the newest"
        else:
            state = client.versions(arguments.limit)
            line = _said(state)
            named = [{**one, "version": one["number"]} for one in state["versions"]]
            _tell(named, state["kept"], state["served"], out)
    print(printable(f"{arguments.server}: {line}"), file=out)
    write_json(arguments.json, state)
    return 0


def _said(state: JsonView) -> str:
    """What a server does about versions, in a line."""
    taken = _time(state["changed_at"])
    told = [f"scores with version {state['served']} since {taken} (UTC)"]
    told.append("follows" if state["following"] else "does not follow newer ones")
    if state["changing"]:
        told.append(f"is on its way to version {state['changing']}")
    if state["error"]:
        told.append(f"the last look for a newer one: {state['error']}")
    if state["change_error"]:
        told.append(f"the last change was refused: {state['change_error']}")
    return "; ".join(told)


def _tell(listed: list[Json], kept: int, served: int | None, out: TextIO) -> None:
    rows = [_row(one, served) for one in listed if not one["error"]]
    if rows:
        show_table([_HEAD, *rows], _NUMBERS, out)
    for one in listed:
        if one["error"]:
            told = f"version {one['version']} cannot be read: {one['error']}"
            print(printable(told), file=out)
    if kept > len(listed):
        print(f"{kept - len(listed):,} older ones are kept, too; --limit shows more", file=out)


def _row(one: JsonView, served: int | None) -> tuple[str, ...]:
    return (
        f"{'* ' if one['version'] == served else ''}{one['version']}",
        _time(one["created"]),
        one["kind"],
        one["checkpoint"],
        f"{one['rows']:,}",
        f"{one['bytes']:,}",
        one["lineage"],
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
