"""opened_as_found(): opens a checkpoint whose id or name may change between look-up and opening.

Above it: the store, the export of a model. Below it: hps.errors.
"""

import errno
from collections.abc import Callable
from typing import TypeVar

from hps.errors import ConfigError, StoreError

_MOST_ATTEMPTS = 10

Name = TypeVar("Name")
Opened = TypeVar("Opened")


def opened_as_found(
    find: Callable[[], Name], enter: Callable[[Name], Opened], where: str
) -> tuple[Name, Opened]:
    """What `find` names, and `enter` of it; looked for again where that is gone meanwhile.

    A writer beside us renews a checkpoint's id by a compaction, takes another one of its name, or
    moves a promoted name.

    Args:
        where: the store and the checkpoint, in words.

    Raises:
        ConfigError: `enter` refuses what is still there by that name.
        StoreError: it has changed ten times while it was opened.
    """
    name = find()
    for _ in range(_MOST_ATTEMPTS):
        try:
            return name, enter(name)
        except ConfigError:
            before, name = name, find()
            if name == before:
                raise
    raise StoreError(
        errno.EAGAIN, f"{where} changed {_MOST_ATTEMPTS} times while it was opened; try again"
    )
