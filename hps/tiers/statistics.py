"""The statistics of rows by key, wherever they lie.

Above it: parameter_server/periods.py. Below it: top_tier.py. Nothing is written, and no row takes a
slot in the top tier.
"""

import numpy as np
from numpy.typing import NDArray

from hps.common.row_layout import Images, Keys, Statistics
from hps.contracts.row_cache import ABSENT, DIRTY, STORED
from hps.tiers.cached_tier import MAX_SCRATCH_BYTES
from hps.tiers.top_tier import TableStack


def read_statistics(stack: TableStack, keys: Keys) -> tuple[Statistics, NDArray[np.int64]]:
    """Of keys [L], in their order, and their periods of death, int64 [L], -1: never; show and click
    0, last_period and period of death -1 where no row is stored.

    Raises:
        StoreError, CorruptionError: a row could not be read.
    """
    unique, inverse = np.unique(keys, return_inverse=True)
    found = Statistics(
        np.zeros(len(unique), np.float32),
        np.zeros(len(unique), np.float32),
        np.full(len(unique), -1, np.int64),
    )
    dies_at = np.full(len(unique), -1, np.int64)
    piece = max(1, MAX_SCRATCH_BYTES // stack.layout.row_bytes)
    for first in range(0, len(unique), piece):
        wanted = unique[first : first + piece]
        with stack.turn:  # so that no row is on its way
            images, codes = _read_here(stack, wanted)
            away = wanted[codes == ABSENT]
            rows, are_stored = stack.fetch_below(away)
            for part in (images, np.ascontiguousarray(rows[np.flatnonzero(are_stored)])):
                places = np.searchsorted(unique, stack.layout.keys(part))
                counts = stack.layout.statistics(part)
                found.show[places], found.click[places] = counts.show, counts.click
                found.last_period[places] = counts.last_period
                deaths = stack.layout.deaths(part).astype(np.int64)
                dies_at[places] = np.where(deaths == 0, -1, deaths)
    counted = Statistics(found.show[inverse], found.click[inverse], found.last_period[inverse])
    return counted, dies_at[inverse]


def _read_here(stack: TableStack, wanted: Keys) -> tuple[Images, Images]:
    """The images of those in the top tier's cache; what its `contains` says of each. Within the
    turn."""
    with stack.lock:
        cache = stack.cache
        codes = cache.contains(wanted)
        here = wanted[(codes == STORED) | (codes == DIRTY)]
        images: Images = np.empty((len(here), stack.layout.row_bytes), np.uint8)
        if len(here):
            plan = cache.make_plan(here, stack.take_plan())
            cache.find(plan, 0, -1)
            cache.read_rows(plan, images)
            stack.keep_plan(plan)
    return images, codes
