"""Publishing and following: bases and deltas, freshness under load, calls beside new versions.

One store of a DeepFM over 26 features. A base stands beside a bare copy of the same bytes, a delta
of 1 % beside a base, freshness and calls beside the same without what they measure. Above it:
benchmarks/run.py. Below it: followed_model.py.
"""

import argparse
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.report import Row, comparison_row
from benchmarks.common.timing import Samples
from benchmarks.publishing.followed_model import Asker, Trained
from hps.publish.version import DATA
from hps.train.model import Model

_CANDIDATES = 200
_DELTA_SHARE = 0.02  # of a base's seconds, for one row in a hundred
_FRESH_SECONDS = 1.0
_COPY_PIECE = 8 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--rows", type=float, default=5e6)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--changes", type=int, default=10_000, help="rows changed a second")
    parser.add_argument("--versions", type=int, default=30, help="published under load")
    parser.add_argument("--seconds", type=float, default=10.0, help="of calls without new versions")
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


class Load:
    """Changes rows at a pace, from a thread, for as long as it is entered."""

    def __init__(self, trained: Trained, server: Any, changes: int) -> None:
        self._trained, self._server = trained, server
        self._piece = max(1, changes // 20)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.lock = threading.Lock()  # a checkpoint is of a moment between two changes
        self.last = 0.0  # when the newest change was acknowledged

    def _work(self) -> None:
        while not self._over.wait(0.05):
            with self.lock:
                self._trained.touch(self._server, self._piece)
                self.last = time.perf_counter()

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _quantile(seconds: list[float], share: float) -> Samples:
    return Samples((float(np.quantile(seconds, share)),))


def live_rows(trained: Trained, folder: Path, axes: Row, options: dict[str, Any]) -> list[Row]:
    """Freshness, and calls beside new versions, of one model that follows."""
    place = folder / "live"
    with trained.opened() as server:
        trained.touch(server, 1)
        trained.save(server)
        base = float(server.publish(place)["seconds"])
        started = time.perf_counter()
        model = Model.load(place, follow=True, poll_seconds=0.02, dram="4GiB")
        anew = base + time.perf_counter() - started
        with model, Load(trained, server, int(options["changes"])) as load:
            batch = next(iter(model.open_reader([trained.log], batch_size=_CANDIDATES)))
            with Asker(model, batch) as still:
                time.sleep(options["seconds"])
            acknowledged: dict[str, float] = {}
            with Asker(model, batch) as asker:
                for _ in range(int(options["versions"])):
                    with load.lock:
                        moment = load.last
                        trained.save(server)
                    made = server.publish(place, kind="delta")
                    acknowledged[str(made["version"])] = moment
                deadline = time.perf_counter() + 60
                while model.version != str(made["version"]) and time.perf_counter() < deadline:
                    time.sleep(0.001)
                time.sleep(0.2)
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
    for name, share, floor in (("p50", 0.5, None), ("p99.9", 0.999, 1 / 1.5)):
        rows.append(
            comparison_row(
                {**axes, "what": f"a call of 200 candidates beside {len(ages)} versions, {name}"},
                "s",
                _quantile(asker.seconds, share),
                ("the same without a new version", _quantile(still.seconds, share)),
                floor=floor,
                lower_is_better=True,
            )
        )
    return rows


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """Sizes, then a model that follows; see add_arguments for the options."""
    if smoke:
        options |= {"rows": 20_000, "dim": 4, "repetitions": 1, "versions": 3, "seconds": 0.3}
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
            trained = Trained(Path(folder), int(options["rows"]), options["dim"])
            axes: Row = {"rows": int(options["rows"]), "dim": options["dim"]}
            rows = size_rows(trained, Path(folder), axes, options["repetitions"])
            rows += live_rows(trained, Path(folder), axes, options)
    finally:
        torch.set_num_threads(threads_before)
    kept = ("rows", "dim", "changes", "versions", "seconds")
    return {"axes": {name: options[name] for name in kept}, "rows": rows}
