"""The live line of a training run: examples a second, loss, AUC, and each tier's hit rate; the same
figures go into the run's history.

Above it: `hps.train.run`. Below it: hps/common/terminal.py, `hps.metrics`,
`hps.report.history`.
"""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

import torch

from hps.common.json_text import Json, JsonView
from hps.common.terminal import LiveLine
from hps.metrics import BinaryMetrics
from hps.report.history import TRAIN, VALID, History
from hps.train.report import hit_rates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hps.train.course import Course
    from hps.train.totals import Totals
    from hps.types import Batch


RECORD_SECONDS = 2.0  # between two moments of the history where no lines are written
_MAX_SEEN = 256  # batches of a device that are held until they are measured


class Progress:
    """Writes a line every so often; on a terminal over the last one, with a bar.

    Loss and AUC are those of the examples since the last line, before the model was trained on
    them. Of several ranks one writes: examples are those of all, the rest is its own.

    Args:
        seconds: between lines; 0 for no line at all.
        stream: where to; None is standard error.
    """

    def __init__(self, seconds: float, stream: TextIO | None = None) -> None:
        self._seconds = seconds
        self.history = History([])
        self._last: tuple[Totals, Callable[[], Json]] | None = None  # of the batch seen last
        self._line = LiveLine(stream or sys.stderr)
        self._metrics = BinaryMetrics()
        self._seen: list[tuple[torch.Tensor, torch.Tensor]] = []  # not measured yet
        self._since = time.perf_counter()
        self._examples = 0
        self._share: float | None = None  # that is done
        self._next_wait = 0.0  # seconds of a wait after which it is told
        self._course: Course | None = None
        self._begun: tuple[float, float] | None = None  # when, and the share that was done then

    def begin(self, course: "Course") -> None:
        """The way that the run goes, if lines are to say how far it is."""
        self._course = course

    def update(
        self,
        totals: "Totals",
        logits: torch.Tensor,
        batch: "Batch",
        stats: Callable[[], Json],
    ) -> None:
        """Counts a batch, and writes the line if it is due.

        Args:
            totals: of the run.
            logits: of the batch's examples that are here.
            batch: itself; of several ranks its part that is here.
            stats: gives the counters of the tiers here.
        """
        if not self._seconds and self.history.is_empty:
            return
        self._last = (totals, stats)
        self._seen.append((logits, batch.labels))
        if logits.device.type == "cpu" or len(self._seen) >= _MAX_SEEN:
            self._measure()
        self._examples += batch.global_size
        now = time.perf_counter()
        if self._begun is None and self._course is not None:
            share = self._course.share(batch.position, totals.examples)
            self._begun = None if share is None else (now, share)
        if now - self._since >= (self._seconds or RECORD_SECONDS):
            where = self._where(batch.position, totals.examples, now)
            self._tell(where, totals, stats())

    def _tell(self, where: str, totals: "Totals", stats: Json) -> None:
        """Writes what was measured since the last time, and begins anew."""
        self._measure()
        figures = self._metrics.compute()
        rate = self._examples / max(time.perf_counter() - self._since, 1e-9)
        rates = hit_rates(stats)
        if self._seconds:
            self._write(f"{where}{totals.examples:,} examples", rate, figures, rates)
        values = {name: figures[name] for name in ("logloss", "auc", "calibration")}
        values["examples_per_second"] = rate
        values |= {f"hit_rate/{tier}": hit_rate for tier, hit_rate in rates.items()}
        self.history.add(TRAIN, totals.examples, values)
        self._metrics.reset()
        self._examples = 0
        self._since = time.perf_counter()

    def validated(self, entry: JsonView, line: str) -> None:
        """Notes a validation, and says it."""
        names = ("auc", "logloss", "calibration", "normalized_entropy", "gauc")
        values = {name: entry[name] for name in names if name in entry}
        self.history.add(VALID, entry["examples"], values)
        self.say(line)

    def _measure(self) -> None:
        """Takes in the batches seen; waits for those that a device still works on."""
        for logits, labels in self._seen:
            values = logits.float().cpu()
            if bool(torch.isfinite(values).all()):
                self._metrics.update(values, labels.cpu())
        self._seen.clear()

    def pause(self, seconds: float) -> None:
        """Leaves out of rates and of the time left what was not spent in training."""
        self._since += seconds
        if self._begun is not None:
            self._begun = (self._begun[0] + seconds, self._begun[1])

    def waiting(self, what: str, waited: float) -> None:
        """Says that the run waits, after some seconds, and again after twice as many.

        Args:
            what: it waits for, in words.
            waited: seconds so far.
        """
        if waited < self._seconds or not self._seconds:
            self._next_wait = self._seconds
        elif waited >= self._next_wait:
            self._next_wait = 2 * waited
            self.say(f"{what}, for {format_time(waited)}")

    def say(self, line: str) -> None:
        """A line of its own, whatever the seconds are: how the run begins."""
        self._line.say(f"hps: {line}")

    def finish(self) -> None:
        """Leaves the line standing; the history has what came after it."""
        if self._last is not None and self._examples and not self.history.is_empty:
            totals, stats = self._last
            self._seconds, seconds = 0.0, self._seconds
            self._tell("", totals, stats())
            self._seconds = seconds
        self.close()

    def close(self) -> None:
        """Lets go of the terminal, however the run ends."""
        self._line.close()

    def _where(self, position: JsonView, num_examples: int, now: float) -> str:
        """Epoch, share done and time left, as far as they are known."""
        course = self._course
        if course is None:
            return ""
        parts = [course.where(position)]
        self._share = share = course.share(position, num_examples)
        if share is not None:
            parts.append(f"{100 * share:.1f} %")
        if share is not None and self._begun is not None and share > self._begun[1]:
            begun, before = self._begun
            parts.append(f"{format_time((now - begun) * (1 - share) / (share - before))} left")
        return "  ".join([*parts, ""])

    def _write(
        self, where: str, rate: float, figures: JsonView, rates: "Mapping[str, float]"
    ) -> None:
        tiers = "  ".join(f"{name} {100 * hit_rate:.1f} %" for name, hit_rate in rates.items())
        line = (
            f"{where}  {rate:,.0f}/s  loss {figures['logloss']:.4f}  "
            f"auc {figures['auc']:.4f}  hits: {tiers}"
        )
        self._line.show(line, self._share)


def format_time(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes.

    >>> format_time(75.4), format_time(7380)
    ('1:15', '2 h 03')
    """
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    return f"{whole // 3600} h {whole % 3600 // 60:02}"
