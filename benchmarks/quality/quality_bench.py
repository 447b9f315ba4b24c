"""How good the models are: AUC of hps beside logistic regression, a peer library, the planted best.

Every pair of runs shares data, split, order of examples, sizes, optimizers and rates; one seed is
one split, one order and one set of first weights. Predictions of all are measured by the same code.
Above it: benchmarks/run.py. Below it: runs.py, statistics.py.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.peers import absent_peers
from benchmarks.common.report import Row
from benchmarks.quality.data_sets import (
    ALL_DATA_SETS,
    DATA_SETS,
    TINY,
    Choice,
    absent_data,
    load,
)
from benchmarks.quality.runs import Runs
from benchmarks.quality.settings import SEQUENCE_KINDS, Job, Scores, Settings
from benchmarks.quality.statistics import mean, paired
from hps.models import MODELS

BAR = -0.003  # of the upper end of the interval of the difference in AUC
PEER_NAMES = {"deepctr": "DeepCTR-Torch", "torchrec": "TorchRec"}
# Of each kind of model the peer that has it, too.
PEERS = {
    **dict.fromkeys(("lr", "fm", "deepfm", "wide_deep", "dcn_v2", "autoint", "din"), "deepctr"),
    "dlrm": "torchrec",
}
LINEAR = "logistic regression, hashed features"
PLANTED = "the planted model"
# Of the log: examples a step and passes; the rest is the same everywhere.
SCHEDULES = {
    "movielens": (256, 2),
    "movielens_time": (256, 2),
    "flights": (256, 2),
    "churn": (64, 4),
    "criteo": (64, 4),
    TINY: (64, 1),
}
SCHEDULE = (256, 2)


def add_options(parser: argparse.ArgumentParser, data: Sequence[str], seeds: int) -> None:
    """Options that the benchmarks of quality share, with the data sets and seeds of one of them."""
    parser.add_argument("--data", nargs="+", default=list(data), help=", ".join(ALL_DATA_SETS))
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--examples", type=float, default=0, help="of a data set; 0: all")
    parser.add_argument("--criteo", default=None, help="file of Criteo's format: --data criteo")
    parser.add_argument("--cache", default=None, help="folder where runs are kept and found again")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    add_options(parser, DATA_SETS, 10)
    parser.add_argument("--models", nargs="+", default=sorted(MODELS), choices=sorted(MODELS))
    parser.add_argument("--dim", type=int, default=8)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 32])
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--dense-lr", type=float, default=0.001)
    parser.add_argument("--init-std", type=float, default=0.01)


def choice_of(options: dict[str, Any]) -> Choice:
    """The data sets that are asked for."""
    names = tuple(options["data"])
    unknown = set(names) - {*ALL_DATA_SETS, TINY, "criteo"}
    if unknown:
        raise SystemExit(f"no data set {sorted(unknown)}; there are: {', '.join(ALL_DATA_SETS)}")
    return Choice(names=names, examples=int(options["examples"]), criteo=options["criteo"])


def settings_of(name: str, model: str, options: dict[str, Any]) -> Settings:
    """What everyone trains a model on a data set with."""
    batch_size, epochs = SCHEDULES.get(name, SCHEDULE)
    return Settings(
        model=model,
        dim=options["dim"],
        hidden=tuple(options["hidden"]),
        dropout=0.0,
        batch_size=batch_size,
        epochs=epochs,
        lr=options["lr"],
        dense_lr=options["dense_lr"],
        init_std=options["init_std"],
        initial_accumulator=0.0,  # as peers have it
    )


def quality_row(
    axes: dict[str, Any], own: list[Scores], other: tuple[str, list[Scores]], bar: float
) -> Row:
    """AUC on the test part of pairs of runs, and their logloss."""
    name, others = other
    aucs, other_aucs = ([one["test"]["auc"] for one in scores] for scores in (own, others))
    found = paired(aucs, other_aucs)
    ratios = [one / two for one, two in zip(aucs, other_aucs, strict=True)]
    loglosses = [mean([one["test"]["logloss"] for one in scores]) for scores in (own, others)]
    return {
        **axes,
        "value": mean(aucs),
        "unit": "AUC",
        "baseline": name,
        "baseline_value": mean(other_aucs),
        "ratio": mean(aucs) / mean(other_aucs),
        "floor": None,
        "repetitions": len(own),
        "difference": found.difference,
        "low": found.low,
        "high": found.high,
        "reaches": found.reaches(bar),
        "logloss": loglosses[0],
        "baseline_logloss": loglosses[1],
        "spread": {
            "value": [min(aucs), max(aucs)],
            "baseline_value": [min(other_aucs), max(other_aucs)],
            "ratio": [min(ratios), max(ratios)],
        },
    }


def planted_row(axes: dict[str, Any], own: list[Scores]) -> Row:
    """Beside the best that there is; `share` is how much of it above one half is reached."""
    best = float(own[0]["best_auc"])
    others = [{"test": {"auc": best, "logloss": math.nan}} for _ in own]
    row = quality_row(axes, own, (PLANTED, others), BAR)
    row |= {"share": (row["value"] - 0.5) / (best - 0.5), "baseline_logloss": None}
    return row


class Table:
    """The rows of all data sets and models."""

    def __init__(self, choice: Choice, runs: Runs, options: dict[str, Any]) -> None:
        self._choice = choice
        self._runs = runs
        self._options = options

    def scores(self, contender: str, name: str, settings: Settings) -> list[Scores]:
        """Of one contender, a seed each."""
        sizes = {"examples": self._choice.examples, "criteo": self._choice.criteo}
        jobs = [
            Job(contender=contender, log=name, seed=seed, settings=settings, **sizes)
            for seed in range(self._options["seeds"])
        ]
        return self._runs.scores(jobs)

    def rows(self, name: str, peers: set[str]) -> list[Row]:
        """Of one data set."""
        rows: list[Row] = []
        log = load(name, self._choice.examples, self._choice.criteo)
        for model in self._options["models"]:
            if model in SEQUENCE_KINDS and log.history is None:
                continue
            settings = settings_of(name, model, self._options)
            axes = {"data": name, "model": model}
            own = self.scores("hps", name, settings)
            if (peer := PEERS.get(model)) in peers:
                other = (PEER_NAMES[peer], self.scores(peer, name, settings))
                rows.append(quality_row(axes, own, other, BAR))
            if "linear" in peers:
                # It has settings of its own: one set of runs serves all models.
                other = (LINEAR, self.scores("linear", name, Settings(model="lr")))
                rows.append(quality_row(axes, own, other, BAR))
            if own[0]["best_auc"] is not None:
                rows.append(planted_row(axes, own))
        return rows


def absent_contenders() -> tuple[set[str], dict[str, str]]:
    """Peers that are here, and those that are not with the reason."""
    absent = absent_peers("sklearn", "pandas")
    try:
        from benchmarks.quality.deepctr import peer_modules

        peer_modules()
    except ImportError as error:
        absent["deepctr_torch"] = f"ImportError: {error}; see benchmarks/README.md"
    try:
        from benchmarks.quality.torchrec_dlrm import peer_classes

        peer_classes()
    except (ImportError, OSError) as error:
        absent["torchrec"] = f"{type(error).__name__}: {error}; see benchmarks/README.md"
    here = {"deepctr": "deepctr_torch", "torchrec": "torchrec", "linear": "sklearn"}
    return {who for who, module in here.items() if module not in absent}, absent


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """All data sets that are here; see add_arguments for the options."""
    if smoke:
        models = ["deepfm", "dlrm", "lr"]
        options |= {"data": [TINY], "models": models, "seeds": 2, "cache": None}
    choice = choice_of(options)
    peers, absent = absent_contenders()
    missing = absent_data(choice)
    runs = Runs(None if options["cache"] is None else Path(options["cache"]), is_here=smoke)
    table = Table(choice, runs, options)
    rows = [row for name in choice.names if name not in missing for row in table.rows(name, peers)]
    names = ("seeds", "examples", "dim", "hidden", "lr", "dense_lr", "init_std")
    axes = {key: options[key] for key in names} | {"schedules": dict(SCHEDULES)}
    return {"axes": axes, "rows": rows, "absent": {**absent, **missing}}
