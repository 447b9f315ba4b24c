"""What a shard takes and gives: acknowledgement levels, terms, what became of a mutation.

Above it: the parts of a shard, the handlers of the server. Below it: update_log/sessions.py.
"""

from dataclasses import dataclass
from enum import IntEnum
from time import monotonic

from hps.common.arrays import AnyArray
from hps.common.occurrences import Occurrences
from hps.common.row_layout import Statistics
from hps.update_log import Marks


class Ack(IntEnum):
    """When a mutation is acknowledged; each level includes those before it."""

    MEMORY = 0  # applied; a killed server forgets what its log had not taken yet
    LOGGED = 1  # handed to the operating system: survives a killed server
    DURABLE = 2  # on the disk: survives a loss of power


@dataclass(frozen=True, slots=True)
class Terms:
    """What a caller waits for, and how long.

    Args:
        ack: the level.
        timeout: seconds, all waits together.
    """

    ack: Ack = Ack.LOGGED
    timeout: float = 60.0

    def deadline(self) -> float:
        """From now on, on the monotonic clock."""
        return monotonic() + self.timeout


@dataclass(frozen=True, slots=True)
class PushStep:
    """What a push does with the gradients of its keys.

    Args:
        lr: learning rate; None is the table's.
        occurrences: what each key stands for, in a table with statistics; None: one show each.
    """

    lr: float | None = None
    occurrences: Occurrences | None = None


@dataclass(frozen=True, slots=True)
class RowState:
    """What an assign sets beside the weights.

    Args:
        state: float32 [L, state floats] of the optimizer; None starts it anew.
        statistics: [L]; None: counts stay, and the last period is the current one.
    """

    state: AnyArray | None = None
    statistics: Statistics | None = None


@dataclass(frozen=True, slots=True)
class Applied:
    """A mutation that is applied, now or before.

    Args:
        marks: of its session.
        is_repeat: it had been applied before; nothing has changed.
        answer: of a create the rows, float32 [L, dim] (of a repeat as they read now); of an erase
            bool [L], where a stored row was (of a repeat None if that is not known any more).
    """

    marks: Marks
    is_repeat: bool
    answer: AnyArray | None = None


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A session that a client may go on with at sequence marks.applied + 1.

    Args:
        incarnation: to be sent with every mutation.
        marks: they may be lower than the client has seen: a killed server has lost what it had
            acknowledged in memory only.
        lineage: of the rows.
        is_known: the client had a session here before; False also if it was dropped for newer ones.
    """

    incarnation: int
    marks: Marks
    lineage: str
    is_known: bool
