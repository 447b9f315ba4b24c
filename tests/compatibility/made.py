"""What the kept fixtures hold, and how it is read again: by make_fixtures.py and by the tests.

Above it: make_fixtures.py, test_older_versions.py. Below it: hps as people use it.
"""

from pathlib import Path
from typing import Any

import numpy as np

import hps
from hps.cli.main import main

FIXTURES = Path(__file__).resolve().parent / "fixtures"
KEYS = np.array([1, 2, 3, 2**63, 2**64 - 1], np.uint64)
TABLES = [
    hps.TableConfig(name="ads", dim=4, optimizer=hps.Adagrad(lr=0.1)),
    hps.TableConfig(name="users", dim=2, optimizer=hps.Adam(lr=0.1), dtype="bfloat16"),
    hps.TableConfig(name="sites", dim=2, expiry=hps.Expiry(unseen=3)),
]
SERVED = "name=served,dim=4,optimizer=adagrad,lr=0.1"
LOG_ROWS = 80


def config(folder: Path) -> hps.Config:
    """Of the store of three kinds of tables."""
    return hps.Config(path=folder, tables=TABLES, seed=7, dram=hps.DramCacheConfig(bytes="4MiB"))


def gradients(dim: int, number: int) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """Of KEYS, in step `number`."""
    values = np.arange(len(KEYS) * dim, dtype=np.float32).reshape(len(KEYS), dim)
    return values / np.float32(8) - np.float32(number)


def contents(server: Any, tables: list[str]) -> dict[str, Any]:
    """Digest, number and rows of each table."""
    return {
        name: {
            "digest": str(server.digest(name)),
            "rows": server.pull(name, KEYS).tolist(),
            "num_rows": server.num_rows(name),
        }
        for name in tables
    }


def write_log(path: Path) -> None:
    """A csv of 80 examples over a few values."""
    lines = [f"{n * n % 3 % 2},site{n % 7},ad{n % 5},{n % 11}" for n in range(LOG_ROWS)]
    path.write_text("label,site,ad,age\n" + "\n".join(lines) + "\n")


def scores(log: Path, out: Path, *where: str) -> list[float]:
    """What `hps predict` gives for the log."""
    assert main(["predict", str(log), "--out", str(out), "--quiet", *where]) == 0
    found: list[float] = np.load(out).reshape(-1).tolist()
    return found
