"""The page in a browser: its numbers are those of the source, a target that goes is seen to go.

Above it: pytest. Below it: `hps dashboard` over a fake endpoint and a run; Chromium, asked over
DevTools by tools/chromium_page.py: `make chromium`.
"""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from hps.dashboard.panels import PANELS
from tests.dashboard.endpoints import Endpoint, endpoint
from tests.dashboard.test_dashboard_server import Board
from tests.report.browser import find_browser
from tests.site.site_browser import AXE
from tools.chromium_page import NAMES, ChromiumPage

pytest.importorskip("aiohttp")
BROWSER = find_browser() or ""
pytestmark = pytest.mark.skipif(
    not BROWSER,
    reason=f"no browser: HPS_CHROMIUM names none, and none of {', '.join(NAMES)} is on the PATH; "
    "make chromium",
)
METHODS = ("Pull", "Push")


def text_of(moment: int) -> str:
    """Figures of every panel, of a trainer that is everything else, too."""
    lines = ['hps_train_rank{rank="0",ranks="2"} 1', "hps_train_logloss 0.43125"]
    lines += ["hps_train_auc 0.8125", "hps_valid_auc 0.75", "hps_train_calibration 1.0625"]
    lines += [f"hps_train_examples_total {1000 * moment}"]
    for stage, share in (("fetch", 1.0), ("compute", 4.0)):
        lines.append(f'hps_stage_busy_seconds_total{{stage="{stage}"}} {share * moment}')
        lines.append(f'hps_stage_wait_seconds_total{{stage="{stage}",side="input"}} {moment}')
    for tier, rows in (("dram_cache", 40960), ("ssd_store", 143760)):
        lines.append(f'hps_tier_rows{{tier="{tier}"}} {rows}')
        lines.append(f'hps_tier_bytes{{tier="{tier}"}} {rows * 96}')
        for name, value in (("hits", 300), ("misses", 100), ("evictions", 50)):
            lines.append(f'hps_tier_{name}_total{{tier="{tier}"}} {value * moment}')
    for name in ("read_bytes_total", "written_bytes_total", "compactions_total"):
        lines.append(f"hps_ssd_{name} {10240 * moment}")
    lines += ["hps_ssd_write_amplification 1.75", "hps_ssd_live_bytes 1048576"]
    lines += ["hps_disk_free_bytes 3221225472", "hps_checkpoint_created_seconds 1699999700"]
    for table in ("ads", "users"):
        lines.append(f'hps_table_rows{{table="{table}"}} {70000 + 25 * moment}')
        lines.append(f'hps_table_expired_rows_total{{table="{table}"}} {10 * moment}')
        lines.append(f'hps_table_waiting_keys{{table="{table}"}} 12')
    for method in METHODS:
        lines.append(f'hps_calls_total{{method="{method}",status="OK"}} {45 * moment}')
        lines.append(f'hps_calls_total{{method="{method}",status="ABORTED"}} {5 * moment}')
        for end, count in (("0.1", 50), ("0.2", 50), ("+Inf", 50)):
            lines.append(
                f'hps_call_seconds_bucket{{method="{method}",le="{end}"}} {count * moment}'
            )
        lines.append(f'hps_request_bytes_total{{method="{method}"}} {5120 * moment}')
    lines += ["hps_in_flight_requests 3", "hps_log_bytes 65536"]
    lines += ["hps_records_since_checkpoint 17", f"hps_scored_rows_total {500 * moment}"]
    lines += ["hps_model_created_seconds 1699999000"]
    return "\n".join([*lines, ""])


# Figure -> what the page says of it after a second round, 5 seconds after the first.
WANTED = {
    "examples": "200/s",
    "loss/train": "0.4313",
    "auc/train": "0.8125",
    "auc/valid": "0.7500",
    "calibration/train": "1.0625",
    "stage_busy/fetch": "20.0 %",
    "stage_busy/compute": "80.0 %",
    "stage_input/fetch": "20.0 %",
    "rows/dram_cache": "40,960",
    "rows/ssd_store": "143,760",
    "bytes/dram_cache": "3.8 MiB",
    "hit_rate/dram_cache": "75.0 %",
    "hits/dram_cache": "60/s",
    "misses/dram_cache": "20/s",
    "evictions/dram_cache": "10/s",
    "ssd_rate/read": "2.0 KiB/s",
    "write_amplification": "1.7500",
    "compactions": "2,048/s",
    "ssd_bytes/live": "1.0 MiB",
    "disk_free": "3.0 GiB",
    "checkpoint_age": "5 min",
    "table_rows/ads": "70,050",
    "born/ads": "7/s",
    "dying/ads": "2/s",
    "waiting_keys/users": "12",
    "calls/Pull": "10/s",
    "latency/Pull p50": "50 ms",
    "latency/Push p99": "99 ms",
    "refused": "2/s",
    "in_flight/calls": "3",
    "network/in": "2.0 KiB/s",
    "log_bytes": "64.0 KiB",
    "log_records": "17",
    "scored": "100/s",
    "version_age": "17 min",
}
SLICES = [["fetch", "", 7, 10.0, 10.25], ["compute", "", 7, 10.25, 11.0]]
SLICES += [["fetch", "output", 0, 10.25, 10.9]]


