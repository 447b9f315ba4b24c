"""hps train --statistics and --advance: rows count, and each day's log is a period, killed or not.

Above it: pytest. Below it: `hps train`, `hps.ParameterServer`.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.common.json_text import Json
from hps.errors import ConfigError
from hps.reader import ReaderConfig, open_reader
from hps.train import TrainOptions, train
from tests.train.killed_run import Killed

NUM_DAYS, LINES, BATCH = 4, 70, 16  # so that batches reach over the ends of days


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Logs of slots, a day each, whose keys drift."""
    folder = tmp_path_factory.mktemp("days")
    generator = np.random.default_rng(7)
    paths = []
    for day in range(NUM_DAYS):
        lines = []
        for _ in range(LINES):
            keys = generator.integers(day * 20, day * 20 + 60, 4)
            slots = " ".join(f"{slot + 1}:{key}" for slot, key in enumerate(keys))
            lines.append(f"click:{int(generator.random() < 0.4)} {slots}\n")
        paths.append(folder / f"day-{day}")
        paths[-1].write_text("".join(lines))
    return paths


def options_of(data: list[Path], store: Path | None, **more: Any) -> TrainOptions:
    """A small model without dropout."""
    small: Json = {"model": "deepfm", "dim": 2, "hidden": (4,), "batch_size": BATCH}
    small |= {"depth": 2, "dram": "8MiB", "format": "slots", "statistics": None}
    return TrainOptions(data=data, store=store, **{**small, **more})


def told(figures: Json) -> Json:
    """What runs that were killed and runs that were not must agree on."""
    names = ("period", "rows", "digests", "loss_digest", "total_examples", "evaluations")
    return {name: figures[name] for name in names}


def counts_of(paths: list[Path]) -> dict[int, tuple[float, float]]:
    """Shows and clicks of each key of logs."""
    found: dict[int, tuple[float, float]] = {}
    tables = [hps.TableConfig(name="features", dim=1)]
    for path in paths:
        for batch in open_reader(path, tables=tables, config=ReaderConfig(format="slots")):
            ids = batch.features["features"]
            examples = np.repeat(
                np.arange(len(ids.offsets) - 1) % len(batch), np.diff(ids.offsets.numpy())
            )
            for key, label in zip(
                ids.keys_L.tolist(), batch.labels.numpy()[examples].tolist(), strict=True
            ):
                show, click = found.get(key, (0.0, 0.0))
                found[key] = (show + 1, click + label)
    return found


def test_rows_count_shows_clicks_and_the_period_of_their_day(
    days: list[Path], tmp_path: Path
) -> None:
    figures = train(options_of(days[:1], tmp_path / "store", statistics=True))
    assert figures["period"] == 0
    more: Json = {"resume": True, "new_data": True, "advance": True}
    figures = train(options_of(days[1:2], tmp_path / "store", **more))
    assert figures["period"] == 1
    counts, second = counts_of(days[:2]), counts_of(days[1:2])
    keys = np.array(list(counts), np.int64)
    with hps.open(str(tmp_path / "store")) as server:
        assert server.tables["features"].statistics and server.period == 1
        seen = server.statistics("features", keys)
    assert list(zip(seen["show"].tolist(), seen["click"].tolist(), strict=True)) == list(
        counts.values()
    )
    assert seen["last_period"].tolist() == [int(key in second) for key in counts]


def test_a_model_that_does_not_count_is_not_made_to(days: list[Path], tmp_path: Path) -> None:
    train(options_of(days[:1], tmp_path / "plain"))
    with pytest.raises(ConfigError, match=r"statistics=False, .* asks for True \(--statistics\)"):
        train(options_of(days[:1], tmp_path / "plain", statistics=True, resume=True))
    train(options_of(days[:1], tmp_path / "counts", statistics=True))
    with pytest.raises(ConfigError, match=r"statistics=True, .* asks for False"):
        train(options_of(days[:1], tmp_path / "counts", statistics=False, resume=True))
    with pytest.raises(ConfigError, match="statistics=True, but"):
        on_device: Json = {"gpu": "8MiB", "device": "cuda:0"}
        train(options_of(days[:1], tmp_path / "none", statistics=True, **on_device))
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("depth", [0, 2])
def test_each_file_is_a_period(depth: int, days: list[Path], tmp_path: Path) -> None:
    figures = train(
        options_of(days, tmp_path, statistics=True, advance_every="file", depth=depth, epochs=2)
    )
    assert figures["period"] == NUM_DAYS - 1  # the second epoch reads no new file
    figures = train(
        options_of(
            days[:2], tmp_path, advance_every="file", resume=True, new_data=True, depth=depth
        )
    )
    # The first of them was begun before; the second is a file of its own.
    assert figures["period"] == NUM_DAYS


