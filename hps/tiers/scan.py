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
from hps.tiers.top_tier import TableStack

_PIECE_BYTES = 2**23


def digest(stack: TableStack) -> str:
    """Two 64-bit sums of two hashes of every stored row image, as 32 hex digits.

    The caller keeps updates away.
    """
    low = high = 0
    piece = max(1, _PIECE_BYTES // stack.layout.row_bytes)
    with stack.still():
        for images in stack.scan(piece):
            part_low, part_high = _C.digest_rows(np.ascontiguousarray(images))
            low, high = low + part_low, high + part_high
    return f"{high % 2**64:016x}{low % 2**64:016x}"


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


def digest_parts(stack: TableStack) -> Iterator[tuple[int, int]]:
    """The digest in parts, whose sums are it: (low, high) of some rows each.

    Raises:
        ChangedError: as items.
    """
    piece = max(1, _PIECE_BYTES // stack.layout.row_bytes)
    for images in _pieces(stack, piece, "a digest"):
        yield _C.digest_rows(np.ascontiguousarray(images))


def _pieces(stack: TableStack, batch: int, what: str) -> Iterator[Images]:
    version = stack.version
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
