"""Stragglers: the slowest rank of a training and the slowest shard of a service, beside the median.

Above it: collector.py. Below it: hps/report/stragglers.py, which `hps train` ends with, too.
"""

from collections.abc import Iterator, Mapping
from statistics import median

from hps.common.json_text import Json
from hps.report.stragglers import find_stragglers

_LATENCY, _HIGH = "latency/", " p99"


def stragglers_of(
    stages: Mapping[str, Mapping[str, Mapping[str, float]]],
    figures: Mapping[str, Mapping[str, float]],
) -> list[Json]:
    """Of each stage that several trainers have, and of each method that several servers have, the
    one that takes longest.

    Args:
        stages: seconds by stage since the last look, by trainer.
        figures: by server.

    Returns:
        Each {"what", "unit", "slowest", "value", "median", "ratio"}; the greatest ratio first.

    >>> quick, slow = ({"fetch": {"busy_seconds": seconds}} for seconds in (1.0, 3.0))
    >>> found = stragglers_of({"a": quick, "b": slow, "c": quick}, {})
    >>> found[0]["slowest"], found[0]["ratio"]
    ('b', 3.0)
    """
    found = [*_of_stages(stages), *_of_methods(figures)]
    return sorted(found, key=lambda one: -float(one["ratio"]))


def _of_stages(stages: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[Json]:
    names = [name for name in stages if stages[name].keys() == next(iter(stages.values())).keys()]
    if len(names) < 2:
        return
    for stage, one in find_stragglers([stages[name] for name in names]).items():
        yield {
            "what": f"stage {stage}",
            "unit": "seconds",
            "slowest": names[int(one["rank"])],
            "value": one["seconds"],
            "median": one["median_seconds"],
            "ratio": one["ratio"],
        }


def _of_methods(figures: Mapping[str, Mapping[str, float]]) -> Iterator[Json]:
    methods: dict[str, dict[str, float]] = {}
    for server, values in figures.items():
        for name, value in values.items():
            if name.startswith(_LATENCY) and name.endswith(_HIGH):
                method = name.removeprefix(_LATENCY).removesuffix(_HIGH)
                methods.setdefault(method, {})[server] = value
    for method, by_server in methods.items():
        middle = median(by_server.values())
        if len(by_server) < 2 or middle <= 0:
            continue
        slowest = max(by_server, key=lambda one: by_server[one])
        yield {
            "what": f"{method}, 99 of 100",
            "unit": "seconds",
            "slowest": slowest,
            "value": by_server[slowest],
            "median": middle,
            "ratio": by_server[slowest] / middle,
        }
