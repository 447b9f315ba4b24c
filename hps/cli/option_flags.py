"""Flags of a parser, made of declared options.

Above it: train_flags.py, features.py. Below it: hps/options/, flags.py.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hps.cli import flags
from hps.options.declare import Option, options_of

Types = Mapping[str, Callable[[str], object]]


def add_options(to: flags.Flags, group: type, types: Types | None = None) -> None:
    """Adds a flag for each option of a group; one that is not given has the option's default.

    Args:
        to: a parser, or a group of its flags.
        group: a dataclass of options.
        types: by name of an option, what takes its word instead of the option's own type.
    """
    exclusive: dict[str, flags.Flags] = {}
    declared = list(options_of(group))
    for _, _, option in declared:
        if option.excludes:
            exclusive[option.excludes] = to.add_mutually_exclusive_group()
    for name, default, option in declared:
        place = exclusive.get(option.excludes or name, to)
        if len(option.flags) > 1:
            place = to.add_mutually_exclusive_group()
            off = {"action": "store_const", "const": False, "default": default}
            _add(place, option.flags[0], name, default, option)
            place.add_argument(option.flags[1], dest=name, help=option.off_help, **off)
        elif option.many == "*":
            _add_words(place, name, option)
        else:
            _add(place, option.flag(name), name, default, option, (types or {}).get(name))


class Switch(argparse.Action):
    """A flag without a value, and its opposite, which gives the default again, for what a file of
    flags has switched; the last one wins.

    Args:
        option_strings: the flag, and its opposite where it has one.
        const: what the flag gives.
        said: dest, default and help, as argparse takes them.
    """

    def __init__(self, option_strings: Sequence[str], const: object, **said: Any) -> None:
        super().__init__(option_strings, nargs=0, const=const, **said)
        self.opposites = tuple(option_strings)[1:]

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        is_back = option_string in self.opposites
        setattr(namespace, self.dest, self.default if is_back else self.const)

    def format_usage(self) -> str:
        """As argparse has it of its own flags of two words."""
        return " | ".join(self.option_strings)


def _add_words(to: flags.Flags, name: str, option: Option) -> None:
    words: Any = {"nargs": "*", "default": [], "type": flags.of(option.kind)}
    action = to.add_argument(name, metavar=option.metavar, help=option.help, **words)
    if option.replaced_by:
        action.replaced_by = option.replaced_by  # type: ignore[attr-defined]


def _add(
    to: flags.Flags,
    flag: str,
    name: str,
    default: object,
    option: Option,
    type: Callable[[str], object] | None = None,
) -> None:
    said: dict[str, Any] = {"dest": name, "default": default, "help": option.help}
    if option.const is not None:
        opposite = option.opposite(name)
        words = [flag] if opposite is None else [flag, opposite]
        to.add_argument(*words, action=Switch, const=option.const, **said)
        return
    if option.choices:
        said["choices"] = tuple(option.choices)
    else:
        said["type"] = type or flags.of(option.kind)
    if option.many == "append":
        said["action"] = "append"
    elif option.many:
        said |= {"nargs": option.many, "default": list(default) if default == () else default}
    to.add_argument(flag, metavar=option.metavar or None, **said)
