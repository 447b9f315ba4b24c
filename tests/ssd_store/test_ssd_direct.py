"""direct_io=True reads the same rows, finds the same damage, and does go past the page cache.

Above it: pytest. Below it: hps.ssd_store; every read path by itself is in tests/native.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from ssd_twin import dump, fetch, keys_of, make_rows, schema

import hps
from hps.errors import ConfigError, CorruptionError
from hps.ssd_store import SsdStore

KEYS = keys_of(range(3, 20003, 4))


def direct_segments() -> int:
    """How many segments this process has open with O_DIRECT."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            is_segment = "/segment-" in os.readlink(link)
            facts = Path(f"/proc/self/fdinfo/{link.name}").read_text()
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
        flags = int(facts.split("flags:")[1].split()[0], 8)
        count += is_segment and bool(flags & os.O_DIRECT)
    return count


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    try:
        os.close(os.open(tmp_path / "probe", os.O_RDWR | os.O_CREAT | os.O_DIRECT))
    except OSError:
        with pytest.raises(ConfigError, match="direct_io=False"):
            SsdStore.open(tmp_path / "store", [schema()], direct_io=True)
        pytest.skip("this file system has no direct I/O; the refusal was tested")
    return tmp_path / "store"


def test_direct_io_reads_what_was_stored(folder: Path) -> None:
    rows = make_rows(KEYS, 7)
    stored = {int(key): row.tobytes() for key, row in zip(KEYS, rows, strict=True)}
    with SsdStore.open(folder, [schema()], direct_io=True, segment_bytes=2**16) as store:
        store.append("ads", rows)
        assert fetch(store, "ads", KEYS[::3].copy()) == dict(list(stored.items())[::3]), (
            "not sealed yet"
        )
        assert direct_segments() > 1
        store.checkpoint()
        assert dump(store, "ads") == stored
    assert direct_segments() == 0
    with SsdStore.open(folder, [schema()], read_only=True, direct_io=True) as reader:
        keys = np.concatenate([KEYS, KEYS[:100], KEYS + np.uint64(1)])
        assert fetch(reader, "ads", keys) == stored
    with SsdStore.open(folder, [schema()], read_only=True) as reader:
        assert fetch(reader, "ads", KEYS) == stored
        assert direct_segments() == 0


def test_damage_is_found_past_the_page_cache(folder: Path) -> None:
    with SsdStore.open(folder, [schema()]) as store:
        store.append("ads", make_rows(KEYS, 7))
        store.checkpoint()
    segment = next(folder.glob("segment-*"))
    with segment.open("r+b") as file:
        file.seek(64 + 36 * 1000 + 9)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 4]))
        os.fsync(file.fileno())
    with SsdStore.open(folder, [schema()], read_only=True, direct_io=True) as store:
        assert len(fetch(store, "ads", KEYS[1001:])) == len(KEYS) - 1001
        with pytest.raises(CorruptionError, match=rf"{segment.name}: offset 36064.*record 1000 "):
            fetch(store, "ads", KEYS)


def test_parameter_server_passes_direct_io_on(folder: Path) -> None:
    config = hps.Config(
        path=folder,
        tables=[hps.TableConfig(name="ads", dim=4)],
        dram=hps.DramCacheConfig(bytes="1MiB"),
        ssd=hps.SsdStoreConfig(direct_io=True),
    )
    keys = np.arange(1000, dtype=np.uint64)
    with hps.ParameterServer(config) as server:
        first = server.pull("ads", keys, create=True).copy()
        server.checkpoint()
    with hps.ParameterServer(config) as server:
        assert np.array_equal(server.pull("ads", keys), first)
        assert direct_segments() == 1
