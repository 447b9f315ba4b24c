"""Logs and columns that cannot be what is said of them, told before a store is made or a score.

Above it: pytest. Below it: the training run, hps.Model, readers.
"""

import math
from dataclasses import replace
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


BAD_LINES = {
    "log.csv": ("label,a,b\n", "{0},x{0},0.5\n", "7,x,0.5\n"),
    "log.libsvm": ("", "{0} 7:1 {0}:1\n", "1 x:1\n"),
    "log.tsv": ("", "{0}" + "\t3" * 13 + "\ta{0}" * 26 + "\n", "0\t3\n"),
}


UNASKED: dict[str, Any] = {"allow_empty": True, "base_rate": False}  # what the examples tell


@pytest.mark.parametrize("more", [{}, UNASKED])
@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_at_the_beginning_is_told_before_a_store_is_made(
    tmp_path: Path, name: str, more: dict[str, Any]
) -> None:
    head, good, bad = BAD_LINES[name]
    store, log = tmp_path / "store", tmp_path / name
    rows = [good.format(row % 2) for row in range(40)]
    for place in (0, 20, 40):
        log.write_text("".join([head, *rows[:place], bad, *rows[place:]]))
        options = TrainOptions(data=[log], store=store, **SMALL, **more)
        with pytest.raises(hps.DataError, match=name):
            train(options)
        assert not store.exists()
    log.write_text("".join([head, *rows[:20], bad, *rows[20:]]))
    if name != "log.csv":  # whose blocks are parsed whole
        limited = train(replace(options, limit=16))
        assert limited["examples"] == 16  # before the bad line
    skipping = train(replace(options, store=tmp_path / "other", on_error="skip"))
    assert skipping["examples"] == 40 and skipping["skipped_lines"] == 1


def test_an_empty_log_that_is_allowed_trains_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log.libsvm"
    log.write_text("")
    options = TrainOptions(
        data=[log], store=tmp_path / "store", format="libsvm", **SMALL, **UNASKED
    )
    assert train(options)["examples"] == 0


def said_of(log: Path, store: Path, features: str, **changes: Any) -> list[str]:
    """The warnings of a run."""
    described = hps.Features.from_toml(features, "my.toml")
    said = StringIO()
    options = {**SMALL, "model": "wide_deep", **changes}
    train(TrainOptions(data=[log], store=store, features=described, **options), Progress(0, said))
    return [line for line in said.getvalue().splitlines() if "warning" in line]


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    path = tmp_path / "wide.csv"
    rows = [f"{row % 2},i{row % 3},i{row % 4},u{row % 5}\n" for row in range(40)]
    path.write_text("label,item,seen,user\n" + "".join(rows))
    return path


CATEGORICAL = '[columns.{0}]\nkind = "categorical"\nvocabulary = "{1}"\n'


@pytest.mark.parametrize(
    ("features", "told"),
    [
        (CATEGORICAL.format("seen", "itme"), "did you mean 'item'?"),
        (CATEGORICAL.format("seen", "Item"), "did you mean 'item'?"),
        (CATEGORICAL.format("seen", "\u4e2d"), "'\u4e2d' is that of this column alone"),
        (CATEGORICAL.format("seen", "item"), None),
        (CATEGORICAL.format("seen", "seen"), None),
        (CATEGORICAL.format("seen", "both") + CATEGORICAL.format("item", "both"), None),
        (
            CATEGORICAL.format("seen", "things") + CATEGORICAL.format("item", "thing"),
            "did you mean 'thing'?",
        ),
    ],
)
def test_a_vocabulary_of_one_column_is_warned_of(
    tmp_path: Path, wide: Path, features: str, told: str | None
) -> None:
    warnings = said_of(wide, tmp_path / "store", features)
    if told is None:
        assert warnings == []
        return
    assert told in warnings[0] and "columns.seen.vocabulary" in warnings[0]


def test_a_vocabulary_of_one_column_shows_among_the_columns(tmp_path: Path, wide: Path) -> None:
    for name, alone in (("itme", ", which no other column is"), ("item", "")):
        described = hps.Features.from_toml(CATEGORICAL.format("seen", name))
        store = tmp_path / name
        figures = train(TrainOptions(data=[wide], store=store, features=described, **SMALL))
        (seen,) = [one for one in figures["columns"] if one["name"] == "seen"]
        assert seen["why"] == f"hashed as values of {name!r}{alone}"


OWN = "".join(f'columns.{name} = {{kind = "categorical", dim = 4}}\n' for name in ("item", "seen"))


@pytest.mark.parametrize(
    ("features", "dim", "told"),
    [
        (OWN + 'columns.user = {kind = "categorical", dim = 6}', 9, "item 4, seen 4, user 6"),
        (OWN + 'columns.user = {kind = "categorical", dim = 6}', 6, None),
        (OWN + 'columns.user = {kind = "categorical", dim = 6}', None, None),
        (OWN, 9, None),
    ],
)
def test_a_dim_that_no_table_has_is_told(
    tmp_path: Path, wide: Path, features: str, dim: int | None, told: str | None
) -> None:
    warnings = said_of(wide, tmp_path / "store", features, dim=dim)
    if told is None:
        assert warnings == []
        return
    (warning,) = warnings
    assert (
        f"--dim {dim} says nothing: my.toml gives each table a dim of its own ({told})" in warning
    )
