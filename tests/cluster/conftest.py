"""What the tests of folders, cuts and resharding share.

Above it: pytest. Below it: folder_lab.py.
"""

from pathlib import Path

import pytest

from tests.cluster.folder_lab import Reference


@pytest.fixture
def reference(tmp_path: Path) -> Reference:
    """One store that is trained as the ranks are."""
    return Reference(tmp_path / "reference")
