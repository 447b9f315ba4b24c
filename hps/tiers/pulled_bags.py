"""pool_pulled: bags of rows that are pulled to the host first, each key's once.

Above it: top_tier.py, for keys that cannot be held at once; `hps.train`, for rows that are read
from elsewhere. Below it: `hps._C.ShardPlan`, which pools as a cache does, with the same bits.
"""

from collections.abc import Callable

import numpy as np

from hps import _C
from hps.common.arrays import AnyArray, PoolArguments, is_tensor, put, to_host
from hps.common.row_layout import Floats, Keys


def pool_pulled(
    pull: Callable[[Keys, Floats], object], dim: int, keys: Keys, bags: PoolArguments, out: AnyArray
) -> None:
    """Sums or means of bags of keys [L] into out [B, F * dim], an array or a tensor on a device.

    Args:
        pull: writes rows of distinct keys [N] to [N, dim].
        dim: of a row.
        keys: uint64 [L], on the host.
        bags: of the keys.
        out: float32.
    """
    plan = _C.ShardPlan([0])
    plan.build(keys)
    rows: Floats = np.empty((plan.num_unique, dim), np.float32)
    pull(plan.unique_keys, rows)
    offsets, weights, mean = bags
    pooled = np.empty(tuple(out.shape), np.float32) if is_tensor(out) else out
    plan.pool([rows], to_host(offsets), None if weights is None else to_host(weights), mean, pooled)
    if is_tensor(out):
        put(pooled, out)
