"""Batches made by hand and transformed: against a twin, on any number of threads.

Above it: pytest. Below it: hps/features/transform.py, csrc/reader/batch_transform.h.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hps
from hps import _C
from hps.features import Column, Cross, Features, Scale
from hps.features.raw import RawColumns
from hps.features.transform import FeatureTransform
from hps.types import Batch, Ids
from tests.features.feature_twin import MANY, bags_of, dense_of, features_of

RAW = RawColumns(
    table="features",
    features=("a", "b", "c"),
    dense=("x", "y"),
    format="parquet",
    is_logged=False,
    is_shared=False,
    nan_columns=("x", "y"),
)


def batch_of(rows: Sequence[Any]) -> Batch:
    """Of (bags of a, b, c; numbers x, y; weight of all keys or None)."""
    keys, counts = [], []
    for place in range(3):
        for row in rows:
            keys += row[0][place]
            counts.append(len(row[0][place]))
    ids = Ids(
        torch.from_numpy(np.array(keys, np.uint64).view(np.int64)),
        torch.from_numpy(np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])),
    )
    dense = [[np.nan if number is None else number for number in row[1]] for row in rows]
    return Batch(
        {"features": ids},
        torch.tensor(dense, dtype=torch.float32).reshape(len(rows), 2),
        torch.zeros(len(rows)),
        position={"examples": 7},
        global_size=99,
    )


_EMPTY = [hps.key_of(name, "") for name in "abc"]

_KEY = st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1), st.sampled_from(_EMPTY))

_BAG = st.lists(_KEY, max_size=4)

_NUMBER = st.none() | st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, 0.3, 0.7, 5.0])

_ROWS = st.lists(st.tuples(st.tuples(_BAG, _BAG, _BAG), st.tuples(_NUMBER, _NUMBER)), max_size=6)

_FOLD = st.none() | st.sampled_from([1, 3, 1000, 2**19, 2**62])

_MISSING = st.sampled_from([None, "drop", "key"])


def _scaled() -> st.SearchStrategy[Scale | None]:
    return st.none() | st.builds(Scale, st.floats(-10, 10), st.floats(0.5, 10))


@st.composite
def described(draw: st.DrawFn) -> Features:
    """Any features of RAW."""
    columns = []
    for name in "abc":
        kind = draw(st.sampled_from(["none", "sequence", "sequence", "ignored"]))
        if kind == "sequence":
            most = draw(st.none() | st.integers(1, 3))
            columns.append(
                Column(
                    name=name,
                    kind=kind,
                    hash_buckets=draw(_FOLD),
                    missing=draw(_MISSING),
                    max_length=most,
                    keep=None if most is None else draw(st.sampled_from([None, "first", "last"])),
                )
            )
        elif kind == "ignored" and name != "a":
            columns.append(Column(name=name, kind=kind))
    for name in "xy":
        bounds = draw(
            st.none() | st.lists(st.sampled_from([-3.5, 0.0, 0.3, 0.7, 5.0]), unique=True)
        )
        is_kept = bounds is None or draw(st.booleans())
        column = Column(name=name, kind="dense", missing=draw(st.none() | st.floats(-9, 9)))
        if bounds is not None:
            column = replace(column, buckets=sorted(bounds), keep=is_kept)
        if is_kept:
            clip = draw(st.none() | st.sampled_from([(-2.0, 3.0), (0.0, 1e5)]))
            log = draw(st.sampled_from([None, True, False]))
            column = replace(column, log=log, clip=clip, normalise=draw(_scaled()))
        columns.append(column)
    ignored = {column.name for column in columns if column.kind == "ignored"}
    parts = [name for name in "abc" if name not in ignored]
    parts += [column.name for column in columns if column.buckets is not None]
    crosses = []
    if len(parts) > 1:
        for name in draw(st.sampled_from(["", "p", "pq"])):
            chosen = st.lists(st.sampled_from(parts), min_size=2, max_size=3, unique=True)
            most = draw(st.none() | st.integers(1, 5))
            crosses.append(
                Cross(name=name, columns=draw(chosen), hash_buckets=draw(_FOLD), max_length=most)
            )
    return Features(columns=columns, crosses=crosses)


@settings(max_examples=300)
@given(described(), _ROWS)
def test_a_transformed_batch_is_as_the_twin_has_it(features: Features, rows: list[Any]) -> None:
    transform = FeatureTransform(features, features, RAW)
    batch = batch_of(rows)
    made = transform(batch)
    (names,) = transform.features.values()
    (own,) = batch_of(rows).features.values()
    assert torch.equal(batch.features["features"].keys_L, own.keys_L)  # left as it was
    assert made.position == {"examples": 7} and made.global_size == 99 and len(made) == len(rows)
    found = bags_of(made, names)
    for row, (bags, numbers) in enumerate(rows):
        expected = features_of(
            features, dict(zip("abc", bags, strict=True)), dict(zip("xy", numbers, strict=True))
        )
        assert list(expected) == list(names)
        assert found[row] == expected
        kept = [
            dense_of(column, numbers["xy".index(column.name)], is_log=False)
            for column in features.columns
            if column.is_kept
        ]
        assert made.dense[row].tolist() == kept
    again = FeatureTransform.from_dict(json.loads(json.dumps(transform.to_dict())))
    assert again.name == transform.name
    other = again(batch)
    assert torch.equal(other.dense, made.dense)
    assert torch.equal(other.features["features"].keys_L, made.features["features"].keys_L)


def test_weights_of_keys_go_with_them() -> None:
    features = Features.from_toml(
        """
        [columns.a]
        kind = "sequence"
        missing = "key"
        max_length = 2
        keep = "last"
        [columns.x]
        kind = "dense"
        buckets = [0]
        [crosses.ab]
        columns = ["b", "a", "x"]
        """
    )
    batch = batch_of([(([1, 2, 3], [4], [5]), (1, 1)), (([], [6, 7], []), (-1, None))])
    ids = batch.features["features"]
    ids.weights_L = torch.tensor([0.1, 2.0, 3.0, 5.0, 7.0, 11.0, 13.0])
    made = FeatureTransform(features, features, RAW)(batch).features["features"]
    assert made.weights_L is not None
    assert made.weights_L.tolist() == [2, 3, 1, 5, 7, 11, 13, 1, 1, 10, 15, 7, 11]
    assert made.keys_L[2].item() % 2**64 == _EMPTY[0]


def test_a_cross_of_long_bags_is_cut_before_it_is_made() -> None:
    """A product of eight bags of a hundred thousand is nowhere in memory."""
    names = [f"f{place}" for place in range(8)]
    raw = replace(RAW, features=names, dense=(), nan_columns=())
    features = Features(crosses=[Cross(name="all", columns=names, max_length=5)])
    keys = torch.arange(100_000).repeat(8)
    ids = Ids(keys, torch.arange(9) * 100_000)
    batch = Batch({"features": ids}, torch.empty(1, 0), torch.zeros(1))
    made = FeatureTransform(features, features, raw)(batch).features["features"]
    assert made.offsets.tolist()[-2:] == [800_000, 800_005]
    expected = [hps.key_of("all", np.array([*[0] * 7, last], "<u8").tobytes()) for last in range(5)]
    assert made.keys_L[-5:].numpy().view(np.uint64).tolist() == expected


@pytest.mark.parametrize("longest", [1, 4])
def test_any_number_of_threads_makes_the_same(longest: int) -> None:
    """Of more rows than one thread takes at once; bags of one key each, and of none to four."""
    rng, features = np.random.default_rng(longest), Features.from_toml(MANY)
    rows: list[Any] = []
    for _ in range(1300):
        sizes = [1] * 3 if longest == 1 else rng.integers(0, longest + 1, 3).tolist()
        bags = [rng.integers(0, 2**64, size, np.uint64).tolist() for size in sizes]
        numbers = [None if rng.random() < 0.2 else float(np.float32(rng.normal())) for _ in "xy"]
        rows.append((bags, numbers))
    # So many that waking a thread is worth it.
    batch, transform = batch_of(rows * 10), FeatureTransform(features, features, RAW)
    made = transform(batch)
    assert {table: len(names) for table, names in transform.features.items()} == {
        "features": 4,
        "others": 2,
    }
    of_tables = [
        bags_of(replace(made, features={table: made.features[table]}), names)
        for table, names in transform.features.items()
    ]
    for row, (bags, numbers) in enumerate(rows):
        expected = features_of(
            features, dict(zip("abc", bags, strict=True)), dict(zip("xy", numbers, strict=True))
        )
        assert of_tables[0][row] | of_tables[1][row] == expected
        column = features.column("x")
        assert column is not None
        assert made.dense[row].item() == dense_of(column, numbers[0], is_log=False)
    for count in (1, 2, 5):
        again = transform(batch, _C.ThreadPool(count))
        assert torch.equal(again.dense, made.dense)
        for table, ids in made.features.items():
            assert torch.equal(again.features[table].keys_L, ids.keys_L)
            assert torch.equal(again.features[table].offsets, ids.offsets)


def test_a_batch_of_other_columns_is_refused() -> None:
    features = Features.from_toml("columns.a = {kind = 'categorical', hash_buckets = 3}")
    transform = FeatureTransform(features, features, RAW)
    batch = batch_of([])
    with pytest.raises(hps.ConfigError, match="the batch has 1 dense columns"):
        transform(replace(batch, dense=batch.dense[:, :1]))


@pytest.mark.parametrize(
    "offsets", [[0, 1, 2], [0, 1, 2, 5], [0, 2, 1, 3], [-1, 1, 2, 3], [0, 2, 2, 2]]
)
def test_offsets_that_make_no_bags_are_refused(offsets: list[int]) -> None:
    features = Features.from_toml("columns.a = {kind = 'categorical', hash_buckets = 3}")
    transform = FeatureTransform(features, features, RAW)
    ids = Ids(torch.tensor([7, 8, 9]), torch.tensor(offsets))
    batch = Batch({"features": ids}, torch.zeros(1, 2), torch.zeros(1))
    with pytest.raises(hps.ConfigError, match=r"the batch's keys make no bags: .*offsets"):
        transform(batch)
