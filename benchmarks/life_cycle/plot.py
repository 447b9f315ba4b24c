"""`python -m benchmarks.life_cycle.plot RESULT.json OUT.png`: bytes on disk against AUC, a point a
setting.

Above it: a caller that records a result. Below it: matplotlib, of the extra `bench`.
"""

from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib import pyplot

from benchmarks.common.plots import command

BASELINE = "none"


class Point(NamedTuple):
    """A setting: its bytes over the baseline's, the difference in AUC, and its 95 % interval."""

    bytes: float
    difference: float
    low: float
    high: float


def points(result: dict[str, Any]) -> dict[str, Point]:
    """By setting; the baseline first."""
    found = {BASELINE: Point(1.0, 0.0, 0.0, 0.0)}
    rows = [row for row in result["rows"] if row["setting"] != BASELINE]
    sizes = {
        row["setting"]: row["value"] / row["baseline_value"]
        for row in rows
        if row["unit"] == "bytes on disk"
    }
    for row in rows:
        if row["unit"] == "AUC":
            size = sizes[row["setting"]]
            found[row["setting"]] = Point(size, row["difference"], row["low"], row["high"])
    return found


def best(of: dict[str, Point]) -> list[str]:
    """The settings that no other one beats in both: those of Pareto's front, by their bytes."""
    return [
        name
        for name, one in sorted(of.items(), key=lambda item: item[1].bytes)
        if not any(
            other.bytes <= one.bytes and other.difference > one.difference for other in of.values()
        )
    ]


def plot(result: dict[str, Any], out: Path) -> None:
    """Writes the picture of a result."""
    matplotlib.use("Agg")
    of = points(result)
    figure, axes = pyplot.subplots(figsize=(9, 6), layout="constrained")
    for name, one in of.items():
        spread = [[one.difference - one.low], [one.high - one.difference]]
        axes.errorbar(100 * one.bytes, one.difference, spread, fmt="o", capsize=3, label=name)
    front = [of[name] for name in best(of)]
    axes.plot([100 * one.bytes for one in front], [one.difference for one in front], "--", lw=1)
    axes.axhline(-0.001, color="grey", lw=0.8)
    axes.set_xlabel("bytes on disk, % of the table without any setting")
    axes.set_ylabel("difference in AUC, with its 95 % interval")
    axes.legend(fontsize=8)
    shape = result["axes"]
    axes.set_title(
        f"life_cycle at {result['commit']}: {shape['periods']} days of {shape['examples']:,} "
        f"examples, {shape['seeds']} seeds",
        fontsize=10,
    )
    figure.savefig(out, dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    raise SystemExit(command("life_cycle", plot))
