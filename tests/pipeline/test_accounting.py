"""Where a run's time went: the seconds of each stage, the trace, the line that names the bound.

Above it: pytest. Below it: hps/pipeline/{clock,trace,bound}.py, hps/train/depth.py.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.pipeline import Trace, bound_of
from hps.pipeline.clock import INPUT, OUTPUT
from hps.train import TrainOptions, train
from hps.train import depth as depth_module
from hps.train import ranks as ranks_module
from hps.train.depth import DepthChooser
from tests.front import around_pins, one_feature_batch, open_server, wait_until
from tests.logs import write_criteo


def slow_log(num_batches: int, seconds: float) -> Iterator[hps.Batch]:
    for number in range(num_batches):
        time.sleep(seconds)
        yield one_feature_batch([number], number + 1)


class _Watched(hps.Pipeline):
    """Knows which of its stages wait for which side at the moment."""

    def __enter__(self) -> "_Watched":
        self.waiting: set[tuple[str, str]] = set()
        self.plain = self._clock.waiting
        self._clock.waiting = self._watched  # type: ignore[method-assign]
        super().__enter__()
        return self

    @contextmanager
    def _watched(self, stage: str, side: str) -> Iterator[None]:
        with self.plain(stage, side):
            self.waiting.add((stage, side))
            yield
            self.waiting.remove((stage, side))


def test_each_stage_says_what_it_waited_for(tmp_path: Path) -> None:
    pause = 0.02
    starved = {("fetch", INPUT), ("compute", INPUT)}
    stuck = {("network", OUTPUT), ("fetch", OUTPUT)}

    def slow() -> Iterator[hps.Batch]:
        for batch in slow_log(10, 0.0):
            wait_until(lambda: pipeline.waiting == starved)
            time.sleep(pause)
            yield batch

    with open_server(tmp_path) as server:
        pipeline = _Watched(slow(), server, 2)
        with pipeline:
            assert len(list(pipeline)) == 10
        reader_bound = pipeline.seconds()
        pipeline = _Watched(slow_log(10, 0.0), server, 2)
        with pipeline:
            for number, _ in enumerate(pipeline):
                if number < 4:  # then the log is at its end
                    wait_until(lambda: pipeline.waiting == stuck)
                    time.sleep(pause)
        loop_bound = pipeline.seconds()
    least = 0.99 * pause
    assert reader_bound["network"]["busy_seconds"] >= 10 * least
    assert reader_bound["compute"]["wait_input_seconds"] >= 10 * least
    assert reader_bound["fetch"]["wait_input_seconds"] >= 10 * least
    assert reader_bound["network"]["wait_seconds"] == 0
    assert loop_bound["compute"]["busy_seconds"] >= 4 * least
    assert loop_bound["fetch"]["wait_output_seconds"] >= 4 * least
    assert loop_bound["network"]["wait_output_seconds"] >= 4 * least
    for times in (*reader_bound.values(), *loop_bound.values()):
        parts = times["wait_input_seconds"] + times["wait_output_seconds"]
        assert times["wait_seconds"] == pytest.approx(parts)


@pytest.mark.parametrize("depth", [1, 2])
def test_three_stages_work_on_three_batches_at_once(tmp_path: Path, depth: int) -> None:
    """None of them goes on before all three have come to their next batch."""
    num_batches = 12
    meeting = threading.Barrier(3, timeout=60)

    def met_log() -> Iterator[hps.Batch]:
        for number, batch in enumerate(slow_log(num_batches, 0.0)):
            if number >= 2:
                meeting.wait()
            yield batch

    with open_server(tmp_path) as server:
        numbers = iter(range(num_batches))

        def met_pin(pin: Callable[[], Any], keys: list[int]) -> Any:
            if 1 <= next(numbers) < num_batches - 1:
                meeting.wait()
            return pin()

        around_pins(server, met_pin)
        with hps.Pipeline(met_log(), server, depth) as batches:
            for number, _ in enumerate(batches):
                if number < num_batches - 2:
                    meeting.wait()
        assert number == num_batches - 1


def read_trace(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())
    return events


def test_trace_has_a_lane_a_stage_and_the_number_on_each_slice(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with open_server(tmp_path) as server, Trace(path) as trace:
        for _ in range(2):
            with hps.Pipeline(slow_log(5, 0.002), server, 2, trace=trace) as batches:
                for _ in batches:
                    pass
    events = read_trace(path)
    lanes = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    assert list(lanes.values()) == ["network", "fetch", "copy", "compute"]
    slices = [event for event in events if event["ph"] == "X"]
    for stage in ("network", "fetch", "compute"):
        work = [one for one in slices if one["cat"] == stage and lanes[one["tid"]] == stage]
        numbers = [one["args"]["batch"] for one in work]
        # The network stage also looks for a sixth batch; the second pipeline's numbers go on.
        expected = [*range(1, 6), *range(6, 11)]
        assert sorted(set(numbers) & set(expected)) == expected
        assert all(one["dur"] >= 0 and one["name"].startswith(stage) for one in work)
        in_time = sorted(work, key=lambda one: float(one["ts"]))
        ends = [one["ts"] + one["dur"] for one in in_time]
        assert all(one["ts"] >= end - 1 for one, end in zip(in_time[1:], ends, strict=False))
    assert any(one["cat"] == "wait" for one in slices)


def test_trace_is_bounded_and_its_file_must_be_writable(tmp_path: Path) -> None:
    with Trace(tmp_path / "trace.json", most=3) as trace:
        for number in range(5):
            trace.add("fetch", number, 0.0, 1.0)
    events = read_trace(tmp_path / "trace.json")
    assert sum(event["ph"] == "X" for event in events) == 3
    assert events[-1]["name"] == "2 slices left out"
    with pytest.raises(hps.StoreError, match="cannot write the trace"):
        Trace(tmp_path / "missing" / "trace.json")


class _Rewindable:
    """A log that notes where it was put back to, and that its third batch is asked for."""

    def __init__(self) -> None:
        self.loaded: dict[str, Any] | None = None
        self.is_third_asked = threading.Event()

    def __iter__(self) -> Iterator[hps.Batch]:
        for number, batch in enumerate(slow_log(60, 0.0)):
            if number == 2:
                self.is_third_asked.set()
            yield batch

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state


def test_a_trace_that_cannot_be_written_is_told_after_everything_is_closed(tmp_path: Path) -> None:
    log = _Rewindable()
    with open_server(tmp_path) as server:
        trace = Trace(tmp_path / "trace.json")
        with (
            pytest.raises(hps.ConfigError, match="close it after the pipelines"),
            hps.Pipeline(log, server, 2, trace=trace) as batches,
        ):
            next(batches)
            assert log.is_third_asked.wait(30)
            trace.close()
            next(batches)
        assert log.loaded == {"batch": 2} and server.pins == 0 and server.num_open_pipelines == 0
    for num_slices in (0, 5000):
        full = Trace("/dev/full")
        for number in range(num_slices):
            full.add("fetch", number, 0.0, 1.0)
        with pytest.raises(hps.StoreError, match=r"cannot write the trace.*No space"), full:
            full.flush()
        full.close()  # the second time


@pytest.mark.parametrize(
    ("busy", "cpu", "depth", "said"),
    [
        ({"network": 9.6}, 5.0, 2, "bound by network, busy 96 % .* parquet"),
        ({"fetch": 9.6, "compute": 8.0}, 5.0, 2, "bound by fetch, .* fewer distinct keys"),
        ({"copy": 9.6}, 5.0, 2, "bound by copy, .* smaller rows"),
        ({"compute": 9.6}, 19.0, 2, "bound by compute"),
        ({"compute": 7.0, "fetch": 6.0}, 19.0, 0, r"bound by the 2 cores, busy 95 % .* compute"),
        ({"compute": 7.0}, 5.0, 2, "no stage alone; the busiest is compute, 70 % .*: a larger --d"),
        ({"compute": 7.0}, 5.0, 8, "no stage alone; the busiest is compute, 70 % .*: forward"),
        ({"compute": 5.0, "fetch": 4.0}, 5.0, 0, "one after the other.* 50 % .*: --depth 2"),
    ],
)
def test_the_bound_is_named_with_what_would_help(
    busy: dict[str, float], cpu: float, depth: int, said: str
) -> None:
    stages = {
        name: {"busy_seconds": busy.get(name, 0.1)}
        for name in ("network", "fetch", "copy", "compute")
    }
    assert re.search(said, bound_of(stages, 10.0, cpu, 2, depth).text)
    assert bound_of(stages, 0.0, 0.0, 2, depth).busy_share == 0  # a run of nothing


@pytest.mark.parametrize(
    ("stage", "flag", "moved", "again", "said"),
    [
        ("fetch", "--dram", 0, 0, "more cores, or fewer distinct keys"),
        ("fetch", "--dram", 500, 0, "a faster disk, or fewer"),
        ("fetch", "--dram", 500, 9, "a faster disk, or fewer"),
        (
            "fetch",
            "--dram",
            500,
            400,
            r"a larger --dram \(400 rows gave way and were fetched again",
        ),
        ("copy", "--gpu", 500, 0, "device: smaller rows"),
        ("copy", "--gpu", 500, 400, "a larger --gpu .*, or smaller rows"),
    ],
)
def test_a_larger_tier_is_advised_only_where_rows_gave_way_and_were_fetched_again(
    stage: str, flag: str, moved: int, again: int, said: str
) -> None:
    stages = {name: {"busy_seconds": 0.1} for name in ("network", "fetch", "copy", "compute")}
    stages[stage] = {"busy_seconds": 9.9, "lookups": 1000, "rows_moved": moved, "rows_again": again}
    text = bound_of(stages, 10.0, 5.0, 2, depth=2).text
    assert re.search(said, text) and (flag in text) == (again > 10)


@pytest.mark.parametrize(("dram", "is_advised"), [("64MiB", False), ("600KiB", True)])
def test_a_run_whose_rows_all_fit_is_not_told_to_take_more_memory(
    tmp_path: Path, dram: str, is_advised: bool
) -> None:
    log = write_criteo(tmp_path / "log.tsv", 3000)
    options = TrainOptions(data=[log], store=tmp_path / "s", dram=dram, batch_size=50, epochs=2)
    figures = train(options)
    again = figures["stages"]["fetch"]["rows_again"]
    stages = {**figures["stages"], "fetch": {**figures["stages"]["fetch"], "busy_seconds": 99.0}}
    text = bound_of(stages, 100.0, 5.0, 2, depth=2).text
    assert ("--dram" in text) == is_advised, (again, text)
    assert (again > 0) == is_advised


def test_a_depth_that_was_measured_is_not_advised_against() -> None:
    stages = {name: {"busy_seconds": 4.0} for name in ("network", "compute")}
    text = bound_of(stages, 10.0, 5.0, 2, depth=0, why_depth="which is faster").text
    assert "one after the other, which is faster; the longest" in text and "--depth" not in text


@pytest.mark.parametrize(("waited", "said"), [(9.0, "the servers, whose"), (3.0, "compute, busy")])
def test_a_loop_that_waits_for_servers_is_bound_by_them_and_not_by_its_model(
    waited: float, said: str
) -> None:
    stages = {name: {"busy_seconds": 0.1} for name in ("network", "fetch", "copy")}
    stages["compute"] = {"busy_seconds": 9.9, "server_seconds": waited}
    bound = bound_of(stages, 10.0, 5.0, 2, depth=2)
    assert bound.stage == "compute" and f"bound by {said}" in bound.text
    assert ("more servers" in bound.text) == (waited == 9.0)
    stages["network"] = {"busy_seconds": 10.0}
    assert "bound by network" in bound_of(stages, 10.0, 5.0, 2, depth=2).text


class _Clock:
    """Time that passes only as told."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def choose(clock: _Clock, chooser: DepthChooser, batches: int, seconds: dict[int, float]) -> None:
    """A run whose batches take so long at each depth; every 5th is followed by a checkpoint."""
    for number in range(batches):
        clock.now += seconds[chooser.depth]
        pause = 3.0 if number % 5 == 0 else 0.0
        clock.now += pause
        if chooser.batch_done(pause):
            for _ in range(chooser.depth):  # those that were read ahead
                clock.now += seconds[chooser.depth]
                chooser.batch_done()
            chooser.next_span()


