"""The engines that a test of the SSD tier runs on.

Above it: the tests of ssd_store. Below it: the two stores.
"""

from typing import Any

import pytest

from hps.ssd_store import SsdStore


@pytest.fixture(params=["segments", "rocksdb"])
def store_class(request: pytest.FixtureRequest) -> Any:
    """The class of each engine."""
    if request.param == "segments":
        return SsdStore
    pytest.importorskip("rocksdict")
    from hps.ssd_store.rocksdb.store import RocksDbStore

    return RocksDbStore
