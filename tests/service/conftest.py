"""What the tests of the service share.

Above it: pytest. Below it: tests/service/shard/shard_lab.py.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.shard.shard_lab import ShardLab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[ShardLab]:
    """One served store over the twin of the log, killed in the end."""
    lab = ShardLab(tmp_path)
    yield lab
    lab.kill()
