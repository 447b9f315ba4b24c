"""The data sets by name.

Above it: worker.py, the benchmarks. Below it: public.py, generated.py.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.quality.generated import (
    GENERATED,
    GENERATED_RARE,
    NUM_TRAIN,
    SHAPES,
    generated,
)
from benchmarks.quality.logs import Log
from benchmarks.quality.public import PUBLIC, AbsentData, criteo

TINY = "generated_tiny"  # for a smoke test
DATA_SETS = (*PUBLIC, *GENERATED)
ALL_DATA_SETS = (*DATA_SETS, *GENERATED_RARE)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which data sets, and how much of them.

    Args:
        names: of ALL_DATA_SETS, TINY, or "criteo".
        examples: of a larger public log so many are drawn; of a generated one as many are trained
            on. 0 for all, and 80,000.
        criteo: file of the data set "criteo".
    """

    names: tuple[str, ...]
    examples: int = 0
    criteo: str | None = None


@cache
def load(name: str, examples: int, criteo_file: str | None) -> Log:
    """A data set.

    Raises:
        AbsentData: its package is not installed.
    """
    if name == TINY:
        return generated("generated_10", 800)
    if name in SHAPES:
        return generated(name, examples or NUM_TRAIN)
    if name == "criteo":
        if criteo_file is None:
            raise AbsentData("the data set criteo needs --criteo FILE")
        log = criteo(Path(criteo_file))
    else:
        log = PUBLIC[name]()
    return log if not 0 < examples < len(log.table) else _sample(log, examples)


def _sample(log: Log, examples: int) -> Log:
    chosen = np.random.default_rng(7).choice(len(log.table), examples, replace=False)
    return log.with_rows(np.sort(chosen))


def absent_data(choice: Choice) -> dict[str, str]:
    """Name of each data set that cannot be read -> why."""
    absent = {}
    for name in set(choice.names) - {*SHAPES, TINY}:
        try:
            load(name, choice.examples, choice.criteo)
        except AbsentData as error:
            absent[name] = str(error)
    return absent
