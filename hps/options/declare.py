"""option(): a field of a dataclass of options, with all that is said of it.

Above it: groups.py, and what is made of it: hps/cli/option_flags.py, page.py, `hps.train.options`.
Below it: values.py.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from typing import Any, Literal

from hps.errors import ConfigError
from hps.options.values import SWITCH, ValueType, choice

_KEY = "option"  # of a field's metadata


def _is_none_else(value: object) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Option:
    """What is said of an option.

    Args:
        help: what it is, with unit and limits.
        kind: of its value, or of each of its values.
        metavar: what stands for the value in the help; empty for choices and switches.
        choices: the names that it may be.
        many: "*": any number of values; "+": at least one; "append": one by one.
        flags: its flags, the first for the value `const` (switches), the second for False.
        const: what the flag without a value gives; None of one with a value.
        off_help: of the second flag.
        excludes: another option that is not given together with it.
        replaced_by: of words without a flag: the option that may be given instead of them.
        also: True of an object of Python that it may be, too.
    """

    help: str
    kind: ValueType
    metavar: str = ""
    choices: Sequence[str] = ()
    many: Literal["", "*", "+", "append"] = ""
    flags: tuple[str, ...] = ()
    const: object = None
    off_help: str = ""
    excludes: str = ""
    replaced_by: str = ""
    also: Callable[[object], bool] = _is_none_else

    def flag(self, name: str) -> str:
        """The first flag of the option of this name."""
        return self.flags[0] if self.flags else f"--{name.replace('_', '-')}"

    def opposite(self, name: str) -> str | None:
        """The flag that takes a switch back; None of what is no switch, or has a second flag.

        >>> for name, _, one in options_of(_Example):
        ...     print(name, one.flag(name), one.opposite(name))
        quiet --quiet --no-quiet
        colour --no-colour --colour
        """
        if self.const is None or len(self.flags) > 1:
            return None
        word = self.flag(name)[2:]
        return f"--{word[3:] if word.startswith('no-') else f'no-{word}'}"

    def check(self, name: str, value: object) -> None:
        """Looks at a value that was given.

        Raises:
            ConfigError: it is not of the kind.
        """
        where = f"{name} ({self.flags[0]})" if self.flags else name
        if self.also(value):
            return
        if not self.many:
            self.kind.check(where, value)
            return
        if not isinstance(value, Sequence) or isinstance(value, str | bytes | PathLike):
            raise ConfigError(f"{where}={value!r} must be a list, each of it {self.kind.wanted}")
        for one in value:
            self.kind.check(f"{where}: each", one)


def option(default: Any, kind: ValueType, help: str, **more: Any) -> Any:
    """A field of a dataclass; `more` is as `Option` has it."""
    return field(default=default, metadata={_KEY: Option(kind=kind, help=help, **more)})


def switch(help: str, **more: Any) -> Any:
    """A field that is False unless its flag is given."""
    return option(False, SWITCH, help, const=True, **more)


def named(names: Sequence[str], default: str | None, help: str) -> Any:
    """A field that is one of several names."""
    return option(default, choice(names), help, choices=names)


def options_of(group: type) -> Iterator[tuple[str, Any, Option]]:
    """Name, default and option of each declared field of a dataclass, in order."""
    for one in fields(group):
        if _KEY in one.metadata:
            declared: Option = one.metadata[_KEY]
            yield one.name, one.default, declared


@dataclass(frozen=True)
class _Example:
    """For the documentation of `Option.opposite`."""

    quiet: bool = switch("say nothing")
    colour: bool = option(True, SWITCH, "no colours", const=False, flags=("--no-colour",))


def check_options(values: object) -> None:
    """Looks at each declared field of an instance; None is let be where it is the default.

    Raises:
        ConfigError: names the field, its value and what it must be.
    """
    for name, default, declared in options_of(type(values)):
        value = getattr(values, name)
        if value is not None or default is not None:
            declared.check(name, value)
