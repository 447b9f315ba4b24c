"""The settings of a table that are compared: each by its name, as arguments of hps.TableConfig, and
of rows of two levels as options of a training.

Above it: life_cycle_bench.py. Below it: nothing. A setting is added here and nowhere else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import hps


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way to keep a table.

    Args:
        name: in the report.
        table: arguments of hps.TableConfig, instead of those of `hps train`.
        options: of the training.
        keeps_bits: it learns exactly what the baseline learns; the benchmark fails if not.
    """

    name: str
    table: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    keeps_bits: bool = False

    def described(self) -> str:
        """All that makes it, in words."""
        return repr({**self.table, **self.options})


BASELINE = Setting(name="none", keeps_bits=True)
SETTINGS = (
    Setting(name="statistics", table={"statistics": True}, keeps_bits=True),
    # A key of the generated log lives for ten days.
    Setting(name="unseen 5", table={"expiry": hps.Expiry(unseen=5)}),
    Setting(name="unseen 10", table={"expiry": hps.Expiry(unseen=10)}),
    Setting(name="score 0.1", table={"expiry": hps.Expiry(min_score=0.1, decay=0.8)}),
    Setting(name="count 2", table={"admission": hps.Admission(count=2)}),
    Setting(name="count 3", table={"admission": hps.Admission(count=3)}),
    Setting(name="probability 0.3", table={"admission": hps.Admission(probability=0.3)}),
    Setting(
        name="count 2, unseen 5",
        table={"admission": hps.Admission(count=2), "expiry": hps.Expiry(unseen=5)},
    ),
    Setting(name="bfloat16", table={"dtype": "bfloat16"}),
    Setting(name="unseen 5, bfloat16", table={"expiry": hps.Expiry(unseen=5), "dtype": "bfloat16"}),
    Setting(
        name="count 2, unseen 5, bfloat16",
        table={
            "admission": hps.Admission(count=2),
            "expiry": hps.Expiry(unseen=5),
            "dtype": "bfloat16",
        },
    ),
    # Vectors of keys that were seen before; of those with five shows, or a click.
    Setting(name="two-level 0.1", options={"two_level": 0.1}),
    Setting(name="two-level 0.5", options={"two_level": 0.5}),
    Setting(
        name="two-level 0.1, unseen 5",
        table={"expiry": hps.Expiry(unseen=5)},
        options={"two_level": 0.1},
    ),
    Setting(
        name="two-level 0.5, unseen 5",
        table={"expiry": hps.Expiry(unseen=5)},
        options={"two_level": 0.5},
    ),
)
