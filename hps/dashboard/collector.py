"""Collector: asks each target every few seconds and keeps what it was told; the page asks it alone.

Above it: server.py, `hps dashboard`. Below it: watched.py (who is asked), history.py (what is
kept), hps/report/stragglers.py. Each target has a thread of its own: one that does not answer holds
up nobody, is shown as away since when, and is asked again each time.
"""

import math
import threading
import time as clock
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

from hps.common.json_text import Json
from hps.dashboard.history import History
from hps.dashboard.sources import RUN, SERVER, TRAINER, Reading, Source
from hps.dashboard.stragglers import stragglers_of
from hps.dashboard.watched import Watched
from hps.errors import HpsError

NEW, UP, AWAY, ENDED = "not reached yet", "up", "away", "ended"
MOST_POINTS = 60  # of a target in a round; a run's file may have more, which the history keeps
MOST_FIGURES = 1024  # of a target that are shown; the history keeps fewer
_MOST_WORDS = 300  # of an error that is shown
_MOST_NAME = 200  # of a figure


@dataclass
class _Target:
    """One of those that are asked."""

    watched: Watched
    since: float
    state: str = NEW
    source: Source | None = None
    asked: "Future[tuple[Reading, float]] | None" = None
    error: str = ""
    reading: Reading = field(default_factory=lambda: Reading(""))
    seconds: float = 0.0
    history: History = field(default_factory=History)
    points: list[tuple[float, dict[str, float]]] = field(default_factory=list)

    def add(self, points: list[tuple[float, dict[str, float]]]) -> None:
        """What this round adds to the history."""
        for time, figures in points:
            self.history.add(time, figures)
        self.points = points[-MOST_POINTS:]

    def add_gap(self, time: float) -> None:
        """That nothing was said. A run's lines have times of their own, which may be earlier; so
        may those of what has not been reached yet."""
        self.add([] if self.reading.kind in ("", RUN) else [(time, {})])


