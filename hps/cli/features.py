"""`hps features`: writes a features file of what a log's columns are, for people to edit.

Above it: `hps.cli.main`. Below it: `hps.features.survey`.
"""

import argparse
import sys
from pathlib import Path

from hps.cli import flags
from hps.cli.option_flags import add_options
from hps.cli.output import JSON_HELP, check_out_path, write_json
from hps.errors import ConfigError, StoreError
from hps.options.data import ColumnOptions, KeyOptions
from hps.reader.config import FORMATS, ReaderConfig


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `features`."""
    parser = subparsers.add_parser(
        "features",
        help="describe a log's columns in a file to edit",
        description="Writes a features file: the kind of each column of a log, with figures of its "
        "first examples as comments. Unedited it changes nothing of a training; docs/features.md "
        "lists what can be said. Give the flags that the training will have.",
    )
    add = parser.add_argument
    add(
        "data",
        nargs="+",
        type=flags.word,
        metavar="DATA",
        help="the log's files in order, URLs, or patterns; .gz and .zst are unpacked",
    )
    add(
        "--out",
        type=flags.path,
        required=True,
        metavar="FILE",
        help="the features file, which must not be there yet; '-': standard output",
    )
    add(
        "--examples",
        type=flags.whole(1, 10_000_000),
        default=100_000,
        metavar="N",
        help="examples to look at, the log's first, 1 to 10000000; all are in memory at once",
    )
    add("--format", choices=FORMATS, help="format of DATA; if not given, found from the files")
    add("--delimiter", type=flags.word, metavar="C", help=flags.DELIMITER_HELP)
    add(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="at a bad line: stop and name it, or leave it out",
    )
    add_options(parser, KeyOptions)
    add_options(parser, ColumnOptions)
    add("--json", type=flags.path, metavar="OUT", help=JSON_HELP)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Surveys as the flags say; returns the exit status."""
    out: Path = arguments.out
    is_file = str(out) != "-"
    if is_file:
        check_out_path(out, "--out")
        if out.exists():
            raise ConfigError(
                f"--out {out}: it exists, and may have been edited; name another file, or remove it"
            )
    elif str(arguments.json) == "-":
        raise ConfigError("--out - and --json - would both take standard output; name a file")
    check_out_path(arguments.json)
    from hps.features.survey import survey  # torch takes its time to import

    names = ("format", "delimiter", "on_error", "dense", "dense_columns", "dense_transform")
    columns = ("hash_keys", "label", "weight", "group", "ignore")
    given = {name: getattr(arguments, name) for name in (*names, *columns)}
    config = ReaderConfig(**{name: value for name, value in given.items() if value is not None})
    found = survey(arguments.data, config, arguments.examples)
    text = found.to_toml()
    if not is_file:
        sys.stdout.write(text)
    else:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise StoreError(error.errno or 0, f"cannot write {out}: {error.strerror}") from error
        people = sys.stderr if str(arguments.json) == "-" else sys.stdout
        print(
            f"{out}: {len(found.columns)} columns of {found.source}, {found.examples:,} examples",
            file=people,
        )
    for name, text in found.warnings().items():
        print(f"hps: warning: column {name!r}: {text}", file=sys.stderr)
    write_json(arguments.json, found.to_dict())
    return 0
