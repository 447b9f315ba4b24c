"""The text of a features file: written, and searched for the line of a key.

Above it: features.py, survey.py. Below it: tomllib, which reads it.
"""

import re
from collections.abc import Mapping, Sequence

from hps.common.json_text import JsonView
from hps.errors import ConfigError

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def toml_key(name: str) -> str:
    """A name as a key: as it is, or in quotes.

    >>> toml_key("C1"), toml_key('a "b"')
    ('C1', '"a \\\\"b\\\\""')
    """
    return name if _BARE.fullmatch(name) else toml_value(name)


def toml_value(value: object) -> str:
    """A value as TOML has it.

    Raises:
        ConfigError: text that is not UTF-8.

    >>> toml_value([1, 0.5, True, "é"])
    '[1, 0.5, true, "é"]'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"features: {value!r} is not UTF-8, which TOML is") from error
        return f'"{"".join(_escaped(letter) for letter in value)}"'
    if isinstance(value, Mapping):
        items = (f"{toml_key(key)} = {toml_value(one)}" for key, one in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value)


def _escaped(letter: str) -> str:
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    is_control = letter < " " or letter == "\x7f"
    return f"\\u{ord(letter):04X}" if is_control else letter


def write_toml(values: JsonView) -> str:
    """The text of a description: the version, the fields of libsvm, then a table for each column,
    cross and table."""
    lines = [f"version = {values['version']}"]
    if fields := values.get("fields"):
        lines += ["", "[fields]"]
        lines += [f"{toml_key(name)} = {toml_value(said)}" for name, said in fields.items()]
    for group in ("columns", "crosses", "tables"):
        for name, said in values.get(group, {}).items():
            lines += ["", *table_lines(group, name, said)]
    return "\n".join(lines) + "\n"


def table_lines(group: str, name: str, said: JsonView) -> list[str]:
    """The lines of one table."""
    lines = [f"[{group}.{toml_key(name)}]"]
    return lines + [f"{toml_key(key)} = {toml_value(value)}" for key, value in said.items()]


def line_of(text: str, place: Sequence[str]) -> int | None:
    """The line, from 1, of a key, or else of the table that it should be in.

    None where the text has it in another layout: a table within a line, a key with dots.

    >>> line_of('version = 1\\n[columns.C1]\\nkind = "dense"\\n', ("columns", "C1", "kind"))
    3
    """
    found: int | None = None
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        path = _path_of(line)
        if path is None:
            continue
        if line.lstrip().startswith("["):
            table = path
            shared = min(len(path), len(place))
            if path[:shared] == tuple(place[:shared]) and (shared > 1 or len(place) == 1):
                found = found or number
        if (*table, *path) == tuple(place) and path is not table:
            return number
    return found


def _path_of(line: str) -> tuple[str, ...] | None:
    """The keys that a line of TOML opens: of a table, or of a value; None of any other."""
    import tomllib  # which takes its time to import

    try:
        values = tomllib.loads(line)
    except (ValueError, RecursionError):
        head, separator, _ = line.partition("=")  # a value may go on below
        if not separator or line.lstrip().startswith("["):
            return None
        try:
            values = tomllib.loads(f"{head}= 0")
        except (ValueError, RecursionError):
            return None
        return tuple(values)[:1]
    is_table = line.lstrip().startswith("[")
    path: list[str] = []
    while isinstance(values, Mapping) and len(values) == 1:
        key, values = next(iter(values.items()))
        path.append(key)
        if not is_table:
            break
    return tuple(path) or None
