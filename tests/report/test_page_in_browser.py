"""The page of plots in a browser: its scripts run, ask nothing of a network, and draw the figures.

Above it: pytest. Below it: `hps report`; browser.py, which needs Chromium: `make chromium`.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hps.cli.main import main
from tests.logs import write_criteo
from tests.report.browser import Element, Shown, find_browser, show
from tools.chromium_page import NAMES

pytest.importorskip("plotly")
BROWSER = find_browser() or ""
pytestmark = pytest.mark.skipif(
    not BROWSER,
    reason=f"no browser: HPS_CHROMIUM names none, and none of {', '.join(NAMES)} is on the PATH; "
    "make chromium",
)
PIXELS = 1.0  # that a point may be off, of a drawing that is 300 high
AXES = ("xtick", "ytick")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Name -> figures of two runs, and under "page" the page of both."""
    folder = tmp_path_factory.mktemp("runs")
    log = write_criteo(folder / "log.txt", 1500, num_keys=2000)
    found: dict[str, Any] = {}
    for name, rate in (("a <b> & 'ü'", "0.01"), ("y", "0.2")):
        small = ["--dim", "4", "--hidden", "8", "--batch-size", "100", "--dram", "8MiB"]
        told = ["--progress-seconds", "0", "--report", str(folder / name), "--lr", rate]
        valid = ["--valid", str(log), "--eval-every", "5", "--test", str(log)]
        store = ["--store", str(folder / f"store-{len(found)}")]
        assert main(["train", str(log), *store, *small, *told, *valid]) == 0
        found[name] = json.loads((folder / name / "run.json").read_text())
        history = map(json.loads, (folder / name / "run.jsonl").read_text().splitlines())
        trained = [[line["examples"], line["auc"]] for line in history if line["kind"] == "train"]
        found[name]["trained"] = trained
    found["page"] = folder / "both # 1.html"
    names = [str(folder / name) for name in found if name != "page"]
    assert main(["report", *names, "--out", str(found["page"])]) == 0
    return found


@pytest.fixture(scope="module")
def shown(runs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return show(BROWSER, runs["page"], tmp_path_factory.mktemp("browser"))


def figures_of(runs: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, figures) for name, figures in runs.items() if name != "page"]


def test_no_script_fails_and_nothing_is_asked_of_a_network(shown: Shown) -> None:
    assert shown.console == []
    assert shown.asked == []


def test_a_script_that_fails_and_a_page_that_asks_a_network_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    text = "<p>before</p><script>document.body.append('drawn'); undefined_function()</script>"
    page.write_text(text + '<img src="http://pictures.example/a.png">', encoding="utf-8")
    (tmp_path / "browser").mkdir()
    bad = show(BROWSER, page, tmp_path / "browser")
    assert "undefined_function is not defined" in bad.console[0]
    assert bad.asked == ["http://pictures.example/a.png"]
    (body,) = bad.page.all("body")
    assert [child for child in body.children if isinstance(child, str)] == ["drawn"]


def rows_of(table: Element) -> list[list[str]]:
    return [
        [cell.text for cell in row.children if isinstance(cell, Element)] for row in table.all("tr")
    ]


def test_the_tables_hold_the_figures_of_both_runs(shown: Shown, runs: dict[str, Any]) -> None:
    headline, *columns = [rows_of(table) for table in shown.page.all("table")]
    both = figures_of(runs)
    assert headline[0] == ["", *(name for name, _ in both)]
    lines = {line[0]: line[1:] for line in headline}
    assert lines["test auc"] == [f"{figures['test_auc']:.5f}" for _, figures in both]
    assert lines["rows"] == [f"{figures['rows']:,}" for _, figures in both]
    assert lines["model"] == [figures["model"] for _, figures in both]
    for table, (_, figures) in zip(columns, both, strict=True):
        assert [line[0] for line in table[1:]] == [one["name"] for one in figures["columns"]]
    commands = [code.text for code in shown.page.all("code")]
    assert commands == [figures["command"] for _, figures in both]


def drawing(shown: Shown, title: str) -> Element:
    """The plot under a heading."""
    (body,) = shown.page.all("body")
    elements = [child for child in body.children if isinstance(child, Element)]
    places = [idx for idx, one in enumerate(elements) if one.tag == "h2" and one.text == title]
    assert len(places) == 1, title
    plot = elements[places[0] + 1]
    assert [one.tag for one in plot.all("svg", "main-svg")], f"{title}: nothing is drawn"
    return plot


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text)]


