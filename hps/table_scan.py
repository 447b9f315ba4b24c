"""Every stored row of a table once, whichever tier holds it: items() and digest().

Above it: parameter_server.py. Below it: table_stack.py, whose `scan` gives the row images. Nothing
is written.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from hps import _C
from hps.errors import ConfigError
from hps.row_layout import Floats
from hps.table_stack import TableStack

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


def items(stack: TableStack, batch: int, with_state: bool) -> Iterator[tuple[Any, ...]]:
    """(keys [n], rows [n, D]) or (keys, rows, state [n, S]) of every stored row, n up to `batch`.

    Reads and fetches may go on between two pieces, though they move rows between the tiers.

    Raises:
        ConfigError: the table was changed since the iteration began.
    """
    version = stack.version
    pieces = stack.scan(batch)
    while True:
        with stack.still():
            if stack.version != version:
                raise ConfigError(
                    f"table {stack.name!r} changed while items() was running; start it again, and "
                    f"collect what you want to change until it has ended"
                )
            images = next(pieces, None)
            if images is None:
                return
            keys, weights = stack.layout.keys(images), stack.layout.weights(images)
            state: Floats | None = stack.layout.state(images) if with_state else None
        yield (keys, weights) if state is None else (keys, weights, state)
