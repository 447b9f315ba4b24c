"""BatchTransform: what a reader makes of each batch, once it is read, before it hands it out.

Above it: `Reader`, which applies it. Below it: nothing; `hps.features` has one.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from hps import _C
from hps.reader.column_use import ColumnUse
from hps.types import Batch


class BatchTransform(Protocol):
    """From batches as the log has them to batches as a model sees them."""

    @property
    def name(self) -> str:
        """The same of two that make the same of every batch; part of a position."""

    @property
    def features(self) -> Mapping[str, tuple[str, ...]]:
        """Table name -> its features after the transform, in the order of Ids.offsets."""

    @property
    def num_dense(self) -> int:
        """Dense columns after the transform."""

    def columns(self, uses: Sequence[ColumnUse]) -> list[ColumnUse]:
        """What is made of each column, from what the reader makes of it."""

    def __call__(self, batch: Batch, threads: _C.ThreadPool | None = None) -> Batch:
        """The batch after the transform; nothing of the one given is changed.

        Args:
            batch: as it was read.
            threads: those of the reader that has just made it, which may share the work; they
                change nothing in what is made. None: any other batch.
        """
