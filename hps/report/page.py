"""One self-contained HTML page with the plots of training runs, several side by side.

Above it: `hps report`, `hps train --report`. Below it: runs.py, plots.py; plotly, whose script is
put into the page: it needs no network.
"""

import html
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from hps.common.json_text import Json
from hps.errors import ConfigError, StoreError
from hps.report.runs import Run

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1100px; color: #222 }
h1 { font-size: 1.4em } h2 { font-size: 1.1em; margin-top: 2em }
table { border-collapse: collapse } td, th { padding: .15em 1em .15em 0; text-align: left }
td.n, th.n { text-align: right } code { background: #f4f4f4; padding: .1em .3em }
"""
# A browser then asks no network for anything, whatever the names of a run hold.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
# Of a run's figures, those that the first table shows, and how.
_HEADLINE = {
    "model": "{}",
    "examples": "{:,}",
    "seconds": "{:.1f}",
    "examples_per_second": "{:,.0f}",
    "total_examples": "{:,}",
    "train_logloss": "{:.5f}",
    "test_auc": "{:.5f}",
    "test_logloss": "{:.5f}",
    "test_calibration": "{:.4f}",
    "rows": "{:,}",
    "validation_seconds": "{:.1f}",
    "checkpoints": "{:,}",
    "skipped_lines": "{:,}",
    "stopped": "{}",
}


def require_plotly() -> None:
    """Refuses what ends with a page that cannot be written.

    Raises:
        ConfigError: the package plotly is not installed.
    """
    if find_spec("plotly") is None:
        raise ConfigError("a report needs the package plotly; pip install 'hps-ctr[report]'")


def write_page(runs: Sequence[Run], out: str | Path) -> None:
    """Writes the page, whole or not at all.

    Args:
        runs: at least one.
        out: the file; one that is there is replaced.

    Raises:
        ConfigError: the package plotly is not installed.
        StoreError: the file cannot be written.
    """
    require_plotly()
    from plotly.offline import get_plotlyjs

    from hps.report.plots import figures_of

    runs = _named_apart(runs)
    parts = [_headline(runs)]
    for title, figure in figures_of(runs):
        plot = figure.to_html(
            full_html=False, include_plotlyjs=False, config={"displaylogo": False}
        )
        parts.append(f"<h2>{html.escape(title)}</h2>\n{plot}")
    parts += [_of_run(run) for run in runs]
    title = html.escape("hps: " + ", ".join(run.name for run in runs))
    page = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n<script>{get_plotlyjs()}</script></head>\n"
        f"<body><h1>{title}</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )
    _replace(Path(out), page)


def _replace(out: Path, page: str) -> None:
    out = out.resolve()  # a link stays one
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        try:
            beside.write_text(page, encoding="utf-8")
            beside.replace(out)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(error.errno, f"cannot write {out}: {error.strerror}") from error


def _named_apart(runs: Sequence[Run]) -> list[Run]:
    """Runs of one name get a number."""
    names = [run.name for run in runs]
    return [
        run
        if names.count(run.name) == 1
        else Run(f"{run.name} ({idx + 1})", run.figures, run.history)
        for idx, run in enumerate(runs)
    ]


def _headline(runs: Sequence[Run]) -> str:
    head = "".join(f'<th class="n">{html.escape(run.name)}</th>' for run in runs)
    lines = [f"<tr><th></th>{head}</tr>"]
    for name, form in _HEADLINE.items():
        values = [run.figures.get(name) for run in runs]
        if any(value is not None for value in values):
            cells = "".join(f'<td class="n">{_shown(value, form)}</td>' for value in values)
            lines.append(f"<tr><td>{name.replace('_', ' ')}</td>{cells}</tr>")
    best = [run.figures.get("best") for run in runs]
    if any(best):
        cells = "".join(f'<td class="n">{_best(one)}</td>' for one in best)
        lines.append(f"<tr><td>best validation</td>{cells}</tr>")
    memory = [run.figures.get("peak_rss_bytes", 0) / 2**20 for run in runs]
    cells = "".join(f'<td class="n">{value:,.0f}</td>' for value in memory)
    lines.append(f"<tr><td>peak memory, MiB</td>{cells}</tr>")
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def _best(entry: Json | None) -> str:
    """A validation's figures; one of clicks alone has no AUC."""
    if entry is None:
        return ""
    told = [
        f"{name} {entry[name]:.5f}" for name in ("auc", "logloss") if entry.get(name) is not None
    ]
    return f"{', '.join(told)} after {entry['examples']:,}"


def _shown(value: object, form: str) -> str:
    return "" if value is None else html.escape(form.format(value))


def _of_run(run: Run) -> str:
    """How to repeat a run, what bounds it, its columns."""
    parts = [f"<h2>{html.escape(run.name)}</h2>"]
    if run.figures.get("command"):
        parts.append(f"<p>to repeat it: <code>{html.escape(run.figures['command'])}</code></p>")
    if "bound" in run.figures:
        parts.append(f"<p>{html.escape(run.figures['bound']['text'])}</p>")
    if run.figures.get("columns"):
        parts.append(_columns(run.figures["columns"]))
    return "\n".join(parts)


def _columns(columns: Sequence[Json]) -> str:
    names = ("name", "kind", "type", "why", "mean", "root_mean_square", "min", "max")
    shown = [name for name in names if any(column.get(name) is not None for column in columns)]
    head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in shown)
    lines = [f"<tr>{head}</tr>"]
    for column in columns:
        values = [column.get(name) for name in shown]
        texts = [f"{value:.4g}" if isinstance(value, float) else value for value in values]
        cells = [html.escape("" if text is None else str(text)) for text in texts]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "<table>\n" + "\n".join(lines) + "\n</table>"
