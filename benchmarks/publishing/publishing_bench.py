"""Publishing and following: bases and deltas, freshness under load, calls beside new versions.

One store of a DeepFM over 26 features. A base stands beside a bare copy of the same bytes, a delta
of 1 % beside a base, freshness and calls beside the same without what they measure. Above it:
benchmarks/run.py. Below it: followed_model.py, trainer_process.py.
"""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.report import Row, comparison_row
from benchmarks.common.timing import Samples
from benchmarks.publishing.followed_model import Asker, Trained
from benchmarks.publishing.trainer_process import trainer_process
from hps.generate import GeneratorConfig
from hps.generate.log import LogWriter
from hps.publish.version import DATA
from hps.train import TrainOptions, train
from hps.train.model import Model

_CANDIDATES = 200
_DELTA_SHARE = 0.02  # of a base's seconds, for one row in a hundred
_FRESH_SECONDS = 1.0
_COPY_PIECE = 8 << 20
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 1.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--rows", type=float, default=5e6)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--changes", type=int, default=10_000, help="rows changed a second")
    parser.add_argument("--versions", type=int, default=30, help="published under load")
    parser.add_argument("--seconds", type=float, default=10.0, help="of calls without new versions")
    parser.add_argument("--swaps", type=int, default=100, help="versions published elsewhere")
    parser.add_argument("--swap-seconds", type=float, default=0.2, help="between two of them")
    parser.add_argument("--examples", type=int, default=600_000, help="of a training")
    parser.add_argument("--batch", type=int, default=4096, help="examples of its batches")
    parser.add_argument("--pieces", type=int, default=3, help="versions that it publishes")
    parser.add_argument("--folder", default=None, help="where store and versions lie meanwhile")


def _copy(folder: Path, target: Path) -> float:
    """Seconds to copy a version's files, each made durable."""
    started = time.perf_counter()
    target.mkdir()
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as source, (target / path.name).open("wb") as out:
                while piece := source.read(_COPY_PIECE):
                    out.write(piece)
                out.flush()
                os.fsync(out.fileno())
    seconds = time.perf_counter() - started
    shutil.rmtree(target)
    return seconds


