"""GAUC by its definition: every pair of every group, in plain Python.

Above it: tests of groups. Below it: numpy.
"""

import math
from typing import Any

import numpy as np


def by_definition(logits: Any, labels: Any, groups: Any) -> tuple[float, int, int]:
    """GAUC, the groups that count, and their examples."""
    terms, num_groups, num_examples = [], 0, 0
    for group in set(groups):
        own = [(float(np.float32(x)), y) for x, y, g in zip(logits, labels, groups, strict=True)
               if g == group]  # fmt: skip
        clicks, others = ([x for x, y in own if y == kind] for kind in (1, 0))
        if not clicks or not others:
            continue
        won = sum((a > b) + 0.5 * (a == b) for a in clicks for b in others)
        terms.append(len(own) * won / (len(clicks) * len(others)))
        num_groups, num_examples = num_groups + 1, num_examples + len(own)
    gauc = math.fsum(terms) / num_examples if num_examples else math.nan
    return gauc, num_groups, num_examples
