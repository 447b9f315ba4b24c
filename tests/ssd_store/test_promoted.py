"""Promoted names: they move in one durable step, keep what they name, and go back.

Above it: pytest. Below it: hps/ssd_store/promoted.py, hps/ssd_store/promote.py, both engines.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from hps.errors import ConfigError, CorruptionError, StoreError
from hps.ssd_store import clone
from hps.ssd_store.promote import drop, promote, roll_back
from hps.ssd_store.promoted import NAME, Promotions
from tests.forking import killed_at_each_call


def tags(store: Any) -> list[tuple[str | None, list[str]]]:
    return [(one["tag"], one["names"]) for one in store.checkpoints()]


@pytest.fixture
def days(store_class: Any, tmp_path: Path) -> Path:
    """A store with the checkpoints day-1 to day-3, whose blob `day` says which one it is."""
    with store_class.open(tmp_path / "store", []) as store:
        for day in ("day-1", "day-2", "day-3"):
            store.checkpoint(day, {"day": day.encode()})
    return tmp_path / "store"


def day_of(store_class: Any, path: Path, name: str) -> str:
    with store_class.open(path, [], read_only=True, checkpoint=name) as store:
        blob: bytes = store.extras(None)["day"]
        assert store.extras(name)["day"] == blob
        return blob.decode()


def test_a_name_moves_and_goes_back(store_class: Any, days: Path) -> None:
    assert promote(days, "day-1") == {
        "name": "live",
        "checkpoint": "day-1",
        "id": 1,
        "before": None,
    }
    assert day_of(store_class, days, "live") == "day-1"
    promote(days, 2)
    assert promote(days, "day-3")["before"] == "day-2"
    assert promote(days, "day-3")["before"] == "day-3", "as it was: no step of its history"
    assert day_of(store_class, days, "live") == "day-3"
    assert roll_back(days)["checkpoint"] == "day-2"
    assert roll_back(days)["checkpoint"] == "day-1"
    assert day_of(store_class, days, "live") == "day-1"
    with pytest.raises(ConfigError, match="'live' is checkpoint 'day-1', and none that had the na"):
        roll_back(days)
    assert day_of(store_class, days, "live") == "day-1"


def test_one_checkpoint_may_have_many_names_and_one_name_leads_to_another(
    store_class: Any, days: Path
) -> None:
    promote(days, "day-2", "canary")
    assert promote(days, "canary", "live")["checkpoint"] == "day-2"
    with store_class.open(days, [], read_only=True) as store:
        assert tags(store)[1] == ("day-2", ["canary", "live"])
    assert drop(days, "canary")["before"] == "day-2"
    with pytest.raises(ConfigError, match="'canary' is no promoted name; there are: 'live'"):
        drop(days, "canary")


@pytest.mark.parametrize("name", ["", " ", "é", "id:3", "a b", "x" * 65, "automatic", "../up"])
def test_a_name_is_what_a_tag_may_be(days: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="tag="):
        promote(days, "day-1", name)
    assert not (days / NAME).exists()


@pytest.mark.parametrize("name", ["final", "best", "last"])
def test_a_name_is_no_tag_that_a_training_gives_by_itself(days: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' cannot be a promoted name: .* is kept under"):
        promote(days, "day-1", name)
    assert not (days / NAME).exists()


def test_a_name_is_opened_where_a_compaction_renews_its_checkpoint_meanwhile(
    store_class: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    from hps.ssd_store import TableSchema, store

    schema = TableSchema(
        name="ads", dim=4, optimizer="sgd", initializer="constant", numbers=(0.0, 0.0), row_bytes=32
    )
    rows = np.zeros((100, 32), np.uint8)
    rows[:, :8].view(np.uint64)[:, 0] = np.arange(100)
    with store_class.open(tmp_path / "store", [schema]) as writer:
        writer.append("ads", rows)
        writer.append("ads", rows)  # something is dead
        before = writer.checkpoint("day-1", {"day": b"day-1"})["id"]
        promote(tmp_path / "store", "day-1")
        find = store.resolved

        def then_renewed(*given: Any) -> Any:
            found = find(*given)
            if found == before:
                writer.compact()
            return found

        monkeypatch.setattr(store, "resolved", then_renewed)
        assert day_of(store_class, tmp_path / "store", "live") == "day-1"
        assert writer.checkpoints()[-1]["names"] == ["live"]
    with pytest.raises(ConfigError, match="there is no checkpoint 'elsewhere'"):
        store_class.open(tmp_path / "store", [], read_only=True, checkpoint="elsewhere")


def test_names_and_tags_are_kept_apart(store_class: Any, days: Path) -> None:
    with pytest.raises(ConfigError, match="'day-2' is the tag of a checkpoint; take another name"):
        promote(days, "day-1", "day-2")
    promote(days, "day-1")
    with store_class.open(days, []) as store:
        with pytest.raises(
            ConfigError, match="tag='live' is a promoted name, of checkpoint 'day-1"
        ):
            store.checkpoint("live")
        assert [tag for tag, _ in tags(store)] == ["day-1", "day-2", "day-3"]
    with pytest.raises(ConfigError, match="there is no checkpoint"):
        promote(days, "day-9")
    with pytest.raises(ConfigError, match="checkpoint='' is not a tag"):
        promote(days, "")


def test_promoted_checkpoints_outlive_newer_ones_of_their_tag_and_number(
    store_class: Any, days: Path
) -> None:
    with store_class.open(days, [], keep_last=1) as store:
        untagged = store.checkpoint(None, {"day": b"untagged"})["id"]
        promote(days, untagged, "canary")  # beside the writer
        promote(days, "day-3")
        for number in range(3):
            store.checkpoint("day-3", {"day": b"again"})
            store.checkpoint(None, {"day": b"%d" % number})
        kept = tags(store)
        assert kept == [
            ("day-1", []),
            ("day-2", []),
            (None, ["live"]),
            (None, ["canary"]),
            ("day-3", []),
            (None, []),
        ]
        assert store.extras("live")["day"] == b"day-3"
        assert store.extras("day-3")["day"] == b"again"
        assert store.extras("canary")["day"] == b"untagged"
        store.compact()
    assert day_of(store_class, days, "live") == "day-3"
    assert day_of(store_class, days, "canary") == "untagged"


def test_the_one_before_stays_for_a_roll_back_and_goes_when_it_is_two_back(
    store_class: Any, days: Path
) -> None:
    with store_class.open(days, [], keep_last=1) as store:
        for _ in range(3):
            promote(days, store.checkpoint(None)["id"])
        store.checkpoint(None)
        assert [one["id"] for one in store.checkpoints() if one["tag"] is None] == [5, 6, 7]
    assert roll_back(days)["id"] == 5
    with pytest.raises(ConfigError, match="none that had the name before is kept"):
        roll_back(days)


def test_a_promoted_checkpoint_is_not_deleted(store_class: Any, days: Path) -> None:
    promote(days, "day-1")
    promote(days, "day-2")
    with store_class.open(days, []) as store:
        for name in ("day-2", 2, "live"):
            with pytest.raises(ConfigError, match="checkpoint 'day-2' is promoted as 'live'"):
                store.delete_checkpoint(name)
        store.delete_checkpoint("day-1")
        with pytest.raises(ConfigError, match="none that had the name before is kept"):
            roll_back(days)
        drop(days, "live")
        store.delete_checkpoint("day-2")
        assert tags(store) == [("day-3", [])]


def test_a_name_follows_a_checkpoint_that_compaction_renews(store_class: Any, days: Path) -> None:
    promote(days, "day-3")
    found = Promotions.load(days).names["live"][-1]
    with store_class.open(days, []) as store:
        store.compact()
        named = [one for one in store.checkpoints() if one["names"]]
        assert [one["created"] for one in named] == [found.created]
    assert day_of(store_class, days, "live") == "day-3"


def test_a_renewed_old_one_does_not_hide_the_new_one_of_its_tag(days: Path) -> None:
    from hps.ssd_store import SsdStore, TableSchema, engine_of

    if engine_of(days) != "segments":
        pytest.skip("of the engine that keeps both tags")
    import numpy as np

    schema = TableSchema(
        name="ads", dim=4, optimizer="sgd", initializer="constant", numbers=(0.0, 0.0), row_bytes=32
    )
    rows = np.zeros((100, 32), np.uint8)
    rows[:, :8].view(np.uint64)[:, 0] = np.arange(100)
    with SsdStore.open(days, [schema]) as store:
        store.append("ads", rows)
        store.append("ads", rows)  # something is dead
        store.checkpoint("twice", {"day": b"old"})
        promote(days, "twice")
        store.checkpoint("twice", {"day": b"new"})
        store.restore("live")
        store.compact()
        assert store.extras("twice")["day"] == b"new"
        assert store.extras("live")["day"] == b"old"


@pytest.mark.parametrize(
    "damage", [b"", b"{}", b"HPSNAMES1 00000000 2\n{}", None], ids=["empty", "bare", "crc", "flip"]
)
def test_a_damaged_file_of_names_is_told(
    store_class: Any, days: Path, damage: bytes | None
) -> None:
    promote(days, "day-1")
    whole = (days / NAME).read_bytes()
    (days / NAME).write_bytes(whole[:-3] + b"9" + whole[-2:] if damage is None else damage)
    with pytest.raises(CorruptionError, match=f"{NAME}: the promoted names are damaged"):
        promote(days, "day-2")
    with store_class.open(days, []) as store, pytest.raises(CorruptionError, match=NAME):
        store.checkpoint("day-4")
    (days / NAME).unlink()
    with store_class.open(days, []) as store:
        assert store.checkpoint("day-4")["names"] == []


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(StoreError, match="there is no store to promote a checkpoint in"):
            promote(folder, "day-1")
    assert list(tmp_path.iterdir()) == []


def test_a_clone_begins_without_names(days: Path, tmp_path: Path) -> None:
    from hps.ssd_store import engine_of

    if engine_of(days) != "segments":
        pytest.skip("has no clones")
    promote(days, "day-2")
    assert clone(days, tmp_path / "clone", "live")["tag"] == "day-2"
    assert Promotions.load(tmp_path / "clone").names == {}


def test_a_kill_at_any_moment_leaves_the_old_or_the_new(store_class: Any, days: Path) -> None:
    promote(days, "day-1")
    found = []
    for is_done in killed_at_each_call(lambda: promote(days, "day-2")):
        found.append(day_of(store_class, days, "live"))
        if not is_done and found[-1] == "day-2":
            assert roll_back(days)["checkpoint"] == "day-1"
    assert set(found) == {"day-1", "day-2"} and found[-1] == "day-2"
    assert len(found) > 5, "the kill came in the middle"


def test_a_checkpoint_waits_for_a_name_that_is_being_moved(
    store_class: Any, days: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it could take the place of the very checkpoint that is promoted."""
    from hps.ssd_store import promoted

    monkeypatch.setattr(promoted, "_WAIT_SECONDS", 0.0)
    with store_class.open(days, []) as store:
        with (
            promoted.held(days),
            pytest.raises(
                StoreError,
                match=rf"PROMOTED\.lock: another process .* \(process {os.getpid()} on \S+\)",
            ),
        ):
            store.checkpoint("day-3")
        store.checkpoint("day-3")
