"""Fixtures of the tests of a server over files.

Above it: the tests beside it. Below it: the engines of the SSD tier.
"""

import pytest

import hps


@pytest.fixture(params=["segments", "rocksdb"])
def ssd(request: pytest.FixtureRequest) -> hps.SsdStoreConfig:
    """Files of each engine."""
    if request.param == "rocksdb":
        pytest.importorskip("rocksdict")
    return hps.SsdStoreConfig(engine=request.param)
