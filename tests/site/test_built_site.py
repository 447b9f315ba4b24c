"""The built site: nothing of it lies elsewhere, everyone can read it, and it fits a phone.

Above it: pytest -m docs (`make docs-check`). Below it: build/site/, Chromium, axe-core.
"""

import json
import re
from pathlib import Path

import pytest

from tests.report.browser import find_browser, show
from tests.site.site_browser import AXE, ROOT, SITE, looked_at
from tools.site.pages import navigation, pages, places

pytestmark = pytest.mark.docs
PHONE = 390
# A page of each kind: text, tables, commands, docstrings, messages, drawings, pictures.
KINDS = (
    "index.html",
    "start.html",
    "training.html",
    "benchmarks.html",
    "options.html",
    "reference/commands.html",
    "reference/python/1_rows.html",
    "reference/messages/parameter_server.html",
    "explanation/tiers.html",
    "exactly_once.html",
    "decisions/index.html",
    "life_cycle.html",
    "dashboard.html",
    "tutorials/train_from_csv.html",
    "tutorials/publish_and_serve.html",
    "from_torchrec.html",
)
BROWSER = find_browser() or ""
needs_browser = pytest.mark.skipif(not BROWSER, reason="no browser: make chromium")


@pytest.fixture(autouse=True)
def built() -> None:
    if not (SITE / "index.html").exists():
        pytest.skip("build/site/ is not there: make docs")


def html_of(place: str) -> str:
    return place.removesuffix(".md") + ".html"


def test_every_page_is_built_and_can_be_found_by_its_words() -> None:
    found = json.loads((SITE / "search" / "search_index.json").read_text())["docs"]
    indexed = {entry["location"].partition("#")[0] or "index.html" for entry in found}
    for place in pages():
        assert (SITE / html_of(place)).exists(), place
        assert html_of(place) in indexed, place


def test_no_page_has_a_part_that_lies_elsewhere() -> None:
    parts = re.compile(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="?(https?:[^"\s>]+)')
    styles = re.compile(r"(?:@import|url\()\s*[\"']?(?:https?:)?//")
    for page in SITE.rglob("*.html"):
        assert not parts.findall(page.read_text()), page
    for sheet in SITE.rglob("*.css"):
        assert not styles.search(sheet.read_text()), sheet


def test_the_reference_of_python_has_the_docstrings() -> None:
    text = (SITE / "reference" / "python" / "1_rows.html").read_text()
    assert 'id="hps.parameter_server.server.ParameterServer.pull"' in text
    assert "&gt;&gt;&gt; " in text and "Embedding rows of every table" in text
    assert "_tiers" not in text  # no argument that is hps's own


@needs_browser
@pytest.mark.parametrize("scheme", ["default", "slate"])
@pytest.mark.parametrize("page", KINDS)
def test_everyone_can_read_it(page: str, scheme: str, tmp_path: Path) -> None:
    if not AXE.exists():
        pytest.skip("no axe-core: tools/site/axe.sh")
    job = {"page": page, "scheme": scheme, "width": 1200, "axe": True}
    (found,) = looked_at(BROWSER, [job], tmp_path)
    assert found["passes"] > 15
    assert found["violations"] == []


@needs_browser
def test_every_page_fits_a_phone(tmp_path: Path) -> None:
    names = [html_of(place) for place in places(navigation(pages()))]
    jobs = [{"page": name, "scheme": "default", "width": PHONE, "axe": False} for name in names]
    found = []
    for start in range(0, len(jobs), 15):
        scratch = tmp_path / str(start)
        scratch.mkdir()
        found += looked_at(BROWSER, jobs[start : start + 15], scratch)
    assert {one["shown"] for one in found} == {PHONE}
    assert [one["page"] for one in found if one["wide"] > PHONE] == []


@needs_browser
@pytest.mark.parametrize("how", ["over HTTP", "as files"])
def test_the_search_finds_words_without_a_network(how: str, tmp_path: Path) -> None:
    asked = "index.html?q=CapacityError"
    if how == "over HTTP":
        job = {"page": asked, "scheme": "default", "width": 1200, "axe": False, "finds": True}
        found = looked_at(BROWSER, [job], tmp_path)[0]["found"]
    else:
        shown = show(BROWSER, f"{SITE.as_uri()}/{asked}", tmp_path)
        assert shown.console == [] and not any(
            "//" in url for url in shown.asked if "file" not in url
        )
        links = shown.page.all("a", "md-search-result__link")
        found = [link.attributes["href"] for link in links]
    assert any("explanation/tiers.html" in one for one in found)
    assert any("reference/python/" in one for one in found)


def test_the_drawings_lie_in_their_pages() -> None:
    assert ROOT / "docs" in [path.parent for path in ROOT.glob("docs/*.dot")]
    text = (SITE / "explanation" / "tiers.html").read_text()
    assert '<svg role="img" aria-label="Three tiers' in text
