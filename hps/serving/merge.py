"""Batches of several requests as one.

Above it: batcher.py. Below it: numpy, torch.
"""

from collections.abc import Sequence

import numpy as np
import torch

from hps.common.arrays import HostArray
from hps.types import Batch, Ids


def merged(batches: Sequence[Batch]) -> Batch:
    """One batch of the examples of several, in their order.

    Args:
        batches: of one model: the same tables and features, as many dense columns.

    >>> import torch
    >>> one = Batch({"ads": Ids(torch.tensor([7]), torch.tensor([0, 1]))}, torch.zeros(1, 0),
    ...             torch.zeros(1))
    >>> both = merged([one, one])
    >>> len(both), both.features["ads"].keys_L.tolist()
    (2, [7, 7])
    """
    if len(batches) == 1:
        return batches[0]
    sizes = [len(batch) for batch in batches]
    return Batch(
        {
            table: _joined([batch.features[table] for batch in batches], sizes)
            for table in batches[0].features
        },
        torch.cat([batch.dense for batch in batches]),
        torch.cat([batch.labels for batch in batches]),
    )


def _joined(parts: Sequence[Ids], sizes: Sequence[int]) -> Ids:
    """Ids of all parts: feature-major, so that each feature's bags of all parts follow another."""
    keys = [part.keys_L.numpy() for part in parts]
    offsets = [part.offsets.numpy() for part in parts]
    lengths = np.concatenate(
        [
            np.diff(one).reshape(-1, size) if size else np.zeros((0, 0), np.int64)
            for one, size in zip(offsets, sizes, strict=True)
        ],
        axis=1,
    )
    joined_offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths.reshape(-1), out=joined_offsets[1:])
    weights = None
    if any(part.weights_L is not None for part in parts):
        weights = [
            np.ones(len(part.keys_L), np.float32)
            if part.weights_L is None
            else part.weights_L.numpy()
            for part in parts
        ]
    num_features = len(lengths)
    if lengths.size and (lengths == 1).all():  # one key a bag, as most logs have it

        def join(arrays: list[HostArray]) -> HostArray:
            shaped = [one.reshape(num_features, -1) for one in arrays]
            return np.concatenate(shaped, axis=1).reshape(-1)

    else:

        def join(arrays: list[HostArray]) -> HostArray:
            pieces = [
                one[ends[feature * size] : ends[(feature + 1) * size]]
                for feature in range(num_features)
                for one, ends, size in zip(arrays, offsets, sizes, strict=True)
            ]
            return np.concatenate(pieces)

    return Ids(
        torch.from_numpy(join(keys)),
        torch.from_numpy(joined_offsets),
        None if weights is None else torch.from_numpy(join(weights)),
    )
