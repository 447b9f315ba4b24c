"""Small logs of each format, and models that were trained on them.

Above it: the tests of the server. Below it: `hps train`, numpy, pyarrow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hps.features import Features
from hps.train import TrainOptions, train
from tests.logs import write_criteo

ROWS = 200
SMALL: dict[str, Any] = {
    "dim": 2,
    "hidden": (4,),
    "batch_size": 64,
    "dram": "8MiB",
    "torch_threads": 1,
    "depth": 0,
}
FIELDS = """
[fields]
user = "0-49"
ad = "50-99"
price = 100
[columns.price]
kind = "dense"
"""
DESCRIBED = """
[columns.a]
kind = "dense"
buckets = [0, 0.5, 1]
[columns.b]
kind = "dense"
missing = 3
[columns.d]
kind = "ignored"
[crosses.both]
columns = ["c", "e"]
"""


def write_csv(path: Path) -> None:
    rng = np.random.default_rng(3)
    lines = ["c,label,a,b,d,e"]
    for row in range(ROWS):
        price = "" if row % 7 == 0 else f"{rng.normal():.3f}"
        name = f'"x, {rng.integers(9)}"' if row % 5 == 0 else f"n{rng.integers(9)}"
        c, e = rng.integers(9), rng.integers(9)
        lines.append(f"{name},{row % 2},{price},{rng.integers(99)},d{c},e{e:02d}")
    path.write_text("".join(f"{line}\n" for line in lines))


def write_libsvm(path: Path) -> None:
    rng = np.random.default_rng(4)
    lines = []
    for row in range(ROWS):
        price = rng.random()
        lines.append(f"{row % 2} {rng.integers(50)}:1 {50 + rng.integers(50)}:0.5 100:{price:.4f}")
    path.write_text("".join(f"{line}\n" for line in lines))


def write_libffm(path: Path) -> None:
    rng = np.random.default_rng(5)
    lines = [
        f"{row % 2} user:{rng.integers(50)}:1 ad:{rng.integers(50)}:0.5 ad:{rng.integers(50)}:2"
        for row in range(ROWS)
    ]
    path.write_text("".join(f"{line}\n" for line in lines))


def write_slots(path: Path) -> None:
    rng = np.random.default_rng(6)
    lines = [
        f"{row % 2}:1 {rng.integers(50)}:2 {rng.integers(50)}:3 {rng.integers(50)}:3"
        for row in range(ROWS)
    ]
    path.write_text("".join(f"{line}\n" for line in lines))


def write_parquet(path: Path) -> None:
    rng = np.random.default_rng(7)
    bags = [rng.integers(0, 20, rng.integers(0, 4)).tolist() for _ in range(ROWS)]
    columns = {
        "label": rng.integers(0, 2, ROWS),
        "price": rng.random(ROWS),
        "shop": [f"s{number}" for number in rng.integers(0, 9, ROWS)],
        "seen": pa.array(bags, pa.list_(pa.int64())),
    }
    pq.write_table(pa.table(columns), path)


def _write_criteo(path: Path) -> None:
    write_criteo(path, ROWS)


@dataclass(frozen=True)
class Kind:
    """A log, and how a model is trained on it."""

    log_format: str
    write: Callable[[Path], None]
    features: str | None = None


KINDS = {
    "criteo": Kind("criteo", _write_criteo),
    "csv": Kind("csv", write_csv),
    "csv, described": Kind("csv", write_csv, DESCRIBED),
    "libsvm": Kind("libsvm", write_libsvm),
    "libsvm, described": Kind("libsvm", write_libsvm, FIELDS),
    "libffm": Kind("libffm", write_libffm),
    "slots": Kind("slots", write_slots),
    "parquet": Kind("parquet", write_parquet),
}


@dataclass(frozen=True)
class Trained:
    """A log and the store of a model that was trained on it."""

    kind: str
    log: Path
    store: Path

    def lines(self) -> list[str]:
        """Those of the log's examples."""
        lines = self.log.read_text().splitlines()
        return lines[1:] if KINDS[self.kind].log_format == "csv" else lines


def trained(kind: str, folder: Path) -> Trained:
    """A new model, in a folder that is empty."""
    one = KINDS[kind]
    log, store = folder / "log", folder / "store"
    one.write(log)
    changes = dict(SMALL)
    if one.features is not None:
        changes["features"] = Features.from_toml(one.features)
    train(TrainOptions(data=[log], store=store, format=one.log_format, **changes))
    return Trained(kind, log, store)
