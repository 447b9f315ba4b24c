"""What the defaults of `hps train` are worth: beside settings tuned on the validation part.

Twice: for one pass over the log, and for up to four, where validation after each ends the run and
keeps the best. Tuning takes every one of `trials` and keeps what validates best; that is then
trained with all seeds, and so is `hps train` with nothing but the log, and the flags of validation.
Both are measured on the test part, which nothing was chosen by. Above it: benchmarks/run.py. Below
it: quality_bench.py, runs.py.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.common.report import Row
from benchmarks.quality.data_sets import ALL_DATA_SETS, TINY, absent_data, load
from benchmarks.quality.quality_bench import add_options, choice_of, quality_row
from benchmarks.quality.runs import Runs
from benchmarks.quality.settings import Job, Scores, Settings
from benchmarks.quality.statistics import mean

BAR = -0.005  # of the difference in AUC
DEFAULTS = "the defaults"
TUNED = "tuned on the validation part"
RATES = (0.01, 0.02, 0.05, 0.1)
DENSE_RATES = (0.0003, 0.003)
PASSES, PATIENCE = (1, 4), 1
STEPS, MIDDLE = (100, 200, 400), 200  # an epoch, by the batch size
LARGEST_BATCH, SMALLEST_BATCH = 4096, 32
# A log of fewer examples is tuned on all seeds, of which it has more: its validation part is small.
SMALL, MORE_SEEDS = 20_000, 4


def batch_of(examples: int, steps: int) -> int:
    """The power of two that makes about as many steps of an epoch, between 32 and 4,096.

    >>> batch_of(80_000, 100), batch_of(100, 100), batch_of(10**9, 100)
    (512, 32, 4096)
    """
    wanted = max(examples // steps, 1)
    return min(max(1 << (wanted.bit_length() - 1), SMALLEST_BATCH), LARGEST_BATCH)


# What else could be the defaults.
CANDIDATES: dict[str, Settings] = {
    "lr 0.02": Settings(lr=0.02),
    "lr 0.02, initial_accumulator 0": Settings(lr=0.02, initial_accumulator=0.0),
    "dense_lr 0.003": Settings(dense_lr=0.003),
    "init_std 0.05": Settings(init_std=0.05),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    add_options(parser, ALL_DATA_SETS, 3)
    parser.add_argument("--model", default="deepfm")
    parser.add_argument(
        "--wide",
        action="store_true",
        help="tune first weights and dropout, too, and all of rates and batch sizes",
    )
    parser.add_argument("--candidates", action="store_true", help="other defaults, too")


def in_passes(settings: Settings, passes: int, num_train: int) -> Settings:
    """The settings for so many passes. For one, what is None is left to `hps train`; for more,
    validation chooses, which needs a batch size."""
    if passes == 1:
        return settings
    batch = settings.batch_size or batch_of(num_train, MIDDLE)
    return replace(settings, epochs=passes, patience=PATIENCE, batch_size=batch)


def trials(model: str, num_train: int, is_smoke: bool, is_wide: bool) -> list[Settings]:
    """What tuning tries, of one pass: rates of rows, with accumulators from 0 as well, and batch
    sizes and dense rates beside a middle; if it is wide also first weights, dropout, and all of
    rates and batch sizes."""
    middle = Settings(model=model, batch_size=batch_of(num_train, MIDDLE), lr=0.05)
    if is_smoke:
        return [replace(middle, lr=rate) for rate in (0.02, 0.1)]
    found = [replace(middle, lr=rate) for rate in RATES]
    found += [replace(middle, lr=rate, initial_accumulator=0.0) for rate in RATES]
    found += [replace(middle, batch_size=batch_of(num_train, steps)) for steps in STEPS]
    found += [replace(middle, dense_lr=rate) for rate in DENSE_RATES]
    if is_wide:
        found += [
            replace(middle, batch_size=batch_of(num_train, steps), lr=rate)
            for steps, rate in product(STEPS, RATES)
        ]
        found += [replace(middle, init_std=deviation) for deviation in (0.001, 0.05, 0.2)]
        found += [replace(middle, dropout=share) for share in (0.2, 0.5)]
    return list(dict.fromkeys(found))


class Tuning:
    """Runs of one data set.

    Args:
        job: of the defaults; others differ in settings and seed.
        seeds: to measure with.
        tuned_on: to tune on, the first ones.
    """

    def __init__(self, runs: Runs, job: Job, seeds: int, tuned_on: int = 1) -> None:
        self._runs = runs
        self._job = job
        self._seeds = seeds
        self._tuned_on = tuned_on

    def scores(self, settings: Sequence[Settings]) -> list[list[Scores]]:
        """Of each of the settings a seed each."""
        return self._with_seeds(settings, self._seeds)

    def best(self, tried: Sequence[Settings]) -> Settings:
        """By the AUC on the validation part, the mean of the seeds to tune on."""
        found = self._with_seeds(tried, self._tuned_on)
        aucs = [mean([scores["valid"]["auc"] for scores in of_one]) for of_one in found]
        return tried[aucs.index(max(aucs))]

    def _with_seeds(self, settings: Sequence[Settings], seeds: int) -> list[list[Scores]]:
        jobs = [
            replace(self._job, settings=one, seed=seed) for one in settings for seed in range(seeds)
        ]
        found = self._runs.scores(jobs)
        return [found[place : place + seeds] for place in range(0, len(found), seeds)]


def text_of(settings: Settings) -> str:
    """What is not left to `hps train`, in words."""
    fields = {name: value for name, value in vars(settings).items() if name != "model"}
    given = {name: value for name, value in fields.items() if value not in (None, (), 0)}
    if settings.initial_accumulator == 0:
        given["initial_accumulator"] = 0
    return ", ".join(f"{name} {value}" for name, value in given.items()) or "none"


def rows_of(
    tuning: Tuning, axes: dict[str, Any], num_train: int, options: dict[str, Any]
) -> list[Row]:
    """The defaults, and the candidates that are asked for, each beside the tuned settings of as
    many passes."""
    model = options["model"]
    asked: dict[str, Settings] = {DEFAULTS: Settings(model=model)}
    if options["candidates"]:
        asked |= {name: replace(one, model=model) for name, one in CANDIDATES.items()}
    rows = []
    for passes in PASSES:
        of_one = trials(model, num_train, options["is_smoke"], options["wide"])
        best = tuning.best([in_passes(one, passes, num_train) for one in of_one])
        to_score = [in_passes(one, passes, num_train) for one in asked.values()]
        tuned, *found = tuning.scores([best, *to_score])
        for name, scores in zip(asked, found, strict=True):
            here = {**axes, "passes": passes, "settings": name}
            row = quality_row(here, scores, (TUNED, tuned), BAR)
            rows.append(row | {"tuned": text_of(best), "reaches": row["difference"] >= BAR})
    return rows


def tuning_of(name: str, num_train: int, runs: Runs, options: dict[str, Any]) -> Tuning:
    """The runs of one data set: a small one has more seeds."""
    first = Job(
        contender="hps",
        log=name,
        seed=0,
        settings=Settings(model=options["model"]),
        examples=int(options["examples"]),
        criteo=options["criteo"],
    )
    seeds = options["seeds"]
    if num_train >= SMALL or options["is_smoke"]:
        return Tuning(runs, first, seeds)
    return Tuning(runs, first, seeds * MORE_SEEDS, tuned_on=seeds * MORE_SEEDS)


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """All data sets that are here; see add_arguments for the options."""
    if smoke:
        options |= {"data": [TINY], "seeds": 1, "cache": None}
    options["is_smoke"] = smoke
    choice = choice_of(options)
    missing = absent_data(choice)
    runs = Runs(None if options["cache"] is None else Path(options["cache"]), is_here=smoke)
    rows: list[Row] = []
    for name in choice.names:
        if name in missing:
            continue
        log = load(name, choice.examples, choice.criteo)
        num_train = len(log.split(0)["train"])
        tuning = tuning_of(name, num_train, runs, options)
        rows += rows_of(tuning, {"data": name, "examples": num_train}, num_train, options)
    axes = {name: options[name] for name in ("model", "seeds", "examples")}
    axes |= {"rates": RATES, "passes": PASSES, "wide": options["wide"]}
    return {"axes": axes, "rows": rows, "absent": missing}
