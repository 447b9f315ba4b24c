"""`hps lookup`: the row of a raw value of a log, or of a key.

Above it: `hps.cli.main`. Below it: `hps.train.raw_values`,
hps/parameter_server/stored_row.py, a read-only `hps.open`.
"""

import argparse
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from hps.checkpoint.blobs import MODEL
from hps.cli import flags
from hps.cli.output import (
    JSON_HELP,
    check_out_path,
    checkpoint_name,
    stream_for_people,
    write_json,
)
from hps.common.json_text import Json, JsonView
from hps.common.terminal import printable
from hps.errors import ConfigError
from hps.parameter_server.open_server import open as open_store
from hps.parameter_server.stored_row import row_of

if TYPE_CHECKING:
    from hps.parameter_server.server import ParameterServer
    from hps.train.raw_values import RawValue

_DRAM = "64MiB"  # most that is taken as rows come; none do
_WIDTH = 100


class _Key(argparse.Action):
    """A key, which may stand instead of raw values."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), values])
        for action in parser._actions:
            if action.dest == "values":
                action.required = False


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `lookup`."""
    parser = subparsers.add_parser(
        "lookup",
        help="show the row of a raw value; the store is opened read-only",
        description="Shows what a store holds of raw values of a log: the key that the stored "
        "model's training made of each, and its row, or that there is none. The store, or the "
        "folder of several ranks, is opened read-only, also beside a training.",
    )
    flags.add_store(parser)
    add = parser.add_argument
    add(
        "values",
        nargs="+",
        type=flags.word,
        default=[],
        metavar="FEATURE=VALUE",
        help="a feature of the model and a value as the log has it, split at the first '='; not "
        "needed with --key",
    )
    add(
        "--key",
        action=_Key,
        type=flags.whole(0, 2**64 - 1),
        default=[],
        metavar="N",
        help="a key as it is, 0 to 2^64 - 1; also of a store without a model; may be repeated",
    )
    add(
        "--table",
        type=flags.word,
        metavar="T",
        help="table of --key; needed where there are several",
    )
    add(
        "--checkpoint",
        "--tag",
        type=checkpoint_name,
        metavar="TAG",
        help="tag of the checkpoint, or its id as id:N; if not given, the newest with a model, "
        "for --key alone the newest",
    )
    add("--json", type=flags.path, metavar="OUT", help=JSON_HELP)
    flags.add_no_server(
        parser,
        "raw values are looked up in a folder; run 'hps lookup DIR' where the store of the key's "
        "server lies, also while it serves, or here 'hps client pull TABLE KEY --server {}', with "
        "the key that hps.key_of(FEATURE, VALUE) gives",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Shows each row; that there is none is no error."""
    check_out_path(arguments.json)
    found = _of_values(arguments) if arguments.values else _of_keys(arguments)
    out = stream_for_people(arguments.json)
    for row in found["rows"]:
        for line in _lines(row):
            print(line, file=out)
    write_json(arguments.json, found)
    return 0


def _of_values(arguments: argparse.Namespace) -> Json:
    """Rows of raw values, and of keys that were given, too."""
    from hps.train.model import Model  # torch takes its time to import
    from hps.train.raw_values import RawValues

    with Model.load(arguments.store, arguments.checkpoint, dram=_DRAM) as model:
        # Model.load opens a store of this process.
        server, recipe = cast("ParameterServer", model.server), model.recipe
        raw = RawValues(recipe, server.tables)
        values = [raw.parse(text) for text in arguments.values]
        stored = _Rows(server, recipe.features, recipe.first_order_tables, recipe.other_columns > 0)
        rows = [_row_of_value(arguments, stored, value) for value in values]
        rows += _rows_of_keys(arguments, stored)
        return {"checkpoint": model.checkpoint, "model": recipe.kind, "rows": rows}


def _of_keys(arguments: argparse.Namespace) -> Json:
    """Rows of keys alone: the store needs no model."""
    with open_store(arguments.store, checkpoint=arguments.checkpoint, dram=_DRAM) as server:
        kind, stored = None, _Rows(server, {}, {}, has_first_order=False)
        if MODEL in server.checkpoint_blob_bytes():
            from hps.models import MODELS  # torch takes its time to import
            from hps.train.model_list import recipe_in

            state, _ = server.checkpoint_state()
            recipe = recipe_in(state or {})
            if recipe is not None:
                kind = recipe.kind
                # The file of a user's own model is not run for this.
                has_first_order = kind in MODELS and recipe.other_columns > 0
                tables = recipe.features, recipe.first_order_tables
                stored = _Rows(server, *tables, has_first_order=has_first_order)
        rows = _rows_of_keys(arguments, stored)
        return {"checkpoint": arguments.checkpoint, "model": kind, "rows": rows}


@dataclass(frozen=True)
class _Rows:
    """The rows of a store.

    Args:
        server: open.
        tables: of a model's features; none where there is no model.
        first_order: table of them -> that of its first-order weights, of a model of two levels.
        has_first_order: rows end with such a weight.
    """

    server: "ParameterServer"
    tables: Collection[str]
    first_order: Mapping[str, str]
    has_first_order: bool

    def of(self, table: str, key: int) -> Json:
        """As `row_of` has it."""
        more = {"first_order": self.first_order.get(table)}
        return row_of(self.server, table, key, has_first_order=self.has_first_order, **more)

    def only_table(self) -> str | None:
        """The one in which a key is looked up that comes without a table; None: there are more."""
        names = list(self.tables) if self.first_order else list(self.server.tables)
        return names[0] if len(names) == 1 else None


def _row_of_value(arguments: argparse.Namespace, stored: _Rows, value: "RawValue") -> Json:
    """The row of the first of its keys that has one, else of the last key."""
    if arguments.table not in (None, value.table):
        raise ConfigError(
            f"--table {arguments.table}: the rows of feature {value.feature!r} lie in table "
            f"{value.table!r}; leave --table out"
        )
    rows = [stored.of(value.table, key.number) for key in value.keys]
    found = [place for place, row in enumerate(rows) if row["is_there"] or row.get("waits")]
    place = found[0] if found else -1
    others = [key for key in value.keys if key is not value.keys[place]]
    return {
        "feature": value.feature,
        "value": value.text,
        "rule": value.keys[place].rule,
        "other_keys": [{"key": one.number, "rule": one.rule} for one in others],
        **rows[place],
    }


def _rows_of_keys(arguments: argparse.Namespace, stored: _Rows) -> list[Json]:
    if not arguments.key:
        return []
    table = arguments.table or stored.only_table()
    if table is None:
        names = list(stored.server.tables)
        raise ConfigError(
            f"{arguments.store} has {len(names)} tables ({', '.join(names)}): name that of "
            "--key with --table"
        )
    return [stored.of(table, key) for key in arguments.key]


def _lines(row: JsonView) -> Iterator[str]:
    what = f"key {row['key']}"
    if "feature" in row:
        what = f"{row['feature']}={row['value']}: key {row['key']} ({row['rule']})"
    yield printable(f"{what} of table {row['table']!r}")
    for other in row.get("other_keys", ()):
        yield f"  {other['rule']} it would be key {other['key']}, if its column is of another type"
    if row.get("waits"):
        yield f"  waits for its vector, which reads as its initial value; score: {row['score']:g}"
    elif not row["is_there"]:
        yield "  absent: no row is stored; it reads as its initial value"
    else:
        yield from _vector("embedding", row["embedding"])
        if row["first_order"] is not None and "first_order_row" not in row:
            yield from _vector("first-order weight", [row["first_order"]])
        yield from _beside_weights(row)
    if (own := row.get("first_order_row")) and own["is_there"]:
        yield from _vector(f"first-order weight, of table {own['table']!r}", own["embedding"])
        yield from _beside_weights(own)


def _beside_weights(row: JsonView) -> Iterator[str]:
    """The optimizer's state and the counts of a row."""
    for name, part in row["state"].items():
        yield from _vector(f"optimizer's {name}", part)
    if "show" in row:
        death = "" if row["dies_at"] is None else f", dies in period {row['dies_at']}"
        counts = f"  show: {row['show']:g}, click: {row['click']:g}"
        yield f"{counts}, last period: {row['last_period']}{death}"


def _vector(name: str, values: Sequence[float]) -> Iterator[str]:
    yield from textwrap.wrap(
        " ".join([f"{name}:", *(f"{value:.7g}" for value in values)]),
        _WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
    )
