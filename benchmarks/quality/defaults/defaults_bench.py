"""What the defaults of `hps train` are worth: beside settings tuned on the validation part.

Tuning takes every one of `trials` on one seed and keeps what validates best; that is then trained
with all seeds, and so is `hps train` with nothing but the log. Both are measured on the test part,
which nothing was chosen by. With `--candidates` sets of settings that could become the defaults
stand beside the tuned ones, too. Above it: benchmarks/run.py. Below it: quality_bench.py, runs.py.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.common.report import Row
from benchmarks.quality.data_sets import TINY, absent_data, load
from benchmarks.quality.quality_bench import add_options, choice_of, quality_row
from benchmarks.quality.runs import Runs
from benchmarks.quality.settings import Job, Scores, Settings

BAR = -0.005  # of the difference in AUC
DEFAULTS = "the defaults"
TUNED = "tuned on the validation part"
EPOCHS, PATIENCE = 6, 1
STEPS = (50, 100, 200)  # an epoch, by the batch size
LARGEST_BATCH, SMALLEST_BATCH = 4096, 32
Candidate = Callable[[int], Settings]


def batch_of(examples: int, steps: int) -> int:
    """The power of two that makes about as many steps of an epoch, between 32 and 4,096.

    >>> batch_of(80_000, 100), batch_of(100, 100), batch_of(10**9, 100)
    (512, 32, 4096)
    """
    wanted = max(examples // steps, 1)
    return min(max(1 << (wanted.bit_length() - 1), SMALLEST_BATCH), LARGEST_BATCH)


CANDIDATES: dict[str, Candidate] = {
    "100 steps": lambda count: Settings(batch_size=batch_of(count, 100)),
    "100 steps, lr 0.05": lambda count: Settings(batch_size=batch_of(count, 100), lr=0.05),
    "100 steps, lr 0.05, 2 epochs": lambda count: Settings(
        batch_size=batch_of(count, 100), lr=0.05, epochs=2
    ),
    "100 steps, lr 0.05, best of 6 epochs": lambda count: Settings(
        batch_size=batch_of(count, 100), lr=0.05, epochs=EPOCHS, patience=PATIENCE
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    add_options(parser)
    parser.add_argument("--model", default="deepfm")
    parser.add_argument("--candidates", action="store_true", help="other defaults, too")


def trials(model: str, num_train: int, is_smoke: bool) -> list[Settings]:
    """What tuning tries: all of rates and batch sizes, then one thing at a time beside a middle."""
    middle = Settings(
        model=model,
        batch_size=batch_of(num_train, 100),
        epochs=EPOCHS,
        lr=0.05,
        patience=PATIENCE,
    )
    if is_smoke:
        return [replace(middle, epochs=1, lr=rate) for rate in (0.02, 0.1)]
    found = [
        replace(middle, batch_size=batch_of(num_train, steps), lr=rate)
        for steps, rate in product(STEPS, (0.01, 0.02, 0.05, 0.1, 0.2))
    ]
    found += [replace(middle, dense_lr=rate) for rate in (0.0003, 0.003)]
    found += [replace(middle, init_std=deviation) for deviation in (0.001, 0.05, 0.2)]
    found += [replace(middle, dropout=share) for share in (0.2, 0.5)]
    return list(dict.fromkeys(found))


class Tuning:
    """Runs of one data set.

    Args:
        job: of the defaults; others differ in settings and seed.
    """

    def __init__(self, runs: Runs, job: Job, seeds: int) -> None:
        self._runs = runs
        self._job = job
        self._seeds = seeds

    def scores(self, settings: Settings) -> list[Scores]:
        """A seed each."""
        jobs = [replace(self._job, settings=settings, seed=seed) for seed in range(self._seeds)]
        return self._runs.scores(jobs)

    def best(self, tried: list[Settings]) -> Settings:
        """By the AUC on the validation part of the first seed."""
        found = self._runs.scores(replace(self._job, settings=one) for one in tried)
        aucs = [scores["valid"]["auc"] for scores in found]
        return tried[aucs.index(max(aucs))]


def text_of(settings: Settings) -> str:
    """What is not left to `hps train`, in words."""
    given = {name: value for name, value in vars(settings).items() if value and name != "model"}
    return ", ".join(f"{name} {value}" for name, value in given.items()) or "none"


def rows_of(
    tuning: Tuning, axes: dict[str, Any], num_train: int, options: dict[str, Any]
) -> list[Row]:
    """The defaults, and the candidates that are asked for, each beside the tuned settings."""
    model = options["model"]
    best = tuning.best(trials(model, num_train, options["is_smoke"]))
    tuned = (TUNED, tuning.scores(best))
    asked: dict[str, Settings] = {DEFAULTS: Settings(model=model)}
    if options["candidates"]:
        asked |= {name: replace(made(num_train), model=model) for name, made in CANDIDATES.items()}
    rows = []
    for name, settings in asked.items():
        row = quality_row({**axes, "settings": name}, tuning.scores(settings), tuned, BAR)
        rows.append(row | {"tuned": text_of(best), "reaches": row["difference"] >= BAR})
    return rows


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
        first = Job(
            contender="hps",
            log=name,
            seed=0,
            settings=Settings(model=options["model"]),
            examples=choice.examples,
            criteo=choice.criteo,
        )
        tuning = Tuning(runs, first, options["seeds"])
        axes = {"data": name, "examples": num_train}
        rows += rows_of(tuning, axes, num_train, options)
    axes = {name: options[name] for name in ("model", "seeds", "examples")}
    return {"axes": axes, "rows": rows, "absent": missing}
