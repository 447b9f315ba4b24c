"""Checks of fields: the type first, so that a wrong one is a ConfigError that names the field.

Numbers are Python's own: they end up in JSON files, which take no numpy scalar.

Above it: `hps.config`, `hps.common.optimizers`, `hps.nn.row_optimizer`, `hps.train.options`. Below
it: nothing.
"""

import math
import os

from hps.errors import ConfigError


def require_whole(where: str, value: object, least: int, most: int) -> None:
    """A whole number in [least, most]; True and False are none.

    Raises:
        ConfigError: anything else.

    >>> require_whole("Config.threads", 4, 0, 64)
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        limit = "2^64 - 1" if most == 2**64 - 1 else most
        raise ConfigError(f"{where}={value!r} must be a whole number from {least} to {limit}")


def require_number(where: str, value: object, *, above: float | None = None) -> None:
    """A finite number >= 0, or one greater than `above`.

    Raises:
        ConfigError: anything else.

    >>> require_number("SGD.lr", 0.05)
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    number = float(value) if is_number else math.nan  # type: ignore[arg-type]
    is_inside = number >= 0 if above is None else number > above
    if not math.isfinite(number) or not is_inside:
        limit = ">= 0" if above is None else f"> {above:g}"
        raise ConfigError(f"{where}={value!r} must be a finite int or float {limit}")


def require_share(where: str, value: object, *, least: float = 0.0) -> None:
    """A number above 0, at least `least` and at most 1.

    Raises:
        ConfigError: anything else.

    >>> require_share("ReaderConfig.negative_rate", 0.1)
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= 1 or value < least:  # type: ignore[operator]
        limit = f"of at least {least:g}" if least else "above 0"
        raise ConfigError(f"{where}={value!r} must be an int or float {limit} and at most 1")


def require_path(where: str, value: object) -> None:
    """The path of a folder, there or not, whose name is UTF-8: the native core takes no other.

    Raises:
        ConfigError: anything else.

    >>> require_path("Config.path", "model")
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else b""
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError(f"{where}={value!r} must be the path of a directory")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{where}={value!r} is not UTF-8; rename the folder") from error


def require_flag(where: str, value: object) -> None:
    """True or False.

    Raises:
        ConfigError: anything else.

    >>> require_flag("TableConfig.shared_vocabulary", True)
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{where}={value!r} must be True or False")
