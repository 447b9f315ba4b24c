"""Files that may not be read, folders that may not be written: a typed error that names them."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import hps
from hps.ssd_store.promoted import LOCK
from tests.torture.worker import config

NOBODY = 65534
KEYS = np.arange(500, dtype=np.uint64)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may read everything, so root steps down for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A store's folder that belongs to whoever is left without privileges."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        with hps.ParameterServer(config(path)) as server:
            server.push("sgd", KEYS, np.ones((len(KEYS), 4), np.float32))
        if os.geteuid() == 0:
            for item in (path, *path.rglob("*")):
                shutil.chown(item, NOBODY)
        yield path


def test_an_unreadable_file_is_a_store_error_that_names_it(folder: Path) -> None:
    # The lock of promoted names is for who takes a checkpoint, or moves a name.
    files = [one for one in (folder / "store").iterdir() if one.is_file() and one.name != LOCK]
    assert len(files) > 3
    for file in files:
        file.chmod(0)
        with without_privileges(), pytest.raises(hps.StoreError, match=file.name) as refused:
            hps.ParameterServer(config(folder))
        assert refused.value.errno == errno.EACCES
        file.chmod(0o644)
    with without_privileges(), hps.ParameterServer(config(folder)) as server:
        assert server.num_rows("sgd") == len(KEYS)


def test_a_lock_that_may_not_be_opened_is_a_store_error_of_the_checkpoint(folder: Path) -> None:
    lock = folder / "store" / LOCK
    lock.chmod(0)
    with without_privileges(), hps.ParameterServer(config(folder)) as server:
        with pytest.raises(hps.StoreError, match=LOCK) as refused:
            server.checkpoint(tag="day-1")
        assert refused.value.errno == errno.EACCES
    lock.chmod(0o644)
    with without_privileges(), hps.ParameterServer(config(folder)) as server:
        assert server.checkpoint(tag="day-1")["tag"] == "day-1"


def test_a_folder_that_may_not_be_written_is_a_store_error(folder: Path) -> None:
    (folder / "store").chmod(0o500)
    with without_privileges():
        with pytest.raises(hps.StoreError, match="Permission denied") as refused:
            hps.ParameterServer(config(folder))
        assert refused.value.errno == errno.EACCES
        with hps.open(folder / "store") as reader:
            assert reader.num_rows("sgd") == len(KEYS)
    (folder / "store").chmod(0o755)
    with without_privileges(), hps.ParameterServer(config(folder)) as server:
        assert server.num_rows("sgd") == len(KEYS)


def test_writes_that_are_refused_midway_keep_the_last_checkpoint(folder: Path) -> None:
    with without_privileges(), hps.ParameterServer(config(folder)) as server:
        digest = server.digest("sgd")
        server.push("sgd", KEYS[:50], np.ones((50, 4), np.float32))
        (folder / "store").chmod(0o500)
        with pytest.raises(hps.StoreError) as refused:
            server.checkpoint()
        assert refused.value.errno == errno.EACCES
        with hps.open(folder / "store") as reader:
            assert reader.digest("sgd") == digest
        (folder / "store").chmod(0o755)
        server.checkpoint()
        digest = server.digest("sgd")
    with hps.open(folder / "store") as reader:
        assert reader.digest("sgd") == digest
