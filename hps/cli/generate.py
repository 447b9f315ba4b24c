"""`hps generate`: flags to a synthetic click log, and the figures of the model planted in it.

Above it: `hps.cli.main`. Below it: `hps.generate`.
"""

import argparse
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields

from hps.cli import flags
from hps.cli.output import stream_of_progress
from hps.common.json_text import Json
from hps.common.terminal import LiveLine, is_rich
from hps.config import num_cores
from hps.errors import ConfigError
from hps.generate.bags import BAG_LENGTHS, LONGEST_RATIO, MAX_BAG
from hps.generate.config import (
    BAG_FORMATS,
    FORMATS,
    MAX_DENSE,
    MAX_FEATURES,
    MAX_PERIODS,
    GeneratorConfig,
)


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `generate`."""
    parser = subparsers.add_parser(
        "generate",
        help="write a synthetic click log from a planted model",
        description="Writes a click log whose best possible AUC is known, and OUT.json with its "
        "figures. Keys of a feature follow a Zipf law; clicks follow a planted model. With --bag "
        "a feature of an example holds several keys. With --periods the log is a file a period, "
        "OUT-000, OUT-001 and so on, and --drift has keys be born, rise, fade and die.",
    )
    _add_flags(parser, GeneratorConfig())
    flags.add_quiet(parser)
    parser.set_defaults(run=run)


def _add_flags(parser: argparse.ArgumentParser, default: GeneratorConfig) -> None:
    add = parser.add_argument
    add("out", type=flags.path, metavar="OUT", help="file of the log; OUT.json describes it")
    add(
        "--format", choices=FORMATS, default="criteo", help="format of the log; see docs/formats.md"
    )
    for name, least, most, text in (
        ("examples", 1, 2**40, "lines of the log, of all periods together, 1 to 2^40"),
        ("features", 1, MAX_FEATURES, f"categorical features, 1 to {MAX_FEATURES}"),
        ("dense", 0, MAX_DENSE, f"numeric columns, 0 to {MAX_DENSE}"),
        ("keys", 1, None, "keys of all features together at a time, 1 to 2^32 for each feature"),
        (
            "periods",
            1,
            MAX_PERIODS,
            f"files to cut the log into, 1 to {MAX_PERIODS}: OUT-000 and so on, or before OUT's "
            "suffix; read them in order as 'OUT-*'. 1: the file OUT",
        ),
        ("seed", 0, 2**64 - 1, "0 to 2^64 - 1; equal flags and seeds give equal logs"),
    ):
        kind = flags.whole(least, most)
        add(f"--{name}", type=kind, default=getattr(default, name), metavar="N", help=text)
    for name, lowest, text in (
        ("alpha", 0.0, "exponent of the features' Zipf laws, 0 (uniform) to 8"),
        (
            "drift",
            0.0,
            "share of the keys that change places over the log; with --periods share that is "
            "replaced by new keys from one period to the next; 0 to 1",
        ),
        ("click-rate", 0.001, "mean label, 0.001 to 0.999"),
        ("spread", 0.0, "standard deviation of the planted log-odds, 0 to 10"),
    ):
        value = getattr(default, name.replace("-", "_"))
        add(f"--{name}", type=flags.number(lowest), default=value, metavar="X", help=text)
    add(
        "--bag",
        type=flags.number(1, MAX_BAG),
        metavar="MEAN",
        help=f"keys that a feature of an example holds, on average, 1 to {MAX_BAG}, at least one "
        f"in each; formats {', '.join(BAG_FORMATS)}. If not given, one key a feature",
    )
    add(
        "--bag-lengths",
        choices=BAG_LENGTHS,
        default=default.bag_lengths,
        help=f"how many they are: zipf, mostly few and at most {LONGEST_RATIO} times MEAN; fixed, "
        "as many in each bag, of a whole MEAN",
    )
    add(
        "--test", type=flags.path, metavar="OUT2", help="file of a held-out log from the same model"
    )
    add(
        "--test-examples",
        type=flags.whole(0, 2**40),
        default=default.test_examples,
        metavar="N",
        help="lines of OUT2, at least 1 with --test",
    )
    add(
        "--threads",
        type=flags.whole(0, 1024),
        default=0,
        metavar="N",
        help="threads, 0 to 1024; 0: one per core; all give equal bytes",
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes the log as the flags say; returns the exit status."""
    if (arguments.test is None) != (arguments.test_examples == 0):
        raise ConfigError("generate: --test OUT2 and --test-examples N go together; give both")
    given = {field.name: getattr(arguments, field.name) for field in fields(GeneratorConfig)}
    config = GeneratorConfig(**given)

    from hps.generate.log import LogWriter  # numba takes its time to import

    num_threads = arguments.threads or num_cores()
    writer = LogWriter(config, arguments.format, num_threads)
    out = stream_of_progress()
    with closing(LiveLine(out)) as line:
        progress = _told(line, config.examples) if is_rich(out) else None
        _report(writer.write(arguments.out, progress))
    needed = _flags_to_train(config, arguments.format)
    if needed:
        print(f"  'hps train' takes it with {needed}")
    if arguments.test is not None:
        _report(writer.write_test(arguments.test))
    return 0


def _flags_to_train(config: GeneratorConfig, log_format: str) -> str:
    """What `hps train` does not see of the log by itself."""
    if log_format == "criteo" and config.dense != GeneratorConfig().dense:
        return f"--dense {config.dense}"
    return ""


def _told(line: LiveLine, total: int) -> Callable[[int], None]:
    def show(done: int) -> None:
        line.show(f"{done:,} of {total:,} examples", done / total)

    return show


def _report(figures: Json) -> None:
    for number, period in enumerate(figures.get("periods", ())):
        print(
            f"period {number}: {period['path']}, {period['examples']:,} examples, "
            f"{period['distinct_keys']:,} distinct keys, {period['new_keys']:,} of them new; "
            f"best possible AUC {period['best_auc']:.4f}"
        )
    bags = ""
    if "values" in figures:
        bags = f"{figures['values']:,} keys in bags of {figures['mean_bag']:.2f} on average, "
    print(
        f"{figures['path']}: {figures['examples']:,} examples, {figures['clicks']:,} clicks, "
        f"{bags}{figures['distinct_keys']:,} distinct keys, {figures['bytes'] / 1e6:.1f} MB\n"
        f"  best possible AUC {figures['best_auc']:.4f}, logloss {figures['best_logloss']:.4f} "
        f"(the planted model's own)\n"
        f"  {figures['megabytes_per_second']:.0f} MB/s, "
        f"{figures['keys_per_second'] / 1e6:.1f} M keys/s in {figures['seconds']:.2f} s"
        f" (and {figures['compile_seconds']:.2f} s to compile or load the kernels)"
    )
    if "features" in figures:
        print(f"  {figures['features']} says what its columns are: train with it as --features")
