"""Every stored row of a table once, whichever tier holds it: items() and digest().

Above it: parameter_server/rows.py. Below it: top_tier.py, whose `scan` gives the row images.
Nothing is written.
"""

from collections.abc import Iterator

import numpy as np

from hps import _C
from hps.common.arrays import HostArray
from hps.common.row_layout import Images
from hps.errors import ChangedError
from hps.table.waiting import is_records
from hps.tiers.top_tier import TableStack

_PIECE_BYTES = 2**23


def digest(*stacks: TableStack) -> str:
    """Two 64-bit sums of two hashes of every stored row image, as 32 hex digits.

    The caller keeps updates away.

    Args:
        stacks: a table, and the records of keys that wait for a row in it, if it counts them.
    """
    low = high = 0
    for stack in stacks:
        with stack.still():
            for images in stack.scan(_piece_of(stack)):
                part_low, part_high = _digest_of(stack, images)
                low, high = low + part_low, high + part_high
    return f"{high % 2**64:016x}{low % 2**64:016x}"


def _piece_of(stack: TableStack) -> int:
    return max(1, _PIECE_BYTES // stack.layout.row_bytes)


def _digest_of(stack: TableStack, images: Images) -> tuple[int, int]:
    if is_records(stack.name):  # those that are empty count nothing
        images = images[stack.layout.statistics(images)[0] > 0]
    return _C.digest_rows(np.ascontiguousarray(images))


def items(
    stack: TableStack, batch: int, with_state: bool, with_statistics: bool
) -> Iterator[tuple[HostArray, ...]]:
    """(keys [n], rows [n, D]) or (keys, rows, state [n, S]) of every stored row, n up to `batch`;
    with statistics (..., show [n], click [n], last_period [n]).

    Reads and fetches may go on between two pieces, though they move rows between the tiers.

    Raises:
        ChangedError: the table was changed since the iteration began.
    """
    for images in _pieces(stack, batch, "items()"):
        keys, weights = stack.layout.keys(images), stack.layout.weights(images)
        state = (stack.layout.state(images),) if with_state else ()
        counted = stack.layout.statistics(images) if with_statistics else ()
        yield (keys, weights, *state, *counted)


def digest_parts(*stacks: TableStack) -> Iterator[tuple[int, int]]:
    """The digest in parts, whose sums are it: (low, high) of some rows each.

    Raises:
        ChangedError: as items.
    """
    begun = [(stack, stack.version) for stack in stacks]  # one moment of all
    for stack, version in begun:
        for images in _pieces(stack, _piece_of(stack), "a digest", version):
            yield _digest_of(stack, images)


def _pieces(
    stack: TableStack, batch: int, what: str, version: int | None = None
) -> Iterator[Images]:
    """Those of the table as it was at a version; None: as it is."""
    version = stack.version if version is None else version
    pieces = stack.scan(batch)
    while True:
        with stack.still():
            if stack.version != version:
                raise ChangedError(
                    f"table {stack.name!r} changed while {what} was running; repeat it, and change "
                    f"the table only after it has ended"
                )
            images = next(pieces, None)
        if images is None:
            return
        yield images
