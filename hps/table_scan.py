"""Every stored row of a table once, whichever tier holds it: items() and digest().

Above it: parameter_server.py. Below it: table_stack.py. Nothing is written: a row that is dirty in
the dram_cache is taken there, every other one from the ssd_store, where it has the same bits.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

import numpy as np

from hps import _C
from hps.errors import ConfigError
from hps.row_layout import Floats, Images, Keys
from hps.table_stack import TableStack

_DIRTY = 3
_PIECE_BYTES = 2**23


def digest(stack: TableStack) -> str:
    """Two 64-bit sums of two hashes of every stored row image, as 32 hex digits."""
    low = high = 0
    piece = max(1, _PIECE_BYTES // stack.layout.row_bytes)
    for images in chain(_dirty_rows(stack, piece), _rows_not_dirty(stack, piece)):
        part_low, part_high = _C.digest_rows(np.ascontiguousarray(images))
        low, high = low + part_low, high + part_high
    return f"{high % 2**64:016x}{low % 2**64:016x}"


def _rows_not_dirty(stack: TableStack, piece: int) -> Iterator[Images]:
    """Rows of the ssd_store but for those that are newer above; nothing may move meanwhile."""
    for images in stack.store.scan(stack.name, piece):
        is_newest = stack.cache.contains(stack.layout.keys(images)) != _DIRTY
        yield images if is_newest.all() else images[is_newest]


def _dirty_rows(stack: TableStack, piece: int) -> Iterator[Images]:
    rows: Images = np.empty((piece, stack.layout.row_bytes), np.uint8)
    cursor = 0
    while cursor >= 0:
        count, cursor = stack.cache.scan(cursor, "dirty", rows)
        if count:
            yield rows[:count]


def items(
    stack: TableStack, batch: int, with_state: bool, lock: AbstractContextManager[Any]
) -> Iterator[tuple[Any, ...]]:
    """(keys [n], rows [n, D]) or (keys, rows, state [n, S]) of every stored row, n up to `batch`.

    Reads may go on between two pieces, though they move rows between the tiers: the dirty rows come
    first and their keys are remembered (8 bytes each), so that one which is evicted later is not
    seen again below.

    Raises:
        ConfigError: the table was changed since the iteration began.
    """
    version = stack.version
    pieces = _images(stack, batch)
    while True:
        with lock:
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


def _images(stack: TableStack, batch: int) -> Iterator[Images]:
    seen: list[Keys] = []
    for images in _dirty_rows(stack, batch):
        seen.append(stack.layout.keys(images))
        yield images
    above = np.sort(np.concatenate(seen)) if seen else np.empty(0, np.uint64)
    for images in stack.store.scan(stack.name, batch):
        if len(above):
            keys = stack.layout.keys(images)
            idx = np.minimum(np.searchsorted(above, keys), len(above) - 1)
            images = images[above[idx] != keys]
        if len(images):
            yield images
