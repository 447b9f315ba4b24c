"""Versions of installed packages, and the least that hps asks for.

Above it: device.py, packages.py. Below it: what pip noted of each package, hps's own among them.
"""

import re
from importlib.metadata import PackageNotFoundError, requires, version

OWN = "hps-ctr"


def version_of(*names: str) -> str | None:
    """The version of the first package of these names that is installed."""
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def wanted() -> dict[str, tuple[str, list[str]]]:
    """Package -> (least version, "" for any; the extras that ask for it, "" for hps itself).

    Nothing where hps was not installed by pip.
    """
    try:
        texts = requires(OWN) or []
    except PackageNotFoundError:
        return {}
    found: dict[str, tuple[str, list[str]]] = {}
    for text in texts:
        name = re.match(r"[\w.-]+", text)
        least = re.search(r"[>=]=\s*([\d.]+\d)", text.partition(";")[0])
        extra = re.search(r"extra == ['\"](\w+)['\"]", text)
        if name is None:
            continue
        said, extras = found.setdefault(name[0], (least[1] if least else "", []))
        extras.append(extra[1] if extra else "")
        if least and is_older(said, least[1]):
            found[name[0]] = (least[1], extras)
    return found


def is_older(version: str, least: str) -> bool:
    """True of a version below another; of two letters after the numbers nothing is said.

    >>> is_older("1.9.1", "1.10"), is_older("2.13.0+cpu", "2.11"), is_older("2.0", "2.0.0")
    (True, False, False)
    """
    return _numbers(version) < _numbers(least)


def _numbers(version: str) -> list[int]:
    match = re.match(r"[\d.]*", version.partition("+")[0])
    numbers = [int(part) for part in (match[0] if match else "").split(".") if part]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers
