"""Options of the life of rows: what they count, and when a new period begins; docs/life_cycle.md.

Above it: groups.py. Below it: declare.py.
"""

from dataclasses import dataclass
from typing import Any

from hps.common.admission import MAX_COUNT, Admission
from hps.common.expiry import MAX_GAP, Expiry
from hps.errors import ConfigError
from hps.options.declare import named, option, switch
from hps.options.values import SIZE, SWITCH, number, whole

OF_DATA, OF_FILE = "data", "file"
ADVANCE_EVERY = (OF_DATA, OF_FILE)


@dataclass(frozen=True, kw_only=True)
class LifeOptions:
    """What rows count, the periods that they count in, and when they die."""

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
    expire_unseen: int | None = option(
        None,
        whole(0, MAX_GAP - 1),
        "rows die once more than N periods have passed without an update; implies --statistics in "
        "a new model; with --resume what is given of these five takes the place of the stored "
        "model's, from the next period on",
        metavar="N",
    )
    expire_below: float | None = option(
        None,
        number(above=0),
        "rows die once nonclick * (show - click) + click * clicks, decayed, is below S",
        metavar="S",
    )
    expire_decay: float | None = option(
        None,
        number(most=1, above=0),
        "what shows and clicks are multiplied with at each new period, above 0, at most 1; if not "
        "given, 0.98",
    )
    expire_nonclick: float | None = option(
        None, number(0), "what a show without a click is worth; if not given, 0.1"
    )
    expire_click: float | None = option(None, number(0), "what a click is worth; if not given, 1")
    max_rows: int | None = option(
        None,
        whole(1, 2**63 - 1),
        "as a period begins, rows whose death is nearest die early until no table has more than N "
        "rows; of tables with expiry; with --resume as the stored model has it, if it is not given",
        metavar="N",
    )
    max_bytes: int | str | None = option(
        None, SIZE, "the same in bytes of rows in memory; of both the smaller counts"
    )

    admit_count: int | None = option(
        None,
        whole(1, MAX_COUNT),
        "a key comes by a row once it was seen in N examples' values; until then it reads as a new "
        "one, and learns nothing; implies --statistics in a new model; with --resume in the place "
        "of the stored model's",
        metavar="N",
    )
    admit_probability: float | None = option(
        None,
        number(most=1, above=0),
        "an update gives a key that has no row one with probability P, above 0, at most 1; with "
        "--resume in the place of the stored model's",
        metavar="P",
    )
    two_level: float | None = option(
        None,
        number(above=0),
        "of deepfm, wide_deep, fm, and models of your own with first-order weights: rows of two "
        "levels; each key has such a weight, in a table of its own, and comes by its vector once "
        "its score there is S, above 0: "
        "nonclick * (show - click) + click * clicks, decayed, with the numbers of --expire-...; "
        "with --resume as the stored model has it",
        metavar="S",
    )

    def admission(self) -> Admission | None:
        """The rule that is given; None where each key comes by a row at once. With `two_level` it
        is that of the first-order weights, which count in any case.

        Raises:
            ConfigError: both rules.
        """
        if self.admit_count is None and self.admit_probability is None:
            return None
        if self.admit_count is not None and self.admit_probability is not None:
            raise ConfigError("--admit-count and --admit-probability are two rules; give one")
        if self.statistics is False and self.admit_count is not None and self.two_level is None:
            raise ConfigError(
                "--no-statistics and --admit-count: a row begins with what its key has counted; "
                "leave one of them out"
            )
        return Admission(count=self.admit_count, probability=self.admit_probability)

    def expiry(self) -> Expiry | None:
        """The rules that are given; None where rows live for ever, or as the stored model has it.

        Raises:
            ConfigError: numbers of rules without one that lets a row die.
        """
        asked: dict[str, Any] = {
            "unseen": self.expire_unseen,
            "min_score": self.expire_below,
            "decay": self.expire_decay,
            "nonclick": self.expire_nonclick,
            "click": self.expire_click,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        if not given:
            return None
        if self.statistics is False:
            raise ConfigError(
                "--no-statistics and --expire-...: rows die by what they have counted, and rows of "
                "a model that was made without --statistics do not count; leave one of them out, "
                "or make another model"
            )
        if not {"unseen", "min_score"} & given.keys():
            raise ConfigError(
                "--expire-decay, --expire-nonclick and --expire-click are numbers of a rule; give "
                "--expire-unseen, --expire-below or both, too"
            )
        return Expiry(**given)

    def bounds(self) -> dict[str, Any]:
        """The fields of a TableConfig that bound its rows, as far as they are given; none where
        rows live for ever, as far as is known before the stored rules are."""
        asked = {"max_rows": self.max_rows, "max_bytes": self.max_bytes}
        given = {name: value for name, value in asked.items() if value is not None}
        return given if self.expiry() is not None else {}

    def check_bounds(self) -> None:
        """ConfigError if there are bounds, and no rules by which rows die."""
        if (self.max_rows, self.max_bytes) != (None, None) and self.expiry() is None:
            raise ConfigError(
                "--max-rows and --max-bytes have rows die early, and without rules none dies; give "
                "--expire-unseen, --expire-below or both, too"
            )
