"""Tutorials whose commands all run in one process hold: they run, and print what they show.

Above it: pytest. Below it: reader.py, the pages.
"""

from pathlib import Path

import pytest

from tests.tutorials.reader import read


@pytest.mark.parametrize("page", ["larger_than_memory", "daily_training", "gpu"])
def test_the_page_runs_and_prints_what_it_shows(page: str, tmp_path: Path) -> None:
    folder = tmp_path / page
    folder.mkdir()
    with read(folder, page) as reading:
        reading.check()
