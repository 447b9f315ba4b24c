"""BagMeans: the mean over a bag for features whose table has others that are sums.

Above it: base.py. Below it: torch. Where all features of a table are means, the look-up itself
divides (`hps.SparseEmbeddings`); a table has one pooling there.
"""

from collections.abc import Mapping, Sequence
from typing import Self

import torch

from hps.nn.feature_layout import Pooling
from hps.types import Batch


def pooling_of(are_means: Mapping[str, Sequence[bool]]) -> dict[str, Pooling]:
    """What the look-up makes of each table: means where all of its features are.

    >>> pooling_of({"items": [True, True], "users": [True, False]})
    {'items': 'mean', 'users': 'sum'}
    """
    return {table: "mean" if all(found) else "sum" for table, found in are_means.items()}


class BagMeans:
    """Divides the sums of some features by the number of keys of each bag.

    As the look-up does it: the sum first, then one division, of a bag of 2 keys or more; in
    backward a gradient is divided before it is spread over the keys. So the bits are the same.

    Args:
        are_means: table -> of each of its features whether it is a mean.
        columns: table -> columns of its rows.
    """

    def __init__(self, are_means: Mapping[str, Sequence[bool]], columns: Mapping[str, int]) -> None:
        # Of a table that is all means the look-up has divided.
        self._is_mean = {
            table: None if all(found) or not any(found) else torch.tensor(found).unsqueeze(1)
            for table, found in are_means.items()
        }
        self._counts = {table: len(found) for table, found in are_means.items()}
        of_each = [columns[table] for table, found in are_means.items() for _ in found]
        self._feature_of = torch.repeat_interleave(torch.tensor(of_each))

    @classmethod
    def of(cls, are_means: Mapping[str, Sequence[bool]], columns: Mapping[str, int]) -> Self | None:
        """Of all tables of a model, as the class takes them; None where the look-up does it all."""
        means = cls(are_means, columns)
        return None if all(found is None for found in means._is_mean.values()) else means

    def are_of(self, table: str, place: int) -> bool:
        """Whether it divides the sums of a table's feature at a place."""
        is_mean = self._is_mean.get(table)
        return is_mean is not None and bool(is_mean[place])

    def __call__(self, pooled: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Of sums [B, all columns] the means, where they are asked for."""
        count, device = len(batch), pooled.device
        divisors = []
        for table, is_mean in self._is_mean.items():
            num_features = self._counts[table]
            if is_mean is None:
                divisors.append(pooled.new_ones(num_features, count))
                continue
            lengths = batch.features[table].offsets.to(device).diff().reshape(num_features, count)
            divisor = lengths.clamp(min=1).to(pooled.dtype)
            divisors.append(torch.where(is_mean.to(device), divisor, torch.ones_like(divisor)))
        of_features = torch.cat(divisors).t()
        return pooled / of_features.index_select(1, self._feature_of.to(device))
