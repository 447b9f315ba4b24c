"""Periods: a new period of the store before new data, and before each file where that is asked for.

Above it: beginning.py, loop.py. Below it: the server of the run, `Trainer`, `PausingLog`. The
period and the file that it is of lie in the same checkpoint, so that a run that goes on from one
neither repeats a turn nor leaves one out, wherever it was killed.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hps.common.json_text import JsonView
from hps.errors import ConfigError
from hps.options.life import OF_FILE
from hps.reader.position import file_of
from hps.reader.position_files import PositionFiles

if TYPE_CHECKING:
    from hps.contracts.training import TrainingServer
    from hps.train.options import TrainOptions
    from hps.train.pausing_log import PausingLog
    from hps.train.step_checkpoints import StepCheckpoints
    from hps.train.trainer import Trainer


MOST_FILES = 10_000  # that a checkpoint tells of


class Periods:
    """The turns of a run. Every rank does the same.

    Args:
        server: whose period it is.
        trainer: its `period_file` is the place of the file that the period is of, in the order of
            the first epoch; None where no file of its own has one.
        options: of the run.
        checkpoints: of the run: what a turn has changed is not in one yet.
        say: told of each turn.

    Raises:
        ConfigError: the server has no periods, and the run wants some.
    """

    def __init__(
        self,
        server: "TrainingServer",
        trainer: "Trainer",
        options: "TrainOptions",
        checkpoints: "StepCheckpoints",
        say: Callable[[str], object],
    ) -> None:
        self._server = server
        self._trainer = trainer
        self._checkpoints = checkpoints
        self._say = say
        self._is_wanted = options.advance
        self._is_by_file = options.advance_every == OF_FILE
        if self._is_wanted:
            _check_periods(server)

    def begin(
        self, files: Sequence[Sequence[str | int]], stored: JsonView | None, *, is_new_data: bool
    ) -> None:
        """Advances before the first step, if the run is on new data. The trainer is loaded.

        Args:
            files: name and bytes of each of DATA's, in order.
            stored: position of the checkpoint that the run goes on from; None for a new model.
            is_new_data: DATA is read from its beginning, not from that position.
        """
        trainer = self._trainer
        if not self._is_by_file:
            trainer.period_file = None
        elif stored is None or is_new_data:
            trainer.period_file = 0
        elif trainer.period_file is None:  # the run before had no turns
            # At the end of an epoch all files have been read.
            end = PositionFiles.of(stored["files"]).end
            trainer.period_file = end - 1 if stored["epoch"] else file_of(stored)
        if stored is None or not is_new_data:
            return
        trainer.begun_files = begun_files(trainer.begun_files, stored)
        if not self._is_wanted:
            return
        begun = trainer.begun_files
        if has_unread(files[:1] if self._is_by_file else files, stored, begun):
            self._advance(1, f"{files[0][0]}, which is new data")
        else:
            self._say(f"DATA was begun in period {self._server.period}, which goes on (--advance)")

    def pause_at_turns(self, log: "PausingLog") -> None:
        """Has a log pause before each file that begins a period."""
        if self._trainer.period_file is not None:
            log.pause_at_turns(self._trainer.period_file)

    def turn(self, log: "PausingLog") -> None:
        """Begins the period of the file at whose turn the log is paused. One that held no batch has
        had its period, too."""
        file, before = log.take_turn(), self._trainer.period_file
        assert before is not None
        self._advance(file - before, log.name_of(file))
        self._trainer.period_file = file

    def _advance(self, count: int, what: str) -> None:
        period = self._server.advance_period(to=self._server.period + count)
        self._checkpoints.boundary.is_saved = False
        self._say(f"period {period} begins with {what}")


def has_unread(
    files: Sequence[Sequence[str | int]],
    stored: JsonView,
    begun: Sequence[Sequence[str | int]] = (),
) -> bool:
    """True if one of the files, by name and bytes, was not begun at a reader's position, nor
    before it.

    >>> stored = {"files": [["a", 9], ["b", 9]], "epoch": 0, "file": 0}
    >>> [has_unread([["a", size]], stored) for size in (9, 8)], has_unread([["b", 9]], stored)
    ([False, True], True)
    """
    known = begun_files(begun, stored)
    return any(list(file) not in known for file in files)


def begun_files(before: Sequence[Sequence[str | int]], stored: JsonView) -> list[list[str | int]]:
    """Name and bytes of the files that were begun at a reader's position, after those before it;
    the last MOST_FILES.

    >>> stored = {"files": [["a", 9], ["b", 9]], "epoch": 0, "file": 0}
    >>> begun_files([["z", 7]], stored)
    [['z', 7], ['a', 9]]
    """
    if "files" not in stored:  # a user's own
        return [list(file) for file in before]
    files = PositionFiles.of(stored["files"])
    count = files.end if stored["epoch"] else file_of(stored) + 1
    if "order" in stored:
        begun = [list(files.at(number)) for number in stored["order"][:count]]
    else:
        begun = [list(file) for file in files.until(count)]
    return [*(list(file) for file in before if list(file) not in begun), *begun][-MOST_FILES:]


def period_of(server: "TrainingServer") -> int | None:
    """The period of a server; None of one that has none."""
    try:
        return server.period
    except ConfigError:
        return None


def _check_periods(server: "TrainingServer") -> None:
    try:
        _ = server.period
    except ConfigError as error:
        raise ConfigError(f"advance (--advance): {error}; leave it out") from None
