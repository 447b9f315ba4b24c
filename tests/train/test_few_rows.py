"""A few raw rows are the keys and numbers that arrow's columns of them are, whatever they hold."""

import math
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hps
from hps.features import Features
from hps.train import TrainOptions, given_columns, train
from hps.train.given_columns import record_batch_of
from tests.logs import NUM_DENSE, NUM_FEATURES, write_criteo

SMALL = {"dim": 2, "hidden": (4,), "batch_size": 64, "dram": "8MiB", "torch_threads": 1, "depth": 0}
KINDS = ("csv", "csv, described", "parquet", "parquet, raw", "criteo")
DESCRIBED = """
[columns.a]
kind = "dense"
buckets = [0, 2.5, 10]
[columns.b]
kind = "dense"
missing = 3
[columns.d]
kind = "ignored"
[crosses.both]
columns = ["c", "e"]
"""


def write_log(folder: Path, kind: str) -> Path:
    if kind == "criteo":
        write_criteo(folder / "log", 200)
        return folder / "log"
    rng = np.random.default_rng(3)
    columns = {
        "label": rng.integers(0, 2, 80),
        "a": rng.normal(size=80),
        "b": rng.normal(size=80) * 9,
        "c": rng.integers(-5, 5, 80),
        "d": [f"d{number}" for number in rng.integers(0, 5, 80)],
        "e": rng.integers(0, 5, 80),
    }
    table = pa.table(columns)
    if kind.startswith("csv"):
        from pyarrow import csv

        csv.write_csv(table, folder / "log.csv")
        return folder / "log.csv"
    pq.write_table(table, folder / "log.parquet")
    return folder / "log.parquet"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, hps.Model]]:
    """A model of each kind of log."""
    with ExitStack() as held:
        found = {}
        for kind in KINDS:
            folder = tmp_path_factory.mktemp("few")
            log, changes = write_log(folder, kind), dict(SMALL)
            if kind == "csv, described":
                changes["features"] = Features.from_toml(DESCRIBED)
            if kind == "parquet, raw":
                changes["hash_keys"] = False
            train(TrainOptions(data=[log], store=folder / "store", **changes))
            found[kind] = held.enter_context(hps.Model.load(folder / "store", dram="8MiB"))
        yield found


def columns_of(kind: str) -> tuple[list[str], list[str]]:
    """Names of the dense columns, and of the features."""
    if kind == "criteo":
        dense = [f"I{number}" for number in range(1, NUM_DENSE + 1)]
        return dense, [f"C{number}" for number in range(1, NUM_FEATURES + 1)]
    return ["a", "b"], ["c", "e"] if kind == "csv, described" else ["c", "d", "e"]


TEXTS = st.text(max_size=4) | st.sampled_from(
    ["", " ", "7", "007", "7.0", "-0", "nan", "NULL", "a\0", "x" * 300, "é", "\u202e", "\ud800"]
)
WHOLE = st.integers(-(2**64), 2**64) | st.sampled_from(
    [0, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**63]
)
FLOATS = st.floats(width=64) | st.sampled_from(
    [0.0, -0.0, 7.0, 0.5, 2.0**53, 2.0**53 - 1, -1.0, 1e300, math.nan, math.inf]
)
KINDS_OF_VALUES = (WHOLE, FLOATS, TEXTS, TEXTS.map(lambda text: text.encode("utf-8", "replace")))
ONE_KIND = st.sampled_from(KINDS_OF_VALUES)


