"""In which order a checkpoint over several stores is taken, gone back to and deleted.

Above it: pytest. Below it: hps/checkpoint/over_parts.py, over stores that write down what is asked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from hps.checkpoint.over_parts import (
    CheckpointsOverParts,
    Taken,
    check_is_named,
    describe,
    find_or_current,
    fitting_all,
)
from hps.errors import ConfigError, StoreError


class Stores:
    """Two stores that note every call, and fail in the one that is named."""

    members = "both stores"

    def __init__(self, fails_in: str = "", apart: Exception | None = None) -> None:
        self.calls: list[str] = []
        self._fails_in = fails_in
        self._apart = apart

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call == self._fails_in:
            raise StoreError(f"{call} failed")

    def begin(
        self, tag: str | None, model: Mapping[str, Any] | None, reader: Mapping[str, Any] | None
    ) -> str:
        self._note("begin")
        return "new"

    def save_parts(self, draft: str) -> None:
        self._note("save_parts")

    def commit(self, draft: str) -> Taken:
        self._note("commit")
        return Taken([3, 4], [30, 40], {"marks": [None, [1, 2]]})

    def tidy(self, draft: str) -> None:
        self._note("tidy")

    def to_restore(self, tag: str | int | None) -> str:
        self._note("to_restore")
        return "whole"

    def to_read(self, tag: str | int | None) -> str | None:
        self._note("to_read")
        return "whole" if tag else None

    def to_delete(self, tag: str | int) -> str:
        self._note("to_delete")
        return "whole"

    def state_of(self, whole: str) -> tuple[Any, Any]:
        self._note("state_of")
        return {"step": 1}, None

    def go_back(self, whole: str) -> Exception | None:
        self._note("go_back")
        return self._apart

    def delete(self, whole: str) -> list[str]:
        self._note("delete")
        return ["pid 1"]

    def described(self) -> list[dict[str, Any]]:
        return [{"tag": "a"}]


def test_the_commit_comes_after_all_parts_and_adds_them_up() -> None:
    stores = Stores()
    info = CheckpointsOverParts(stores).checkpoint("day-1")
    assert stores.calls == ["begin", "save_parts", "commit", "tidy"]
    assert info.pop("seconds") >= 0
    assert info == {"tag": "day-1", "rows_written": 7, "bytes": 70, "marks": [None, [1, 2]]}


@pytest.mark.parametrize("step", ["begin", "save_parts", "commit"])
def test_nothing_comes_after_a_step_that_failed(step: str) -> None:
    stores = Stores(fails_in=step)
    with pytest.raises(StoreError, match=step):
        CheckpointsOverParts(stores).checkpoint()
    assert stores.calls[-1] == step


def test_the_state_is_read_before_any_part_goes_back() -> None:
    stores = Stores()
    assert CheckpointsOverParts(stores).restore("day-1") == ({"step": 1}, None)
    assert stores.calls == ["to_restore", "state_of", "go_back"]
    stores = Stores(fails_in="state_of")
    with pytest.raises(StoreError):
        CheckpointsOverParts(stores).restore("day-1")
    assert "go_back" not in stores.calls


def test_parts_that_may_differ_are_told_and_others_are_not() -> None:
    with pytest.raises(StoreError, match="disk") as apart:
        CheckpointsOverParts(Stores(apart=StoreError("disk"))).restore()
    assert apart.value.__notes__ == [
        "both stores may be at different checkpoints now: call restore() again"
    ]
    with pytest.raises(StoreError) as together:
        CheckpointsOverParts(Stores(fails_in="go_back")).restore()
    assert not hasattr(together.value, "__notes__")


def test_a_model_is_read_where_there_is_a_checkpoint_and_readers_of_a_deleted_one_are_told() -> (
    None
):
    checkpoints = CheckpointsOverParts(Stores())
    assert checkpoints.checkpoint_state("day-1") == ({"step": 1}, None)
    assert checkpoints.checkpoint_state() == (None, None)
    assert checkpoints.delete_checkpoint("day-1") == ["pid 1"]
    assert checkpoints.checkpoints() == [{"tag": "a"}]


@dataclass
class Size:
    rows: int
    bytes: int


def test_a_checkpoint_is_listed_with_what_all_its_parts_hold() -> None:
    listed = describe("a", 3, [Size(1, 10), Size(2, 20)], 5.0, True)
    assert listed == {
        "tag": "a", "id": 3, "rows": 3, "bytes": 30, "created": 5.0, "current": True
    }  # fmt: skip


def test_one_is_found_by_name_and_without_one_the_current() -> None:
    kept = [("a", 1), ("b", 2)]

    def find(name: str | int | None, current: tuple[str, int] | None) -> tuple[str, int]:
        return find_or_current(kept, name, lambda one: one, current, ("here", "there is none"))

    assert find("a", ("b", 2)) == ("a", 1) and find(2, None) == ("b", 2)
    assert find(None, ("gone", 9)) == ("gone", 9), "also one that is not listed"
    with pytest.raises(ConfigError, match=r"here: there is none$"):
        find(None, None)
    with pytest.raises(ConfigError, match="no checkpoint 'c'"):
        find("c", ("a", 1))
    with pytest.raises(ConfigError, match=r"delete_checkpoint\(None\)"):
        check_is_named(None)


@pytest.mark.parametrize(
    ("checkpoints", "fitting"),
    [(["a", "a"], "a"), (["a", "b"], None), (["a", None], None), ([None, None], None), ([""], "")],
)
def test_a_model_fits_where_the_rows_of_every_part_fit_it(
    checkpoints: list[str | None], fitting: str | None
) -> None:
    assert fitting_all(checkpoints) == fitting
