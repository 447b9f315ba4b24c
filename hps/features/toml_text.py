"""The text of a features file: written, and searched for the line of a key.

Above it: features.py, survey.py. Below it: tomllib, which reads it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from hps.common.json_text import JsonView
from hps.errors import ConfigError

# A text of several lines, one of one line, a comment, the end of a line, a bracket, anything else.
_TOKENS = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|[\n\[\]{}]'
    r"|[^\n\[\]{}\"'#]+|.",
    re.DOTALL,
)
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
    """The line, from 1, of a key, or else of the table that it should be in; None if neither is
    there.

    Args:
        text: valid TOML.
        place: keys from the outermost one on.

    >>> line_of('version = 1\\n[columns.C1]\\nkind = "dense"\\n', ("columns", "C1", "kind"))
    3
    """
    found: int | None = None
    nearest = 0  # keys that `found` shares with the place
    table: tuple[str, ...] = ()
    for number, statement in _statements(text):
        path = _path_of(statement)
        if path is None:
            continue
        is_table = statement.startswith("[")
        table, path = (path, path) if is_table else (table, (*table, *path))
        if path == tuple(place) and not is_table:
            return number
        shared = min(len(path), len(place))
        is_near = path[:shared] == tuple(place[:shared]) and (shared > 1 or len(place) == 1)
        if is_near and shared > nearest:
            found, nearest = number, shared
    return found


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """The line, from 1, and the text of each key with its value, and of each head of a table.

    A line ends at a line feed alone, as for TOML; other letters that end lines may be in texts.
    """
    line, begun, depth = 1, 1, 0
    parts: list[str] = []
    for token in _TOKENS.findall(text):
        if token == "\n" and depth == 0:
            yield begun, "".join(parts).strip()
            parts.clear()
            begun = line + 1
        else:
            parts.append(token)
        depth += (token in "[{") - (token in "]}")
        line += token.count("\n")
    yield begun, "".join(parts).strip()


def _path_of(statement: str) -> tuple[str, ...] | None:
    """The keys that a statement of TOML opens: of a table, or of a value; None of any other."""
    import tomllib  # which takes its time to import

    try:
        values = tomllib.loads(statement)
    except (ValueError, RecursionError):
        return None
    path: list[str] = []
    while isinstance(values, Mapping) and len(values) == 1:
        key, values = next(iter(values.items()))
        path.append(key)
    return tuple(path) or None
