"""hps train --follow: the bits of a training on the whole log, whenever its files come, and killed
or stopped at any moment.

Above it: pytest. Below it: hps/train/following.py, `hps train`. Files come while a run would sleep,
so that no test waits for one.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import hps
from hps.cli.main import main
from hps.common.json_text import Json
from hps.errors import ConfigError, StoreError
from hps.reader.followed import FollowedFolder
from hps.stops import Stops
from hps.train import TrainOptions, train
from hps.train import following as following_module
from hps.train.boundary import Boundary
from hps.train.following import Following
from hps.train.periods import Periods
from hps.train.progress import Progress
from hps.train.ranks import TrainingRanks
from tests.forking import in_forked_child
from tests.logs import write_criteo
from tests.parity.test_resume import options, same_bits
from tests.train.killed_run import killed_after

SIZES = (90, 40, 150, 1, 63, 64, 200)  # examples of the files; batches have 64
TOTAL = sum(SIZES)
PLAIN: Json = {"epochs": 1, "base_rate": False, "dram": "8MiB"}

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The files, in the order of their names."""
    folder = tmp_path_factory.mktemp("logs")
    return [
        write_criteo(folder / f"{place:02}.tsv", size, num_keys=300, seed=place)
        for place, size in enumerate(SIZES)
    ]


def put(folder: Path, *files: Path) -> Path:
    """As a writer does: whole before it has its name."""
    folder.mkdir(exist_ok=True)
    for file in files:
        part = folder / f"{file.name}.tmp"
        part.write_bytes(file.read_bytes())
        part.rename(folder / file.name)
    return folder


def follow(folder: Path, store: Path, **more: Any) -> TrainOptions:
    return options("", store, **{**PLAIN, "data": (), "follow": folder, **more})


@contextmanager
def coming(monkeypatch: pytest.MonkeyPatch, *acts: Callable[[], object]) -> Iterator[list[float]]:
    """Instead of sleeping a run has the next thing happen; after the last of them it is idle, and
    ends. Gives the seconds that it was to have slept."""
    left, slept = list(acts), []

    def sleep(self: Following, waited: float) -> None:
        slept.append(waited)
        if left:
            left.pop(0)()
        else:
            self._until_idle = 0.0

    with monkeypatch.context() as patch:
        patch.setattr(Following, "_sleep", sleep)
        yield slept
    assert not left


def files_come(monkeypatch: pytest.MonkeyPatch, folder: Path, *groups: list[Path]) -> Any:
    return coming(monkeypatch, *[lambda group=group: put(folder, *group) for group in groups])


def state_of(store: Path) -> Json:
    """The dense side of a store's newest checkpoint."""
    with hps.open(store) as server:
        model, _ = server.checkpoint_state("final")
    assert model is not None
    return model


def position_of(store: Path, tag: str | None = "final") -> Json:
    """The position of a checkpoint."""
    with hps.open(store) as server:
        _, reader = server.checkpoint_state(tag)
    assert reader is not None
    return reader


def assert_same_model(one: Path, other: Path) -> None:
    first, second = state_of(one), state_of(other)
    for part in ("model", "dense_optimizer", "schedulers", "random", "progressive", "totals"):
        assert plain(first[part]) == plain(second[part]), part
    for name in ("period_file", "valid_epochs", "evaluations"):
        assert first.get(name) == second.get(name)