class Collector:
    """Asks in rounds. `round` is for one thread; what it found is given to any.

    Args:
        watched: the targets.
        seconds: that a round waits for answers.
        now: the clock, seconds since 1970.
        say: told of each target that goes and comes.
    """

    def __init__(
        self,
        watched: Sequence[Watched],
        seconds: float = 3.0,
        now: Callable[[], float] = clock.time,
        say: Callable[[str], object] = lambda line: None,
    ) -> None:
        self._now = now
        self._seconds = seconds
        self._told = say
        self._targets = [_Target(one, now()) for one in watched]
        self._lock = threading.Lock()
        self._number = 0
        self._threads = ThreadPoolExecutor(len(self._targets), "hps-watch")

    def _say(self, line: str) -> None:
        with suppress(OSError, ValueError):  # who reads it has gone: no reason to watch no more
            self._told(line)

    def close(self) -> None:
        """Asks no more; an answer that is awaited is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def round(self) -> Json:
        """Asks all targets once.

        Returns:
            What `state` says from now on.
        """
        time = self._now()
        for target in self._targets:
            if target.asked is None:  # else the last answer is still awaited
                target.asked = self._threads.submit(_ask, target, time)
        waited = [target.asked for target in self._targets if target.asked is not None]
        wait(waited, self._seconds)
        with self._lock:
            self._number += 1
            for target in self._targets:
                self._take(target, time)
        return self.state()

    def _take(self, target: _Target, time: float) -> None:
        """Notes what a target has answered, or that it has not."""
        asked = target.asked
        assert asked is not None
        if not asked.done():
            self._gone(target, time, f"no answer within {self._seconds:g} s")
            return
        target.asked = None
        try:
            reading, seconds = asked.result()
            reading = _shown_of(reading)
        except (HpsError, OSError) as error:
            said = error.strerror if isinstance(error, OSError) else None
            self._gone(target, time, said or str(error))
            return
        except Exception as error:  # a target may end no dashboard, whatever it says
            self._gone(target, time, f"{type(error).__name__}: {error}")
            return
        if target.state in (NEW, AWAY):
            self._say(f"{target.watched.name}: {reading.kind}, after {_shown(time - target.since)}")
        state = ENDED if reading.ended else UP
        if state != target.state:
            target.state, target.since = state, time
        target.error, target.reading, target.seconds = "", reading, seconds
        if reading.kind == RUN:
            target.add(reading.past)
        else:
            target.add([(time, reading.figures)])

    def _gone(self, target: _Target, time: float, why: str) -> None:
        why = why[:_MOST_WORDS]
        if target.state in (UP, ENDED):
            target.state, target.since = AWAY, time
            self._say(f"{target.watched.name}: away: {why}")
        elif not target.error:
            self._say(f"warning: {target.watched.name}: {why}; it is asked again")
        target.error = why
        target.add_gap(time)
        target.source = None  # what it was is found out anew
        kept = target.reading
        target.reading = Reading(kept.kind, facts=kept.facts)

    def state(self) -> Json:
        """What the last round found: `id`, `time`, `targets`; by target `values`, the newest
        figures, `points`, what came to the history, and `slices`; `stragglers`."""
        with self._lock:
            trainers = self._stages_of(TRAINER)
            latencies = {
                target.watched.name: target.reading.figures
                for target in self._targets
                if target.reading.kind == SERVER
            }
            return {
                "id": self._number,
                "time": self._now(),
                "targets": [_described(target) for target in self._targets],
                "points": {one.watched.name: one.points for one in self._targets},
                "values": {one.watched.name: one.reading.figures for one in self._targets},
                "slices": {
                    one.watched.name: one.reading.slices
                    for one in self._targets
                    if one.reading.slices
                },
                "stragglers": stragglers_of(trainers, latencies),
            }

    def _stages_of(self, kind: str) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
        return {
            target.watched.name: target.reading.stages
            for target in self._targets
            if target.reading.kind == kind and target.reading.stages
        }

    def histories(self) -> Json:
        """Of each target `times` and `series`, as `History.to_json` has them."""
        with self._lock:
            return {one.watched.name: one.history.to_json() for one in self._targets}

    def nbytes(self) -> int:
        """Bytes of all histories; `MOST_BYTES` a target at most."""
        with self._lock:
            return sum(target.history.nbytes() for target in self._targets)


def _ask(target: _Target, time: float) -> tuple[Reading, float]:
    start = clock.monotonic()
    if target.source is None:
        target.source = target.watched.open()
    reading = target.source.read(time)
    return reading, clock.monotonic() - start


def _shown_of(reading: Reading) -> Reading:
    """A reading as it is shown: what is no number is in no JSON, and no target fills the memory of
    the dashboard, or of a browser, with names."""
    return replace(
        reading,
        figures=_numbers(reading.figures),
        facts={what: value[:_MOST_WORDS] for what, value in reading.facts.items()},
        past=[(time, _numbers(figures)) for time, figures in reading.past],
        slices=[
            [str(stage)[:_MOST_NAME], str(side)[:_MOST_NAME], *rest]
            for stage, side, *rest in reading.slices
            if all(math.isfinite(float(value)) for value in rest)
        ],
        stages={
            stage: _numbers(seconds)
            for stage, seconds in reading.stages.items()
            if _numbers(seconds) == seconds
        },
    )


def _numbers(figures: Mapping[str, float]) -> dict[str, float]:
    """Those that are finite, whose names are no longer than any of hps, and not too many."""
    good = (
        (name, value)
        for name, value in figures.items()
        if len(name) <= _MOST_NAME and math.isfinite(value)
    )
    return dict(islice(good, MOST_FIGURES))


def _described(target: _Target) -> Json:
    left_out = target.history.num_left_out
    facts = dict(target.reading.facts)
    if left_out:
        facts["figures left out"] = f"{left_out} or more: there are too many"
    return {
        "name": target.watched.name,
        "where": target.watched.where,
        "kind": target.reading.kind,
        "state": target.state,
        "since": target.since,
        "error": target.error,
        "facts": facts,
        "seconds": target.seconds,
    }


def _shown(seconds: float) -> str:
    return f"{seconds:,.0f} s"
