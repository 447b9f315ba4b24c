"""A store that an earlier version wrote is opened, read, trained on and cloned by this one.

Below it: fixtures/, made by make_fixture.py.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from make_fixture import EXPECTED, STORE
from ssd_twin import dump, fetch, keys_of, make_rows

from hps.ssd_store import SsdStore, clone, verify


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The stored store, where it may be changed."""
    path = tmp_path / "store"
    shutil.copytree(STORE, path)
    return path


def expected_checkpoints() -> list[dict[str, Any]]:
    checkpoints: list[dict[str, Any]] = json.loads(EXPECTED.read_text())
    return checkpoints


def contents(store: SsdStore) -> dict[str, dict[str, str]]:
    return {
        name: {str(key): row.hex() for key, row in dump(store, name).items()}
        for name in store.schemas
    }


def test_the_fixture_has_something_of_everything() -> None:
    names = {file.name.split("-")[0] for file in STORE.iterdir()}
    assert names == {"CURRENT", "MANIFEST", "segment", "extra", "index"}
    first, second = expected_checkpoints()
    assert first["tag"] == "day-1" and second["tag"] is None
    assert len(first["extras"]["dense"]) > 2 * 4096 > len(first["extras"]["position"])
    for checkpoint in (first, second):
        assert [len(rows) for rows in checkpoint["tables"].values()] != [42, 9], (
            "some keys were erased"
        )


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_every_checkpoint_reads_as_it_was_written(store: Path, has_snapshot: bool) -> None:
    if not has_snapshot:
        next(store.glob("index-*")).unlink()
    assert verify(store) == []
    for checkpoint in expected_checkpoints():
        with SsdStore.open(store, [], read_only=True, checkpoint=checkpoint["id"]) as reader:
            assert contents(reader) == checkpoint["tables"]
            extras = reader.extras()
            assert {name: blob.hex() for name, blob in extras.items()} == checkpoint["extras"]
            assert reader.seed == 11
            assert [info["tag"] for info in reader.checkpoints()] == ["day-1", None]


def test_it_goes_on_from_there(store: Path, tmp_path: Path) -> None:
    first, second = expected_checkpoints()
    schemas = list(SsdStore.open(store, [], read_only=True).schemas.values())
    clone(store, tmp_path / "clone", "day-1")
    with SsdStore.open(tmp_path / "clone", schemas) as copy:
        assert contents(copy) == first["tables"]
    with SsdStore.open(store, schemas, seed=11) as writer:
        assert contents(writer) == second["tables"]
        writer.append("ads", make_rows(keys_of([7, 1000]), 5))
        writer.erase("users", keys_of([2]))
        assert writer.checkpoint("next")["id"] == 4
        writer.restore("day-1")
        assert contents(writer) == first["tables"]
        writer.restore("next")
        assert set(fetch(writer, "ads", keys_of([7, 1000]))) == {7, 1000}
        assert writer.verify() == []
