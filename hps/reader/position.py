"""Position: a place in a log, as a checkpoint keeps it.

Above it: `Reader`, the readers of text and of records, shuffle.py. Below it: nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Self

from hps.common.json_text import Json, JsonView
from hps.errors import ConfigError
from hps.types import Batch


@dataclass(frozen=True)
class Block:
    """The examples that are shuffled together, from a position on, and how many of them are out.

    Args:
        taken: of its examples in their drawn order, those that were handed out; at least 1.
        size: all of its examples, more than those.
        file: place of the file that it ends in, in the epoch's order.
        offset: of its end in that file, as `Position.offset`.
    """

    taken: int
    size: int
    file: int
    offset: int


@dataclass(frozen=True)
class Position:
    """A place between two examples of a log that is read some number of times.

    Args:
        epoch: times that the log has been read whole.
        file: place of the file in the epoch's order.
        offset: bytes of the file (uncompressed) before the place; in parquet and csv its rows.
        line: lines of the file before the place; in parquet and csv its rows.
        examples: handed out so far, all epochs together; those that a sample leaves out do not
            count.
        skipped: bad lines passed over before the place, all epochs together.
        block: where examples are shuffled and some of a block are out: that block, which begins at
            the place; else None.

    >>> Position.from_dict(Position(examples=7).to_dict()).examples
    7
    """

    epoch: int = 0
    file: int = 0
    offset: int = 0
    line: int = 0
    examples: int = 0
    skipped: int = 0
    block: Block | None = None

    def to_dict(self) -> Json:
        """Numbers by name; `block`, a mapping of such, only where there is one."""
        state = asdict(self)
        if self.block is None:
            del state["block"]
        return state

    @classmethod
    def from_dict(cls, state: JsonView) -> Self:
        """What `to_dict` returned, among other things.

        Raises:
            ConfigError: it is not in there.
        """
        numbers = _numbers(state, [field.name for field in fields(cls) if field.name != "block"])
        block = state.get("block")
        if block is not None:
            within = _numbers(block, [field.name for field in fields(Block)])
            block = None if within is None else Block(**within)
            is_whole = block is not None and 0 < block.taken < block.size
            numbers = numbers if is_whole else None
        if numbers is None:
            raise ConfigError(
                f"{dict(state)!r} is not a reader's position; use what state_dict() returned"
            )
        return cls(**numbers, block=block)


def file_of(state: JsonView) -> int:
    """Place in the epoch's order of the file that the batch before a position ends in; of a block
    that is shuffled that of its end.

    >>> file_of(Position(file=2).to_dict())
    2
    """
    return int(state.get("block", state)["file"])


# A batch, the place before it in its own epoch, and the place after it.
Cut = tuple[Batch, Position, Position]


def _numbers(state: object, names: list[str]) -> dict[str, int] | None:
    """Whole numbers from 0 on by name; None if one of them is missing or is none."""
    if not isinstance(state, Mapping):
        return None
    found = {name: value for name in names if isinstance(value := state.get(name), int)}
    return found if len(found) == len(names) and min(found.values()) >= 0 else None
