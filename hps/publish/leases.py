"""Leases: marks that say which versions readers are at, so that none of these is removed.

Above it: publisher.py, followers. Below it: destination.py. A reader that has all that it wants on
a disk of its own needs none. A mark that is an hour old counts no more: its reader has died.
"""

import json
import secrets
import time
from contextlib import suppress

from hps.common.json_text import parse_json
from hps.errors import HpsError, StoreError
from hps.publish.destination import Destination
from hps.publish.version import READERS

_SECONDS = 3600.0


def take_lease(destination: Destination, number: int) -> str | None:
    """Marks a version, and those after it, as being read.

    Returns:
        What `drop_lease` takes; None where this reader may not write there.
    """
    name = f"{READERS}/{secrets.token_hex(8)}.json"
    try:
        destination.create(name, json.dumps({"version": number, "at": time.time()}).encode())
    except StoreError:
        return None
    return name


def drop_lease(destination: Destination, name: str | None) -> None:
    """Takes a mark back."""
    if name is None:
        return
    with suppress(StoreError):  # it ends by itself
        destination.remove(name)


def oldest_leased(destination: Destination) -> int | None:
    """The lowest version that is being read; None for none. Marks that count no more go."""
    found = []
    for name in destination.folders(READERS):
        path = f"{READERS}/{name}"
        try:
            mark = parse_json(destination.read(path), path)
            is_over = time.time() - float(mark["at"]) > _SECONDS
            number = int(mark["version"])
        except (HpsError, FileNotFoundError, KeyError, TypeError, ValueError):
            continue
        if is_over:
            drop_lease(destination, path)
        else:
            found.append(number)
    return min(found, default=None)