def test_every_depth_and_accumulation_has_turns_at_the_same_batch(
    days: list[Path], tmp_path: Path
) -> None:
    for accumulate in (1, 3):
        runs = []
        for depth in (0, 1, 4):
            more: Json = {"statistics": True, "advance_every": "file", "accumulate": accumulate}
            folder = tmp_path / f"{accumulate}-{depth}"
            figures = train(options_of(days, folder, depth=depth, eval_every=3, valid=days, **more))
            runs.append(told(figures))
            assert figures["period"] == NUM_DAYS - 1
        assert runs[0] == runs[1] == runs[2]
        still = train(options_of(days, tmp_path / f"{accumulate}", accumulate=accumulate))
        assert still["period"] == 0 and still["loss_digest"] == runs[0]["loss_digest"]


def test_only_files_that_were_not_begun_are_new_data(
    days: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(data: list[Path], **more: Any) -> int:
        more = {"advance": True, "resume": True, "new_data": True, **more}
        return int(train(options_of(data, tmp_path, **more))["period"])

    assert run(days[:1], new_data=False, resume=False) == 0
    assert run(days[:1], new_data=False) == 0  # nothing is left of it
    assert run(days[:1]) == 0  # again, from its beginning
    assert run(days[1:3], limit=BATCH * 15) == 1
    assert run(days[1:3]) == 1  # stopped in the first of them; yet a second time
    assert run(days[2:3], advance=False) == 1
    assert run(days[1:3]) == 1  # the second was read last, the first before
    assert run(days[2:4]) == 2


def test_an_older_day_is_no_new_data_and_a_later_one_is_after_going_back(
    days: list[Path], tmp_path: Path
) -> None:
    def run(day: int, tag: str, **more: Any) -> int:
        more = {"advance": True, "resume": True, "new_data": True, "tag": tag, **more}
        return int(train(options_of(days[day : day + 1], tmp_path, **more))["period"])

    assert run(0, "a", resume=False, new_data=False) == 0
    assert [run(1, "b"), run(2, "c")] == [1, 2]
    assert run(0, "d") == 2  # two runs ago
    assert run(0, "e", resume_from="b") == 1
    assert run(2, "f", resume_from="b") == 2  # which that checkpoint has not begun
    assert run(1, "g", resume=True, new_data=False, resume_from="b") == 1
    assert run(1, "h", advance=False) == 1 and run(0, "i") == 1


@contextmanager
def killed_at(moment: str, turn: int) -> Iterator[None]:
    """The block is left before or after its turn of that number; or after the checkpoint that
    follows it."""
    advance, take = hps.ParameterServer.advance_period, hps.ParameterServer.checkpoint
    turns: list[int] = []

    def until_killed(self: hps.ParameterServer, to: int | None = None) -> int:
        turns.append(1)
        if moment == "before" and len(turns) == turn:
            raise Killed
        period = advance(self, to)
        if moment == "after" and len(turns) == turn:
            raise Killed
        return period

    def taken(self: hps.ParameterServer, **parts: Any) -> Any:
        info = take(self, **parts)
        if moment == "checkpoint" and len(turns) >= turn:
            raise Killed
        return info

    with (
        mock.patch.object(hps.ParameterServer, "advance_period", until_killed),
        mock.patch.object(hps.ParameterServer, "checkpoint", taken),
        pytest.raises(Killed),
    ):
        yield


@pytest.mark.parametrize("moment", ["before", "after", "checkpoint"])
@pytest.mark.parametrize("turn", [1, 3])
@pytest.mark.parametrize("every", [2, 5])
def test_a_run_over_days_that_is_killed_at_a_turn_goes_on_as_if_it_was_not(
    moment: str, turn: int, every: int, days: list[Path], tmp_path: Path
) -> None:
    more: Json = {"statistics": True, "advance_every": "file", "checkpoint_every": every}
    more |= {"valid": days[:1], "eval_every": 4}
    whole = told(train(options_of(days, tmp_path / "whole", **more)))
    with killed_at(moment, turn):
        train(options_of(days, tmp_path / "killed", **more))
    assert told(train(options_of(days, tmp_path / "killed", resume=True, **more))) == whole


@pytest.mark.parametrize("moment", ["before", "after", "checkpoint"])
def test_a_new_day_that_is_killed_at_its_beginning_is_one_period(
    moment: str, days: list[Path], tmp_path: Path
) -> None:
    def run(name: str, **more: Any) -> Json:
        return train(options_of(days[1:2], tmp_path / name, resume=True, advance=True, **more))

    for name in ("whole", "killed"):
        train(options_of(days[:1], tmp_path / name, statistics=True))
    whole = told(run("whole", new_data=True))
    with killed_at(moment, 1):
        run("killed", new_data=True)
    # Once its first checkpoint is there the run goes on from it, or begins its data once more.
    is_begun = moment == "checkpoint"
    assert told(run("killed", new_data=not is_begun)) == whole
    assert whole["period"] == 1


def test_a_kill_by_the_system_after_a_turn_neither_repeats_nor_loses_it(
    days: list[Path], tmp_path: Path
) -> None:
    words = ["train", *map(str, days), "--format", "slots", "--dim", "2", "--hidden", "4"]
    words += ["--batch-size", str(BATCH), "--statistics", "--advance-every", "file"]
    words += ["--checkpoint-every", "7", "--dram", "8MiB", "--json"]
    script = (
        "import os, signal, sys, hps\n"
        "from hps.cli.main import main\n"
        "advance = hps.ParameterServer.advance_period\n"
        "def killed(self, to=None):\n"
        "    advance(self, to)\n"
        "    if to == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "hps.ParameterServer.advance_period = killed\n"
        "main(sys.argv[1:])\n"
    )
    store, out = tmp_path / "store", tmp_path / "out.json"
    command = [sys.executable, "-c", script, *words, str(out), "--store", str(store)]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert main([*words, str(out), "--store", str(store), "--resume"]) == 0
    assert main([*words, str(tmp_path / "whole.json"), "--store", str(tmp_path / "whole")]) == 0
    killed, whole = (json.loads(path.read_text()) for path in (out, tmp_path / "whole.json"))
    assert told(killed) == told(whole) and killed["period"] == NUM_DAYS - 1


@pytest.mark.parametrize("every", [0, 1])
def test_a_run_that_is_stopped_right_after_a_turn_keeps_it(
    every: int, days: list[Path], tmp_path: Path
) -> None:
    from hps.stops import Stops

    class StopsAtTurn(Stops):
        """As if a signal came with the second turn."""

        turns = 0

    stops, advance = StopsAtTurn(), hps.ParameterServer.advance_period

    def stopping(self: hps.ParameterServer, to: int | None = None) -> int:
        stops.turns += 1
        if stops.turns == 2:
            stops.ask(signal.SIGTERM)
        return advance(self, to)

    # With a checkpoint right before the turn, too, the turn itself is in none yet.
    more: Json = {"statistics": True, "advance_every": "file", "checkpoint_every": every}
    whole = told(train(options_of(days, tmp_path / "whole", **more)))
    with mock.patch.object(hps.ParameterServer, "advance_period", stopping):
        stopped = train(options_of(days, tmp_path / "stopped", **more), stops=stops)
    assert stopped["stopped"] == "SIGTERM" and stopped["period"] == 2
    assert told(train(options_of(days, tmp_path / "stopped", resume=True, **more))) == whole


@pytest.mark.parametrize("depth", [0, 3])
def test_a_run_that_ends_where_a_file_does_leaves_the_turn_to_the_next_run(
    depth: int, days: list[Path], tmp_path: Path
) -> None:
    more: Json = {"statistics": True, "advance_every": "file", "depth": depth}
    whole = told(train(options_of(days, tmp_path / "whole", **more)))
    limit = LINES // BATCH * BATCH  # the next batch ends in the second day
    ended = train(options_of(days, tmp_path / "ended", limit=limit, **more))
    assert ended["period"] == 0 and ended["total_examples"] == limit
    again = train(options_of(days, tmp_path / "ended", resume=True, limit=limit, **more))
    assert again["period"] == 0
    assert told(train(options_of(days, tmp_path / "ended", resume=True, **more))) == whole


def test_turns_may_begin_in_the_middle_of_a_log_but_in_no_later_epoch(
    days: list[Path], tmp_path: Path
) -> None:
    one_day, every_day = (LINES * times for times in (1, NUM_DAYS))
    for limit, turns in ((one_day + BATCH, NUM_DAYS - 2), (every_day + BATCH, 0)):
        folder = tmp_path / f"{limit}"
        before = train(options_of(days, folder, epochs=2, limit=limit))
        assert before["period"] == 0
        more: Json = {"resume": True, "epochs": 2}
        after = train(options_of(days, folder, advance_every="file", **more))
        assert after["period"] == turns


def test_servers_and_ranks_have_no_periods_yet(days: list[Path], tmp_path: Path) -> None:
    def none(self: hps.ParameterServer) -> int:
        raise ConfigError("period over servers: only hps.ParameterServer has periods")

    with (
        mock.patch.object(hps.ParameterServer, "period", property(none)),
        pytest.raises(ConfigError, match=r"\(--advance\): period over servers"),
    ):
        train(options_of(days, tmp_path, advance=True))
    with pytest.raises(ConfigError, match=r"--advance-every.*leave out shuffle_files"):
        options_of(days, tmp_path, advance_every="file", shuffle_files=True)
    assert options_of(days, tmp_path, advance_every="file").advance
