"""Numbers of bytes as people write them.

Above it: config.py, options, flags, whatever is given a size. Below it: hps.errors.
"""

import re
from numbers import Integral

from hps.errors import ConfigError

_MAX_SIZE = float(2**63 - 1024)
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip


def parse_bytes(text: int | str, where: str = "bytes") -> int:
    """A number of bytes from 1073741824, "1GiB", "1.5G", "800MB".

    Raises:
        ConfigError: not a positive size.

    >>> parse_bytes("64KiB")
    65536
    """
    if isinstance(text, Integral) and not isinstance(text, bool):
        size = int(text)
    else:
        pattern = r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*"
        match = re.fullmatch(pattern, text) if isinstance(text, str) else None
        if match is None or match[2].upper() not in _UNITS:
            raise ConfigError(
                f"{where}={text!r} is not a size; write e.g. 1073741824, '1GiB', '800MB'"
            )
        number = float(match[1]) * _UNITS[match[2].upper()]
        if number > _MAX_SIZE:  # also one that is infinite, which int() does not take
            raise ConfigError(f"{where}={str(text)[:40]!r}: must be less than 8 EiB")
        size = int(number)
    if size <= 0:
        raise ConfigError(f"{where}={text!r}: must be more than 0 bytes")
    return size
