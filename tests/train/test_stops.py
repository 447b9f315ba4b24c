"""Signals: a run that is stopped saves what it has trained, and goes on with the same bits.

Above it: pytest. Below it: `hps.stops`, `hps.train`. Where a signal ends a
process: cluster/test_rank_training.py.
"""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.reader.text_reader import TextReader
from hps.stops import Interrupted, Stops
from hps.train import TrainOptions, train
from hps.train.boundary import Boundary, Due
from hps.train.progress import Progress
from hps.train.ranks import TrainingRanks
from tests.cluster.ranks import run_ranks, successes
from tests.logs import write_criteo
from tests.parity.test_resume import options, same_bits


class At(Progress):
    """Sends this process a signal after each of these batches of a run."""

    def __init__(self, *places: int, number: int = signal.SIGTERM) -> None:
        super().__init__(0)
        self._places, self._number, self._seen = places, number, 0

    def update(self, *_: Any) -> None:
        self._seen += 1
        if self._seen in self._places:
            os.kill(os.getpid(), self._number)


pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_criteo(tmp_path_factory.mktemp("log") / "log.txt", 1500, num_keys=2000)


def run(opts: TrainOptions, progress: Progress | None = None) -> dict[str, Any]:
    with Stops() as stops:
        return train(opts, progress, stops=stops)


