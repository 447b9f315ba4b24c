"""Fixtures of the contract tests: every kind of tiers that a server can be stacked from."""

from pathlib import Path

import pytest

from tests.lab import KINDS, Lab


@pytest.fixture(params=KINDS)
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    """An empty store over each kind of tiers."""
    return Lab(request.param, tmp_path)
