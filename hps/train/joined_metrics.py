"""Metrics of several ranks as one.

Above it: evaluate.py, progressive.py. Below it: `hps.metrics`, `TrainingRanks`.
"""

import numpy as np
import torch

from hps.metrics import BinaryMetrics
from hps.train.ranks import TrainingRanks


def joined_metrics(metrics: BinaryMetrics, ranks: TrainingRanks) -> BinaryMetrics:
    """What all ranks have seen, on every rank: the figures of one that has seen it all."""
    if ranks.world is None:
        return metrics
    state = metrics.state_dict()
    codes, counts = state.pop("codes"), state.pop("counts")
    entries = torch.from_numpy(np.column_stack([codes.astype(np.int64), counts]))
    sums = ranks.gather(state)
    joined = BinaryMetrics(metrics.max_distinct)
    parts = ranks.world.control.all_to_all([entries] * ranks.size)
    for numbers, part in zip(sums, parts, strict=True):
        of_rank = BinaryMetrics(metrics.max_distinct)
        columns = part.numpy()
        of_rank.load_state_dict({**numbers, "codes": columns[:, 0], "counts": columns[:, 1:]})
        joined.merge(of_rank)
    return joined
