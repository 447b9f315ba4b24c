"""`python -m benchmarks.pipeline.plot TRACE.json OUT.png`: some batches of a trace, a lane a stage.

Above it: a caller that shows a run. Below it: matplotlib, of the extra `bench`. A trace is what
`hps train --trace` and the benchmark's `--trace` write; ui.perfetto.dev shows all of it.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

COLOURS = ("#4878a8", "#e08a3c", "#6aa56e", "#b8546a")  # of neighbouring batches
WAIT = "#e4e4e4"


def lanes_of(events: list[dict[str, Any]]) -> dict[int, str]:
    """Lane -> stage, of the stages that did anything."""
    busy = {event["tid"] for event in events if event["ph"] == "X" and "args" in event}
    names = [event for event in events if event["name"] == "thread_name"]
    return {event["tid"]: event["args"]["name"] for event in names if event["tid"] in busy}


def draw(events: list[dict[str, Any]], first: int, count: int, axes: Any) -> None:
    """The time in which `count` batches from number `first` on were computed."""
    slices = [event for event in events if event["ph"] == "X"]
    wanted = range(first, first + count)
    shown = [one for one in slices if one["cat"] == "compute" and one["args"]["batch"] in wanted]
    begin = min(one["ts"] for one in shown)
    end = max(one["ts"] + one["dur"] for one in shown)
    lanes = lanes_of(events)
    for one in slices:
        left, right = max(one["ts"], begin), min(one["ts"] + one["dur"], end)
        if one["tid"] not in lanes or right <= left:
            continue
        number = one.get("args", {}).get("batch")
        colour = WAIT if number is None else COLOURS[number % len(COLOURS)]
        place = list(lanes).index(one["tid"])
        height = 0.4 if number is None else 0.8
        axes.barh(
            place, (right - left) / 1e3, left=(left - begin) / 1e3, height=height, color=colour
        )
        if number is not None and right - left > (end - begin) / 60:
            middle = ((left + right) / 2 - begin) / 1e3
            axes.text(
                middle, place, str(number), ha="center", va="center", fontsize=7, color="white"
            )
    axes.set_yticks(range(len(lanes)), list(lanes.values()))
    axes.invert_yaxis()
    axes.set_xlim(0, (end - begin) / 1e3)
    axes.set_xlabel("ms; a colour a batch, its number on it; grey: the stage waits")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def main() -> int:
    """Reads a trace, writes a picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--first", type=int, default=30, help="number of the first batch")
    parser.add_argument("--batches", type=int, default=6)
    arguments = parser.parse_args()
    matplotlib.use("agg")
    figure, axes = pyplot.subplots(figsize=(9, 1.9))
    draw(json.loads(arguments.trace.read_text()), arguments.first, arguments.batches, axes)
    figure.tight_layout()
    figure.savefig(arguments.out, dpi=110)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
