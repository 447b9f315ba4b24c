"""`--config FILE`: flags of a command from a TOML file, below those of the command line.

Above it: main.py, whose parsers ask it, train_flags.py, which adds the flag. Below it: tomllib,
argparse. Nothing is declared here: a key is the name of a flag of the parser, and its value goes
through that flag's own type, choices and action.
"""

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn, TypeAlias

from hps.cli import flags

_DEST = "config"
_UNSET = object()  # of a flag that was not given
_MOST_BYTES = 1 << 20  # of a file
_MOST_SHOWN = 60  # characters of a value, in an error
_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_SEVERAL = (argparse.ONE_OR_MORE, argparse.ZERO_OR_MORE)
_JOINED = ",..."  # how the metavar ends of a flag that takes several values as one word

Values: TypeAlias = dict[str, object]  # by dest


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    """Adds `--config`; main.py's parsers then read what it names."""
    parser.add_argument(
        "--config",
        type=flags.path,
        metavar="FILE",
        help="TOML file of flags by their names without dashes, such as batch-size = 512; a list "
        "where a flag takes several values, true for a switch; the command line wins (a switch "
        "has an opposite there); its paths are as seen from the working directory",
    )


def unset(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """A namespace in which no flag is given; argparse leaves it so where none is."""
    # What a flag that may be repeated has gathered so far is None.
    return argparse.Namespace(
        **{one.dest: None if _is_repeated(one) else _UNSET for one in _settable(parser)}
    )


def filled(parser: argparse.ArgumentParser, given: argparse.Namespace) -> argparse.Namespace:
    """What the command line gave, with the rest from the file that it names, or as by default.

    Ends the command with status 2 where the file is wrong, or something required is in neither.

    Args:
        parser: of the command.
        given: an `unset` namespace, after the command line was parsed into it.
    """
    values = {
        one.dest: getattr(given, one.dest)
        for one in _settable(parser)
        if not _is_missing(one, getattr(given, one.dest))
    }
    if _DEST in values:
        values = _File(parser, str(values[_DEST])).values(values) | values
    for one in _settable(parser):
        other = getattr(one, "replaced_by", "")  # as option_flags.py has it
        is_given = one.dest in values or other in values
        if not is_given and not one.option_strings and not one.default:
            name = one.metavar or one.dest
            instead = f", or --{other}" if other else ""
            parser.error(
                f"the following arguments are required: {name}, or {one.dest} in the file of "
                f"--config{instead}"
            )
        # As argparse does it: a default that is text goes through the type, and
        # of two flags for one value the first has the default.
        if one.dest not in values:
            is_text = isinstance(one.default, str)
            values[one.dest] = parser._get_value(one, one.default) if is_text else one.default
        setattr(given, one.dest, values[one.dest])
    return given


def keys(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Every key that a file may have, with the flag that it gives.

    >>> parser = argparse.ArgumentParser()
    >>> _ = parser.add_argument("data", nargs="*"), parser.add_argument("--batch-size", "-b")
    >>> list(keys(parser))
    ['data', 'batch-size']
    """
    found: dict[str, argparse.Action] = {}
    for action in _settable(parser):
        flagged = [word for word in action.option_strings if word.startswith("--")]
        # The opposite of a switch: as a key, `digest = false` would be left off, and say nothing.
        names = [word[2:] for word in flagged if word not in getattr(action, "opposites", ())]
        found |= dict.fromkeys(names if action.option_strings else [action.dest], action)
    found.pop(_DEST, None)  # a file names no other file
    return found


class _Written(float):
    """A number as the file writes it, so that a flag's type sees the word: 2e6 may be a count.

    Args:
        text: the number, of which Python's own text would be 2000000.0.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


class _File:
    """One file of flags.

    Args:
        parser: whose flags they are.
        path: of the file, in words.
    """

    def __init__(self, parser: argparse.ArgumentParser, path: str) -> None:
        self._parser = parser
        self._path = path
        self._text = ""

    def values(self, taken: Mapping[str, object]) -> Values:
        """Values by dest; none of what excludes a flag in `taken`, which the command line has."""
        known = keys(self._parser)
        found = argparse.Namespace()
        seen: dict[argparse.Action, str] = {}
        used: dict[argparse.Action, str] = {}
        for key, value in self._read().items():
            name = key.replace("_", "-")
            action = known.get(name)
            if action is None:
                self._refuse(key, value, self._unknown(name, value, known))
            if action in seen:
                twin = _key(seen[action])
                self._refuse(key, value, f"{twin} is there, too, and is the same flag")
            seen[action] = key
            if self._take(found, action, key, value):
                used[action] = key
        for group in _exclusive(self._parser):
            names = [_key(used[action]) for action in group if action in used]
            if len(names) > 1:
                last = [key for action, key in used.items() if action in group][-1]
                self._fail(f"{' and '.join(names)} exclude each other; keep one of them", last)
            if any(action.dest in taken for action in group):
                for action in group:
                    vars(found).pop(action.dest, None)
        return vars(found)

    def _take(
        self, found: argparse.Namespace, action: argparse.Action, key: str, value: object
    ) -> bool:
        """Has the flag's action store a value; False of a switch that is left off."""
        option = next(iter(action.option_strings), None)
        if action.nargs == 0:
            if not isinstance(value, bool):
                self._refuse(key, value, "a switch is true or false")
            if value:
                action(self._parser, found, [], f"--{key.replace('_', '-')}")
            return value
        parts = [self._part(action, key, one) for one in self._words(action, key, value)]
        if _is_repeated(action):
            for part in parts:
                setattr(found, action.dest, getattr(found, action.dest, None))
                action(self._parser, found, part, option)
        else:
            several = action.nargs in _SEVERAL
            action(self._parser, found, parts if several else parts[0], option)
        return True

    def _words(self, action: argparse.Action, key: str, value: object) -> list[object]:
        """The values of a flag one by one."""
        if not isinstance(value, list):
            return [value]
        if str(action.metavar or "").endswith(_JOINED):
            for one in value:
                self._word(key, one)
            return [",".join(self._word(key, one) for one in value)]
        if action.nargs not in _SEVERAL and not _is_repeated(action):
            self._refuse(key, value, "it takes one value, not a list")
        if not value:
            self._refuse(key, value, "it takes at least one value; leave the key out for none")
        return value

    def _word(self, key: str, value: object) -> str:
        """A value as a word of the command line."""
        if isinstance(value, bool):
            self._refuse(key, value, "true and false are for switches, and it takes a value")
        if isinstance(value, str):
            if "\0" in value:
                self._refuse(key, value, "a text may hold no NUL")
            return value
        if isinstance(value, int | float):
            try:
                return str(value)
            except ValueError:  # Python writes out no number of more than 4300 digits
                self._fail(f"{_key(key)}: the number has too many digits", key)
        self._refuse(key, value, "a number, a text in quotes, true or false, or a list is needed")

    def _part(self, action: argparse.Action, key: str, value: object) -> Any:
        """A value after the flag's own type and choices."""
        word = self._word(key, value)
        try:
            part: Any = self._parser._get_value(action, word)
            self._parser._check_value(action, part)
        except argparse.ArgumentError as error:
            self._refuse(key, value, error.message)
        is_text = isinstance(value, str)
        if is_text and isinstance(part, int | float):
            self._refuse(key, value, "a number is needed, without quotes")
        if not is_text and self._takes_any_text(action):
            self._refuse(key, value, "a text is needed, in quotes")
        return part

    def _takes_any_text(self, action: argparse.Action) -> bool:
        """True of names and paths; not of sizes, which are numbers, too, or texts with a unit."""
        try:
            self._parser._get_value(action, "x")
        except argparse.ArgumentError:
            return False
        return True

    def _unknown(self, name: str, value: object, known: Mapping[str, object]) -> str:
        from difflib import get_close_matches

        if name == _DEST:
            return "a file names no other file"
        near = get_close_matches(name.lower(), known, 1)
        hint = f"the nearest is {near[0]!r}" if near else "it is the name of no flag"
        if isinstance(value, dict):
            hint += "; keys stand at the top of the file, in no table"
        return f"unknown key; {hint}"

    def _read(self) -> dict[str, Any]:
        import tomllib  # which takes its time to import

        try:
            with open(self._path, "rb") as file:
                data = file.read(_MOST_BYTES + 1)
        except OSError as error:
            self._fail(error.strerror or str(error))
        if len(data) > _MOST_BYTES:
            self._fail(f"it has more than {_MOST_BYTES} bytes; flags take less")
        text = ""
        try:
            self._text = text = data.decode("utf-8-sig")
            # An error in the last line then has its number.
            return tomllib.loads(f"{text}\n", parse_float=_Written)
        except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, nested too deeply
            self._fail(f"it is not TOML: {_at_line(text, str(error))}")

    def _refuse(self, key: str, value: object, why: str) -> NoReturn:
        self._fail(f"{_key(key)} = {_shown(value)}: {why}", key)

    def _fail(self, why: str, key: str | None = None) -> NoReturn:
        """Ends the command; names the line of the key, where it stands in one of its own."""
        from hps.features.toml_text import line_of

        line = None if key is None else line_of(self._text, (key,))
        where = self._path if line is None else f"{self._path}, line {line}"
        self._parser.error(f"argument --config: {where}: {' '.join(why.split())}")


def _settable(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The flags that have a value; not --help."""
    return (action for action in parser._actions if action.default is not argparse.SUPPRESS)


def _is_repeated(action: argparse.Action) -> bool:
    return isinstance(action, argparse._AppendAction)


def _is_missing(action: argparse.Action, value: object) -> bool:
    """True if the command line did not give it."""
    if not action.option_strings:
        return value is _UNSET or not value  # argparse fills in what takes any number of words
    return value is _UNSET or (_is_repeated(action) and value is None)


def _exclusive(parser: argparse.ArgumentParser) -> Iterable[list[argparse.Action]]:
    return (group._group_actions for group in parser._mutually_exclusive_groups)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else json.dumps(key)[:_MOST_SHOWN]


def _shown(value: object) -> str:
    """A value as a file has it, in short."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _at_line(text: str, error: str) -> str:
    """What a parser says, with the line that it means."""
    found = _LINE.search(error)
    if found is None:
        return error
    line = text.split("\n")[int(found[1]) - 1 :][:1]
    what = "the key is there twice" if error.startswith("Cannot overwrite") else error
    return f"line {found[1]}, {_shown(line[0].strip() if line else '')}: {what}"