def size_rows(trained: Trained, folder: Path, axes: Row, repetitions: int) -> list[Row]:
    """Bases beside copies of their bytes, deltas of one row in a hundred beside bases."""
    bases, copies, deltas = [], [], []
    share = max(1, len(trained.keys) // 100)
    with trained.opened() as server:
        for number in range(repetitions):
            place = folder / f"sizes-{number}"
            trained.touch(server, 1)
            trained.save(server)
            bases.append(float(server.publish(place)["seconds"]))
            (data,) = (place / DATA).iterdir()
            copies.append(_copy(data, folder / "copy"))
            trained.touch(server, share)
            trained.save(server)
            made = server.publish(place, kind="delta")
            assert made["kind"] == "delta" and made["changed"] <= share
            deltas.append(float(made["seconds"]))
            shutil.rmtree(place)
    return [
        comparison_row(
            {**axes, "what": "publish a base"},
            "s",
            Samples(tuple(bases)),
            ("copy of its files, each synced", Samples(tuple(copies))),
            lower_is_better=True,
        ),
        comparison_row(
            {**axes, "what": "publish a delta of 1 % of the rows"},
            "s",
            Samples(tuple(deltas)),
            ("2 % of a base", Samples(tuple(_DELTA_SHARE * one for one in bases))),
            floor=1.0,
            lower_is_better=True,
        ),
    ]


def _quantile(seconds: list[float], share: float) -> Samples:
    return Samples((float(np.quantile(seconds, share)),))


def _beside(
    still: list[float], seconds: list[float], axes: Row, what: str, baseline: str
) -> list[Row]:
    """Calls beside new versions, and the same without."""
    return [
        comparison_row(
            {**axes, "what": f"a call of 200 candidates {what}, {name}"},
            "s",
            _quantile(seconds, share),
            (baseline, _quantile(still, share)),
            floor=floor,
            lower_is_better=True,
        )
        for name, share, floor in (("p50", 0.5, None), ("p99.9", 0.999, 1 / 1.5))
    ]


def live_rows(folder: Path, axes: Row, options: dict[str, Any]) -> tuple[list[Row], Row]:
    """Freshness, and calls beside new versions, of one model that follows a trainer on the same
    processors; and all ages and calls, for the plot."""
    place, changes = folder / "live", int(options["changes"])
    with trainer_process(folder) as trainer:
        base = float(trainer.ask("base", place)["seconds"])
        started = time.perf_counter()
        model = Model.load(place, follow=True, poll_seconds=0.02, dram="4GiB")
        anew = base + time.perf_counter() - started
        with model:
            batch = next(iter(model.open_reader([folder / "log.tsv"], batch_size=_CANDIDATES)))
            trainer.ask("load", changes)
            with Asker(model, batch) as still:
                time.sleep(options["seconds"])
            acknowledged: dict[str, float] = {}
            with Asker(model, batch) as asker:
                for _ in range(int(options["versions"])):
                    made = trainer.ask("delta", place)
                    acknowledged[str(made["version"])] = made["moment"]
                _wait_for(model, str(made["version"]))
                time.sleep(0.2)
            trainer.ask("unload")
    ages = [
        asker.first_seen[version] - moment
        for version, moment in acknowledged.items()
        if version in asker.first_seen
    ]
    assert ages, "no version was ever seen"
    rows = [
        comparison_row(
            {**axes, "what": f"from a push to the first call scored with it, {name}"},
            "s",
            _quantile(ages, share),
            ("a base, published and loaded anew", Samples((anew,))),
            lower_is_better=True,
        )
        for name, share in (("p50", 0.5), ("p99", 0.99))
    ]
    what = f"beside a trainer that publishes {len(ages)} versions"
    rows += _beside(still.seconds, asker.seconds, axes, what, "beside one that publishes none")
    return rows, {"ages": ages, "still": still.seconds, "beside a trainer": asker.seconds}


def _wait_for(model: Model, version: str) -> None:
    deadline = time.perf_counter() + 60
    while model.version != version and time.perf_counter() < deadline:
        time.sleep(0.001)


def swap_rows(folder: Path, axes: Row, options: dict[str, Any]) -> tuple[list[Row], Row]:
    """Calls beside versions that were published before, elsewhere, and become visible one by one:
    what following alone costs them."""
    place, seen = folder / "ahead", folder / "seen"
    with trainer_process(folder) as trainer:
        trainer.ask("base", place)
        for _ in range(int(options["swaps"])):
            trainer.ask("touch", int(options["changes"]) // 2)
            trainer.ask("delta", place)
    versions = sorted(place.glob("version-*.json"))
    seen.mkdir()
    (seen / DATA).symlink_to(place / DATA)
    shutil.copy(versions[0], seen)
    pause = options["swap_seconds"]
    with Model.load(seen, follow=True, poll_seconds=0.02, dram="4GiB") as model:
        batch = next(iter(model.open_reader([folder / "log.tsv"], batch_size=_CANDIDATES)))
        with Asker(model, batch) as still:
            time.sleep(options["seconds"])
        with Asker(model, batch) as asker:
            for number, version in enumerate(versions[1:], 2):
                shutil.copy(version, seen / ".new")
                (seen / ".new").rename(seen / version.name)
                _wait_for(model, str(number))
                time.sleep(pause)
        with Asker(model, batch) as again:
            time.sleep(options["seconds"])
    assert len(asker.first_seen) == len(versions), "a version was never seen"
    what = f"beside {len(versions) - 1} versions published elsewhere"
    without = still.seconds + again.seconds
    rows = _beside(without, asker.seconds, axes, what, "the same without a new version")
    return rows, {"alone": without, "beside new versions": asker.seconds}


def training_rows(folder: Path, axes: Row, options: dict[str, Any]) -> list[Row]:
    """Examples a second of a training that publishes beside one that does not."""
    log, examples = folder / "training.tsv", int(options["examples"])
    LogWriter(GeneratorConfig(examples=examples, keys=1_000_000), "criteo", 1).write(log)
    rates: dict[bool, list[float]] = {False: [], True: []}
    for number in range(int(options["repetitions"])):
        for publishes in rates:
            store = folder / f"training-{number}-{publishes}"
            more: dict[str, Any] = {}
            if publishes:
                every = max(1, examples // int(options["batch"]) // int(options["pieces"]))
                more = {"publish": str(folder / f"published-{number}"), "publish_every": every}
            started = time.perf_counter()
            train(
                TrainOptions(
                    data=[log],
                    store=store,
                    dim=options["dim"],
                    dram="1GiB",
                    batch_size=int(options["batch"]),
                    lr=0.05,
                    depth=0,
                    **more,
                )
            )
            rates[publishes].append(examples / (time.perf_counter() - started))
            shutil.rmtree(store)
    what = f"train, publishing {options['pieces']} times"
    return [
        comparison_row(
            {**axes, "what": what},
            "examples/s",
            Samples(tuple(rates[True])),
            ("the same, publishing nothing", Samples(tuple(rates[False]))),
            floor=0.95,
        )
    ]


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """Sizes, then a model that follows; see add_arguments for the options."""
    if smoke:
        options |= {"rows": 20_000, "dim": 4, "repetitions": 1, "versions": 3, "seconds": 0.3}
        options |= {"swaps": 3, "swap_seconds": 0.05, "examples": 4000, "batch": 256}
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
            trained = Trained(Path(folder), int(options["rows"]), options["dim"])
            axes: Row = {"rows": int(options["rows"]), "dim": options["dim"]}
            rows = size_rows(trained, Path(folder), axes, options["repetitions"])
            live, seen = live_rows(Path(folder), axes, options)
            swaps, calls = swap_rows(Path(folder), axes, options)
            rows += live + swaps + training_rows(Path(folder), axes, options)
    finally:
        torch.set_num_threads(threads_before)
    kept = ("rows", "dim", "changes", "versions", "seconds", "swaps", "swap_seconds")
    axes = {name: options[name] for name in (*kept, "examples", "batch", "pieces")}
    curves = {name: _curve(values) for name, values in (seen | calls).items()}
    return {"axes": axes, "rows": rows, "curves": curves}


def _curve(seconds: list[float]) -> list[float]:
    """Quantiles, for the plot, at SHARES."""
    return [float(value) for value in np.quantile(seconds, SHARES)]
