"""Weights and groups of examples: columns of parquet and csv that are read beside the features.

Above it: pytest. Below it: hps/reader/records.py, hps/reader/record_reader.py, `hps.Batch`.
"""

import dataclasses
import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hps
from hps.reader.column_use import format_columns
from hps.reader.config import ReaderConfig
from hps.reader.keys import key_of
from hps.types import NO_GROUP
from tests.front import one_feature_batch
from tests.reader.reader_twin import assert_same_batches, open_log

KINDS = ("parquet", "csv")


def write_log(path: Path, columns: dict[str, Sequence[Any] | pa.Array]) -> Path:
    """The same columns as parquet or, by the name, as csv; None is null, of csv nothing."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
        return path
    rows = zip(*(list(values) for values in columns.values()), strict=True)
    lines = [",".join("" if value is None else str(value) for value in row) for row in rows]
    path.write_text("\n".join([",".join(columns), *lines]) + "\n", encoding="utf-8")
    return path


def columns_of(**changes: Any) -> dict[str, Any]:
    columns = {"label": [1, 0, 1, 0, 0, 1, 1], "item": [3, 4, 3, 5, 6, 3, 4]}
    columns |= {"user": [7, 8, 7, 7, 9, 8, 8], "price": [0.5, 1.5, 0.25, 2.0, 4.0, 8.5, 0.75]}
    columns |= {"w": [1.0, 0.5, 0, 2.5, 1e-3, 3.25, 1]}
    return {**columns, **changes}


def signed(key: int) -> int:
    return key - 2**64 if key >= 2**63 else key


def joined(batches: Sequence[hps.Batch], name: str) -> list[Any]:
    values = [getattr(batch, name) for batch in batches]
    assert all(isinstance(value, torch.Tensor) for value in values)
    return list(torch.cat(values).tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_weights_and_groups_are_read_beside_features(tmp_path: Path, kind: str) -> None:
    log = write_log(tmp_path / f"log.{kind}", columns_of())
    reader = open_log(log, kind, weight="w", group="user")
    batches = list(reader)
    assert [len(batch) for batch in batches] == [3, 3, 1]
    wanted = [float(np.float32(value)) for value in columns_of()["w"]]
    assert joined(batches, "weights") == wanted
    assert all(batch.weights.dtype == torch.float32 for batch in batches)
    assert [batch.global_weight for batch in batches] == [1.5, math.fsum(wanted[3:6]), 1.0]
    # A group's key is that of its column's values as features, which they still are.
    assert joined(batches, "groups") == [signed(key_of("user", u)) for u in columns_of()["user"]]
    assert all(batch.groups.dtype == torch.int64 for batch in batches)
    assert reader.features == {"t0": ("item", "user")} and reader.dense_columns == ["price"]
    plain = list(open_log(log, kind, ignore=["w"]))
    assert all(one.weights is None and one.groups is None for one in plain)
    assert [one.global_weight for one in plain] == [3.0, 3.0, 1.0]
    for one, other in zip(plain, batches, strict=True):
        assert one.features["t0"].keys_L.equal(other.features["t0"].keys_L)
        assert one.dense.equal(other.dense) and one.labels.equal(other.labels)


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_that_is_ignored_is_read_and_no_feature(tmp_path: Path, kind: str) -> None:
    log = write_log(tmp_path / f"log.{kind}", columns_of())
    reader = open_log(log, kind, weight="w", group="user", ignore=["user", "w"])
    (batch,) = list(open_log(log, kind, group="user", ignore=["user", "w"], batch_size=10))
    assert reader.features == {"t0": ("item",)}
    assert len(set(batch.groups.tolist())) == 3 and batch.weights is None
    said = format_columns(reader.columns)
    assert any(line.startswith("columns: 1 weight (") and "w (" in line for line in said)
    assert any(line.startswith("columns: 1 group (") and "user (" in line for line in said)
    both = format_columns(open_log(log, kind, weight="w", group="user").columns)
    assert "columns: 1 feature (hashed with the feature; and the groups of gauc): user" in both


@pytest.mark.parametrize(
    "values",
    [
        pa.array([2, 0, 1, 1, 5, 2**20, 3], pa.int64()),
        pa.array([2, 0, 1, 1, 5, 255, 3], pa.uint8()),
        pa.array([True, False, True, True, True, False, True]),
        pa.array([Decimal("0.25"), 0, 1, 1, 2, 3, 4], pa.decimal128(10, 2)),
        pa.array([0.5, -0.0, 1, 1e-50, 2, 3, 3.4028234e38], pa.float64()),
        pa.array([0.5, 1.5, 2.5, 0, 0, 0, 1], pa.float16()),
        pa.array([1.5, 2.5, 1.5, 2.5, 1.5, 2.5, 1.5]).dictionary_encode(),
    ],
    ids=lambda values: str(values.type),
)
def test_weights_may_be_any_numbers(tmp_path: Path, values: pa.Array) -> None:
    log = write_log(tmp_path / "log.parquet", columns_of(w=values))
    (batch,) = list(open_log(log, "parquet", weight="w", batch_size=10))
    wanted = [np.float32(float(value.as_py())) for value in values]
    assert batch.weights.tolist() == wanted
    assert batch.global_weight == math.fsum(map(float, wanted))


def test_weights_of_csv_are_text_that_is_a_number(tmp_path: Path) -> None:
    text = ["1", " 2.5", "1e-2", ".5", "+3", "007", "0"]
    for error in ("raise", "skip"):
        log = write_log(tmp_path / "log.csv", columns_of(w=text))
        (batch,) = list(open_log(log, "csv", weight="w", batch_size=10, on_error=error))
        assert batch.weights.tolist() == pytest.approx([1, 2.5, 0.01, 0.5, 3, 7, 0], rel=1e-6)


BAD = {
    "null": (None, "is missing or no number"),
    "nan": (math.nan, "is missing or no number"),
    "negative": (-1e-9, r"is -1e-09; it must be from 0 to 3.403e\+38"),
    "infinite": (math.inf, "is inf"),
    "too large for float32": (1e39, r"is 1e\+39"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("value", "reason"), BAD.values(), ids=BAD.keys())
def test_a_bad_weight_makes_a_bad_row(tmp_path: Path, kind: str, value: Any, reason: str) -> None:
    weights = [1.0, 0.5, 0.25, 2.5, value, 3.25, 1.0]
    log = write_log(tmp_path / f"log.{kind}", columns_of(w=weights))
    reader = open_log(log, kind, weight="w")
    where = r"line 6 \(row 5\)" if kind == "csv" else "row 5"
    with pytest.raises(
        hps.DataError, match=rf"log\.{kind}, {where}: the weight in column 'w' {reason}"
    ):
        list(reader)
    skipping = open_log(log, kind, weight="w", on_error="skip")
    assert joined(list(skipping), "weights") == [1.0, 0.5, 0.25, 2.5, 3.25, 1.0]
    assert (skipping.counts.examples, skipping.counts.skipped) == (6, 1)
    # Not named, it is no concern of anybody's.
    assert open_log(log, kind, ignore=["w"]).counts.skipped == 0
    assert sum(map(len, open_log(log, kind, ignore=["w"]))) == 7


def test_a_weight_of_csv_that_is_no_number_is_named_or_skipped(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", columns_of(w=[1, 2, "much", 4, 5, 6, 7]))
    with pytest.raises(hps.DataError, match=r"log\.csv, line 4 \(row 3\): column 'w' holds"):
        list(open_log(log, "csv", weight="w"))
    reader = open_log(log, "csv", weight="w", on_error="skip")
    assert joined(list(reader), "weights") == [1, 2, 4, 5, 6, 7] and reader.counts.skipped == 1


GROUPS: dict[str, Any] = {
    "text": pa.array(["a", "", None, "ä\u2028 ", " ", "7", "a" * 10_000]),
    "large text": pa.array(["a", "", None, "b", "c", "7", "d"], pa.large_string()),
    "bytes": pa.array([b"a", b"", None, b"\xff\x00", b" ", b"7", b"0"]),
    "views": pa.array(["a", "", None, "b", "c", "7", "d"]).cast(pa.string_view()),
    "whole": pa.array([-1, 0, None, 2**63 - 1, -(2**63), 7, 7]),
    "unsigned": pa.array([1, 0, None, 2**64 - 1, 5, 7, 7], pa.uint64()),
    "flags": pa.array([True, False, None, True, True, False, False]),
    "dictionary": pa.array(["a", "", None, "b", "c", "7", "d"]).dictionary_encode(),
    "nothing": pa.array([None] * 7, pa.int32()),
}


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("hash_keys", [True, False])
def test_groups_are_hashed_and_a_missing_one_is_none(
    tmp_path: Path, name: str, hash_keys: bool
) -> None:
    log = write_log(tmp_path / "log.parquet", columns_of(user=GROUPS[name]))
    reader = open_log(
        log, "parquet", group="user", ignore=["w"], batch_size=10, hash_keys=hash_keys
    )
    (batch,) = list(reader)

    def wanted(value: Any) -> int:
        if value in (None, "", b""):
            return NO_GROUP
        return signed(key_of("user", int(value) if isinstance(value, bool) else value))

    assert batch.groups.tolist() == [wanted(value.as_py()) for value in GROUPS[name]]


def test_groups_of_csv_are_text(tmp_path: Path) -> None:
    """Also where they look like numbers that are not whole, which else are dense values."""
    for users in (["a b", "", "NA", "ä", '"x,y"', "7", "007"], ["1.5", "", "2.5", 1, 2, 3, 4]):
        log = write_log(tmp_path / "log.csv", columns_of(user=users))
        reader = open_log(log, "csv", group="user", ignore=["w"], batch_size=10)
        (batch,) = list(reader)
        texts = [str(user).strip('"') for user in users]
        wanted = [signed(key_of("user", text)) if text else NO_GROUP for text in texts]
        assert batch.groups.tolist() == wanted
        assert reader.features == {"t0": ("item", "user")} and reader.dense_columns == ["price"]


def test_no_group_is_the_hash_of_nothing() -> None:
    assert signed(key_of(None, "")) == NO_GROUP != signed(key_of("user", ""))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", ["raise", "skip"])
def test_parts_and_positions_keep_weights_and_groups(tmp_path: Path, kind: str, error: str) -> None:
    """Each part knows the weight of the whole batch, and a reader goes on with the same bits."""
    random = np.random.default_rng(4)
    print("seed 4")
    logs = []
    for number in range(2):
        size = 500 + number
        columns = {"label": random.integers(0, 2, size), "item": random.integers(0, 9, size)}
        columns |= {"user": random.integers(0, 50, size), "price": random.random(size) + 0.25}
        columns["w"] = (10 ** random.uniform(-6, 6, size)).astype(np.float32)
        logs.append(write_log(tmp_path / f"log-{number}.{kind}", columns))
    options: dict[str, Any] = {"weight": "w", "group": "user", "batch_size": 64, "on_error": error}
    whole = list(open_log(logs, kind, **options))
    parts = [list(open_log(logs, kind, part=(rank, 3), **options)) for rank in range(3)]
    for batch, *of_parts in zip(whole, *parts, strict=True):
        for name in ("weights", "groups", "labels"):
            assert torch.cat([getattr(one, name) for one in of_parts]).equal(getattr(batch, name))
        assert {one.global_weight for one in of_parts} == {batch.global_weight}
        assert batch.global_weight == math.fsum(batch.weights.tolist())
    resumed = open_log(logs, kind, **options)
    resumed.load_state_dict(whole[4].position)
    assert_same_batches(list(resumed), whole[5:])


def test_a_part_without_examples_has_no_weights_and_knows_those_of_all(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.parquet", columns_of())
    *_, last = open_log(log, "parquet", weight="w", group="user", part=(0, 3))
    assert len(last) == len(last.weights) == len(last.groups) == 0 and last.global_weight == 1.0


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no such weight": ({"weight": "v"}, "has no column 'v' for the weight; it has .* --weight"),
    "no such group": ({"group": "v"}, "has no column 'v' for the group; it has .* --group"),
    "weights of text": ({"weight": "name"}, "column 'name' is of type string, and cannot be the w"),
    "groups of floats": ({"group": "price"}, "column 'price' is of type double.*whole numbers or"),
    "groups of lists": ({"group": "bag"}, r"column 'bag' is of type list.*one an example"),
    "weight and label": ({"weight": "label"}, "'label' .--weight. is the column of labels, too"),
    "group and label": ({"group": "label"}, "'label' .--group. is the column of labels, too"),
    "weight and group": ({"weight": "w", "group": "w"}, "'w' .--weight. is the column of groups"),
    "dense weight": ({"weight": "w", "dense_columns": ["w"]}, "names 'w', the column of weights"),
    "dense group": ({"group": "user", "dense_columns": ["user"]}, "names 'user', the column of g"),
    "no name": ({"weight": ""}, "weight='' .--weight. must be the name of a column"),
    "a number": ({"group": 3}, "group=3 .--group. must be the name of a column"),
    "a feature": (
        {"weight": "w", "tables": [hps.TableConfig(name="t", dim=2, features=["w"])]},
        "features that the log does not have: ..w",
    ),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_a_weight_or_a_group_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    more = {"name": ["a"] * 7, "bag": [[1]] * 7}
    log = write_log(tmp_path / "log.parquet", columns_of(**more))
    with pytest.raises(hps.ConfigError, match=message):
        open_log(log, "parquet", **options)


@pytest.mark.parametrize("kind", ["criteo", "libsvm", "libffm", "slots"])
@pytest.mark.parametrize("field", ["weight", "group"])
def test_formats_without_columns_have_neither(kind: str, field: str) -> None:
    with pytest.raises(hps.ConfigError, match=rf"{field}='w': only parquet and csv have columns"):
        ReaderConfig(**{"format": kind, field: "w"})


def test_a_later_file_must_have_the_columns_in_fitting_types(tmp_path: Path) -> None:
    first = write_log(tmp_path / "a.parquet", columns_of())
    changes: tuple[dict[str, Any], ...] = ({"w": ["1"] * 7}, {"user": [[1]] * 7})
    for changed in changes:
        other = write_log(tmp_path / "b.parquet", columns_of(**changed))
        reader = open_log([first, other], "parquet", weight="w", group="user", ignore=["user"])
        with pytest.raises(hps.DataError, match=rf"b\.parquet: column '{next(iter(changed))}' is"):
            list(reader)
    for kind in KINDS:
        paths = [tmp_path / f"{name}.{kind}" for name in "cd"]
        lacking = {name: values for name, values in columns_of().items() if name != "w"}
        for path, columns in zip(paths, (columns_of(), lacking), strict=True):
            write_log(path, columns)
        with pytest.raises(hps.DataError, match=r"d\..* has no columns? .*'w'"):
            list(open_log(paths, kind, weight="w"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_without_labels_may_lack_weights_and_groups(tmp_path: Path, kind: str) -> None:
    log = write_log(tmp_path / f"log.{kind}", {"item": [1, 2], "price": [0.5, 1.5]})
    (batch,) = list(open_log(log, kind, needs_labels=False, weight="w", group="user"))
    assert batch.weights is None and batch.groups is None and batch.global_weight == 2.0


def test_a_batch_that_moves_takes_weights_and_groups_along() -> None:
    batch = one_feature_batch([1, 2])
    assert batch.weights is batch.groups is None and batch.global_weight == 2.0
    weights, groups = torch.tensor([0.1, 0.2]), torch.tensor([5, -(2**63)])
    batch = dataclasses.replace(batch, weights=weights, groups=groups, global_weight=-1.0)
    assert batch.global_weight == math.fsum(weights.tolist())
    part = dataclasses.replace(batch, global_weight=7.5)
    moved = part.to("meta")
    assert moved.global_weight == 7.5 and moved.global_size == part.global_size
    for found, given in ((moved.weights, weights), (moved.groups, groups)):
        assert found is not None and found.device.type == "meta"
        assert found.dtype == given.dtype and found.shape == given.shape
    assert one_feature_batch([1, 2]).to("meta").weights is None
