"""What several ranks did: totals, and which of them the others waited for.

Above it: the training run, `hps train`, which prints the table. Below it: `TrainingRanks`, the
clocks of pipelines and channels.
"""

from collections.abc import Mapping, Sequence
from statistics import median

from hps.common.json_text import Json, JsonView

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


def sum_tiers(tiers_of_ranks: Sequence[Mapping[str, JsonView]]) -> Json:
    """The numbers of each tier, added up over the ranks; what is no number is rank 0's.

    >>> sum_tiers([{"dram_cache": {"hits": 1}}, {"dram_cache": {"hits": 2}}])
    {'dram_cache': {'hits': 3}}
    """
    sums: Json = {}
    for tier, numbers in tiers_of_ranks[0].items():
        sums[tier] = {
            name: sum(tiers[tier].get(name, 0) for tiers in tiers_of_ranks)
            if isinstance(value, int | float) and not isinstance(value, bool)
            else value
            for name, value in numbers.items()
        }
    return sums


def format_ranks(ranks: JsonView) -> str:
    """The straggler table for people: a line a stage."""
    lines = [f"{'stage':<14}{'slowest rank':>14}{'own work s':>14}{'median s':>12}{'ratio':>8}"]
    for stage, found in ranks["stragglers"].items():
        lines.append(
            f"{stage:<14}{found['rank']:>14}{found['seconds']:>14.2f}"
            f"{found['median_seconds']:>12.2f}{found['ratio']:>8.2f}"
        )
    sent = max(ranks["bytes_sent"]) / 2**20
    lines.append(f"{ranks['size']} ranks; the one that sent most to others sent {sent:,.1f} MiB")
    return "\n".join(lines)
