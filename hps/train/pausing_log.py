"""PausingLog: a reader's batches up to the next pause between two steps, at an exact batch.

Above it: loop.py, whose pipelines read ahead of training. Below it: the reader. Where a pause comes
depends on the batches alone, not on how far a pipeline has read: equal at every depth and rank.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from hps.common.json_text import Json, JsonView
from hps.reader.position import file_of
from hps.types import Batch

if TYPE_CHECKING:
    from hps.reader.reader import Reader


class PausingLog(Iterator[Batch]):
    """Iterating ends at a pause, and at the end of the log; after `go_on` it continues there.

    Args:
        reader: at a position between two steps.
        accumulate: batches a step; a pause waits for the step to be whole.
    """

    def __init__(self, reader: "Reader", accumulate: int = 1) -> None:
        self._reader = reader
        self._accumulate = accumulate
        self._position = reader.state_dict()
        self._held: Batch | None = None  # read, and behind the pause
        self._num_in_step = 0
        self._num_left: int | None = None  # batches before the pause
        self._num_epochs: int | None = None  # that may have ended before the pause
        self._file: int | None = None  # before whose end there is no turn
        self.is_paused = False
        self.is_at_turn = False
        self.is_finished = False

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
        assert self.is_at_turn and self._held is not None
        self._file = file_of(self._held.position)
        self.is_paused = self.is_at_turn = False
        return self._file

    @property
    def num_epochs(self) -> int:
        """Epochs that have ended before the next batch, as far as that is known."""
        held = self._held
        return int((self._position if held is None else held.position)["epoch"])

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        if self.is_paused or self.is_finished:
            raise StopIteration
        is_between_steps = self._num_in_step % self._accumulate == 0
        if is_between_steps and self._num_left is not None and self._num_left <= 0:
            self.is_paused = True
            raise StopIteration
        batch, self._held = self._held, None
        if batch is None:
            batch = self._read()
        ended = int(batch.position["epoch"])
        if is_between_steps and self._num_epochs is not None and ended > self._num_epochs:
            self._held = batch
            self.is_paused = True
            raise StopIteration
        if is_between_steps and self._is_turn(batch.position):
            self._held = batch
            self.is_paused = self.is_at_turn = True
            raise StopIteration
        if self._num_left is not None:
            self._num_left -= 1
        self._num_in_step += 1
        self._position = batch.position
        return batch

    def _is_turn(self, position: JsonView) -> bool:
        if self._file is None or position["epoch"]:
            return False
        return file_of(position) > self._file

    def _read(self) -> Batch:
        try:
            return next(self._reader)
        except StopIteration:
            self.is_finished = True
            raise

    def state_dict(self) -> Json:
        """The position after the last batch that was yielded, as `Reader.state_dict`."""
        return dict(self._position)

    def load_state_dict(self, state: JsonView) -> None:
        """Goes back to a position between two steps that this has yielded. The next pause by number
        is not put back: `go_on` sets it."""
        self._held = None
        self.is_finished = self.is_paused = self.is_at_turn = False
        self._num_in_step = 0
        self._reader.load_state_dict(state)
        self._position = dict(state)