@pytest.fixture(scope="module")
def target() -> Iterator[Endpoint]:
    with endpoint(text_of(1)) as made:
        made.pages["/stages"] = json.dumps({"now": 11.0, "slices": SLICES})
        yield made


@pytest.fixture(scope="module")
def board(target: Endpoint) -> Iterator[Board]:
    made = Board(target)
    made.round()
    target.text = text_of(2)
    made.round()
    yield made
    made.close()


@pytest.fixture(scope="module")
def page(board: Board) -> Iterator[ChromiumPage]:
    with ChromiumPage(BROWSER) as made:
        made.open(board.server.url)
        made.wait("document.querySelectorAll('[data-figure]').length > 0")
        yield made


def cells(page: ChromiumPage) -> dict[str, list[str]]:
    """Text and value by figure, of the tables beneath the plots."""
    found: dict[str, list[str]] = page.ask(
        "Object.fromEntries([...document.querySelectorAll('[data-figure]')].map("
        "(one) => [one.dataset.figure, [one.textContent, one.dataset.value]]))"
    )
    return found


def test_the_numbers_of_the_page_are_those_of_the_source(
    page: ChromiumPage, board: Board, target: Endpoint
) -> None:
    found = cells(page)
    assert {name: found[name][0] for name in WANTED} == WANTED
    values = board.collector.state()["values"][target.address]
    for name, (_, value) in found.items():
        assert float(value) == values[name], name
    shown = {panel.name for panel in PANELS}
    assert {name for name in values if name.partition("/")[0] in shown} == set(found)


def test_every_panel_is_there_with_its_plot(page: ChromiumPage) -> None:
    found = page.ask(
        "[...document.querySelectorAll('.panel[data-panel]')].map("
        "(one) => [one.dataset.panel, one.querySelector('h3').textContent, "
        "one.querySelectorAll('canvas').length])"
    )
    assert found == [[panel.name, panel.title, 1] for panel in PANELS]
    # Something is drawn on each: some pixels have a colour of a line.
    drawn = page.ask(
        "[...document.querySelectorAll('.panel canvas')].map((canvas) => {"
        "  const { width, height } = canvas;"
        "  const { data } = canvas.getContext('2d').getImageData(0, 0, width, height);"
        "  let count = 0;"
        "  for (let idx = 0; idx < data.length; idx += 4) {"
        "    const spread = Math.max(data[idx], data[idx + 1], data[idx + 2])"
        "      - Math.min(data[idx], data[idx + 1], data[idx + 2]);"
        "    if (data[idx + 3] > 200 && spread > 60) count += 1;"
        "  }"
        "  return count;"
        "})"
    )
    assert min(drawn) > 20, drawn


def test_the_stages_are_bars_as_long_as_their_slices(page: ChromiumPage, target: Endpoint) -> None:
    bars = page.ask(
        "[...document.querySelectorAll('.gantt rect')].map((one) => ["
        "one.querySelector('title').textContent, Number(one.getAttribute('width'))])"
    )
    (fetch, long), (compute, longer), (waits, waited) = bars
    assert fetch == "fetch of batch 7: 250 ms" and compute == "compute of batch 7: 750 ms"
    assert waits == "fetch waits for output: 650 ms"
    assert longer == pytest.approx(3 * long, rel=0.01) and waited == pytest.approx(2.6 * long, 0.01)
    title = page.ask("document.querySelector('[data-gantt] h3').textContent")
    assert title == f"Stages of {target.address}"


def test_the_table_says_what_is_watched(page: ChromiumPage, target: Endpoint) -> None:
    cells_of_row = page.ask(
        "[...document.querySelectorAll('#targets tbody tr > *')].map((one) => one.textContent)"
    )
    assert cells_of_row[:3] == [target.address, "trainer", "up"]
    assert "rank 0 of 2" in cells_of_row[4]


def test_nothing_is_asked_of_a_network_and_no_script_fails(
    page: ChromiumPage, board: Board
) -> None:
    assert page.console == []
    asked = [url for url in page.asked if not url.startswith("data:")]
    assert len(asked) > 5 and all(url.startswith(board.server.url) for url in asked)


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_the_page_fits_its_window(page: ChromiumPage, board: Board, width: int) -> None:
    page.resize(width, 800)
    page.ask("new Promise((done) => setTimeout(done, 300))")
    assert page.ask("document.documentElement.scrollWidth") <= width
    widest = page.ask(
        "Math.max(...[...document.querySelectorAll('.panel')].map("
        "(one) => one.getBoundingClientRect().right))"
    )
    assert widest <= width
    plots = page.ask(
        "[...document.querySelectorAll('.plot')].map((one) => "
        "[one.clientWidth, one.querySelector('.uplot').getBoundingClientRect().width])"
    )
    assert all(abs(place - plot) <= 1 for place, plot in plots), plots
    page.resize(1280, 900)


