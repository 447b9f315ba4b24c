"""Damage: every flipped bit and every cut-off tail is found, by name, before it is used."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from ssd_twin import dump, fetch, keys_of, make_rows, schema

from hps.errors import CorruptionError, HpsError
from hps.ssd_store import SsdStore, verify

KEYS = keys_of(range(60))


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """A store with rows, a tombstone, an inline extra and one in a file; closed."""
    path = tmp_path / "store"
    with SsdStore.open(path, [schema()], segment_bytes=2**14) as store:
        store.append("ads", make_rows(KEYS, 1))
        store.erase("ads", KEYS[30:33])
        store.checkpoint("kept", {"small": b"position", "large": bytes(range(256)) * 20})
    return path


def data_files(path: Path) -> list[Path]:
    names = ["CURRENT", *(file.name for file in sorted(path.glob("*-*")))]
    return [path / name for name in names]


def use_everything(path: Path) -> None:
    """Reads all that a checkpoint holds, as a user would."""
    with SsdStore.open(path, [schema()], read_only=True) as store:
        dump(store, "ads")
        fetch(store, "ads", KEYS)
        store.extras("kept")


def test_an_untouched_store_has_no_damage(sealed: Path) -> None:
    assert len(data_files(sealed)) == 4
    assert verify(sealed) == []
    use_everything(sealed)


def test_flipped_bits_are_found_by_verify_and_before_use(sealed: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for file in data_files(sealed):
        whole = file.read_bytes()
        for _ in range(40):
            bit = chance.randrange(len(whole) * 8)
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            file.write_bytes(damaged)
            problems = verify(sealed)
            assert [Path(name).name for name, _ in problems] == [file.name], (file, bit)
            with pytest.raises(CorruptionError, match=file.name):
                use_everything(sealed)
        file.write_bytes(whole)
    use_everything(sealed)


def test_fetch_names_file_offset_and_record(sealed: Path) -> None:
    segment = next(sealed.glob("segment-*"))
    whole = bytearray(segment.read_bytes())
    whole[64 + 36 * 10 + 20] ^= 1
    segment.write_bytes(whole)
    with SsdStore.open(sealed, [schema()], read_only=True) as store:
        assert len(fetch(store, "ads", KEYS[11:])) == 46, "its neighbours are untouched"
        with pytest.raises(CorruptionError, match=rf"{segment.name}: offset 424.*record 10 "):
            fetch(store, "ads", KEYS)


def test_swapped_records_are_found(sealed: Path) -> None:
    segment = next(sealed.glob("segment-*"))
    whole = segment.read_bytes()
    first, second = whole[64 + 36 * 10 : 64 + 36 * 11], whole[64 + 36 * 11 : 64 + 36 * 12]
    segment.write_bytes(whole[: 64 + 36 * 10] + second + first + whole[64 + 36 * 12 :])
    assert [Path(name).name for name, _ in verify(sealed)] == [segment.name]
    store = SsdStore.open(sealed, [schema()], read_only=True)
    with store, pytest.raises(CorruptionError):
        fetch(store, "ads", KEYS[10:11])


def test_files_cut_off_anywhere_are_refused(sealed: Path) -> None:
    for file in data_files(sealed):
        whole = file.read_bytes()
        lengths = sorted(
            {0, 1, 63, *range(max(0, len(whole) - 100), len(whole), 3), len(whole) - 1}
        )
        for length in [length for length in lengths if length < len(whole)]:
            file.write_bytes(whole[:length])
            assert [Path(name).name for name, _ in verify(sealed)] == [file.name], (file, length)
            with pytest.raises(CorruptionError, match=file.name):
                use_everything(sealed)
        file.unlink()
        with pytest.raises(HpsError, match=str(sealed) if file.name == "CURRENT" else file.name):
            use_everything(sealed)
        file.write_bytes(whole)
    use_everything(sealed)


def test_a_record_beyond_current_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    """As after a crash between the manifest's append and CURRENT's replacement."""
    path = tmp_path / "store"
    with SsdStore.open(path, [schema()]) as store:
        store.append("ads", make_rows(KEYS[:10], 1))
        store.checkpoint("first")
        old_current = (path / "CURRENT").read_bytes()
        manifest = next(path.glob("MANIFEST-*"))
        old_length = manifest.stat().st_size
        store.append("ads", make_rows(KEYS, 2))
        store.checkpoint("second")
    whole = manifest.read_bytes()
    outcomes = []
    lengths = [*range(old_length, len(whole), 9), len(whole) - 1, len(whole)]
    for length in lengths:
        torn = tmp_path / "torn"
        shutil.copytree(path, torn)
        (torn / "CURRENT").write_bytes(old_current)
        (torn / manifest.name).write_bytes(whole[:length])
        with SsdStore.open(torn, [schema()]) as store:
            outcomes.append(store.num_rows("ads"))
            assert store.verify() == []
        shutil.rmtree(torn)
    assert outcomes == [10] * (len(lengths) - 1) + [60]


def test_a_damaged_tail_beyond_current_ends_the_log(tmp_path: Path) -> None:
    with SsdStore.open(tmp_path, [schema()]) as store:
        store.append("ads", make_rows(KEYS, 1))
        store.checkpoint("kept")
    manifest = next(tmp_path.glob("MANIFEST-*"))
    manifest.write_bytes(manifest.read_bytes() + np.random.default_rng(0).bytes(100))
    with SsdStore.open(tmp_path, [schema()]) as store:
        assert store.num_rows("ads") == 60
        store.checkpoint("next")
    with SsdStore.open(tmp_path, [schema()]) as store:
        assert [info["tag"] for info in store.checkpoints()] == ["kept", "next"]


def test_a_missing_current_is_no_reason_to_start_anew(sealed: Path) -> None:
    (sealed / "CURRENT").unlink()
    with pytest.raises(CorruptionError, match="CURRENT"):
        SsdStore.open(sealed, [schema()])
    assert list(sealed.glob("segment-*"))


def test_restore_to_a_damaged_checkpoint_leaves_the_store_where_it_was(sealed: Path) -> None:
    segment = next(sealed.glob("segment-*"))
    with SsdStore.open(sealed, [schema()]) as store:
        store.append("ads", make_rows(KEYS, 2))
        store.checkpoint("newer")
        before = dump(store, "ads")
        whole = bytearray(segment.read_bytes())
        whole[-60] ^= 1
        segment.write_bytes(whole)
        with pytest.raises(CorruptionError, match=segment.name):
            store.restore("kept")
        assert dump(store, "ads") == before
        store.append("ads", make_rows(KEYS, 3))
        store.checkpoint("newest")
