"""Following: has a run wait for the files of the folder that it follows.

Above it: `hps.train.run`, loop.py. Below it: `FollowedFolder`, the clock, `hps.stops.Stops`. A run
waits in its own thread and between two steps: no batch is pinned, no thread of a pipeline runs.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hps.common.json_text import Json
from hps.errors import ConfigError
from hps.reader.files import size_of
from hps.reader.followed import FollowedFolder
from hps.reader.urls import AwayError, LogFile, Patience
from hps.stops import Stops, StopWaiting
from hps.train.base_rate import NUM_EXAMPLES, first_labels, refuse_bad_line

if TYPE_CHECKING:
    from hps.reader.reader import Reader
    from hps.train.options import TrainOptions
    from hps.train.progress import Progress

_MOMENT_SECONDS = 0.1  # in which a signal is noticed
_LOOK_SHARE = 10  # a wait between two looks is at least so many times as long as a look takes
_LONGEST_AWAY_SECONDS = 10.0  # between two looks into a folder that does not answer
_BY_SIGN = ("adagrad", "rowwise_adagrad")


class Following:
    """The folder of one run.

    Args:
        options: of the run, with `follow`.
        progress: told of waits and of what the folder has.
        stops: may end a wait.

    Raises:
        ConfigError, StoreError: the folder cannot be listed.
    """

    def __init__(self, options: "TrainOptions", progress: "Progress", stops: Stops) -> None:
        assert options.follow is not None
        self._retry = options.follow_retry
        patience = Patience(self._retry, progress.say, lambda: bool(stops.asked))
        self.folder = FollowedFolder(options.follow, patience)
        self._has_listed = False
        self._away_since: float | None = None  # the folder does not answer
        self._away_looks = 0
        self.num_waits = 0
        self.seconds = 0.0  # of waits
        self.cpu_seconds = 0.0
        self._poll = options.poll
        self._until_idle = options.follow_until_idle
        self._progress = progress
        self._stops = stops
        self._look_seconds = 0.0

    def first_files(self) -> list[LogFile]:
        """The files that are there; waits until one of them has anything in it.

        Raises:
            ConfigError: none came in the time that the run waits for one.
            StoreError: the folder cannot be listed, or one of them is gone again.
        """
        files = self._look()
        while not any(size_of(path) for path in files):
            more = self._more("the first file")
            if not more:
                raise ConfigError(
                    f"{self.folder.shown}: there is no file to learn from; {self._how_long()}"
                )
            files += more
        return files

    def begun_with(
        self, options: "TrainOptions", open_log: "Callable[[TrainOptions], Reader]"
    ) -> "TrainOptions":
        """The options of a new model, with as many files as it takes for what is measured of the
        first examples; so it is the same whenever the run began. Waits for them, as long as a run
        waits for a file.

        Args:
            options: with the files that are there.
            open_log: opens their log, at its beginning.

        Raises:
            HpsError: the log cannot be read.
        """
        wanted = NUM_EXAMPLES if measures_beginning(options) else 1
        files = list(options.followed or ())
        while True:
            reader = open_log(options)
            try:
                count = first_labels(reader).examples
                if count < wanted:
                    refuse_bad_line(reader)
            finally:
                reader.close()
            if count >= wanted:
                return options
            more = self._more(
                f"{wanted - count:,} more examples: of the first {wanted:,} the share of clicks, "
                "rates and scales are measured"
            )
            if not more:
                return options
            files += more
            options = options.with_followed(files)

    def feed(self, reader: "Reader", in_wait: Callable[[float], None]) -> None:
        """Gives a reader that has run dry the files that came, or the end; waits for them.

        Args:
            reader: of the folder.
            in_wait: called again and again while it waits, with the seconds so far.

        Raises:
            StopWaiting: asked to stop.
            HpsError: the folder cannot be listed, or has changed so that files would be left out.
        """
        files = self._look() or self._more(None, in_wait)
        reader.note_gone(self.folder.gone)
        if files:
            reader.extend(files)
        else:
            reader.end()

    def figures(self) -> Json:
        """For `hps train --json`."""
        return {
            "folder": self.folder.shown,
            "files": self.folder.num_files,
            "waits": self.num_waits,
            "wait_seconds": self.seconds,
        }

    def say_notes(self) -> None:
        """Tells what the folder has to tell."""
        for note in self.folder.take_notes():
            self._progress.say(note)

    def _look(self) -> list[LogFile]:
        """The files that are new; none while the folder does not answer, for as long as the run
        waits for that. A run that begins does not: its folder may be another one."""
        start = time.monotonic()
        try:
            files = self.folder.look()
        except AwayError as error:
            if not self._has_listed or not self._is_awaited(start, error):
                raise
            return []
        finally:
            self._look_seconds = time.monotonic() - start
            self.say_notes()
        if self._away_since is not None:
            seconds = time.monotonic() - self._away_since
            self._progress.say(f"{self.folder.shown} answers again, after {seconds:.0f} s")
        self._has_listed, self._away_since, self._away_looks = True, None, 0
        return files

    def _is_awaited(self, start: float, error: AwayError) -> bool:
        """Whether the run goes on to ask a folder that has not answered.

        Args:
            start: of the look.
            error: that it ended with.
        """
        if self._away_since is None:
            self._away_since = start
            self._progress.say(f"{error}; it is asked again for {self._retry:g} s (--follow-retry)")
        self._away_looks += 1
        return time.monotonic() - self._away_since < self._retry

    def _more(
        self, what: str | None, in_wait: Callable[[float], None] | None = None
    ) -> list[LogFile]:
        """The files that come next; none once the run has waited as long as it may.

        Args:
            what: it waits for, if that is not just any file; said at once.
        """
        start = idle_from = time.monotonic()
        cpu_start = time.process_time()
        self.num_waits += 1
        if what is not None:
            self._progress.say(f"waits for {what}, in {self.folder.shown}")
        try:
            while True:
                now = time.monotonic()
                is_away, longest = self._away_since is not None, self._until_idle
                if longest is not None and not is_away and now - idle_from >= longest:
                    return []
                if in_wait is not None:
                    in_wait(now - start)
                    self._progress.waiting(self._where(), now - start)
                self._sleep(now - idle_from)
                files = self._look()
                if files:
                    return files
                if is_away or self._away_since is not None:
                    idle_from = time.monotonic()  # whether a file came meanwhile, nobody knew
        finally:
            seconds = time.monotonic() - start
            self.seconds += seconds
            self.cpu_seconds += time.process_time() - cpu_start
            self._progress.pause(seconds)

    def _where(self) -> str:
        return f"waits for files in {self.folder.shown}, after {self.folder.num_files:,}"

    def _sleep(self, waited: float) -> None:
        """Until the next look, which is not after the wait's end.

        Raises:
            StopWaiting: asked to stop.
        """
        seconds = max(self._poll, _LOOK_SHARE * self._look_seconds)
        if self._away_since is not None:
            seconds = min(
                max(self._poll, 2.0 ** min(self._away_looks, 10) / 4), _LONGEST_AWAY_SECONDS
            )
        elif self._until_idle is not None:
            seconds = min(seconds, self._until_idle - waited)
        end = time.monotonic() + seconds
        while True:
            if self._stops.asked:
                raise StopWaiting(self._stops.asked)
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _MOMENT_SECONDS))

    def _how_long(self) -> str:
        return f"the run has waited for {self._until_idle:g} s (--follow-until-idle)"


def measures_beginning(options: "TrainOptions") -> bool:
    """True if something of a new model is measured of the first examples of its log."""
    is_measured = options.features is not None or options.base_rate
    if options.shape().optimizer in _BY_SIGN:
        is_measured |= options.lr is None or options.initial_accumulator is None
    return is_measured