def contrast(first: list[float], second: list[float]) -> float:
    def light(colour: list[float]) -> float:
        parts = [value / 255 for value in colour]
        linear = [
            one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(first), light(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("is_dark", [False, True])
def test_every_text_stands_out_in_light_and_dark(board: Board, is_dark: bool) -> None:
    script = """
      (() => {
        const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
        const behind = (one) => {
          for (let at = one; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (!/, 0\\)$/.test(colour)) return numbers(colour).slice(0, 3);
          }
          return [255, 255, 255];
        };
        const texts = [...document.querySelectorAll('body *')].filter((one) =>
          one.checkVisibility() && [...one.childNodes].some(
            (child) => child.nodeType === 3 && child.textContent.trim()));
        return texts.map((one) => {
          const style = getComputedStyle(one);
          const colour = one instanceof SVGElement ? style.fill : style.color;
          return [one.textContent, numbers(colour).slice(0, 3), behind(one)];
        });
      })()
    """
    with ChromiumPage(BROWSER) as page:
        page.open(board.server.url, dark=is_dark)
        page.wait("document.querySelectorAll('[data-figure]').length > 0")
        found = page.ask(script)
        assert len(found) > 100
        for text, colour, behind in found:
            assert contrast(colour, behind) >= 4.5, text
        bright = sum(
            page.ask("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        )
        assert (bright < 150) is is_dark


NAMELESS = """
  (() => {
    const said = (one) => one.getAttribute('aria-label')
      || (one.getAttribute('aria-labelledby') || '').split(' ').map(
        (id) => document.getElementById(id)?.textContent || '').join('')
      || (one.labels && [...one.labels].map((label) => label.textContent).join(''))
      || one.querySelector(':scope > title')?.textContent || '';
    const named = 'section, select, [role=img], [role=region], svg';
    const ids = [...document.querySelectorAll('[id]')].map((one) => one.id);
    return {
      nameless: [...document.querySelectorAll(named)].filter((one) => !said(one).trim()).length,
      twice: ids.filter((id, idx) => ids.indexOf(id) !== idx),
      headings: [...document.querySelectorAll('h1, h2, h3')].map((one) => Number(one.tagName[1])),
      heads: [...document.querySelectorAll('th')].filter((one) => !one.scope).length,
      language: document.documentElement.lang,
      mains: document.querySelectorAll('main').length,
      shut: [...document.querySelectorAll('.wide, .legend')].filter(
        (one) => one.tabIndex !== 0).length,
    };
  })()
"""


def test_what_is_read_aloud_has_a_name(page: ChromiumPage) -> None:
    found = page.ask(NAMELESS)
    headings = found.pop("headings")
    assert found == {
        "nameless": 0,
        "twice": [],
        "heads": 0,
        "language": "en",
        "mains": 1,
        "shut": 0,
    }
    assert headings[0] == 1 and headings.count(1) == 1
    assert all(new <= old + 1 for old, new in pairwise(headings))


@pytest.mark.skipif(not AXE.exists(), reason="no axe-core: tools/site/axe.sh")
def test_axe_finds_nothing(page: ChromiumPage) -> None:
    page.ask(AXE.read_text() + "; true")
    found = page.ask(
        "axe.run().then((told) => told.violations.map("
        "(one) => [one.id, one.nodes.map((node) => node.html.slice(0, 200))]))"
    )
    assert found == []


# The last ones: they change what the others look at.


def test_a_target_that_goes_is_seen_to_go_and_to_come_back(
    page: ChromiumPage, board: Board, target: Endpoint
) -> None:
    state = "document.querySelector('#targets tbody tr td:nth-of-type(2)').textContent"
    target.status = 500
    board.round()
    page.wait(f"{state} === 'away'")
    says = page.ask("document.querySelector('#targets tbody tr').textContent")
    assert "500" in says and "rank 0 of 2" in says
    found = cells(page)
    assert found["rows/ssd_store"] == ["–", ""]  # what is not known is not shown as known
    board.clock.now += 120
    board.round()
    page.wait("document.querySelector('#targets tbody tr').textContent.includes('2 min')")
    target.status, target.text = 200, text_of(3)
    board.round()
    page.wait(f"{state} === 'up'")
    assert cells(page)["rows/ssd_store"][0] == "143,760"
    # The plot has a hole where nothing was known.
    times, rows = (
        board.collector.histories()[target.address][name] for name in ("times", "series")
    )
    assert rows["rows/ssd_store"] == [143760, 143760, None, None, 143760] and len(times) == 5


def test_a_dashboard_that_is_gone_is_told_and_one_that_is_back_is_taken_up(
    page: ChromiumPage, board: Board, target: Endpoint
) -> None:
    port = board.port
    board.close()
    page.wait("document.querySelector('#link').textContent.includes('does not answer')")
    again: Any = Board(target, listen=f"127.0.0.1:{port}")
    try:
        again.clock.now = board.clock.now + 60
        again.round()
        page.wait("document.querySelector('#link').textContent === 'live'")
        target.text = text_of(4)
        again.round()
        page.wait("document.querySelector('[data-figure=examples]').textContent === '200/s'")
    finally:
        again.close()
