"""What a value of an option may be: parsed from a word of the command line, or checked as it is.

Above it: declare.py, hps/cli/flags.py. Below it: hps.config, which knows sizes and devices;
hps.common.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path

from hps.checkpoint.names import parse_name
from hps.common.byte_sizes import parse_bytes
from hps.common.model_names import KINDS, OWN, own_model
from hps.common.url_text import hidden_url, is_url
from hps.config import GpuCacheConfig
from hps.errors import ConfigError

_MOST_EXPONENT = 30  # of ten; no count is that large, and 1e999999999 would fill the memory


@dataclass(frozen=True)
class ValueType:
    """One type of values.

    Args:
        wanted: what a value must be, in words that follow "must be".
        accepts: True of a value within the limits.
        convert: the value that a word of the command line is, before its limits are looked at;
            raises ValueError where it is none, a ConfigError that says so better.
        takes_empty: True if an empty word is a value.

    >>> whole(1, 4096).parse("16"), whole(1, 4096).accepts(True)
    (16, False)
    """

    wanted: str
    accepts: Callable[[object], bool]
    convert: Callable[[str], object] = str
    takes_empty: bool = False

    def parse(self, text: str) -> object:
        """The value of a word of the command line.

        Raises:
            ConfigError: it is none; says what it must be.
        """
        if not text and not self.takes_empty:
            raise ConfigError("the value is empty")
        try:
            value = self.convert(text)
        except ConfigError:
            raise
        except ValueError:
            value = None
        if value is None or not self.accepts(value):
            raise ConfigError(f"{text!r} must be {self.wanted}")
        return value

    def check(self, where: str, value: object) -> None:
        """Looks at a value that is no word.

        Raises:
            ConfigError: it is outside the limits; names `where`.
        """
        if not self.accepts(value):
            raise ConfigError(f"{where}={value!r} must be {self.wanted}")


def whole(least: int, most: int | None = None) -> ValueType:
    """A whole number, at least `least`, at most `most` if that is given; not a bool."""
    words = f"of at least {least}" if most is None else f"from {least} to {_shown(most)}"

    def accepts(value: object) -> bool:
        if not isinstance(value, Integral) or isinstance(value, bool):
            return False
        return int(value) >= least and (most is None or int(value) <= most)

    return ValueType(f"a whole number {words}", accepts, whole_of)


def whole_of(text: str) -> int:
    """The whole number that a word is: digits, which may be grouped, or with an exponent.

    Raises:
        ValueError: it is none, or has an exponent that no limit allows.

    >>> whole_of("2000000"), whole_of("2_000_000"), whole_of("2e6"), whole_of("1.5e6")
    (2000000, 2000000, 2000000, 1500000)
    """
    if "e" not in text.lower():
        return int(text)
    from decimal import Decimal, InvalidOperation  # which takes its time to import

    try:
        exact = Decimal(text)
    except InvalidOperation:
        raise ValueError(text) from None
    if not exact.is_finite() or exact.adjusted() > _MOST_EXPONENT or exact != int(exact):
        raise ValueError(text)
    return int(exact)


def _shown(limit: int) -> str:
    """A limit in words; a large one as a power of two."""
    for less in (0, 1):
        power = (limit + less).bit_length() - 1
        if power > 30 and limit + less == 1 << power:
            return f"2^{power}{' - 1' if less else ''}"
    return str(limit)


def number(
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float = -math.inf,
    below: float = math.inf,
) -> ValueType:
    """A finite number from `least` to `most`; greater than `above`, less than `below` where given.

    >>> number(0, below=1).wanted, number(above=0).accepts(0)
    ('a number, at least 0 and less than 1', False)
    """
    words = (("at least", least), ("at most", most), ("greater than", above), ("less than", below))
    limits = [f"{what} {limit:g}" for what, limit in words if math.isfinite(limit)]

    def accepts(value: object) -> bool:
        if not isinstance(value, Real) or isinstance(value, bool):
            return False
        plain = float(value)
        return math.isfinite(plain) and least <= plain <= most and above < plain < below

    wanted = f"a number, {' and '.join(limits)}" if limits else "a number that is finite"
    return ValueType(wanted, accepts, float)


def choice(names: Sequence[str]) -> ValueType:
    """One of several names.

    >>> choice(("auc", "logloss")).wanted
    "one of 'auc', 'logloss'"
    """
    wanted = f"one of {', '.join(map(repr, names))}"
    return ValueType(wanted, lambda value: isinstance(value, str) and value in names)


def either(name: str, numbers: ValueType) -> ValueType:
    """A number, or one name instead.

    >>> either("auto", whole(0, 8)).parse("auto")
    'auto'
    """
    return ValueType(
        f"{numbers.wanted}, or {name}",
        lambda value: value == name or numbers.accepts(value),
        lambda text: text if text == name else numbers.convert(text),
    )


def widths(least: int, most: int) -> ValueType:
    """Whole numbers, on the command line with commas between them; an empty text is none of them.

    >>> widths(1, 100).parse("64,32"), widths(1, 100).parse("")
    ((64, 32), ())
    """
    width = whole(least, most)

    def accepts(value: object) -> bool:
        if not isinstance(value, Sequence) or isinstance(value, str):
            return False
        return all(width.accepts(one) for one in value)

    def convert(text: str) -> object:
        return tuple(width.parse(part) for part in text.split(",")) if text else ()

    return ValueType(f"a list, each of it {width.wanted}", accepts, convert, takes_empty=True)


def _is_path(value: object) -> bool:
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else b""
    return isinstance(text, str) and bool(text) and "\0" not in text


def _path(text: str) -> Path:
    if "\0" in text:
        raise ValueError
    if is_url(text):  # as a path it would lose a slash, and name a folder here
        raise ConfigError(
            f"{hidden_url(text)!r} is a URL, and a path of this machine is needed; only logs are "
            "read from URLs: copy the file, or write here and copy it there"
        )
    return Path(text)


def _is_size(value: object) -> bool:
    try:
        parse_bytes(value)  # type: ignore[arg-type]
    except ConfigError:
        return False
    return True


def _is_log(value: object) -> bool:
    """Of one of a log's names; in Python record batches, too, and files that a folder has shown."""
    from hps.reader.batch_source import BatchSource  # which --help does not wait for
    from hps.reader.urls import UrlFile

    return isinstance(value, BatchSource | UrlFile) or _is_path(value)


def _is_device(value: object) -> bool:
    try:
        GpuCacheConfig(bytes=1, device=value)  # type: ignore[arg-type]
    except ConfigError:
        return False
    return True


def _is_model(value: object) -> bool:
    return value in KINDS or own_model(value) is not None


SWITCH = ValueType("True or False", lambda value: isinstance(value, bool))
WORD = ValueType("a text that is not empty", lambda value: isinstance(value, str) and value != "")
DATA = ValueType("the path of a file, a URL, or a pattern", _is_log)
FOLDER = ValueType("the path of a folder, or a URL", _is_path)
PATH = ValueType("the path of a file or folder", _is_path, _path)
SIZE = ValueType("a size above 0 in bytes, such as 1073741824, 1GiB, 800MB", _is_size)
DEVICE = ValueType("cuda, cuda:N or cpu", _is_device)
CHECKPOINT = ValueType(
    "the tag of a checkpoint, or its id as id:3",
    lambda value: WORD.accepts(value) or whole(0).accepts(value),
    parse_name,
)
MODEL = ValueType(f"one of {', '.join(KINDS)}, or a model of your own as {OWN}", _is_model)
