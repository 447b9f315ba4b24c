"""`hps plan`: sizes a cluster for a model, a log and a rate, from flags; needs no torch, no store.

Above it: `hps.cli.main`. Below it: `hps.plan`.
"""

import argparse
from dataclasses import fields
from pathlib import Path

from hps.cli.output import HelpFormatter, check_json_path, stream_for_people, write_json
from hps.plan import PlanQuestion, format_plan, make_plan

_DEFAULT = PlanQuestion(keys=10**9, dim=16)


def add_parsers(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `plan`."""
    parser = subparsers.add_parser(
        "plan",
        help="size a cluster: GPU, DRAM, SSD and network of each rank",
        description="Says what each rank needs of its GPU, DRAM, SSD and network for a model of so "
        "many keys at so many examples a second, and how many ranks are enough. "
        "docs/cluster_sizing.md has the formulas.",
        formatter_class=HelpFormatter,
    )
    _add_model_flags(parser.add_argument_group("model and log"))
    _add_machine_flags(parser.add_argument_group("ranks, and what each has"))
    parser.add_argument("--json", type=Path, default=None, metavar="OUT", help="figures to a file")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the plan; returns 1 if the ranks that were given are not enough."""
    check_json_path(arguments.json)
    given = {field.name: getattr(arguments, field.name) for field in fields(PlanQuestion)}
    plan = make_plan(PlanQuestion(**given))
    print(format_plan(plan), file=stream_for_people(arguments.json))
    write_json(arguments.json, plan.to_dict())
    return 1 if plan.missing else 0


def _whole(text: str) -> int:
    """A whole number, also as 1e10."""
    value = float(text)
    if not value.is_integer():
        raise argparse.ArgumentTypeError(f"{text} is not a whole number")
    return int(value)


def _gpu(text: str) -> str | None:
    return None if text == "none" else text


def _add_model_flags(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add("--keys", type=_whole, required=True, help="stored keys, of all features")
    add("--dim", type=int, required=True, help="floats of a row, a first-order column counted")
    add("--optimizer", default=_DEFAULT.optimizer, help="of rows")
    add("--features", type=int, default=_DEFAULT.features, help="of an example")
    add("--ids-per-feature", type=int, default=_DEFAULT.ids_per_feature, help="keys in each")
    add("--alpha", type=float, default=_DEFAULT.alpha, help="exponent of the keys' Zipf laws")
    add("--batch-size", type=_whole, default=_DEFAULT.batch_size, help="examples a step, of all")
    add(
        "--examples-per-second",
        type=float,
        default=_DEFAULT.examples_per_second,
        help="of all ranks",
    )
    add(
        "--dense-parameters",
        type=_whole,
        default=_DEFAULT.dense_parameters,
        help="of the dense part",
    )
    add("--depth", type=int, default=_DEFAULT.depth, help="batches prepared ahead")
    add("--row-wire", default=_DEFAULT.row_wire, help="float32, float16, bfloat16 or int8")
    add("--gradient-wire", default=_DEFAULT.gradient_wire, help="as --row-wire")
    add(
        "--checkpoint-seconds",
        type=float,
        default=_DEFAULT.checkpoint_seconds,
        help="from one to the next",
    )


def _add_machine_flags(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add("--ranks", type=int, default=0, help="how many; 0: as few as are enough")
    add("--ranks-per-node", type=int, default=_DEFAULT.ranks_per_node, help="that share a host")
    add("--gpu", type=_gpu, default="80GB", help="memory of the GPU; none: there is no GPU")
    add("--dram", default="256GB", help="host memory")
    add("--ssd", default="4TB", help="disk")
    add("--network", default="10GB", help="bytes it can send a second")
    add("--ssd-reads", type=float, default=_DEFAULT.ssd_reads, help="random reads a second")
    add(
        "--rank-examples-per-second",
        type=float,
        default=None,
        help="that one rank computes, as hps train says; no limit if left out",
    )
