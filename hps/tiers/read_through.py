"""A pull that takes no slot: of rows that are here from their slots, of others from below.

Above it: top_tier.py. Below it: cached_tier.py, the cache.
"""

import numpy as np

from hps.common.arrays import on_host, put_rows
from hps.common.row_layout import Floats, Keys
from hps.tiers.cached_tier import MAX_SCRATCH_BYTES, CachedTier


def read_through(tier: CachedTier, keys: Keys, out: Floats) -> int:
    """Embeddings of keys [L] into out [L, D] without taking a slot: the disk is full, or every
    slot is pinned. Returns how many distinct keys were not here."""
    unique, inverse = np.unique(on_host(keys), return_inverse=True)
    weights: Floats = np.empty((len(unique), tier.layout.dim), np.float32)
    with tier.turn:
        with tier.lock, tier.counters:
            is_here = tier.cache.contains(unique) != 0
            here, away = np.flatnonzero(is_here), np.flatnonzero(~is_here)
            if len(here):
                plan = tier.cache.make_plan(unique[here], None)
                found_here: Floats = np.empty((len(here), tier.layout.dim), np.float32)
                tier.cache.find(plan, 0, -1)
                tier.cache.gather(plan, found_here)
                weights[here] = found_here
            initial: Floats = np.empty((len(away), tier.layout.dim), np.float32)
            tier.cache.initial_weights(unique[away], initial)
            weights[away] = initial
        piece = max(1, MAX_SCRATCH_BYTES // tier.layout.row_bytes)
        for first in range(0, len(away), piece):
            idx = away[first : first + piece]
            rows, found = tier.fetch_below(unique[idx])
            stored = np.flatnonzero(found)
            weights[idx[stored]] = tier.layout.weights(rows)[stored]
    put_rows(weights, inverse, out)
    return len(away)
