"""Which of several ranks the others waited for.

Above it: hps/train/figures.py, hps/dashboard/collector.py. Below it: nothing; the seconds are those
of the clocks of pipelines and channels.
"""

from collections.abc import Mapping, Sequence
from statistics import median

Stages = Mapping[str, Mapping[str, float]]


def find_stragglers(stages_of_ranks: Sequence[Stages]) -> dict[str, dict[str, float]]:
    """Stage -> the rank with most work of its own there, against the median of all ranks.

    Work of its own is what is left of the busy seconds without the exchanges, in which ranks wait
    for each other. Stages without any are left out.

    Returns:
        Stage -> {"rank", "seconds", "median_seconds", "ratio"}.

    >>> quick = {"compute": {"busy_seconds": 3.0, "exchange_seconds": 2.0}}
    >>> slow = {"compute": {"busy_seconds": 3.0}}
    >>> find_stragglers([quick, slow, quick])["compute"]
    {'rank': 1, 'seconds': 3.0, 'median_seconds': 1.0, 'ratio': 3.0}
    """
    found = {}
    for stage in stages_of_ranks[0]:
        times = [stages[stage] for stages in stages_of_ranks]
        own = [
            max(of_rank["busy_seconds"] - of_rank.get("exchange_seconds", 0.0), 0.0)
            for of_rank in times
        ]
        most, middle = max(own), median(own)
        if middle > 0:
            found[stage] = {
                "rank": own.index(most),
                "seconds": most,
                "median_seconds": middle,
                "ratio": most / middle,
            }
    return found