@st.composite
def rows(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    """Columns of a few rows: of one kind of values most often, None among them."""
    count = draw(st.sampled_from([1, 1, 1, 2, 5, 65]))
    columns: dict[str, Any] = {name: one * count for name, one in plain_row(kind).items()}
    dense, features = columns_of(kind)
    for name in (*dense[-2:], *features[-3:]):
        usual = FLOATS.filter(math.isfinite) if name in dense else TEXTS.filter(str.isalnum)
        of = draw(st.sampled_from([usual, usual, usual, draw(ONE_KIND), st.booleans()]))
        value = st.one_of(of, of, st.none())
        if draw(st.sampled_from([True, *[False] * 9])):
            value = value | draw(ONE_KIND)  # of several kinds
        values: Any = draw(st.lists(value, min_size=count, max_size=count))
        made = draw(st.sampled_from([list, list, tuple, np.array]))
        is_plain = all(type(one) is type(values[0]) and one is not None for one in values)
        columns[name] = values if made is np.array and not is_plain else made(values)
    return columns


def outcome(model: hps.Model, given_rows: Any) -> tuple[str, Any]:
    try:
        return "scores", model.predict(given_rows).numpy().tobytes()
    except hps.HpsError as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_rows_of_values_are_those_of_arrow(
    models: dict[str, hps.Model], kind: str, data: st.DataObject
) -> None:
    columns = data.draw(rows(kind))
    dense, features = columns_of(kind)
    try:
        batch = record_batch_of(columns, [*dense, *features], dense)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        expected: tuple[str, Any] = (
            "ConfigError",
            f"predict: these columns make no batch: {error}",
        )
    else:
        expected = outcome(models[kind], batch)
    assert outcome(models[kind], columns) == expected


def plain_row(kind: str) -> dict[str, Any]:
    dense, features = columns_of(kind)
    of_text = {name: [f"v{place}"] for place, name in enumerate(features)}
    return {name: [place + 0.5] for place, name in enumerate(dense)} | of_text


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_row_is_made_without_arrow(
    models: dict[str, hps.Model], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = plain_row(kind)
    expected = models[kind].predict(pa.RecordBatch.from_pydict(row))

    def refuse(*_: object) -> None:
        raise AssertionError("arrow was asked")

    monkeypatch.setattr(given_columns, "record_batch_of", refuse)
    score = models[kind].predict(row)
    assert torch.equal(score, expected)
    assert not score.is_inference() and not score.requires_grad
    score += 1  # it is the caller's


def test_a_column_that_is_left_out_may_be_absent(models: dict[str, hps.Model]) -> None:
    model, row = models["csv, described"], plain_row("csv")
    expected = model.predict(row)
    del row["d"]
    assert torch.equal(model.predict(row), expected)
    del row["c"]
    with pytest.raises(hps.ConfigError, match=r"columns \['c'\] are missing"):
        model.predict(row)


@pytest.mark.parametrize("value", [np.array("a"), np.array([["a"]]), "a", 7])
def test_what_is_no_plain_column_is_left_to_arrow(
    models: dict[str, hps.Model], value: object
) -> None:
    with pytest.raises(hps.ConfigError, match="make no batch"):
        models["csv"].predict({**plain_row("csv"), "a": value})


def test_nothing_is_put_into_what_is_given(models: dict[str, hps.Model]) -> None:
    row = defaultdict(lambda: ["x"], plain_row("csv"))
    del row["c"]
    with pytest.raises(hps.ConfigError, match=r"\['c'\] are missing"):
        models["csv"].predict(row)
    assert "c" not in row


def test_threads_share_a_model(models: dict[str, hps.Model]) -> None:
    """Each gets the scores of its own rows."""
    model = models["criteo"]
    many = [plain_row("criteo") | {"C1": [f"v{number}"]} for number in range(8)]
    expected = [float(model.predict(row)) for row in many]
    assert len(set(expected)) > 4
    found: list[list[float]] = [[] for _ in many]

    def score(place: int) -> None:
        found[place] = [float(model.predict(many[place])) for _ in range(50)]

    threads = [threading.Thread(target=score, args=(place,)) for place in range(len(many))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[score] * 50 for score in expected]


@pytest.mark.parametrize("count", [1, 2, 70])
@pytest.mark.parametrize("kind", ["csv", "csv, described"])
def test_whole_numbers_with_gaps_are_those_of_the_csv(
    models: dict[str, hps.Model], kind: str, count: int
) -> None:
    """As pandas has them: floats."""
    model, row = models[kind], {name: values * count for name, values in plain_row("csv").items()}
    expected = model.predict({**row, "c": ["7"] * count, "e": [""] * count})
    for missing in (math.nan, None):
        for make in (list, np.array):
            gaps = {**row, "c": make([7.0] * count), "e": make([missing] * count)}
            assert torch.equal(model.predict(gaps), expected)
    narrow = {"c": np.full(count, 7, np.float32), "e": np.full(count, math.nan, np.float32)}
    assert torch.equal(model.predict({**row, **narrow}), expected)
    twice = {name: [*values, *values] for name, values in row.items()}
    mixed = model.predict({**twice, "c": [7.0, math.nan] * count})
    assert torch.equal(mixed, model.predict({**twice, "c": ["7", ""] * count}))


@pytest.mark.parametrize("value", [0.5, -0.0, 2.0**53, -(2.0**60), math.inf])
def test_a_float_whose_text_is_not_known_is_refused(
    models: dict[str, hps.Model], value: float
) -> None:
    row = plain_row("csv")
    told = r"'c' is of type double and holds .*whole numbers below 9,007"
    with pytest.raises(hps.DataError, match=told):
        models["csv"].predict({**row, "c": [value]})
    told = r"'c' is of type float and holds 16777216.0.*below 16,777,216"
    with pytest.raises(hps.DataError, match=told):
        models["csv"].predict({**row, "c": np.array([2.0**24], np.float32)})


@pytest.mark.parametrize("count", [1, 70])
@pytest.mark.parametrize("kind", ["parquet", "parquet, raw", "criteo"])
def test_whole_floats_are_the_whole_numbers_of_other_formats(
    models: dict[str, hps.Model], kind: str, count: int
) -> None:
    model, name = models[kind], columns_of(kind)[1][0]
    row = {one: values * count for one, values in plain_row(kind).items()}
    expected = model.predict({**row, name: [-7] * count})
    assert torch.equal(model.predict({**row, name: [-7.0] * count}), expected)
    assert torch.equal(model.predict({**row, name: np.full(count, -7.0, np.float32)}), expected)
    twice = {one: [*values, *values] for one, values in row.items()}
    gaps = model.predict({**twice, name: [7, None] * count})
    for values in ([7.0, math.nan] * count, [7, math.nan] * count, [7.0, None] * count):
        assert torch.equal(model.predict({**twice, name: values}), gaps)
        as_objects = np.array(values, object)
        assert torch.equal(model.predict({**twice, name: as_objects}), gaps)
    with pytest.raises(hps.DataError, match=f"{name!r} is of type double and holds 7.5"):
        model.predict({**row, name: [7.5] * count})


def test_missing_categories_of_criteo_among_numbers_are_the_empty_ones(
    models: dict[str, hps.Model],
) -> None:
    row = {name: values * 2 for name, values in plain_row("criteo").items()}
    expected = models["criteo"].predict({**row, "C1": ["", "5"]})
    assert torch.equal(models["criteo"].predict({**row, "C1": [None, 5]}), expected)
    numbers = pa.RecordBatch.from_pydict({**row, "C1": [None, 5]})
    assert torch.equal(models["criteo"].predict(numbers), expected)


def test_text_after_a_nul_counts_in_arrays_of_any_length() -> None:
    """numpy's arrays of text keep a NUL within it."""
    texts = np.array(["x\0y", "x\0z", "x"] * 40)
    assert record_batch_of({"e": texts}, ["e"], []).column("e").to_pylist() == texts.tolist()
