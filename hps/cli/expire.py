"""`hps expire --dry-run`: what the next period would make absent of a store, by given rules.

Above it: `hps.cli.main`. Below it: hps/parameter_server/dying.py, a read-only `hps.open`.
"""

import argparse
from dataclasses import fields
from typing import TextIO

from hps.cli import flags
from hps.cli.output import JSON_HELP, check_out_path, stream_for_people, write_json
from hps.common.expiry import MAX_GAP, Expiry
from hps.common.json_text import Json
from hps.errors import ConfigError
from hps.parameter_server.dying import DyingRows, dying_rows
from hps.parameter_server.open_server import open as open_store

_BAR = 40  # characters of the longest bar
_RULES = {
    "unseen": "dead once more than N periods have passed without an update",
    "min_score": "dead once the decayed score is below S",
    "decay": "what shows and clicks are multiplied with at each new period",
    "nonclick": "what a show without a click is worth",
    "click": "what a click is worth",
}


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `expire`."""
    parser = subparsers.add_parser(
        "expire",
        help="show which rows would die, by given rules",
        description="Shows how many rows of a store would be absent from its next period on, and "
        "why; the store is opened read-only, also beside a training. Rows die by themselves as a "
        "period begins: TableConfig(expiry=...) and docs/life_cycle.md. Rules that are not given "
        "are the stored ones of each table.",
    )
    flags.add_store(parser)
    flags.add_checkpoint(parser)
    parser.add_argument(
        "--dry-run", action="store_true", required=True, help="only look; there is nothing else"
    )
    parser.add_argument("--table", type=flags.word, metavar="NAME", help="only this table")
    for name, text in _RULES.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=flags.whole(0, MAX_GAP - 1) if name == "unseen" else flags.number(0),
            metavar="N" if name == "unseen" else "S" if name == "min_score" else "X",
            help=text,
        )
    parser.add_argument("--json", type=flags.path, metavar="OUT", help=JSON_HELP)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints rows, reasons and histograms of each table."""
    check_out_path(options.json)
    with open_store(options.store, checkpoint=options.checkpoint) as server:
        if options.table is not None and options.table not in server.tables:
            raise ConfigError(
                f"--table {options.table}: the store has the tables {sorted(server.tables)}"
            )
        names = [options.table] if options.table else list(server.tables)
        counted = [name for name in names if server.tables[name].statistics]
        if not counted:
            raise ConfigError(
                f"{options.store}: rows without statistics do not die, and of the tables {names} "
                "none has them; a new store has them with TableConfig(statistics=True) or "
                "(expiry=...)"
            )
        rules = {name: _rules_of(server.tables[name].expiry, options) for name in counted}
        if not any(rules.values()):
            raise ConfigError(
                f"tables {counted} have no expiry; give --unseen, --min-score or both"
            )
        tables = {
            name: dying_rows(server, name, expiry)
            for name, expiry in rules.items()
            if expiry is not None
        }
        figures: Json = {
            "period": server.period,
            "tables": {name: found.described() for name, found in tables.items()},
        }
    out = stream_for_people(options.json)
    print(f"what period {figures['period'] + 1} would make absent", file=out)
    for found in tables.values():
        _show(found, out)
    write_json(options.json, figures)
    return 0


def _rules_of(stored: Expiry | None, options: argparse.Namespace) -> Expiry | None:
    """The stored rules with those that were given; None where there are none."""
    asked = {field.name: getattr(options, field.name) for field in fields(Expiry)}
    given = {name: value for name, value in asked.items() if value is not None}
    if stored is None and not {"unseen", "min_score"} & given.keys():
        return None
    return Expiry(**{**(stored.described() if stored else {}), **given})


def _show(found: DyingRows, out: TextIO) -> None:
    share = found.dying / found.rows if found.rows else 0.0
    described = found.described()
    rules = ", ".join(f"{name} {value}" for name, value in described["rules"].items())
    print(f"table {found.table}: {rules}", file=out)
    print(
        f"  {found.dying:,} of {found.rows:,} rows ({share:.1%}), {described['bytes']:,} bytes: "
        f"{found.by_score:,} by score, {found.by_age:,} unseen, {found.by_both:,} both",
        file=out,
    )
    for name in ("scores", "ages"):
        edges, rows = described[name]["from"], described[name]["rows"]
        largest = max([*rows, 1])
        print(f"  {name} in that period", file=out)
        for edge, count in zip(edges, rows, strict=True):
            bar = "#" * (-(-count * _BAR // largest))
            print(f"    from {edge:>6g} {count:>14,} {bar}".rstrip(), file=out)
