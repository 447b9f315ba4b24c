"""The plots of a page: losses and AUC over examples, calibration, scores, hit rates, stages.

Above it: page.py. Below it: runs.py, plotly.
"""

import html
from collections.abc import Iterator, Sequence
from typing import Any

import plotly.graph_objects as go

from hps.common.json_text import Json
from hps.report.history import TRAIN, VALID
from hps.report.runs import Run

# The live figures are of examples that come next: before the model is trained on them.
_WHAT = {"logloss": ", trained on next", "auc": ", trained on next"}
_COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")


def figures_of(runs: Sequence[Run]) -> Iterator[tuple[str, Any]]:
    """Title and plotly figure of each plot that there is something for."""
    plots = (
        ("Logloss", _curves(runs, "logloss")),
        ("AUC", _curves(runs, "auc")),
        ("Calibration", _reliability(runs)),
        ("Scores", _scores(runs)),
        ("Hit rates of the tiers", _curves(runs, "hit_rate/")),
        ("Examples a second", _curves(runs, "examples_per_second")),
        ("Time of the stages", _stages(runs)),
    )
    for title, figure in plots:
        if figure.data:
            for trace in figure.data:  # plotly reads <b> and &amp; in names as HTML has them
                trace.name = html.escape(trace.name, quote=False)
            figure.update_layout(
                height=380, margin={"t": 20, "b": 40}, template="plotly_white", showlegend=True
            )
            yield title, figure


def _curves(runs: Sequence[Run], name: str) -> Any:
    """A figure over examples; of a name that ends in "/", all figures under it."""
    figure = go.Figure()
    for run, color in zip(runs, _repeated(len(runs)), strict=True):
        names = [name]
        if name.endswith("/"):
            names = sorted({key for line in run.of_kind(TRAIN) for key in line if name in key})
        for key in names:
            what = f": {key.removeprefix(name)}" if key != name else _WHAT.get(key, "")
            _add(figure, f"{run.name}{what}", run.of_kind(TRAIN), key, color, "lines")
        _add(figure, f"{run.name}, --valid", _evaluations(run), name, color, "lines+markers")
        of_test = run.figures.get(f"test_{name}")
        if of_test is not None:
            at = [{"examples": run.figures["total_examples"], name: of_test}]
            _add(figure, f"{run.name}, --test", at, name, color, "markers")
    figure.update_xaxes(title="examples trained on")
    return figure


def _add(figure: Any, title: str, lines: Sequence[Json], name: str, color: str, mode: str) -> None:
    lines = [line for line in lines if line.get(name) is not None]
    if lines:
        x = [line["examples"] for line in lines]
        y = [line[name] for line in lines]
        line_of = {"color": color, "width": 1 if mode == "lines" else 2}
        if len(lines) == 1:
            mode = "markers"  # of one point no line is drawn
        figure.add_trace(go.Scatter(x=x, y=y, name=title, mode=mode, line=line_of))


def _evaluations(run: Run) -> list[Json]:
    """Of its figures, which hold those of runs before it, too; else of its history."""
    return list(run.figures.get("evaluations") or run.of_kind(VALID))


def _reliability(runs: Sequence[Run]) -> Any:
    figure = go.Figure()
    for run, color in zip(runs, _repeated(len(runs)), strict=True):
        bins = (run.figures.get("scores") or {}).get("reliability", ())
        if bins:
            figure.add_trace(
                go.Scatter(
                    x=[one["predicted"] for one in bins],
                    y=[one["clicks"] / one["examples"] for one in bins],
                    text=[f"{one['examples']:,} examples" for one in bins],
                    name=f"{run.name}, {run.figures['scores']['log']}",
                    mode="lines+markers",
                    line={"color": color},
                )
            )
    if figure.data:
        figure.add_trace(
            go.Scatter(x=[0, 1], y=[0, 1], name="exact", mode="lines", line={"dash": "dot"})
        )
        figure.update_xaxes(title="mean prediction of a bin")
        figure.update_yaxes(title="share of clicks in it")
    return figure


def _scores(runs: Sequence[Run]) -> Any:
    figure = go.Figure()
    for run, color in zip(runs, _repeated(len(runs)), strict=True):
        counts = (run.figures.get("scores") or {}).get("histogram", ())
        for place, what in enumerate(("no click", "click")):
            if counts:
                width = 1 / len(counts)
                figure.add_trace(
                    go.Scatter(
                        x=[(idx + 0.5) * width for idx in range(len(counts))],
                        y=[pair[place] for pair in counts],
                        name=f"{run.name}, {what}",
                        mode="lines",
                        line={"color": color, "shape": "hvh", "dash": "solid" if place else "dot"},
                    )
                )
    figure.update_xaxes(title="predicted probability")
    figure.update_yaxes(title="examples")
    return figure


def _stages(runs: Sequence[Run]) -> Any:
    figure = go.Figure()
    for run, color in zip(runs, _repeated(len(runs)), strict=True):
        stages = run.figures.get("stages", {})
        if stages:
            busy = [times["busy_seconds"] for times in stages.values()]
            figure.add_trace(go.Bar(x=list(stages), y=busy, name=run.name, marker_color=color))
    figure.update_yaxes(title="busy, seconds")
    return figure


def _repeated(count: int) -> list[str]:
    return [_COLORS[idx % len(_COLORS)] for idx in range(count)]