@pytest.mark.parametrize(("at_0", "at_2", "chosen"), [(1.0, 0.6, 2), (1.0, 1.1, 0), (1.0, 0.99, 0)])
def test_auto_keeps_the_depth_that_measures_faster(
    monkeypatch: pytest.MonkeyPatch, at_0: float, at_2: float, chosen: int
) -> None:
    clock, chooser = _Clock(), DepthChooser("auto")
    monkeypatch.setattr(depth_module, "time", clock)
    choose(clock, chooser, 100, {0: at_0, 2: at_2})
    assert chooser.depth == chosen and len(chooser.trials) == 1
    assert chooser.why == ("" if chosen else "which measured faster than overlapping them")
    (trial,) = chooser.trials
    assert trial.at_batch >= 16
    assert trial.seconds[0] == pytest.approx([at_0, at_0])
    assert trial.seconds[2] == pytest.approx([at_2, at_2])


@pytest.mark.parametrize(("start", "batches"), [(0, 127), (2, 15)])
def test_auto_begins_at_the_depth_that_is_said_and_tries_later_where_cores_are_busy(
    monkeypatch: pytest.MonkeyPatch, start: int, batches: int
) -> None:
    clock, chooser = _Clock(), DepthChooser("auto", start=start)
    monkeypatch.setattr(depth_module, "time", clock)
    choose(clock, chooser, batches, {0: 1.0, 2: 1.0})
    assert chooser.depth == start and not chooser.trials and not chooser.is_span_over
    assert chooser.batch_done()
    chooser.next_span()
    choose(clock, chooser, 100, {0: 1.0, 2: 0.5})
    assert chooser.depth == 2 and len(chooser.trials) == 1


