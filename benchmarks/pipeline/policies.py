"""What other rules of eviction would have hit on the same batches: LRU, LRU that knows what comes,
and the offline optimum (Belady: out goes what is used latest).

Above it: lookahead.py. Below it: nothing. A batch's distinct keys are looked up at once; its own
rows are no victims. Rules are exact and fully associative, so they have no bucket to be full.
"""

import heapq
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

_NEVER = 1 << 60
Batches = Sequence[np.ndarray]  # each int64 [N], distinct


def lru_hits(batches: Batches, capacity: int, window: int = 0) -> list[int]:
    """Hits of each batch under LRU; rows that the next `window` batches use go only if all do."""
    used: OrderedDict[int, None] = OrderedDict()
    hits = []
    for number, batch in enumerate(batches):
        keys = batch.tolist()
        ahead: set[int] = set()
        for coming in batches[number + 1 : number + 1 + window]:
            ahead.update(coming.tolist())
        found = 0
        for key in keys:
            if key in used:
                found += 1
                used.move_to_end(key)
        hits.append(found)
        excess = len(used) + len(keys) - found - capacity
        _evict(used, excess, set(keys), ahead)
        used.update(dict.fromkeys(keys))
    return hits


def _evict(used: "OrderedDict[int, None]", excess: int, pinned: set[int], ahead: set[int]) -> None:
    victims: list[int] = []
    wanted: list[int] = []
    for key in used:
        if len(victims) >= excess:
            break
        if key not in pinned:
            (wanted if key in ahead else victims).append(key)
    victims += wanted[: max(0, excess - len(victims))]
    for key in victims:
        del used[key]


def optimal_hits(batches: Batches, capacity: int) -> list[int]:
    """Hits of each batch when the row that is used latest goes, which no rule can beat."""
    coming = _next_uses(batches)
    next_use: dict[int, int] = {}  # of what is cached
    latest: list[tuple[int, int]] = []  # heap of (-next use, key); entries may be out of date
    hits = []
    for number, batch in enumerate(batches):
        keys = batch.tolist()
        found = sum(key in next_use for key in keys)
        hits.append(found)
        excess = len(next_use) + len(keys) - found - capacity
        while excess > 0:
            use, key = heapq.heappop(latest)
            # What this batch uses has use == number, the smallest there is: it is never popped.
            if next_use.get(key) == -use:
                del next_use[key]
                excess -= 1
        for key, use in zip(keys, coming[number], strict=True):
            next_use[key] = use
            heapq.heappush(latest, (-use, key))
    return hits


def _next_uses(batches: Batches) -> list[list[int]]:
    """Of each key of each batch: the number of the next batch that uses it."""
    last: dict[int, int] = {}
    coming: list[list[int]] = []
    for number in range(len(batches) - 1, -1, -1):
        keys = batches[number].tolist()
        coming.append([last.get(key, _NEVER) for key in keys])
        last.update(dict.fromkeys(keys, number))
    return coming[::-1]
