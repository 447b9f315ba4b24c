"""What a table tells of a batch that it refuses.

Above it: top_tier.py. Below it: hps.errors.
"""

from hps.contracts.row_cache import AnyRowCache
from hps.errors import CapacityError, NonFiniteError

_MAX_PINS = 255  # of one slot
_BUDGETS = {
    "dram_cache": "DramCacheConfig.bytes (--dram)",
    "gpu_cache": "GpuCacheConfig.bytes (--gpu)",
}


def non_finite(table: str, key: int) -> NonFiniteError:
    """The sum of a key's gradients is not finite, or the step would make its row so."""
    return NonFiniteError(
        f"table {table!r}, key {key}: the summed gradient is NaN or infinite, or the step "
        f"would make its row so; no row was changed. Look for a diverged loss or a rate too "
        f"high, or skip the step as torch.amp.GradScaler does (hps verify finds rows that hold "
        f"NaN already)"
    )


def pinned_too_often(table: str, num_keys: int) -> CapacityError:
    """One of the keys takes no further pin."""
    return CapacityError(
        f"{_refused(table, num_keys)}one of them is pinned {_MAX_PINS} times already, which is the "
        "most; lower accumulate or depth, so that fewer batches with it are in flight"
    )


def no_room(table: str, num_keys: int, tier: str, cache: AnyRowCache) -> CapacityError:
    """A tier has too few slots for the keys, or too few in the buckets that they hash to."""
    slots, pins = cache.capacity_rows, cache.pins
    crowded = (
        ", which are too few: a key's row can lie in two buckets alone, so that not every slot can "
        "be used; 1.5 slots a key of the batches in flight are enough"
        if num_keys + pins <= slots
        else ""
    )
    return CapacityError(
        f"{_refused(table, num_keys)}the {tier} has {slots} slots and {pins} "
        f"pins on them{crowded}; raise {_BUDGETS[tier]} or the table's share, make batches "
        f"smaller, or lower the depth or accumulate of a pipeline"
    )


def _refused(table: str, num_keys: int) -> str:
    return f"table {table!r}: {num_keys} distinct keys cannot be pinned at once: "
