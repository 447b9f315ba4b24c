"""Metrics of several ranks as one.

Above it: evaluate.py, progressive.py. Below it: `hps.metrics`, `hps.group_metrics`,
`TrainingRanks`.
"""

import numpy as np
import torch

from hps.group_metrics import GroupMetrics, group_figures
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


def joined_group_figures(metrics: GroupMetrics, ranks: TrainingRanks) -> dict[str, float]:
    """GAUC over what all ranks have seen, on every rank, in the bits of one that has seen it all.

    Each group goes to one rank, by its key; every rank calls it.

    Cost: 16 bytes for each example that goes to another rank, and for each group to every rank.
    """
    if ranks.world is None:
        return metrics.compute()
    channel, entries = ranks.world.control, metrics.entries()
    owners = entries[:, 0].view(np.uint64) % np.uint64(ranks.size)
    parts = [torch.from_numpy(entries[owners == rank]) for rank in range(ranks.size)]
    own = GroupMetrics()
    for part in channel.all_to_all(parts):
        own.add_entries(part.numpy())
    impressions, terms = own.terms()
    both = torch.from_numpy(np.column_stack([impressions, terms.view(np.int64)]))
    of_ranks = [part.numpy() for part in channel.all_to_all([both] * ranks.size)]
    return group_figures(
        [(part[:, 0], np.ascontiguousarray(part[:, 1]).view(np.float64)) for part in of_ranks]
    )
