"""A batch on its way through the stages, and what is in a queue in the place of one.

Above it: the stages, flow.py, `hps.Pipeline`. Below it: `hps.Batch`, `PinnedRows`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from hps.common.arrays import AnyArray
    from hps.contracts.joint import JointRows
    from hps.pipeline.arrival import Arrival
    from hps.types import Batch, PinnedRows, Pins


@dataclass(slots=True)
class Prepared:
    """A batch that was read, later with its rows.

    Args:
        number: its place in the pipeline's order, from 1.
        batch: as the reader gave it, on a device a copy there; untouched until it is handed out.
        exchanged: table -> what all ranks' owners know of the batch's keys; None with one rank.
        rows: table -> pinned rows, once it is pinned.
        warm: table -> rows that wait in the dram_cache, until it is pinned in the gpu_cache.
        ahead: what else its step would have to wait for, at a depth above 0.
        joint: what pins them, if they were pinned together.
        arrival: of its tensors on a CUDA device; None on the host.
        let_go: releases rows of several tables at once, where the server can.
        is_placed: its rows are in their slots; set by the stage that pinned them.
        is_given_back: they were, and must be pinned again before it is handed out.
    """

    number: int
    batch: "Batch"
    exchanged: Mapping[str, object] | None = None
    rows: "dict[str, PinnedRows]" = field(default_factory=dict)
    warm: "dict[str, Pins]" = field(default_factory=dict)
    ahead: "list[Pins]" = field(default_factory=list)
    joint: "JointRows | None" = None
    let_go: "Callable[[Sequence[PinnedRows]], None] | None" = None
    is_placed: bool = False
    arrival: "Arrival | None" = None
    is_given_back: bool = False

    @property
    def keys(self) -> "Mapping[str, AnyArray]":
        """table -> what the server's `want`, `warm` and `pin` take for its keys."""
        if self.exchanged is not None:
            # Not arrays, but what the server that belongs to these ranks takes for them.
            return cast("Mapping[str, AnyArray]", self.exchanged)
        return {table: ids.keys_L for table, ids in self.batch.features.items()}

    @property
    def is_pinned(self) -> bool:
        """True if none of its rows has been released."""
        return not any(rows.is_released for rows in self.rows.values())

    def receive(self) -> None:
        """Makes the current stream wait for what is on its way to the device."""
        if self.arrival is not None:
            self.arrival.receive()

    def give_back(self) -> None:
        """Drops its pins for now."""
        self.is_given_back = True
        self.release()

    def release_warm(self) -> None:
        """Lets go of what waits below; nothing to do the second time."""
        for rows in list(self.warm.values()):
            rows.release()

    def release(self) -> None:
        """Drops its pins; nothing to do the second time."""
        self.release_warm()
        for held in list(self.ahead):
            held.release()
        if self.joint is not None:
            self.joint.release()
        # A copy: close() may not have waited for who pins it.
        left = [rows for rows in list(self.rows.values()) if not rows.is_released]
        if self.let_go is not None and left:
            self.let_go(left)
        for rows in left:
            if not rows.is_released:
                rows.release()


@dataclass(slots=True)
class Failed:
    """A stage raised: is in the queues after the batches that came before.

    Args:
        stage: its name.
        number: of the batch it worked on, 0 if on none.
        error: what it raised.
    """

    stage: str
    number: int
    error: BaseException

    def noted(self) -> BaseException:
        """The error as it is to be raised in the loop."""
        note = f"raised in pipeline stage '{self.stage}'"
        if self.number:
            note += f", batch {self.number} (from 1)"
        if note not in getattr(self.error, "__notes__", ()):
            self.error.add_note(note)
        return self.error


@dataclass(slots=True)
class Ended:
    """No further batch comes: the reader has none, or it is to be left where it stands.

    Args:
        number: that the next batch would have had.
        is_exhausted: the reader has none.
    """

    number: int
    is_exhausted: bool


Item = Prepared | Failed | Ended
