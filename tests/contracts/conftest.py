"""Fixtures of the contract tests: every kind of tiers that a server can be stacked from."""

from pathlib import Path

import pytest

from tests.lab import KINDS, Lab


@pytest.fixture(params=KINDS)
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    """An empty store over each kind of tiers."""
    return Lab(request.param, tmp_path)


@pytest.fixture(params=["twins", "native_dram"])
def twin_disk_lab(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    """An empty store whose disk is the twin's, which can be filled up and damaged by key."""
    return Lab(request.param, tmp_path)
