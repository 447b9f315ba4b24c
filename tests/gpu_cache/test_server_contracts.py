"""The server's contract over the CUDA cache in dram_cache's place: its launcher over host memory,
and, where there is one, on a GPU.

Above it: pytest. Below it: tests/contracts, whose tests run here with other tiers.
"""

from pathlib import Path

import pytest
import torch

from tests.contracts.test_phases import (  # noqa: F401
    test_threads_at_odds_give_the_rows_of_one_thread,
)
from tests.contracts.test_pins import *  # noqa: F403
from tests.contracts.test_rows import *  # noqa: F403
from tests.lab import Lab

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


@pytest.fixture(params=["launched_gpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    """An empty store over the twin's disk, its cache run by the CUDA cache's launcher."""
    return Lab(request.param, tmp_path)


@pytest.fixture
def twin_disk_lab(lab: Lab) -> Lab:
    """The same: its disk is the twin's."""
    return lab
