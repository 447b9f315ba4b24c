"""What several ranks did: totals, and the table of those that the others waited for.

Above it: the training run, `hps train`, which prints the table. Below it: hps/report/stragglers.py,
which finds them.
"""

from collections.abc import Mapping, Sequence

from hps.common.json_text import Json, JsonView


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
