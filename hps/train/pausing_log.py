"""PausingLog: a reader's batches up to the next pause between two steps, at an exact batch.

Above it: loop.py, whose pipelines read ahead of training. Below it: the reader. Where a pause comes
depends on the batches alone, not on how far a pipeline has read: equal at every depth and rank.
"""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from hps.common.json_text import Json, JsonView
from hps.reader.position import file_of
from hps.types import Batch

if TYPE_CHECKING:
    from hps.reader.reader import Reader


class PausingLog(Iterator[Batch]):
    """Iterating ends at a pause, and at the end of the log; after `go_on` it continues there. Of a
    log that is followed it ends also where that has no whole step more (`is_dry`); it continues
    once the reader has more, or knows its end, and `fed` was called.

    Args:
        reader: at a position between two steps.
        accumulate: batches a step; a pause waits for the step to be whole.
    """

    def __init__(self, reader: "Reader", accumulate: int = 1) -> None:
        self._reader = reader
        self._accumulate = accumulate
        self._position = reader.state_dict()
        self._ahead: deque[Batch] = deque()  # read, and behind the pause
        self._num_in_step = 0
        self._num_left: int | None = None  # batches before the pause
        self._num_epochs: int | None = None  # that may have ended before the pause
        self._file: int | None = None  # before whose end there is no turn
        self.is_paused = False
        self.is_at_turn = False
        self.is_dry = False
        self.is_finished = False

    def fed(self) -> None:
        """What there is to read has changed since the log ran dry."""
        self.is_dry = False

    def name_of(self, file: int) -> str:
        """The name of the file at a place."""
        return str(self._reader.position_files.at(file)[0])

    def go_on(self, num_batches: int | None = None, num_epochs: int | None = None) -> None:
        """Sets the next pause, whichever comes first; None for none. To be called between steps.

        Args:
            num_batches: the pause comes after as many more.
            num_epochs: the pause comes before the first batch after the end of more epochs.
        """
        self._num_left = num_batches
        self._num_epochs = num_epochs
        self.is_paused = self.is_at_turn = False

    def pause_at_turns(self, file: int) -> None:
        """Has it also pause before each batch of the first epoch that ends in a later file than the
        batches before it; then `is_at_turn`, too.

        Args:
            file: place of the file that the last batch has ended in, or the first is to end in.
        """
        self._file = file

    def take_turn(self) -> int:
        """Goes on after a turn, to the pause that was set before; returns the place of the file."""
        assert self.is_at_turn and self._ahead
        self._file = file_of(self._ahead[0].position)
        self.is_paused = self.is_at_turn = False
        return self._file

    @property
    def num_epochs(self) -> int:
        """Epochs that have ended before the next batch, as far as that is known."""
        return int((self._ahead[0].position if self._ahead else self._position)["epoch"])

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        if self.is_paused or self.is_finished or self.is_dry:
            raise StopIteration
        is_between_steps = self._num_in_step % self._accumulate == 0
        if is_between_steps and self._num_left is not None and self._num_left <= 0:
            self.is_paused = True
            raise StopIteration
        self._read_ahead(is_between_steps=is_between_steps)
        position = self._ahead[0].position
        ended = int(position["epoch"])
        if is_between_steps and self._num_epochs is not None and ended > self._num_epochs:
            self.is_paused = True
            raise StopIteration
        if is_between_steps and self._is_turn(position):
            self.is_paused = self.is_at_turn = True
            raise StopIteration
        batch = self._ahead.popleft()
        if self._num_left is not None:
            self._num_left -= 1
        self._num_in_step += 1
        self._position = batch.position
        return batch

    def _is_turn(self, position: JsonView) -> bool:
        if self._file is None or position["epoch"]:
            return False
        return file_of(position) > self._file

    def _read_ahead(self, *, is_between_steps: bool) -> None:
        """Has at least one batch in `_ahead`; of a log that is followed all of a step before it
        begins, as one that waits for more would hold the rows of its first batches.

        Raises:
            StopIteration: there is none: the log has run dry, or is at its end.
        """
        is_step_whole = self._reader.follows and is_between_steps
        wanted = self._accumulate if is_step_whole else 1
        while len(self._ahead) < wanted:
            try:
                self._ahead.append(next(self._reader))
            except StopIteration:
                if self._reader.is_dry:
                    self.is_dry = True
                    raise
                if self._ahead:  # the last step, as short as it is
                    return
                self.is_finished = True
                raise

    def state_dict(self) -> Json:
        """The position after the last batch that was yielded, as `Reader.state_dict`."""
        return dict(self._position)

    def load_state_dict(self, state: JsonView) -> None:
        """Goes back to a position between two steps that this has yielded. The next pause by number
        is not put back: `go_on` sets it."""
        self._ahead.clear()
        self.is_finished = self.is_paused = self.is_at_turn = self.is_dry = False
        self._num_in_step = 0
        self._reader.load_state_dict(state)
        self._position = dict(state)
