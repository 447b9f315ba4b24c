"""Options of the life of rows: what they count, and when a new period begins; docs/life_cycle.md.

Above it: groups.py. Below it: declare.py.
"""

from dataclasses import dataclass

from hps.options.declare import named, option, switch
from hps.options.values import SWITCH

OF_DATA, OF_FILE = "data", "file"
ADVANCE_EVERY = (OF_DATA, OF_FILE)


@dataclass(frozen=True, kw_only=True)
class LifeOptions:
    """What rows count, and the periods that they count in."""

    statistics: bool | None = option(
        None,
        SWITCH,
        "count in each row of a new model its shows, its clicks and the period of its last update, "
        "in 16 bytes more; with --resume as the stored model does",
        const=True,
    )
    advance: bool = switch(
        "begin a new period of the store before the first step on new data: on files that the "
        "checkpoint which --resume continues has not begun; the first data of a new store is "
        "period 0"
    )
    advance_every: str = named(
        ADVANCE_EVERY,
        OF_DATA,
        "of a run that advances: one period for all of DATA, or one for each of its files, which "
        "implies --advance",
    )
