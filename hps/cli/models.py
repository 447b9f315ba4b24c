"""`hps models`: the models that the checkpoints of a store, or of servers, hold.

Above it: `hps.cli.main`. Below it: `hps.train.model_list`, `hps.ssd_store.promote`,
`hps.RemoteParameterServer`.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

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
from hps.common.json_text import Json, JsonView
from hps.common.terminal import printable, show_table
from hps.errors import ConfigError

if TYPE_CHECKING:
    from hps.service.client.parameter_server import RemoteParameterServer
    from hps.train.model_list import ModelList

_MOST_FILES = 3  # of DATA, in a line
_HEAD = (
    "model",
    "taken (UTC)",
    "kind",
    "dim",
    "examples",
    "batches",
    "logloss",
    "last evaluation",
    "parent",
    "DATA",
)
_TOLD = ("auc", "gauc", "logloss")  # of an evaluation, in a line
_NUMBERS = ("dim", "examples", "batches", "logloss")  # right in their columns
# Of `model_of`, in the order in which they are told; the first line has the others.
_SECTIONS = (
    "evaluations",
    "lineage",
    "recipe",
    "settings",
    "totals",
    "parameters",
    "position",
    "options",
)


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `models`."""
    parser = subparsers.add_parser(
        "models",
        help="list the models of a store or of servers, promote one, roll back",
        description="Lists the checkpoints that hold a model, the oldest first, with how far each "
        "was trained; * marks the current one. The store, or the folder of several ranks, is "
        "opened read-only, also beside a training; --server asks servers instead. --promote gives "
        "one a name of your own, such as 'live', which whatever takes a tag takes; a name moves at "
        "once, also beside a training.",
    )
    parser.add_argument(
        "store", nargs="?", type=flags.path, metavar="DIR", help="folder of the store; or --server"
    )
    flags.add_no_store_flag(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--show",
        type=checkpoint_name,
        metavar="TAG",
        help="all about one: its tag, or its id as id:N; recipe, options, metrics, position",
    )
    what.add_argument(
        "--promote",
        type=checkpoint_name,
        metavar="TAG",
        help="give this one another name, --as, which moves there from the one that had it",
    )
    what.add_argument(
        "--roll-back",
        type=flags.word,
        metavar="NAME",
        help="give a promoted name back to the one that had it before",
    )
    what.add_argument(
        "--drop",
        type=flags.word,
        metavar="NAME",
        help="take a promoted name away; the checkpoint stays",
    )
    parser.add_argument(
        "--as",
        dest="name",
        type=flags.word,
        metavar="NAME",
        help="of --promote: the name; 'live' if not given",
    )
    parser.add_argument("--json", type=flags.path, metavar="OUT", help=JSON_HELP)
    add_server_flags(parser.add_argument_group("servers instead of a store"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Lists the models, or shows one."""
    check_out_path(arguments.json)
    remote = client_config(arguments)
    if (remote is None) == (arguments.store is None):
        raise ConfigError("the models lie in a store or on servers; give DIR or --server")
    if arguments.name is not None and arguments.promote is None:
        raise ConfigError("--as names what --promote gives; give --promote TAG, too")
    if remote is None:
        return _run(arguments, str(arguments.store), _Folder(arguments.store))
    from hps.service.client.parameter_server import RemoteParameterServer

    with RemoteParameterServer.of(remote) as server:
        return _run(arguments, arguments.server, _Servers(server))


class _Folder:
    """The models of a store, or of the folder of several ranks."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def models(self) -> "ModelList":
        from hps.train.model_list import models_of  # torch takes its time to import

        return models_of(self._path)

    def model(self, name: str | int) -> Json:
        from hps.train.model_list import model_of

        return model_of(self._path, name)

    def promote(self, checkpoint: str | int, name: str) -> Json:
        from hps.ssd_store.promote import promote

        return promote(self._path, checkpoint, name)

    def roll_back(self, name: str) -> Json:
        from hps.ssd_store.promote import roll_back

        return roll_back(self._path, name)

    def drop(self, name: str) -> Json:
        from hps.ssd_store.promote import drop

        return drop(self._path, name)


class _Servers:
    """The models of a service."""

    def __init__(self, server: "RemoteParameterServer") -> None:
        self._server = server
        self.promote = server.names.promote
        self.roll_back = server.names.roll_back
        self.drop = server.names.drop

    def models(self) -> "ModelList":
        from hps.train.model_list import ModelList, served_models

        return ModelList(served_models(self._server), [])

    def model(self, name: str | int) -> Json:
        from hps.train.model_list import served_model

        return served_model(self._server, name)


def _run(arguments: argparse.Namespace, where: str, place: _Folder | _Servers) -> int:
    out = stream_for_people(arguments.json)
    moved = _moved(arguments, place)
    if moved is not None:
        print(printable(f"{where}: {_said(moved)}"), file=out)
        write_json(arguments.json, moved)
        return 0
    if arguments.show is not None:
        model = place.model(arguments.show)
        for line in _shown(model):
            print(printable(line), file=out)
        write_json(arguments.json, model)
        return 0
    found = place.models()
    rows = [_HEAD, *map(_row, found.models)]
    if found.models:
        show_table(rows, _NUMBERS, out)
    for name in found.unseen:
        print(
            f"checkpoint {name}: its first part, where a model would be, is on another host",
            file=out,
        )
    if not found.models and not found.unseen:
        print(f"{where}: no checkpoint holds a model; 'hps train' stores one", file=out)
    write_json(arguments.json, found.models)
    return 0


def _moved(arguments: argparse.Namespace, place: _Folder | _Servers) -> Json | None:
    """Moves a promoted name; None where that was not asked for."""
    from hps.ssd_store.promote import LIVE

    if arguments.promote is not None:
        place.model(arguments.promote)  # refuses what holds none
        return place.promote(arguments.promote, arguments.name or LIVE)
    if arguments.roll_back is not None:
        return place.roll_back(arguments.roll_back)
    if arguments.drop is not None:
        return place.drop(arguments.drop)
    return None


def _said(moved: JsonView) -> str:
    """What became of a promoted name, in a line."""
    name, before, now = moved["name"], moved["before"], moved["checkpoint"]
    if now is None:
        return f"{name} is no name any more; it was {before}"
    if before is None or before == now:
        return f"{name} is {now}" + ("" if before is None else ", as before")
    return f"{name} is {now}; it was {before}"


def _row(model: JsonView) -> list[str]:
    return [
        " ".join([_name(model), *["*"] * model["current"], *_promoted(model)]),
        _time(model["created"]),
        model["kind"] or "unknown",
        _dim(model),
        _whole(model["examples"]),
        _whole(model["batches"]),
        "-" if model["train_logloss"] is None else f"{model['train_logloss']:.5f}",
        _last_of(model["evaluation"]),
        model["parent"] or "-",
        _files(model["files"]),
    ]


def _shown(model: Json) -> Iterator[str]:
    yield f"model {_name(model)}{', the current one' if model['current'] else ''}"
    yield from (f"promoted: {name}" for name in model["names"])
    yield f"taken: {_time(model['created'])} UTC, with {model['rows']:,} rows"
    kind = model["kind"] or "unknown (of a loop of one's own, or another version of hps)"
    dims = model["dims"]
    told = f" ({', '.join(f'{dim:,} of {name}' for name, dim in dims.items())})"
    yield f"kind: {kind}, dim {_dim(model)}{told if len(dims) > 1 else ''}"
    logloss = model["train_logloss"]
    yield (
        f"trained on: {_whole(model['examples'])} examples in {_whole(model['batches'])} batches"
        + ("" if logloss is None else f", mean logloss {logloss:.5f}")
    )
    for file in model["files"]:
        yield f"DATA: {file['name']}, {_whole(file['bytes'])} bytes"
    for section in _SECTIONS:
        value = model[section]
        if value is None or value == []:
            yield f"{section}: none"
        elif isinstance(value, list):
            yield f"{section}:"
            yield from (f"  {_figures(one)}" for one in value)
        else:
            yield f"{section}:"
            yield from (f"  {name} = {_text(one)}" for name, one in value.items())


def _name(model: JsonView) -> str:
    name = model["tag"] or model["id"]
    return "(not listed)" if name is None else text_of(name)


def _dim(model: JsonView) -> str:
    """The dim, or where tables differ all of them.

    >>> _dim({"dim": 16}), _dim({"dim": None, "dims": {"features": 16, "items": 32}})
    ('16', '16/32')
    """
    if model["dim"] is not None or not model["dims"]:
        return _whole(model["dim"])
    return "/".join(f"{dim:,}" for dim in dict.fromkeys(model["dims"].values()))


def _promoted(model: JsonView) -> list[str]:
    names: list[str] = model["names"]
    return [f"({', '.join(names)})"] if names else []


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _whole(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "-"


def _figures(evaluation: JsonView | None) -> str:
    """Figures by name: numbers with a point rounded, others as they are."""
    if evaluation is None:
        return "-"
    return ", ".join(
        f"{name} {value:.5f}" if isinstance(value, float) else f"{name} {_text(value)}"
        for name, value in evaluation.items()
    )


def _last_of(evaluation: JsonView | None) -> str:
    """An evaluation in a line among others; --show has all of it.

    >>> _last_of({"examples": 5120, "auc": 0.75, "logloss": 0.5, "groups": 3})
    'auc 0.75000, logloss 0.50000 after 5,120'
    >>> _last_of({"auc": None, "logloss": 0.5})
    'logloss 0.50000'
    """
    known = {} if evaluation is None else evaluation
    told = {name: known[name] for name in _TOLD if known.get(name) is not None}
    examples = known.get("examples")
    after = f" after {examples:,}" if isinstance(examples, int) else ""
    return f"{_figures(told)}{after}" if told else _figures(evaluation)


def _files(files: Sequence[JsonView]) -> str:
    names = [str(file["name"]) for file in files[:_MOST_FILES]]
    more = len(files) - len(names)
    return ", ".join([*names, *([f"{more:,} more"] if more else [])]) or "-"


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