def plain(value: Any) -> Any:
    """With lists for tensors, which == compares by their numbers."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize(
    ("depth", "more"),
    [
        (0, {}),
        (2, {"checkpoint_every": 3}),
        (2, {"accumulate": 3}),
        ("auto", {"shuffle_buffer": 192, "lookahead": 2}),
    ],
)
def test_files_that_come_while_a_run_waits_make_the_model_of_the_whole_log(
    depth: Any,
    more: Json,
    logs: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    more = {"depth": depth, **more}
    whole = train(options("", tmp_path / "whole", **{**PLAIN, **more, "data": logs}))
    folder = put(tmp_path / "logs", *logs[:1])
    with files_come(monkeypatch, folder, logs[1:2], logs[2:5], logs[5:6], logs[6:]):
        figures = train(follow(folder, tmp_path / "store", **more))
    assert figures["follow"]["files"] == len(logs) and figures["follow"]["waits"] == 5
    assert figures["follow"]["folder"] == str(folder) and whole["follow"] is None
    assert same_bits(figures) == same_bits(whole)
    assert_same_model(tmp_path / "store", tmp_path / "whole")


def test_periods_validation_and_scores_by_file_are_those_of_the_whole_log(
    logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more: Json = {"advance_every": "file", "progressive": True, "statistics": True}
    more |= {"valid": logs[:1], "eval_every": 4, "optimizer": "adagrad", "lr": 0.05}
    more |= {"initial_accumulator": 0.01}
    whole = train(options("", tmp_path / "whole", **{**PLAIN, **more, "data": logs}))
    folder = put(tmp_path / "logs", *logs[:2])
    told: list[str] = []
    progress = Progress(0)
    monkeypatch.setattr(progress, "say", told.append)
    with files_come(monkeypatch, folder, logs[2:3], logs[3:6], logs[6:]):
        figures = train(follow(folder, tmp_path / "store", **more), progress)
    assert any(line.endswith(f"begins with {logs[6].name}") for line in told)
    for name in ("period", "evaluations", "progressive", "best"):
        assert figures[name] == whole[name]
    assert figures["period"] > 3 and len(figures["evaluations"]) > 2
    assert same_bits(figures) == same_bits(whole)
    assert_same_model(tmp_path / "store", tmp_path / "whole")


def test_what_is_measured_of_the_first_examples_waits_for_them(
    logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log that ends before there are as many, of all."""
    measured: Json = {**PLAIN, "base_rate": True, "optimizer": "adagrad"}
    whole = train(options("", tmp_path / "whole", **{**measured, "data": logs}))
    for least in (10_000, 200):
        monkeypatch.setattr(following_module, "NUM_EXAMPLES", least)
        folder = put(tmp_path / f"logs-{least}", *logs[:1])
        store = tmp_path / f"store-{least}"
        with files_come(monkeypatch, folder, logs[1:3], logs[3:]):
            figures = train(follow(folder, store, **measured))
        # Where 200 are enough the first three files have told, and the rest had no part in it.
        assert (figures["base_rate"] == whole["base_rate"]) == (least == 10_000)
        assert (same_bits(figures) == same_bits(whole)) == (least == 10_000)
        assert figures["total_examples"] == TOTAL


