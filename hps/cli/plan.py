"""`hps plan`: sizes a cluster for a model, a log and a rate, from flags; needs no torch, no store.

Above it: `hps.cli.main`. Below it: `hps.plan`.
"""

import argparse
from dataclasses import fields

from hps.cli import flags
from hps.cli.output import HelpFormatter, check_out_path, stream_for_people, write_json
from hps.common.optimizers import OPTIMIZERS
from hps.common.wire_format import WIRES
from hps.config import MAX_DIM
from hps.plan import PlanQuestion, format_plan, make_plan
from hps.plan.question import counts_bits

_DEFAULT = PlanQuestion(keys=10**9, dim=16)


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `plan`."""
    parser = subparsers.add_parser(
        "plan",
        help="size a cluster: GPU, DRAM, SSD and network of each rank",
        description="Computes what each rank needs of its GPU, DRAM, SSD and network for a given "
        "number of keys and examples a second, and how many ranks are enough. "
        "docs/cluster_sizing.md has the formulas.",
        formatter_class=HelpFormatter,
    )
    _add_model_flags(parser.add_argument_group("model and log"))
    _add_machine_flags(parser.add_argument_group("ranks, and what each has"))
    parser.add_argument(
        "--json", type=flags.path, metavar="OUT", help="write the figures to a file"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the plan; returns 1 if the ranks that were given are not enough."""
    check_out_path(arguments.json)
    given = {field.name: getattr(arguments, field.name) for field in fields(PlanQuestion)}
    plan = make_plan(PlanQuestion(**given))
    print(format_plan(plan), file=stream_for_people(arguments.json))
    write_json(arguments.json, plan.to_dict())
    return 1 if plan.missing else 0


def _size(text: str) -> str:
    """A number of bytes; not of bits, as network cards count."""
    if counts_bits(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} counts bits; write bytes, such as 1.25GB for 10 Gb"
        )
    return flags.size(text)


def _gpu(text: str) -> str | None:
    try:
        return None if text == "none" else _size(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; or none, for no GPU") from error


def _add_model_flags(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add(
        "--keys",
        type=flags.whole(1, 2**53),
        required=True,
        help="number of stored keys, over all features",
    )
    add(
        "--dim",
        type=flags.whole(1, MAX_DIM),
        required=True,
        help="floats of a row, including a first-order column",
    )
    add(
        "--optimizer",
        choices=tuple(OPTIMIZERS),
        default=_DEFAULT.optimizer,
        help="optimizer of rows",
    )
    few = flags.whole(1, 2**16)
    add("--features", type=few, default=_DEFAULT.features, help="features of an example")
    add("--ids-per-feature", type=few, default=_DEFAULT.ids_per_feature, help="keys in a feature")
    add(
        "--alpha",
        type=flags.number(0, 8),
        default=_DEFAULT.alpha,
        help="exponent of the keys' Zipf laws, 0 to 8",
    )
    add(
        "--batch-size",
        type=flags.whole(1, 2**31),
        default=_DEFAULT.batch_size,
        help="examples in a step, over all ranks",
    )
    add(
        "--examples-per-second",
        type=flags.number(above=0),
        default=_DEFAULT.examples_per_second,
        help="examples a second, over all ranks",
    )
    add(
        "--dense-parameters",
        type=flags.whole(0, 2**53),
        default=_DEFAULT.dense_parameters,
        help="parameters of the dense part",
    )
    add("--depth", type=flags.whole(0, 64), default=_DEFAULT.depth, help="batches prepared ahead")
    add("--row-wire", choices=WIRES, default=_DEFAULT.row_wire, help="format of rows between ranks")
    add(
        "--gradient-wire", choices=WIRES, default=_DEFAULT.gradient_wire, help="format of gradients"
    )
    add(
        "--checkpoint-seconds",
        type=flags.number(above=0),
        default=_DEFAULT.checkpoint_seconds,
        help="time between two checkpoints",
    )


def _add_machine_flags(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    most = PlanQuestion.most_ranks
    ranks, node = flags.whole(0, most), flags.whole(1, most)
    add("--ranks", type=ranks, default=0, help="number of ranks; 0: the fewest that are enough")
    add("--ranks-per-node", type=node, default=_DEFAULT.ranks_per_node, help="ranks on a host")
    add("--gpu", type=_gpu, default="80GB", help="memory of the GPU; none: no GPU")
    add("--dram", type=_size, default="256GB", help="host memory")
    add("--ssd", type=_size, default="4TB", help="disk space")
    add("--network", type=_size, default="10GB", help="bytes a second that it can send")
    reads = flags.number(above=0)
    add(
        "--ssd-reads",
        type=reads,
        default=_DEFAULT.ssd_reads,
        help="random reads a second of the disk",
    )
    add(
        "--rank-examples-per-second",
        type=flags.number(above=0),
        default=None,
        help="examples a second that one rank computes, see hps train; no limit if not given",
    )
