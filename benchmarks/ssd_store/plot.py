"""`python -m benchmarks.ssd_store.plot RESULT.json OUT.png`: the figures of record as bars.

Above it: a caller that records a result. Below it: matplotlib, of the extra `bench`.
"""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

from benchmarks.common.plots import command

PANELS = (
    ("get cold", "uniform", "get, cold, uniform keys"),
    ("get cold", "zipf", "get, cold, Zipf 1.05"),
    ("get warm", "uniform", "get, warm, uniform keys"),
    ("put", "uniform", "put, durable, uniform keys"),
)
Bars = dict[str, dict[int, float]]


def bars(rows: list[dict[str, Any]], figure: str, keys: str) -> Bars:
    """Contender -> bytes of a record -> rate; hps first."""
    found: Bars = {"hps": {}}
    for row in rows:
        if (row["figure"], row.get("keys")) != (figure, keys) or row.get("order") == "unsorted":
            continue
        found["hps"][row["record_bytes"]] = row["value"]
        found.setdefault(row["baseline"], {})[row["record_bytes"]] = row["baseline_value"]
    return found


def draw(axes: Any, contenders: Bars, title: str, colours: dict[str, str]) -> None:
    """One panel: a group of bars a size of records, on a logarithmic scale."""
    sizes = sorted(contenders["hps"])
    width = 0.8 / len(contenders)
    for position, (name, rates) in enumerate(contenders.items()):
        places = [group + position * width for group in range(len(sizes))]
        values = [rates.get(size, 0.0) for size in sizes]
        drawn = axes.bar(places, values, width, label=name, color=colours[name])
        axes.bar_label(drawn, fmt="%.2g", fontsize=6)
    axes.set_yscale("log")
    axes.set_ylabel("M keys/s")
    middle = 0.4 - width / 2
    axes.set_xticks([group + middle for group in range(len(sizes))], [f"{s} B" for s in sizes])
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=6)


def plot(result: dict[str, Any], out: Path) -> None:
    """Writes the picture of a result."""
    matplotlib.use("Agg")
    figure, panels = pyplot.subplots(2, 2, figsize=(11, 8), layout="constrained")
    contenders = [bars(result["rows"], name, keys) for name, keys, _ in PANELS]
    names = dict.fromkeys(name for panel in contenders for name in panel)
    colours = {name: f"C{number}" for number, name in enumerate(names)}
    for axes, panel, (_, _, title) in zip(panels.flat, contenders, PANELS, strict=True):
        draw(axes, panel, title, colours)
    machine = result["machine"]
    figure.suptitle(
        f"ssd_store at {result['commit']}: {result['axes']['rows']:,.0f} rows, batches of "
        f"{result['axes']['batch']:,} keys; {machine['cpu']}, {machine['cores']} cores",
        fontsize=11,
    )
    figure.savefig(out, dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    raise SystemExit(command("ssd_store", plot))