@pytest.mark.parametrize("kill", [1, 2, 4])
def test_a_killed_run_goes_on_whatever_came_since(
    kill: int, logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more: Json = {"checkpoint_every": 2}
    whole = train(options("", tmp_path / "whole", **{**PLAIN, **more, "data": logs}))
    folder = put(tmp_path / "logs", *logs[:2])
    with killed_after(kill), files_come(monkeypatch, folder, logs[2:3], logs[3:6], logs[6:]):
        train(follow(folder, tmp_path / "store", **more))
    put(folder, *logs[2:])
    with files_come(monkeypatch, folder):
        figures = train(follow(folder, tmp_path / "store", resume=True, **more))
    assert 0 < figures["examples"] < TOTAL
    assert same_bits(figures) == same_bits(whole)
    assert_same_model(tmp_path / "store", tmp_path / "whole")


def test_a_process_that_is_killed_while_it_waits_loses_nothing_that_is_saved(
    logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put(tmp_path / "logs", *logs[:3])
    more: Json = {"checkpoint_every": 3, "depth": 0}

    def killed() -> str:
        with coming(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGKILL)):
            train(follow(folder, tmp_path / "store", **more))
        return "it was not killed"

    assert in_forked_child(killed) == f"the child hung, status {int(signal.SIGKILL)}: "
    put(folder, *logs[3:])
    (folder / logs[0].name).unlink()  # of a day that is over, and needed no more
    told: list[str] = []
    progress = Progress(0)
    monkeypatch.setattr(progress, "say", told.append)
    with files_come(monkeypatch, folder):
        figures = train(follow(folder, tmp_path / "store", resume=True, **more), progress)
    assert figures["examples"] == TOTAL - 192
    assert any(f"{logs[0].name} can be read no more" in line for line in told)
    whole = train(options("", tmp_path / "whole", **{**PLAIN, **more, "data": logs}))
    assert same_bits(figures) == same_bits(whole)


def test_a_run_that_has_ended_goes_on_with_later_files(
    logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file once: the end of a run is the end of its files."""
    folder = put(tmp_path / "logs", *logs[:3])
    more: Json = {"advance_every": "file", "statistics": True, "resume_if_any": True}
    with files_come(monkeypatch, folder):
        figures = train(follow(folder, tmp_path / "store", **more))
    assert figures["total_examples"] == sum(SIZES[:3]) and figures["period"] == 2
    with files_come(monkeypatch, folder):
        still = train(follow(folder, tmp_path / "store", **more))
    assert still["examples"] == 0 and still["loss_digest"] == figures["loss_digest"]
    with files_come(monkeypatch, folder, logs[3:5]):
        figures = train(follow(folder, tmp_path / "store", **more))
    assert figures["total_examples"] == sum(SIZES[:5]) and figures["examples"] == sum(SIZES[3:5])
    assert figures["period"] == 4


def test_a_run_whose_files_are_taken_away_keeps_no_list_of_them(
    logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints name the files that are there, and it goes on from them with the same bits;
    another run takes it up at each file, and what was read is taken away meanwhile."""
    more: Json = {"advance_every": "file", "progressive": True, "statistics": True, "depth": 0}
    store, folder = tmp_path / "store", tmp_path / "logs"
    assert _ends_with_few_files(logs, folder, store, more, monkeypatch) == len(logs)
    whole = train(options("", tmp_path / "whole", **{**PLAIN, **more, "data": logs}))
    put(folder, logs[0])  # an old one, from a copy
    with pytest.raises(ConfigError, match=rf"{logs[0].name} has come after .*put back"):
        train(follow(folder, store, resume=True, follow_until_idle=0.0, **more))
    (folder / logs[0].name).unlink()
    state, model = position_of(store)["files"], state_of(store)
    assert state["first"] == len(logs) - 1 and [name for name, _ in state["files"]] == ["06.tsv"]
    assert [name for name, _ in state["read"]] == ["01.tsv", "05.tsv"]  # are there
    assert model["period_file"] == state_of(tmp_path / "whole")["period_file"] == len(logs) - 1
    assert model["totals"]["examples"] == TOTAL == whole["total_examples"]
    with (folder / "01.tsv").open("a") as file:
        file.write(logs[2].read_text())
    with pytest.raises(StoreError, match=r"01\.tsv had .* bytes when it was read"):
        train(follow(folder, store, resume=True, follow_until_idle=0.0, **more))
    with pytest.raises(ConfigError, match=r"a folder that was followed, of whose files 6 were"):
        train(options("", store, **{**PLAIN, **more, "data": logs, "resume": True}))


def _ends_with_few_files(
    logs: list[Path],
    folder: Path,
    store: Path,
    more: Json,
    monkeypatch: pytest.MonkeyPatch,
) -> int:
    """Trains on the files by several runs, each of which sees one come and those before it go, but
    for 01.tsv; the number of files that the last one knows of."""
    put(folder, *logs[:2])
    num_files = 0
    for place in range(2, len(logs), 2):

        def move(place: int = place) -> None:
            put(folder, *logs[place : place + 1])
            for path in logs[: place - 1]:
                if path.name != "01.tsv":
                    (folder / path.name).unlink(missing_ok=True)

        with coming(monkeypatch, move, partial(put, folder, *logs[place + 1 : place + 2])):
            figures = train(follow(folder, store, resume_if_any=True, **more))
        num_files = figures["follow"]["files"]
    return num_files


def test_a_run_that_is_stopped_goes_on_without_the_files_that_were_taken_away(
    logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more: Json = {"checkpoint_every": 2, "advance_every": "file", "statistics": True}
    whole = train(options("", tmp_path / "whole", **{**PLAIN, **more, "data": logs}))
    folder = put(tmp_path / "logs", *logs[:3])

    def move() -> None:
        (folder / logs[0].name).unlink()
        put(folder, *logs[3:])

    with killed_after(4), coming(monkeypatch, move):
        train(follow(folder, tmp_path / "store", **more))
    state = position_of(tmp_path / "store", None)["files"]
    assert state["first"] >= 1 and logs[0].name not in str(state)
    for path in logs[: state["first"]]:
        (folder / path.name).unlink(missing_ok=True)
    with files_come(monkeypatch, folder):
        figures = train(follow(folder, tmp_path / "store", resume=True, **more))
    assert 0 < figures["examples"] < TOTAL and figures["follow"]["files"] == len(logs)
    assert same_bits(figures) == same_bits(whole)
    assert_same_model(tmp_path / "store", tmp_path / "whole")


def test_a_run_that_goes_on_leaves_out_at_once_what_is_gone(
    logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that never waits for files."""
    more: Json = {"advance_every": "file", "statistics": True, "depth": 0, "limit": 128}
    store, folder = tmp_path / "store", put(tmp_path / "logs", *logs)
    train(follow(folder, store, **more))
    (folder / logs[0].name).unlink()
    assert [name for name, _ in position_of(store)["files"]] == [path.name for path in logs]
    train(follow(folder, store, resume=True, **more | {"limit": 192}))
    state = position_of(store)["files"]
    assert state["first"] == 2 and [name for name, _ in state["read"]] == ["01.tsv"]
    told: list[str] = []
    progress = Progress(0)
    monkeypatch.setattr(progress, "say", told.append)
    train(follow(folder, store, resume=True, **more | {"limit": 448}), progress)
    assert any(line.endswith("begins with 05.tsv") for line in told), told


def test_a_log_that_was_read_whole_is_in_the_period_of_its_last_file() -> None:
    """Where a reader of one's own ended, which is no place in a file."""
    trainer = mock.Mock(period_file=None, begun_files=[])
    opts = follow(Path("logs"), Path("store"), advance_every="file")
    periods = Periods(mock.Mock(period=0), trainer, opts, mock.Mock(), print)
    files: list[list[str | int]] = [["a", 1], ["b", 2], ["c", 3]]
    end: Json = {"files": files[:2], "epoch": 1, "file": 0}
    periods.begin(files, end, is_new_data=False)
    assert trainer.period_file == 1


def test_a_late_file_ends_the_run_which_goes_on_once_it_is_renamed(
    logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put(tmp_path / "logs", *logs[:2], *logs[3:5])
    more: Json = {"checkpoint_every": 0}
    late = folder / logs[2].name
    with (
        files_come(monkeypatch, folder, logs[2:3]),
        pytest.raises(ConfigError, match=rf"{late.name} has come after {logs[4].name}") as raised,
    ):
        train(follow(folder, tmp_path / "store", **more))
    assert "is in a checkpoint; --resume goes on there" in raised.value.__notes__[0]
    with pytest.raises(ConfigError, match=f"{late.name} has come after"):
        train(follow(folder, tmp_path / "store", resume=True, **more))
    renamed = late.rename(folder / "05a.tsv")
    with files_come(monkeypatch, folder):
        figures = train(follow(folder, tmp_path / "store", resume=True, **more))
    in_order = [*logs[:2], *logs[3:5], renamed]
    whole = train(options("", tmp_path / "whole", **{**PLAIN, **more, "data": in_order}))
    assert same_bits(figures) == same_bits(whole)


def test_a_file_that_grows_after_it_was_read_ends_the_run(
    logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put(tmp_path / "logs", *logs[:3])

    def grow() -> None:
        with (folder / logs[1].name).open("a") as file:
            file.write(logs[3].read_text())

    with (
        coming(monkeypatch, grow),
        pytest.raises(StoreError, match=rf"{logs[1].name} had .* bytes when it was read"),
    ):
        train(follow(folder, tmp_path / "store"))
    with pytest.raises(StoreError, match=rf"{logs[1].name} had .* bytes when it was read"):
        train(follow(folder, tmp_path / "store", resume=True))


def test_a_file_that_is_gone_before_it_is_read_ends_the_run_with_what_was_trained(
    logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put(tmp_path / "logs", *logs[:3])
    look = FollowedFolder.look

    def then_gone(self: FollowedFolder) -> Any:
        files = look(self)
        (folder / logs[3].name).unlink(missing_ok=True)
        return files

    monkeypatch.setattr(FollowedFolder, "look", then_gone)
    with (
        files_come(monkeypatch, folder, logs[3:4]),
        pytest.raises(StoreError, match=rf"cannot read .*{logs[3].name}: No such") as raised,
    ):
        train(follow(folder, tmp_path / "store", checkpoint_every=0))
    assert "is in a checkpoint; --resume goes on there" in raised.value.__notes__[0]
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "00.tsv").touch()

    def replaced() -> None:
        (empty / "00.tsv").unlink()
        put(empty, logs[1])

    with coming(monkeypatch, replaced), pytest.raises(StoreError, match=r"cannot read .*00\.tsv"):
        train(follow(empty, tmp_path / "other"))


def test_a_signal_ends_a_wait_and_the_run_goes_on_with_the_same_bits(
    logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put(tmp_path / "logs", *logs[:3])
    more: Json = {"checkpoint_every": 0, "poll": 60.0}
    sleep = Following._sleep

    def signalled(self: Following, waited: float) -> None:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        sleep(self, waited)

    start = time.monotonic()
    with monkeypatch.context() as patch, Stops() as stops:
        patch.setattr(Following, "_sleep", signalled)
        stopped = train(follow(folder, tmp_path / "store", **more), stops=stops)
    assert time.monotonic() - start < 30
    assert stopped["stopped"] == "SIGTERM" and stopped["checkpoints"] == 1
    assert stopped["total_examples"] == sum(SIZES[:3]) // 64 * 64  # the rest waits for its batch
    put(folder, *logs[3:])
    with files_come(monkeypatch, folder):
        figures = train(follow(folder, tmp_path / "store", resume=True, **more))
    whole = train(options("", tmp_path / "whole", **{**PLAIN, **more, "data": logs}))
    assert same_bits(figures) == same_bits(whole)


def test_a_run_ends_when_no_file_has_come_for_long_enough(logs: list[Path], tmp_path: Path) -> None:
    folder = put(tmp_path / "logs", *logs[:2])
    told: Json = {"poll": 0.02, "follow_until_idle": 0.3}
    start = time.perf_counter()
    figures = train(follow(folder, tmp_path / "store", **told))
    seconds = time.perf_counter() - start
    assert figures["stopped"] is None and figures["total_examples"] == sum(SIZES[:2])
    waited = figures["follow"]["wait_seconds"]
    assert 0.3 <= waited <= seconds - figures["seconds"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"there is no file to learn from; .* waited for 0\.3 s"):
        train(follow(tmp_path / "empty", tmp_path / "other", **told))
    assert not (tmp_path / "other").exists()


def test_what_was_trained_is_saved_and_published_in_a_wait(
    logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next file may be hours away."""
    folder, seen = put(tmp_path / "logs", *logs[:3]), []

    def look() -> None:
        with hps.open(tmp_path / "store", read_only=True) as server:
            seen.append(len(server.checkpoints()))

    monkeypatch.setattr("hps.train.boundary.IDLE_SECONDS", 0.0)
    with coming(monkeypatch, look, look):
        more: Json = {"checkpoint_every": 0, "publish": str(tmp_path / "published")}
        figures = train(follow(folder, tmp_path / "store", **more))
    assert seen == [1, 1]  # once a wait
    assert figures["checkpoints"] == 2 and len(figures["published"]) >= 1


def test_a_checkpoint_in_a_wait_is_due_by_time() -> None:
    now = [0.0]
    boundary = Boundary((0,), 20.0, Stops(), TrainingRanks(), clock=lambda: now[0])
    assert not boundary.is_due_in_wait(100.0)  # nothing was trained
    boundary.batch_done()
    assert [boundary.is_due_in_wait(waited) for waited in (0.0, 9.9, 10.0)] == [False, False, True]
    now[0] = 20.0
    assert boundary.is_due_in_wait(0.0)
    boundary.checkpoint_done()
    assert not boundary.is_due_in_wait(100.0)
    never = Boundary((8,), 0.0, Stops(), TrainingRanks())
    never.batch_done()
    assert not never.is_due_in_wait(100.0)


def test_a_wait_is_told_after_twice_as_long_each_time() -> None:
    told = StringIO()
    progress = Progress(2.0, told)
    for waited in (0.0, 1.9, 2.0, 3.9, 4.0, 7.9, 9.0, 0.0, 2.0):
        progress.waiting(f"waits, after {waited:g}", waited)
    said = [line.split(",")[1] for line in told.getvalue().splitlines()]
    assert said == [" after 2", " after 4", " after 9", " after 2"]
    silent = StringIO()
    Progress(0, silent).waiting("waits", 100.0)
    assert not silent.getvalue()


def test_ranks_do_not_follow() -> None:
    world = mock.Mock(rank=0, size=2)
    with pytest.raises(ConfigError, match=r"\(--follow\) goes with one process"):
        train(follow(Path("logs"), Path("store")), world=world)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"data": ["log.tsv"]}, "is read instead of DATA"),
        ({"epochs": 2}, r"epochs=2 \(--epochs\) does not go with a folder"),
        ({"shuffle_files": True}, r"shuffle_files=True \(--shuffle-files\) does not go with"),
        ({"valid_share": 0.1}, r"valid_share=0.1 \(--valid-share\) .* give a log of its own"),
        ({"follow": None, "data": ["log"], "follow_until_idle": 1.0}, "follows a folder; give it"),
    ],
)
def test_what_does_not_go_together_is_refused(more: Json, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        follow(Path("logs"), Path("store"), **more)


def test_the_command_follows_by_a_flag_or_a_file_of_flags(
    logs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = put(tmp_path / "logs", *logs[:3])
    (tmp_path / "run.toml").write_text(
        f'follow = "{folder}"\nfollow-until-idle = 0\nbatch-size = 64\nno-base-rate = true\n'
        "lr = 0.05\ninitial-accumulator = 0.01\n"
    )
    words = ["train", "--config", str(tmp_path / "run.toml"), "--store", str(tmp_path / "store")]
    assert main([*words, "--json", str(tmp_path / "out.json")]) == 0
    told = capsys.readouterr()
    assert f"followed {folder} for 3 file(s)" in told.out
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["follow"]["files"] == 3 and figures["examples"] == sum(SIZES[:3])
    assert main([*words, "--resume"]) == 0
    assert f"is at the end of the files in {folder}, after" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["train", "--store", str(tmp_path / "store")])
    assert "DATA, or data in the file of --config, or --follow" in capsys.readouterr().err
    model = state_of(tmp_path / "store")
    assert model["options"]["follow"] == str(folder) and model["options"]["data"] == []