@pytest.mark.parametrize(("cores", "depth"), [(1, 0), (2, 0), (3, 2), (16, 2)])
def test_a_run_on_few_cores_begins_without_overlap(
    monkeypatch: pytest.MonkeyPatch, cores: int, depth: int
) -> None:
    monkeypatch.setattr(ranks_module, "num_cores", lambda: cores)
    assert ranks_module.first_depth() == depth
    assert DepthChooser(4, start=ranks_module.first_depth()).depth == 4


def test_auto_measures_again_when_the_run_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, chooser = _Clock(), DepthChooser("auto")
    monkeypatch.setattr(depth_module, "time", clock)
    choose(clock, chooser, 100, {0: 1.0, 2: 1.5})
    assert chooser.depth == 0
    choose(clock, chooser, 2000, {0: 1.0, 2: 0.5})
    assert chooser.depth == 2 and 1 < len(chooser.trials) <= 4


def test_a_given_depth_is_never_left() -> None:
    chooser = DepthChooser(4)
    assert not any(chooser.batch_done() for _ in range(1000))
    chooser.next_span()
    assert chooser.depth == 4 and chooser.trials == [] and chooser.why == ""


def test_a_run_that_ends_in_the_middle_of_a_trial_does_not_advise_depth_2(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, chooser = _Clock(), DepthChooser("auto")
    monkeypatch.setattr(depth_module, "time", clock)
    batches = 0
    while chooser.depth:
        choose(clock, chooser, 1, {0: 1.0, 2: 1.0})
        batches += 1
    assert batches > 16 and chooser.trials == [], "the span at depth 0 of the first trial"
    stages = {name: {"busy_seconds": 4.0} for name in ("network", "compute")}
    text = bound_of(stages, 10.0, 5.0, 2, 0, chooser.why).text
    assert "in the middle of the trial" in text and "--depth 2" not in text


@pytest.mark.parametrize("accumulate", [1, 3])
def test_auto_trains_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, accumulate: int
) -> None:
    monkeypatch.setattr(depth_module, "_FIRST_TRIAL_IN_TURN", 16)
    log = write_criteo(tmp_path / "log.txt", 2000, num_keys=3000)

    def run(depth: int | str, **options: Any) -> dict[str, Any]:
        return train(
            TrainOptions(
                data=[log], store=tmp_path / str(depth), depth=depth, dim=4, batch_size=16,
                hidden=(8,), dram="1MiB", torch_threads=1, accumulate=accumulate, **options,
            )
        )  # fmt: skip

    figures = {depth: run(depth) for depth in (0, 2, 5)}
    figures["auto"] = run("auto", trace=tmp_path / "trace.json", checkpoint_every=20)
    for one in figures.values():
        assert one["examples"] == 2000 and one["total_batches"] == 125
        assert one["digests"] == figures[0]["digests"]
        assert one["loss_digest"] == figures[0]["loss_digest"]
    auto = figures["auto"]
    assert len(auto["depth_trials"]) >= 1 and auto["depth"] in (0, 2)
    assert auto["tiers"]["dram_cache"]["evictions"] > 0
    computed = [
        event["args"]["batch"]
        for event in read_trace(tmp_path / "trace.json")
        if event.get("cat") == "compute"
    ]
    assert computed == list(range(1, 126))