def place(element: Element) -> list[float]:
    """What it is moved by, in pixels: right and down."""
    found = re.search(r"translate\(([^)]*)\)", element.attributes.get("transform", ""))
    assert found is not None, element
    moved = numbers(found[1])
    return [*moved, 0.0][:2]


Line = tuple[float, float, float]


def axis(plot: Element, name: str, side: int) -> Line:
    """A pixel, its value, and the value of a pixel, by the outermost marks of an axis."""
    marks = []
    for mark in plot.all("g", name):
        (text,) = mark.all("text")
        said = text.attributes["data-unformatted"].replace("−", "-").replace("k", "e3")
        marks.append((place(text)[side], float(said)))
    (first, low), (last, high) = marks[0], marks[-1]
    return first, low, (high - low) / (last - first)


def curves_of(plot: Element) -> list[list[list[float]]]:
    """x and y of the marked points, trace by trace, read off the drawing and its axes."""
    (area,) = (one for one in plot.all("g", "xy") if "transform" in one.attributes)
    axes = [axis(plot, "xtick", 0), axis(plot, "ytick", 1)]
    return [
        [
            [
                low + (moved + pixel - first) * each
                for moved, pixel, (first, low, each) in zip(
                    place(area), place(point), axes, strict=True
                )
            ]
            for point in trace.all("path", "point")
        ]
        for trace in plot.all("g", "trace")
    ]


def test_the_curves_of_auc_are_drawn_where_the_figures_say(
    shown: Shown, runs: dict[str, Any]
) -> None:
    plot = drawing(shown, "AUC")
    within = [PIXELS * abs(axis(plot, name, side)[2]) for side, name in enumerate(AXES)]
    wanted = []
    for _, figures in figures_of(runs):
        entries = figures["evaluations"]
        # A curve of several points is a line without marks.
        wanted.append(figures["trained"] if len(figures["trained"]) == 1 else [])
        wanted.append([[one["examples"], one["auc"]] for one in entries])
        wanted.append([[figures["total_examples"], figures["test_auc"]]])
    curves = curves_of(plot)
    assert [len(points) for points in curves] == [len(points) for points in wanted]
    assert [len(points) for points in wanted][1:3] == [3, 1]
    for points, truth in zip(curves, wanted, strict=True):
        for point, true in zip(points, truth, strict=True):
            assert point == [pytest.approx(true[side], abs=within[side]) for side in (0, 1)]
    # What is off by no more than a pixel tells these figures apart.
    aucs = [figures["test_auc"] for _, figures in figures_of(runs)]
    assert abs(aucs[0] - aucs[1]) > 4 * within[1]
    legend = [text.text for text in plot.all("text", "legendtext")]
    assert [name for name in legend if name.endswith("--test")] == [
        f"{name}, --test" for name, _ in figures_of(runs)
    ]


def test_the_bars_of_the_stages_are_as_high_as_their_seconds(
    shown: Shown, runs: dict[str, Any]
) -> None:
    plot = drawing(shown, "Time of the stages")
    _, _, each = axis(plot, "ytick", 1)
    traces = list(plot.all("g", "trace"))
    assert len(traces) == 2
    for trace, (_, figures) in zip(traces, figures_of(runs), strict=True):
        heights = []
        for bar in trace.all("path"):  # M left,foot V top H right V foot Z
            _, foot, top, _, _ = numbers(bar.attributes["d"])
            heights.append((top - foot) * each)
        seconds = [stage["busy_seconds"] for stage in figures["stages"].values()]
        assert heights == pytest.approx(seconds, abs=PIXELS * abs(each)) and max(seconds) > 0


def test_each_plot_of_the_page_is_drawn(shown: Shown) -> None:
    for title in ("Logloss", "Calibration", "Scores", "Hit rates of the tiers"):
        for trace in drawing(shown, title).all("g", "trace"):
            lines = [path.attributes["d"] for path in trace.all("path", "js-line")]
            points = [path.attributes["transform"] for path in trace.all("path", "point")]
            assert len(points) == 1 or lines, f"{title}: nothing is seen of a curve"
            assert "NaN" not in "".join(lines + points)
            assert all(line.count("L") + line.count("H") > 0 for line in lines), title
