"""Which stage bounds a run, and what would help: from busy and wait seconds to a sentence.

Above it: `hps train`, users' loops. Below it: what `Pipeline.seconds` returns.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hps.config import MAX_DEPTH

_SATURATED = 0.9  # of the time, from which on a stage or the cores count as never idle
_HELP = {
    "network": "reading and parsing the log: plain text or parquet instead of compressed text, a "
    "faster disk, or more cores",
    "fetch": "finding and fetching rows",
    "copy": "copies between host and device",
    "compute": "forward, backward and step: a faster or smaller model, or larger batches",
}
_NOTICED = 0.01  # of a tier's look-ups, from which on those that went below count
_SERVERS_HELP = "more servers, or more cores for them; a narrower --wire, or larger batches"


@dataclass(frozen=True)
class Bound:
    """What a run waited for most.

    Args:
        stage: the busiest one.
        busy_share: of the run's seconds, 0 to 1.
        cores_share: of the processor time that was at hand, 0 to 1.
        text: one line for people.
    """

    stage: str
    busy_share: float
    cores_share: float
    text: str


def _advice(stage: str, numbers: Mapping[str, float]) -> str:
    """What would help a stage. A larger tier does only where rows give way and come back.

    >>> _advice("fetch", {"lookups": 100, "rows_moved": 0, "rows_again": 0})
    'finding and fetching rows: more cores, or fewer distinct keys a batch'
    """
    if stage not in ("fetch", "copy"):
        return _HELP[stage]
    noticed = max(1.0, _NOTICED * numbers.get("lookups", 0))
    moved, again = numbers.get("rows_moved", 0), numbers.get("rows_again", 0)
    flag, else_less = ("--dram", "fewer distinct keys a batch")
    if stage == "copy":
        flag, else_less = ("--gpu", "smaller rows")
    ways = [else_less]
    if stage == "fetch":
        ways.insert(0, "a faster disk" if moved >= noticed else "more cores")
    if again >= noticed:
        ways.insert(0, f"a larger {flag} ({again:,.0f} rows gave way and were fetched again)")
    return f"{_HELP[stage]}: {', '.join(ways[:-1])}{', or ' if ways[:-1] else ''}{ways[-1]}"


def bound_of(
    stages: Mapping[str, Mapping[str, float]],
    seconds: float,
    cpu_seconds: float,
    num_cores: int,
    depth: int,
    why_depth: str = "",
) -> Bound:
    """The stage that bounds a run.

    Args:
        stages: as `Pipeline.seconds` returns it; of one whose busy seconds contain waits for
            servers also those, as `server_seconds`; of one that moves rows also `lookups` of its
            tier, `rows_moved` from the tier below, and `rows_again` of these, which had been here
            and had given way.
        seconds: of the run.
        cpu_seconds: processor time of the whole process in these seconds.
        num_cores: cores it may use.
        depth: of the pipeline, in the end.
        why_depth: in words, if the program chose depth 0 and not the user; such as "which measured
            faster than overlapping them".

    >>> busy = {"network": 1.0, "fetch": 9.5, "copy": 0.0, "compute": 4.0}
    >>> stages = {stage: {"busy_seconds": value} for stage, value in busy.items()}
    >>> bound_of(stages, 10.0, 6.0, 2, depth=2).text.split(":")[0]
    'bound by fetch, busy 95 % of the time'
    """
    busy = {stage: times["busy_seconds"] for stage, times in stages.items()}
    stage = max(busy, key=lambda name: busy[name])
    share = min(busy[stage] / seconds, 1.0) if seconds > 0 else 0.0
    cores = min(cpu_seconds / (seconds * num_cores), 1.0) if seconds > 0 else 0.0
    name, advice = stage, _advice(stage, stages[stage])
    if stages[stage].get("server_seconds", 0.0) > busy[stage] / 2:
        name, advice = f"the servers, whose answers {stage} waits for", _SERVERS_HELP
    if share >= _SATURATED:
        text = f"bound by {name}, busy {100 * share:.0f} % of the time: {advice}"
    elif cores >= _SATURATED:
        text = (
            f"bound by the {num_cores} cores, busy {100 * cores:.0f} % of the time (most of it in "
            f"{name}): more cores, or less work there"
        )
    elif depth:
        if depth < MAX_DEPTH:
            advice = "a larger --depth evens out stages whose batches differ"
        text = (
            f"bound by no stage alone; the busiest is {name}, {100 * share:.0f} % of the time: "
            f"{advice}"
        )
    elif why_depth:
        text = (
            f"stages one after the other, {why_depth}; the longest is {name}, "
            f"{100 * share:.0f} % of the time: {advice}"
        )
    else:
        text = (
            f"stages one after the other; the longest is {name}, {100 * share:.0f} % of the time: "
            "--depth 2 overlaps them where cores or disk are idle"
        )
    return Bound(stage, share, cores, text)
