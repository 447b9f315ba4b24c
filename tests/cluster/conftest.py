"""What the tests of folders, checkpoints and resharding share.

Above it: pytest. Below it: tests/cluster/folder/folder_lab.py.
"""

import threading
from pathlib import Path

import pytest

from tests.cluster.folder.folder_lab import Reference
from tests.cluster.ranks import EARLIER


@pytest.fixture(autouse=True)
def _earlier_threads() -> None:
    """What lives before a test is not of it."""
    EARLIER.clear()
    EARLIER.update(threading.enumerate())


@pytest.fixture
def reference(tmp_path: Path) -> Reference:
    """One store that is trained as the ranks are."""
    return Reference(tmp_path / "reference")
