"""Every tutorial is read by a test, is short, and leads to pages that exist.

Above it: pytest. Below it: docs/tutorials, the tests of this folder.
"""

import re
from pathlib import Path

import pytest

from tests.tutorials.reader import TUTORIALS

PAGES = sorted(path.stem for path in TUTORIALS.glob("*.md"))
MAX_LINES = 200
LINK = re.compile(r"\]\(([^)#]+?)(?:#[^)]*)?\)")


def test_every_tutorial_is_read_by_a_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_page_*.py"))
    assert [page for page in PAGES if f'"{page}"' not in tests] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_is_short_and_its_links_lead_somewhere(page: str) -> None:
    path = TUTORIALS / f"{page}.md"
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    links = [link for link in LINK.findall(text) if "://" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []
    assert LINK.search(text.partition("## What next")[2])
