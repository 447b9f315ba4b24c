"""Copies of stores with narrow rows in float32, and back, by `hps export` and `hps import`."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hps
from hps.cli.main import main

KEYS = np.arange(3000, dtype=np.uint64)
NARROW = hps.TableConfig(
    name="ads",
    dim=5,
    optimizer=hps.Adagrad(lr=0.1),
    dtype="bfloat16",
    rounding="nearest",
    expiry=hps.Expiry(unseen=9),
)


@pytest.fixture
def narrow(tmp_path: Path) -> Path:
    """A store whose rows were trained in two periods."""
    path = tmp_path / "narrow"
    with hps.ParameterServer(hps.Config(path=path, tables=[NARROW], seed=4)) as server:
        for period in range(2):
            grads = np.random.default_rng(period).standard_normal((3000, 5)).astype(np.float32)
            server.push("ads", KEYS, grads)
            server.advance_period()
    return path


def moved(source: Path, target: Path, *flags: str) -> Path:
    file = target.with_suffix(".parquet")
    assert main(["export", str(source), str(file)]) == 0
    assert main(["import", str(file), str(target), *flags]) == 0
    return target


def test_a_float32_copy_has_the_same_rows_and_trains_in_float32(
    narrow: Path, tmp_path: Path
) -> None:
    wide = moved(narrow, tmp_path / "wide", "--row-dtype", "float32")
    with hps.open(narrow) as one, hps.open(wide) as other:
        assert other.tables["ads"] == replace(NARROW, dtype="float32", rounding="stochastic")
        assert other.period == one.period == 2
        columns = [
            np.concatenate([np.column_stack([keys, *parts]) for keys, *parts in found])
            for found in (
                server.items("ads", state=True, statistics=True) for server in (one, other)
            )
        ]
        first, second = (rows[np.argsort(rows[:, 0])] for rows in columns)
        assert first.shape == (3000, 1 + 5 + 5 + 3)
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(one.pull("ads", KEYS), other.pull("ads", KEYS))
        digest = one.digest("ads")
    with hps.open(moved(wide, tmp_path / "back", "--row-dtype", "bfloat16")) as back:
        assert back.digest("ads") == digest
    with hps.open(wide, read_only=False) as server:
        before = server.pull("ads", KEYS[:1])
        server.push("ads", KEYS[:1], np.full((1, 5), 1e-6, np.float32))
        assert (server.pull("ads", KEYS[:1]) != before).all()  # as no bfloat16 would


def test_rows_go_into_a_store_of_the_other_dtype_that_is_there(
    narrow: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = replace(NARROW, dtype="float32")
    with hps.ParameterServer(hps.Config(path=tmp_path / "wide", tables=[wide])) as server:
        server.advance_period(to=2)
    with hps.open(moved(narrow, tmp_path / "wide")) as server, hps.open(narrow) as one:
        assert server.tables["ads"].dtype == "float32"
        np.testing.assert_array_equal(server.pull("ads", KEYS), one.pull("ads", KEYS))
    file = tmp_path / "wide.parquet"
    assert main(["import", str(file), str(tmp_path / "wide"), "--row-dtype", "bfloat16"]) == 1
    assert "has float32 rows; give another folder" in capsys.readouterr().err
    (tmp_path / "model").mkdir()
    flags = ["--row-dtype", "float32"]
    assert main(["import", str(tmp_path / "model"), str(tmp_path / "new"), *flags]) == 1
    assert "leave it out, or 'hps export'" in capsys.readouterr().err
