"""Pins: a batch's rows of all tables or none; a refused stage tries again after a release (I6).

Above it: the stages. Below it: `RowServer.pin` and `warm`; flow.py, where it waits for room.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from hps.common.arrays import AnyArray
from hps.errors import CapacityError
from hps.pipeline.invariants import require
from hps.types import Pins

if TYPE_CHECKING:
    from hps.pipeline.flow import Flow


_Pins = TypeVar("_Pins", bound=Pins)


def pin_tables(
    keys: Mapping[str, AnyArray], pin: Callable[[str, AnyArray], _Pins], rows: dict[str, _Pins]
) -> None:
    """Puts into `rows` what `pin` gives for the keys of each table; all tables or none (I6).

    Raises:
        CapacityError: a table's keys cannot all be held now; nothing is.
    """
    try:
        for table, of_table in keys.items():
            rows[table] = pin(table, of_table)
    except BaseException:
        for pinned in rows.values():
            pinned.release()
        left = [table for table, pinned in rows.items() if not pinned.is_released]
        require("I6", not left, f"a batch that was refused holds rows of {left}")
        rows.clear()
        raise


def pin_or_wait(flow: "Flow", pin: Callable[[], None]) -> None:
    """Pins, again after each release if it is refused.

    Raises:
        CapacityError: refused, and no other batch of the pipeline is to be released before it.
        FlowStopped: the pipeline closes.
    """
    while True:
        attempt = flow.attempt()
        try:
            return pin()
        except CapacityError as error:
            if attempt.is_last:
                raise explained(error, attempt.num_held) from error
        flow.wait_for_release(attempt)


def explained(error: CapacityError, num_held: int) -> CapacityError:
    """The refusal, with the number of batches that wait for the same step."""
    if not num_held:
        return error
    return CapacityError(
        f"{error} ({num_held} batch(es) before it wait for the same step: a smaller "
        "accumulate holds fewer)"
    )