@pytest.mark.parametrize(
    ("depth", "changes"),
    [
        (0, {}),
        (2, {"accumulate": 3, "dram": "2MiB"}),
        (8, {"precision": "float16"}),
        ("auto", {"lookahead": 4}),
        (2, {"gpu": "300KiB", "device": "cpu", "dram": "200KiB"}),
    ],
)
def test_a_stopped_run_goes_on_with_the_bits_of_one_never_stopped(
    tmp_path: Path, log: Path, depth: int | str, changes: dict[str, Any]
) -> None:
    changes = {"checkpoint_every": 0, "depth": depth, **changes}
    whole = run(options(log, tmp_path / "whole", **changes))
    store, seen = tmp_path / "store", 0
    for place in (1, 7, 20):
        stopped = run(options(log, store, resume=seen > 0, test=[log], **changes), At(place))
        steps = changes.get("accumulate", 1)
        batches = -(-place // steps) * steps  # the step is finished
        seen += batches
        assert (stopped["stopped"], stopped["total_batches"]) == ("SIGTERM", seen)
        assert stopped["test_auc"] is None and "digests" not in stopped
        assert stopped["checkpoints"] == 1
    rest = run(options(log, store, resume=True, **changes))
    assert rest["stopped"] is None
    assert same_bits(rest) == same_bits(whole)
    with hps.open(store) as server:
        assert [entry["tag"] for entry in server.checkpoints()] == [None, None, "final"]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_limited_run_goes_on_with_the_bits_of_one_without_a_limit(
    tmp_path: Path, log: Path, accumulate: int
) -> None:
    """A limit within a step lets the run finish the step."""
    changes: dict[str, Any] = {"checkpoint_every": 0, "depth": 2, "dram": "4MiB"}
    changes["accumulate"] = accumulate
    whole = run(options(log, tmp_path / "whole", **changes))
    limited = run(options(log, tmp_path / "store", limit=400, **changes))
    batches = -(-7 // accumulate) * accumulate  # the seventh of 64 has the 400th example
    assert limited["total_batches"] == batches
    rest = run(options(log, tmp_path / "store", resume=True, **changes))
    assert same_bits(rest) == same_bits(whole)


@pytest.mark.parametrize("depth", [0, 2])
def test_a_run_that_waits_for_its_source_is_stopped(
    tmp_path: Path, log: Path, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source gives 15 batches, and then nothing, for ever."""
    waits = threading.Event()
    read = TextReader._read

    class Told(Stops):
        calls = 0

        def next_of(self, items: Any) -> Any:
            self.calls += 1
            if self.calls == 16:
                waits.set()
            return super().next_of(items)

    def dry(self: TextReader, start: Any) -> Iterator[Any]:
        for number, item in enumerate(read(self, start)):
            if number == 15 and self.config.part == (0, 1) and self.config.batch_size == 64:
                waits.wait()
                os.kill(os.getpid(), signal.SIGINT)
                threading.Event().wait(60)  # fails the test below, if nothing ends it
            yield item

    changes = {"checkpoint_every": 0, "depth": depth}
    with monkeypatch.context() as patch, Told() as stops:
        patch.setattr(TextReader, "_read", dry)
        stopped = train(options(log, tmp_path / "store", **changes), stops=stops)
    assert (stopped["stopped"], stopped["total_batches"]) == ("SIGINT", 15)
    whole = run(options(log, tmp_path / "whole", **changes))
    rest = run(options(log, tmp_path / "store", resume=True, **changes))
    assert same_bits(rest) == same_bits(whole)


def test_a_run_stopped_before_its_first_batch_can_be_resumed(tmp_path: Path, log: Path) -> None:
    class Early(Stops):
        def defer(self) -> None:
            super().defer()
            self.ask(signal.SIGTERM)

    whole = run(options(log, tmp_path / "whole"))
    stopped = train(options(log, tmp_path / "store"), stops=Early())
    assert (stopped["stopped"], stopped["total_batches"]) == ("SIGTERM", 0)
    again = train(options(log, tmp_path / "store", resume=True), stops=Early())
    assert again["checkpoints"] == 0  # what it would save is saved
    rest = run(options(log, tmp_path / "store", resume=True))
    assert same_bits(rest) == same_bits(whole)


def test_a_signal_while_the_test_log_is_measured_ends_that(tmp_path: Path, log: Path) -> None:
    class Late(Stops):
        def next_of(self, items: Any) -> Any:
            if isinstance(items, TextReader):
                self.ask(signal.SIGTERM)
            return super().next_of(items)

    whole = run(options(log, tmp_path / "whole"))
    figures = train(options(log, tmp_path / "store", test=[log]), stops=Late())
    assert figures["stopped"] == "SIGTERM" and figures["test_auc"] is None
    assert figures["digests"] == whole["digests"]
    with hps.open(tmp_path / "store") as server:
        assert "final" in [entry["tag"] for entry in server.checkpoints()]


def test_a_signal_before_the_first_step_ends_the_run_at_once(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("hps.train.opening.check_measured_logs", killed)
    with pytest.raises(Interrupted) as caught:
        run(options(log, tmp_path / "store"))
    assert caught.value.signal_number == signal.SIGTERM
    assert not (tmp_path / "store").exists()


def test_a_loop_of_ones_own_keeps_its_handlers(tmp_path: Path, log: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    seen = []

    class Look(Progress):
        def update(self, *_: Any) -> None:
            seen.append([signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)])

    train(options(log, tmp_path / "one", limit=64), Look(0))
    assert seen == [before]
    run(options(log, tmp_path / "two", limit=64), Look(0))
    assert seen[1] != before
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Stops() as stops:
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN and not stops.asked
    finally:
        signal.signal(signal.SIGINT, before)


def test_checkpoints_are_due_by_number_and_by_time() -> None:
    now = [100.0]

    def boundary(every: int, seconds: float) -> Boundary:
        return Boundary((every,), seconds, Stops(), TrainingRanks(), clock=lambda: now[0])

    both, never = boundary(3, 600), boundary(0, 0)
    found = []
    for seconds in (0, 0, 0, 599, 1, 0, 0, 0):
        now[0] += seconds
        both.batch_done()
        never.batch_done()
        found.append(both.due().is_checkpoint)
        assert never.due() == Due(is_checkpoint=False, stop=0)
        if found[-1]:
            both.checkpoint_done()
            assert not both.due().is_checkpoint
    assert found == [False, False, True, False, True, False, False, True]


def test_checkpoints_come_by_time_and_not_at_all(tmp_path: Path, log: Path) -> None:
    figures = {}
    for seconds in (0.0, 1e-9, 600.0):
        changes = {"checkpoint_every": 0, "checkpoint_seconds": seconds, "accumulate": 2}
        figures[seconds] = run(options(log, tmp_path / str(seconds), limit=512, **changes))
    assert [figures[seconds]["checkpoints"] for seconds in figures] == [1, 4 + 1, 1]
    assert len({figures[seconds]["digests"]["features"] for seconds in figures}) == 1


def test_what_is_due_on_one_rank_is_due_on_all() -> None:
    def ask(world: Any) -> list[Due]:
        stops, now = Stops(), [0.0]
        clock = lambda: now[0]  # noqa: E731
        boundary = Boundary((), 600, stops, TrainingRanks(world), clock)
        found = [boundary.due()]
        now[0] = 700.0 if world.rank == 1 else 500.0  # clocks that begin at different times
        found.append(boundary.due())
        boundary.checkpoint_done()
        if world.rank == 2:
            stops.ask(signal.SIGTERM)
        return [*found, boundary.due()]

    nothing, checkpoint = Due(False, 0), Due(True, 0)
    for found in successes(run_ranks(3, ask)):
        assert found == [nothing, checkpoint, Due(False, signal.SIGTERM)]
