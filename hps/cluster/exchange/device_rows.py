"""The parts of an exchange that run where the model computes: occurrences and sums on a GPU.

Above it: cluster_rows.py, gradient_exchange.py. Below it: torch. On the host `hps._C.ShardPlan`
does the same; here only its order of the distinct keys is used.
"""

from itertools import pairwise

import numpy as np
import torch

from hps import _C


def places_of(plan: _C.ShardPlan, device: str) -> torch.Tensor:
    """int64 [L]: the place of each occurrence's key among the plan's distinct keys."""
    starts = plan.starts
    numbers = np.arange(plan.num_unique, dtype=np.int64).view(np.float32).reshape(-1, 2)
    parts = [numbers[first:end] for first, end in pairwise(starts)]
    # The plan copies rows of floats; what bits they hold does not matter to it.
    places = np.empty((plan.num_occurrences, 2), np.float32)
    plan.scatter(parts, places)
    return torch.from_numpy(places.view(np.int64).reshape(-1)).to(device)


def sums_of(grads: torch.Tensor, places: torch.Tensor, num_unique: int) -> torch.Tensor:
    """The sum of each distinct key's gradients, in order of occurrence, float32 [N, D].

    Args:
        grads: float32 [L, D].
        places: int64 [L], as `places_of` gives them.
        num_unique: N, above 0.
    """
    order = torch.argsort(places, stable=True)
    lengths = torch.bincount(places, minlength=num_unique)
    sums: torch.Tensor = torch.segment_reduce(grads[order], "sum", lengths=lengths, initial=0)
    return sums
