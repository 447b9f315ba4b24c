"""`hps client`: what a person asks of servers - rows, counters, checkpoints.

Above it: hps.cli.main. Below it: hps.RemoteParameterServer.
"""

import argparse
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

from hps.checkpoint.names import text_of
from hps.cli import flags
from hps.cli.output import (
    JSON_HELP,
    check_out_path,
    checkpoint_name,
    stream_for_people,
    write_json,
)
from hps.cli.server_flags import add_server_flags, client_config
from hps.common.json_text import Json
from hps.errors import ConfigError, no_such_table
from hps.service.client.options import ACKS

if TYPE_CHECKING:
    from hps.common.arrays import HostArray
    from hps.service.client.parameter_server import RemoteParameterServer

Figures = Json | list[Json]
Verb = Callable[[argparse.Namespace, "RemoteParameterServer"], Figures]
_MOST_KEYS_SHOWN = 1000


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `client` and its verbs."""
    parser = subparsers.add_parser("client", help="ask servers: rows, counters, checkpoints")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add(verbs, "tables", run_tables, "list the tables with their rows; --digest hashes every row")
    _add(verbs, "stats", run_stats, "print the counters of the servers")
    for name, run, text in (
        ("pull", run_pull, "print the rows of keys"),
        ("push", run_push, "push a gradient for keys"),
        ("erase", run_erase, "erase keys"),
    ):
        verb = _add(verbs, name, run, text)
        verb.add_argument("table", type=flags.word, metavar="TABLE", help="name of the table")
        verb.add_argument("keys", nargs="*", type=_key, metavar="KEY", help="key, 0 to 2^64 - 1")
        keys_help = "read keys from a .npy file, uint64 or int64 [L], instead of KEY"
        verb.add_argument("--keys-file", type=flags.path, metavar="FILE", help=keys_help)
        if name == "pull":
            out_help = "write rows to a .npy file, float32 [L, dim], instead of a line for each key"
            verb.add_argument("--out", type=flags.path, metavar="FILE", help=out_help)
        if name == "push":
            verb.add_argument(
                "--value", type=flags.number(), help="value of the gradient in every column"
            )
            grads_help = "read gradients from a .npy file, float32 [L, dim], instead of --value"
            verb.add_argument("--grads", type=flags.path, metavar="FILE", help=grads_help)
        if name != "pull":
            verb.add_argument(
                "--ack",
                choices=ACKS,
                default="logged",
                help="state of the change that the answer confirms",
            )
    _add(verbs, "checkpoints", run_checkpoints, "list the checkpoints that all shards hold")
    for name, run, text in (
        ("checkpoint", run_checkpoint, "take a checkpoint over all shards"),
        ("restore", run_restore, "go back to a checkpoint, on all shards; all sessions end"),
        ("delete-checkpoint", run_delete, "delete a checkpoint"),
    ):
        verb = _add(verbs, name, run, text)
        how = "?" if name == "checkpoint" else None
        tag_help = "tag of the checkpoint" if how else "tag of the checkpoint, or its id as id:N"
        kind = flags.word if how else checkpoint_name
        verb.add_argument("tag", metavar="TAG", nargs=how, type=kind, help=tag_help)
    verb = _add(verbs, "flush", run_flush, "wait until changes are in the logs")
    verb.add_argument("--durable", action="store_true", help="wait until they are on the disks")


def run_tables(options: argparse.Namespace, server: "RemoteParameterServer") -> Figures:
    """Prints each table with its rows."""
    out = stream_for_people(options.json)
    figures = {}
    print(f"{'table':<20} {'rows':>14} {'dim':>5}  optimizer", file=out)
    for name, table in server.tables.items():
        rows = server.num_rows(name)
        figures[name] = {"rows": rows, "dim": table.dim, "optimizer": table.optimizer.kind}
        if options.digest:
            figures[name]["digest"] = server.digest(name)
        line = f"{name:<20} {rows:>14,} {table.dim:>5}  {table.optimizer.kind}"
        print(f"{line}  {figures[name].get('digest', '')}".rstrip(), file=out)
    return figures


def run_stats(options: argparse.Namespace, server: "RemoteParameterServer") -> Figures:
    """Prints the numbers of each tier, added up over the shards."""
    out = stream_for_people(options.json)
    figures = server.stats()
    for tier, numbers in figures.items():
        if isinstance(numbers, dict) and tier != "tables":
            for name, value in numbers.items():
                if isinstance(value, int | float) and value:
                    shown = f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
                    print(f"{tier} {name}: {shown}", file=out)
    return figures


def run_pull(options: argparse.Namespace, server: "RemoteParameterServer") -> Figures:
    """Prints a line a key, or writes the rows to a file."""
    keys = _keys(options)
    rows = server.pull(options.table, keys)
    stored = server.contains(options.table, keys)
    out = stream_for_people(options.json)
    if options.out is not None:
        import numpy as np

        with options.out.open("wb") as file:  # np.save would add .npy to a name
            np.save(file, rows)
        print(f"{options.out}: {len(keys)} rows", file=out)
    else:
        for key, row, is_stored in zip(keys[:_MOST_KEYS_SHOWN], rows, stored, strict=False):
            text = " ".join(f"{value:.6g}" for value in row)
            mark = "" if is_stored else "  (not stored: its initial value)"
            print(f"{key}: {text}{mark}", file=out)
        if len(keys) > _MOST_KEYS_SHOWN:
            print(f"... {len(keys):,} keys in all; --out writes them to a file", file=out)
    return {"keys": keys.tolist(), "rows": rows.tolist(), "stored": stored.tolist()}


def run_push(options: argparse.Namespace, server: "RemoteParameterServer") -> Figures:
    """Pushes one gradient for all keys, or those of a file."""
    import numpy as np

    keys = _keys(options)
    if (options.value is None) == (options.grads is None):
        raise ConfigError("push: give the gradient as --value NUMBER, or as --grads FILE")
    if options.grads is not None:
        grads = _load("--grads", options.grads)
    else:
        if options.table not in server.tables:
            raise no_such_table(options.table, "the shards have", server.tables)
        dim = server.tables[options.table].dim
        grads = np.full((len(keys), dim), options.value, np.float32)
    server.push(options.table, keys, grads, ack=options.ack)
    print(f"pushed {len(keys)} keys ({options.ack})", file=stream_for_people(options.json))
    return {"pushed": len(keys)}


def run_erase(options: argparse.Namespace, server: "RemoteParameterServer") -> Figures:
    """Drops keys and says how many were stored."""
    erased = server.erase(options.table, _keys(options), ack=options.ack)
    print(f"erased {int(erased.sum())} stored rows", file=stream_for_people(options.json))
    return {"erased": int(erased.sum())}


def run_checkpoints(options: argparse.Namespace, server: "RemoteParameterServer") -> Figures:
    """Lists the checkpoints."""
    out = stream_for_people(options.json)
    listed = server.checkpoints()
    for info in listed:
        created = datetime.fromtimestamp(info["created"], UTC).isoformat("T", "seconds")
        numbers = f"id {info['id']}, rows {info['rows']:,}, bytes {info['bytes']:,}"
        names = f", promoted as {', '.join(info['names'])}" if info["names"] else ""
        print(f"{info['tag'] or '(untagged)':<20} {numbers}, created {created}{names}", file=out)
    if not listed:
        print("there is no checkpoint that all shards hold", file=out)
    return listed


def run_checkpoint(options: argparse.Namespace, server: "RemoteParameterServer") -> Figures:
    """Takes a checkpoint, with the model of the one that the rows descend from if they fit it."""
    info = server.checkpoint(options.tag)
    out = stream_for_people(options.json)
    print(f"{info['tag'] or '(untagged)'}: {info['rows_written']:,} rows written", file=out)
    if "model_from" in info:
        print(f"with the model of checkpoint {info['model_from']}, which fits its rows", file=out)
    return info


def run_restore(options: argparse.Namespace, server: "RemoteParameterServer") -> Figures:
    """Goes back to a checkpoint."""
    server.restore(options.tag)
    print(f"all shards are at {options.tag!r}", file=stream_for_people(options.json))
    return {"restored": options.tag}


def run_delete(options: argparse.Namespace, server: "RemoteParameterServer") -> Figures:
    """Deletes a checkpoint."""
    readers = server.delete_checkpoint(options.tag)
    out = stream_for_people(options.json)
    print(f"deleted {text_of(options.tag)}", file=out)
    for reader in readers:
        print(f"its files stay until {reader} closes", file=out)
    return {"deleted": options.tag, "readers": readers}


def run_flush(options: argparse.Namespace, server: "RemoteParameterServer") -> Figures:
    """Waits for the shards' logs, whoever wrote to them."""
    server.flush_all(durable=options.durable)
    where = "on the disks" if options.durable else "in the logs"
    print(f"all changes are {where}", file=stream_for_people(options.json))
    return {"durable": options.durable}


