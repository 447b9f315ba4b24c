"""The index stays under 16 bytes a key while it grows; CRC32C is the published one."""

from pathlib import Path

import numpy as np
import pytest
from ssd_twin import make_rows, schema

from hps import _C
from hps.ssd_store import SsdStore


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_index_takes_at_most_sixteen_bytes_a_key_at_any_moment(tmp_path: Path) -> None:
    """Counted by the store itself at every step, and by the process's memory over the growth."""
    batch = 20_000
    counted_worst = 0.0
    with SsdStore.open(tmp_path, [schema(dim=1)]) as store:
        rows = np.zeros((batch, 32), np.uint8)
        at_a_million = 0
        for first in range(0, 1_800_000, batch):
            keys = np.arange(first, first + batch, dtype=np.uint64)
            rows.view(np.uint64)[:, 0] = keys * np.uint64(0x9E3779B97F4A7C15)
            store.append("ads", rows)
            num_keys = first + batch
            if num_keys >= 1_000_000:
                index_bytes = store.stats()["tables"]["ads"]["index_bytes"]
                counted_worst = max(counted_worst, index_bytes / num_keys)
                at_a_million = at_a_million or resident_bytes()
        grown = resident_bytes() - at_a_million
        assert store.num_rows("ads") == 1_800_000
    assert 12 < counted_worst <= 16
    assert grown <= 16 * 800_000 + 2**20


def test_index_gives_memory_back_after_a_mass_erase(tmp_path: Path) -> None:
    keys = np.arange(200_000, dtype=np.uint64)
    with SsdStore.open(tmp_path, [schema()]) as store:
        store.append("ads", make_rows(keys, 1))
        full = store.stats()["tables"]["ads"]["index_bytes"]
        assert store.erase("ads", keys[1000:]).all()
        assert store.stats()["tables"]["ads"]["index_bytes"] < full / 2
        assert store.num_rows("ads") == 1000
        assert store.contains("ads", keys).sum() == 1000


def unmix(hashes: np.ndarray) -> np.ndarray:
    """The keys whose MixKey is `hashes`, uint64 [n] (the inverse in csrc/common/key_hash.h)."""
    for factor in (0x9CB4B2F8129337DB, 0x4F74430C22A54005):
        hashes = (hashes ^ hashes >> np.uint64(33)) * np.uint64(factor)
    return hashes ^ hashes >> np.uint64(33)


def test_keys_chosen_to_meet_at_the_end_of_a_shard_cost_bounded_memory(tmp_path: Path) -> None:
    keys = unmix(np.uint64(2**64 - 1) - np.arange(3000, dtype=np.uint64))
    with SsdStore.open(tmp_path, [schema()]) as store:
        for first in range(0, 3000, 50):
            store.append("ads", make_rows(keys[first : first + 50], 1))
        assert store.stats()["tables"]["ads"]["index_bytes"] < 2**20
        assert store.contains("ads", keys).all() and store.num_rows("ads") == 3000
        assert store.erase("ads", keys[::2].copy()).all()
        assert store.contains("ads", keys).tolist() == [0, 1] * 1500
        store.checkpoint("one")
    with SsdStore.open(tmp_path, [schema()]) as store:
        assert store.contains("ads", keys).tolist() == [0, 1] * 1500


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_crc32c_gives_the_published_values(data: bytes, value: int) -> None:
    assert _C.crc32c(data) == value  # RFC 3720, appendix B.4
