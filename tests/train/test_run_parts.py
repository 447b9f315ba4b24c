"""The parts of a training run, each alone: its checkpoints between steps, and how it ends.

Above it: pytest. Below it: hps.train.step_checkpoints, hps.train.closing.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from hps.checkpoint.names import FINAL_TAG
from hps.errors import ConfigError
from hps.stops import Stops
from hps.train.boundary import Boundary
from hps.train.closing import add_end_figures, save_end
from hps.train.final_figures import TestFailed as NotMeasured
from hps.train.loop import LoopEnd
from hps.train.options import TrainOptions
from hps.train.ranks import TrainingRanks
from hps.train.run_publisher import RunPublisher
from hps.train.step_checkpoints import StepCheckpoints


class Server:
    """Notes what is asked of it."""

    period = 7

    def __init__(self) -> None:
        self.taken: list[tuple[str | None, Any, Any]] = []
        self.tables = {"ads": None, "others": None, "users": None}  # one of another model
        self.listed: list[dict[str, Any]] = []
        self.refused: set[str] = set()

    def checkpoint(self, tag: str | None, model: Any, reader: Any) -> None:
        if tag in self.refused:
            raise ConfigError(f"tag={tag!r} is refused")
        self.taken.append((tag, model, reader))

    def checkpoints(self) -> list[dict[str, Any]]:
        return self.listed

    def num_rows(self, table: str) -> int:
        return len(table)

    def stats(self) -> dict[str, Any]:
        return {"tables": {name: {"expired_rows": len(name)} for name in self.tables}}

    def digest(self, table: str) -> str:
        return f"digest of {table}"


def parts(every: int = 2) -> tuple[Any, StepCheckpoints]:
    server: Any = Server()
    options = TrainOptions(data=["log.tsv"], store="store")
    publisher = RunPublisher(options, TrainingRanks(), print, None)
    boundary = Boundary((every, 0), 0, Stops(), TrainingRanks())
    return server, StepCheckpoints(server, boundary, publisher)


TRAINER: Any = SimpleNamespace(
    state=lambda: {"of": "the dense side"},
    totals=SimpleNamespace(examples=0),
    recipe=SimpleNamespace(tables=["ads", "users"]),
)


def test_a_checkpoint_is_counted_and_begins_the_next_interval() -> None:
    server, checkpoints = parts(every=2)
    for _ in range(2):
        checkpoints.boundary.batch_done()
    assert checkpoints.boundary.due().is_checkpoint and not checkpoints.boundary.is_saved
    checkpoints.take(None, TRAINER, {"file": 1})
    assert server.taken == [(None, {"of": "the dense side"}, {"file": 1})]
    assert checkpoints.count == 1 and checkpoints.seconds > 0
    assert not checkpoints.boundary.due().is_checkpoint and checkpoints.boundary.is_saved


@pytest.mark.parametrize(
    ("stopped", "num_batches", "is_changed", "tags"),
    [
        (0, 1, True, [FINAL_TAG]),
        (0, 0, False, []),  # nothing to train on: the checkpoint that is there stays the newest
        (15, 1, True, [None]),
        (15, 0, True, []),  # nothing since the checkpoint before
    ],
)
def test_how_a_run_ends_decides_on_its_last_checkpoint(
    stopped: int, num_batches: int, is_changed: bool, tags: list[str | None]
) -> None:
    server, checkpoints = parts()
    checkpoints.boundary.checkpoint_done()
    for _ in range(num_batches):
        checkpoints.boundary.batch_done()
    ended = LoopEnd({}, {"file": 2}, is_finished=not stopped, stopped=stopped)
    save_end(checkpoints, TRAINER, ended, is_changed=is_changed, say=print)
    assert [tag for tag, _, _ in server.taken] == tags


@pytest.mark.parametrize(
    ("stopped", "current", "tags"),
    [(0, "day-1", ["day-2"]), (0, "day-2", []), (15, "day-1", [])],
)
def test_a_tag_that_was_asked_for_is_there_where_there_was_nothing_to_train(
    stopped: int, current: str, tags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    server, checkpoints = parts()
    server.listed = [{"tag": "day-2", "current": False}, {"tag": current, "current": True}]
    checkpoints.boundary.checkpoint_done()
    ended = LoopEnd({}, {"file": 2}, is_finished=not stopped, stopped=stopped)
    save_end(checkpoints, TRAINER, ended, is_changed=False, say=print, tag="day-2")
    assert [tag for tag, _, _ in server.taken] == tags
    assert ("there was nothing to train on" in capsys.readouterr().out) == bool(tags)


def test_an_end_whose_tag_became_a_promoted_name_is_kept_without_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server, checkpoints = parts()
    server.refused = {"day-2"}
    server.listed = [{"tag": "day-1", "names": ["day-2"]}]
    ended = LoopEnd({}, {"file": 2}, is_finished=True, stopped=0)
    save_end(checkpoints, TRAINER, ended, is_changed=True, say=print, tag="day-2")
    assert server.taken == [(None, {"of": "the dense side"}, {"file": 2})]
    assert checkpoints.count == 1
    assert "the tag 'day-2' became a promoted name" in capsys.readouterr().out
    server.refused = {"day-3"}  # for another reason
    with pytest.raises(ConfigError, match="refused"):
        save_end(checkpoints, TRAINER, ended, is_changed=True, say=print, tag="day-3")


def test_a_stopped_run_measures_nothing_more() -> None:
    options: Any = SimpleNamespace(digest=True, test=["log"])
    context: Any = SimpleNamespace(ranks=TrainingRanks())
    figures: dict[str, Any] = {"stopped": "SIGTERM"}
    add_end_figures(figures, parts()[0], TRAINER, options, context)
    assert figures.pop("peak_rss_bytes") > 0
    assert figures == {"stopped": "SIGTERM", "period": 7, "expired_rows": 8, "rows": 8}


def test_figures_stay_where_measuring_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise NotMeasured("the ranks are out of step")

    monkeypatch.setattr("hps.train.closing.measure_test", fail)
    options: Any = SimpleNamespace(digest=True, test=["log"])
    context: Any = SimpleNamespace(ranks=TrainingRanks())
    figures: dict[str, Any] = {"stopped": None}
    with pytest.raises(NotMeasured):
        add_end_figures(figures, parts()[0], TRAINER, options, context)
    digests = {"ads": "digest of ads", "users": "digest of users"}
    assert figures == {
        "stopped": None,
        "period": 7,
        "expired_rows": 8,
        "rows": 8,
        "digests": digests,
    }
