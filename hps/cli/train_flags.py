"""The flags of `hps train`: its options, and what the command alone has.

Above it: `hps.cli.train`. Below it: hps/options/, option_flags.py. Torch is imported by nothing
here.
"""

import argparse

from hps.cli import flags
from hps.cli.config_file import add_config_flag
from hps.cli.option_flags import add_options
from hps.cli.output import JSON_HELP
from hps.cli.server_flags import add_server_flags
from hps.options.groups import GROUPS

CLUSTER_TIMEOUT_SECONDS = 600.0
_OUTPUT, _RANKS = "what is told", "ranks (under torchrun)"


def add_train_flags(parser: argparse.ArgumentParser) -> None:
    """Adds all of them, in groups."""
    add_config_flag(parser)
    for title, options in GROUPS.items():
        group = parser.add_argument_group(title)
        if title == _OUTPUT:
            _add_output_flags(group)
        for one in options:
            add_options(group, one, {"dram": flags.dram})
        if title == _RANKS:
            group.add_argument(
                "--cluster-timeout",
                type=flags.number(above=0),
                default=CLUSTER_TIMEOUT_SECONDS,
                metavar="SECONDS",
                help="time after which a rank that does not answer counts as lost",
            )
    add_server_flags(parser.add_argument_group("servers instead of a store"))


def _add_output_flags(group: flags.Flags) -> None:
    group.add_argument(
        "--progress-seconds",
        type=flags.number(0),
        default=2.0,
        metavar="SECONDS",
        help="time between two live lines; 0: no live lines",
    )
    flags.add_quiet(group)
    group.add_argument("--json", type=flags.path, metavar="OUT", help=JSON_HELP)
