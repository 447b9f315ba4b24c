"""Tutorials that start servers or ranks hold: they run, and print what they show.

Above it: pytest. Below it: reader.py, the pages.
"""

import shutil
from pathlib import Path

import pytest

from tests.tutorials.reader import read


@pytest.mark.parametrize("page", ["servers", "ranks", "publish_and_serve"])
def test_the_page_runs_and_prints_what_it_shows(page: str, tmp_path: Path) -> None:
    if page == "publish_and_serve" and shutil.which("curl") is None:
        pytest.skip("the page asks with curl, which is not installed")
    folder = tmp_path / page
    folder.mkdir()
    with read(folder, page) as reading:
        reading.check()
