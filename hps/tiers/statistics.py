"""The statistics of rows by key, wherever they lie.

Above it: parameter_server/periods.py. Below it: top_tier.py. Nothing is written, and no row takes a
slot in the top tier.
"""

import numpy as np

from hps.common.row_layout import Images, Keys, Statistics
from hps.contracts.row_cache import ABSENT, DIRTY, STORED
from hps.tiers.cached_tier import MAX_SCRATCH_BYTES
from hps.tiers.top_tier import TableStack


def read_statistics(stack: TableStack, keys: Keys) -> Statistics:
    """Of keys [L], in their order; show and click 0 and last_period -1 where no row is stored.

    Raises:
        StoreError, CorruptionError: a row could not be read.
    """
    unique, inverse = np.unique(keys, return_inverse=True)
    found = Statistics(
        np.zeros(len(unique), np.float32),
        np.zeros(len(unique), np.float32),
        np.full(len(unique), -1, np.int64),
    )
    piece = max(1, MAX_SCRATCH_BYTES // stack.layout.row_bytes)
    for first in range(0, len(unique), piece):
        wanted = unique[first : first + piece]
        with stack.turn:  # so that no row is on its way
            codes = _read_here(stack, wanted, unique, found)
            away = wanted[codes == ABSENT]
            rows, are_stored = stack.fetch_below(away)
            _put(stack, rows[np.flatnonzero(are_stored)], unique, found)
    return Statistics(found.show[inverse], found.click[inverse], found.last_period[inverse])


def _read_here(stack: TableStack, wanted: Keys, unique: Keys, found: Statistics) -> Images:
    """Those in the top tier's cache; what its `contains` says of each. Within the turn."""
    with stack.lock:
        cache = stack.cache
        codes = cache.contains(wanted)
        here = wanted[(codes == STORED) | (codes == DIRTY)]
        if len(here):
            images: Images = np.empty((len(here), stack.layout.row_bytes), np.uint8)
            plan = cache.make_plan(here, stack.take_plan())
            cache.find(plan, 0, -1)
            cache.read_rows(plan, images)
            stack.keep_plan(plan)
            _put(stack, images, unique, found)
    return codes


def _put(stack: TableStack, images: Images, unique: Keys, found: Statistics) -> None:
    """What row images say, at the places of their keys."""
    images = np.ascontiguousarray(images)
    places = np.searchsorted(unique, stack.layout.keys(images))
    show, click, last_period = stack.layout.statistics(images)
    found.show[places], found.click[places] = show, click
    found.last_period[places] = last_period
