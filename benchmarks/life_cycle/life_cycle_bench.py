"""What a table's settings save and cost where keys are born and die: rows, bytes, time and AUC.

A DeepFM is trained over a generated log of 30 days; each day is scored before it is trained on. A
seed is one log and one set of first weights; every setting has the same ones. The baseline is the
table as it is without any setting. Above it: benchmarks/run.py. Below it: days.py, settings.py.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.common.report import Row, comparison_row
from benchmarks.common.timing import Samples
from benchmarks.life_cycle.days import Days, Shape, train_days, write_log
from benchmarks.life_cycle.settings import BASELINE, SETTINGS, Setting
from benchmarks.quality.statistics import paired

PLANTED = "the planted model"
_SMOKE = {"periods": 3, "examples": 200, "keys": 400, "batch_size": 64}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    shape = Shape()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--periods", type=int, default=shape.periods)
    parser.add_argument("--examples", type=int, default=shape.examples, help="of a period")
    parser.add_argument("--keys", type=int, default=shape.keys, help="at a time")
    parser.add_argument("--drift", type=float, default=shape.drift)
    parser.add_argument("--settings", nargs="+", default=None, help="their names; default: all")


def chosen(names: Sequence[str] | None) -> list[Setting]:
    """The settings of these names.

    Raises:
        SystemExit: there is none of a name; lists those there are.
    """
    known = {setting.name: setting for setting in SETTINGS}
    if unknown := sorted({*(names or ())} - {*known}):
        raise SystemExit(f"no setting {unknown}; there are: {', '.join(known)}")
    return [known[name] for name in (names or known)]


def auc_row(axes: Mapping[str, Any], own: Sequence[Days], other: tuple[str, Samples]) -> Row:
    """Mean AUC over the days, with the 95 % interval of the difference and the mean of each day."""
    values = Samples(tuple(days.auc for days in own))
    found = paired(values.values, other[1].values)
    by_day = [sum(aucs) / len(own) for aucs in zip(*(days.aucs for days in own), strict=True)]
    return {
        **comparison_row(axes, "AUC", values, other),
        "difference": found.difference,
        "low": found.low,
        "high": found.high,
        "notes": {"auc of each day": by_day},
    }


def rows_of(setting: Setting, own: Sequence[Days], base: Sequence[Days]) -> list[Row]:
    """A setting beside the baseline, seed by seed."""
    if setting.keeps_bits:
        for seed, (one, other) in enumerate(zip(own, base, strict=True)):
            assert one.loss_digest == other.loss_digest, (
                f"setting {setting.name!r} has learned something else than the baseline, seed "
                f"{seed}; it says that it keeps every bit"
            )
    axes = {"setting": setting.name}
    others = (BASELINE.name, Samples(tuple(days.auc for days in base)))
    rows = [auc_row(axes, own, others)]
    for figure, unit in (
        ("rows", "rows"),
        ("disk_bytes", "bytes on disk"),
        ("cpu_seconds", "seconds of processor time"),
    ):
        values, baseline = (
            Samples(tuple(float(getattr(days, figure)) for days in runs)) for runs in (own, base)
        )
        compared = (BASELINE.name, baseline)
        rows.append(comparison_row(axes, unit, values, compared, lower_is_better=True))
    return rows


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """All settings; see add_arguments for the options."""
    seeds = 1 if smoke else options["seeds"]
    names = ("periods", "examples", "keys", "drift")
    shape = Shape(**{name: options[name] for name in names})
    if smoke:
        shape = replace(shape, **_SMOKE)
    settings = [BASELINE, *chosen(options["settings"])]
    runs: dict[str, list[Days]] = {setting.name: [] for setting in settings}
    best: list[float] = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            days = write_log(Path(folder), shape, seed)
            best.append(sum(days[1:]) / len(days[1:]))
            # Every other seed in the other order: a machine drifts.
            for setting in settings if seed % 2 == 0 else settings[::-1]:
                runs[setting.name].append(train_days(Path(folder), shape, setting, seed))
    base = runs[BASELINE.name]
    rows = [auc_row({"setting": BASELINE.name}, base, (PLANTED, Samples(tuple(best))))]
    for setting in settings[1:]:
        rows += rows_of(setting, runs[setting.name], base)
    tables = {setting.name: setting.described() for setting in settings}
    return {"axes": {**asdict(shape), "seeds": seeds, "settings": tables}, "rows": rows}
