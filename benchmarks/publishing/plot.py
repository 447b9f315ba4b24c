"""`python -m benchmarks.publishing.plot RESULT.json OUT.png`: freshness, calls beside new versions.

Above it: a caller that records a result. Below it: matplotlib, of the extra `bench`.
"""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

from benchmarks.common.plots import command
from benchmarks.publishing.publishing_bench import SHARES

CALLS = {
    "alone": "no new version",
    "beside new versions": "versions published elsewhere",
    "still": "beside a trainer that publishes none",
    "beside a trainer": "beside a trainer that publishes",
}


def plot(result: dict[str, Any], out: Path) -> None:
    """Writes the picture of a result."""
    matplotlib.use("Agg")
    figure, (ages, calls) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    curves, axes = result["curves"], result["axes"]
    ages.plot([1000 * age for age in curves["ages"]], SHARES, marker="o", markersize=3)
    ages.set_xlabel("ms from a push to the first call that is scored with it")
    ages.set_ylabel("share of versions")
    ages.set_xlim(left=0)
    ages.set_title(f"freshness, {axes['changes']:,} changed rows a second", fontsize=10)
    shown = [place for place, share in enumerate(SHARES) if 0.5 <= share < 1]
    for name, title in CALLS.items():
        values = [1000 * curves[name][place] for place in shown]
        calls.plot(range(len(shown)), values, marker="o", markersize=3, label=title)
    calls.set_xticks(range(len(shown)), [f"p{100 * SHARES[place]:g}" for place in shown])
    calls.set_ylabel("ms a call of 200 candidates")
    calls.set_ylim(bottom=0)
    calls.set_title("calls of one client in process", fontsize=10)
    calls.legend(fontsize=7)
    machine = result["machine"]
    figure.suptitle(
        f"publishing at {result['commit']}: {axes['rows']:,.0f} rows of dim {axes['dim']}; "
        f"{machine['cpu']}, {machine['cores']} cores",
        fontsize=11,
    )
    figure.savefig(out, dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    raise SystemExit(command("publishing", plot))