def _add(verbs: flags.Subparsers, name: str, run: Verb, text: str) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    add_server_flags(verb, required=True)
    verb.add_argument("--json", type=flags.path, metavar="OUT", help=JSON_HELP)
    if name == "tables":
        verb.add_argument("--digest", action="store_true", help="also hash every row")
    verb.set_defaults(run=_run, ask=run)
    return verb


def _run(options: argparse.Namespace) -> int:
    """Connects, asks, writes the figures."""
    from hps.service.client.parameter_server import RemoteParameterServer

    check_out_path(options.json)
    config = client_config(options)
    assert config is not None  # --server is required
    with RemoteParameterServer.of(config) as server:
        write_json(options.json, options.ask(options, server))
    return 0


def _key(text: str) -> int:
    try:
        key = int(text, 0)
    except ValueError:
        key = -1
    if not 0 <= key < 2**64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a key; give a number from 0 to 2^64 - 1")
    return key


def _keys(options: argparse.Namespace) -> "HostArray":
    import numpy as np

    if bool(options.keys) == (options.keys_file is not None):
        raise ConfigError(f"{options.verb}: give keys, or a file of them with --keys-file")
    if options.keys_file is not None:
        return _load("--keys-file", options.keys_file)
    return np.array(options.keys, np.uint64)


def _load(flag: str, path: Path) -> "HostArray":
    import numpy as np

    try:
        array = np.load(path)
    except (ValueError, EOFError, BadZipFile) as error:
        raise ConfigError(f"{flag} {path}: it is not a .npy file of numbers: {error}") from error
    if not isinstance(array, np.ndarray):
        raise ConfigError(
            f"{flag} {path}: it is an archive of several .npy files; give one .npy file"
        )
    return array
