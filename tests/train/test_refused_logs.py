"""Logs and columns that cannot be what is said of them, told before a store is made or a score.

Above it: pytest. Below it: the training run, hps.Model, readers.
"""

import math
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hps
from hps.train import TrainOptions, train
from hps.train.progress import Progress

pytestmark = pytest.mark.usefixtures("one_torch_thread")
SMALL: dict[str, Any] = {"dim": 2, "hidden": (4,), "dram": "4MiB", "batch_size": 8, "depth": 0}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    rows = [f"{row % 2},{'abc'[row % 3]}|x,{row}.5\n" for row in range(40)]
    path.write_text("label,seen,price\n" + "".join(rows) + "1,a,nan\n")
    return path


@pytest.mark.parametrize("kind", ["sequence", "categorical"])
def test_a_sequence_of_csv_is_pointed_out(tmp_path: Path, log: Path, kind: str) -> None:
    described = hps.Features.from_toml(f'[columns.seen]\nkind = "{kind}"')
    options = TrainOptions(data=[log], store=tmp_path / "store", features=described, **SMALL)
    said = StringIO()
    train(options, Progress(0, said))
    told = (
        "column 'seen' is described as a sequence, and holds one key an example" in said.getvalue()
    )
    assert told == (kind == "sequence")


@pytest.mark.parametrize("count", [1, 3])
def test_nan_of_a_dense_column_of_csv_is_missing_when_it_is_scored(
    tmp_path: Path, log: Path, count: int
) -> None:
    train(TrainOptions(data=[log], store=tmp_path / "store", **SMALL))
    with hps.Model.load(tmp_path / "store") as model:
        nan: dict[str, Any] = {"seen": ["a"] * count, "price": [math.nan] * count}
        none = model.predict({**nan, "price": [None] * count})
        assert torch.equal(model.predict(nan), none)
        assert torch.equal(model.predict(pa.RecordBatch.from_pydict(nan)), none)
        assert not torch.equal(model.predict({**nan, "price": [7.0] * count}), none)
        mixed = model.predict({"seen": ["a", "a"], "price": [math.nan, 7.0]})
        assert mixed[0] == none[0] and mixed[1] != none[0]


def test_parquet_that_is_read_as_csv_is_named(tmp_path: Path, log: Path) -> None:
    train(TrainOptions(data=[log], store=tmp_path / "store", **SMALL))
    other = tmp_path / "log.parquet"
    pq.write_table(pa.table({"label": [1], "seen": ["a"], "price": [1.0]}), other)
    with (
        hps.Model.load(tmp_path / "store") as model,
        pytest.raises(hps.DataError, match=r"log\.parquet is a parquet file, and is read as csv"),
    ):
        list(model.open_reader([other]))


def test_a_log_without_a_feature_is_refused_before_a_store_is_made(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("label\n1\n0\n")
    with pytest.raises(hps.ConfigError, match=r"log\.csv has no feature, .* label \(label\)"):
        train(TrainOptions(data=[log], store=tmp_path / "store", **SMALL))
    assert not (tmp_path / "store").exists()
