"""hps.key_of and hps.keys_of are the keys that readers make of raw values."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hps
from hps.reader import ReaderConfig, open_reader

VALUES = ["", "7", "007", " ", "é", "a,b", "18446744073709551616", "x" * 1000]


@pytest.mark.parametrize("is_shared", [False, True])
def test_keys_are_those_of_the_readers(tmp_path: Path, is_shared: bool) -> None:
    table = hps.TableConfig(name="ads", dim=2, shared_vocabulary=is_shared)
    feature = None if is_shared else "C1"
    text, columns = tmp_path / "log", tmp_path / "log.parquet"
    text.write_text("".join(f"1\t{value}\n" for value in VALUES))
    pq.write_table(pa.table({"label": [1] * len(VALUES), "C1": VALUES}), columns)
    for log, config in (
        (text, ReaderConfig(format="criteo", dense=0)),
        (columns, ReaderConfig(format="parquet")),
    ):
        (batch,) = open_reader([log], tables=[table], config=config)
        found = batch.features["ads"].keys_L.numpy().view(np.uint64)
        assert np.array_equal(found, hps.keys_of(feature, VALUES))
        assert found.tolist() == [hps.key_of(feature, value) for value in VALUES]
        assert found.tolist() == [hps.key_of(feature, value.encode()) for value in VALUES]


def test_numbers_are_hashed_as_their_decimal_text() -> None:
    numbers = [0, 7, -3, 2**63 - 1]
    expected = [hps.key_of("app", str(number)) for number in numbers]
    assert [hps.key_of("app", number) for number in numbers] == expected
    for values in (numbers, np.array(numbers), pa.array(numbers)):
        assert hps.keys_of("app", values).tolist() == expected
    assert hps.key_of("app", 2**64 - 1) == hps.keys_of("app", np.array([2**64 - 1]))[0]
    assert hps.keys_of("app", np.array(["a", "b"])).tolist() == [
        hps.key_of("app", "a"),
        hps.key_of("app", "b"),
    ]
    assert hps.keys_of("app", []).tolist() == [] and hps.keys_of("app", []).dtype == np.uint64


def test_booleans_are_those_of_parquet(tmp_path: Path) -> None:
    log = tmp_path / "log.parquet"
    pq.write_table(pa.table({"label": [1, 0], "C1": [True, False]}), log)
    table = hps.TableConfig(name="ads", dim=2)
    (batch,) = open_reader([log], tables=[table], config=ReaderConfig(format="parquet"))
    expected = batch.features["ads"].keys_L.numpy().view(np.uint64).tolist()
    for values in ([True, False], np.array([True, False]), torch.tensor([True, False])):
        assert hps.keys_of("C1", values).tolist() == expected
        assert [hps.key_of("C1", value) for value in values] == expected
    assert hps.keys_of("C1", pa.array([True, False])).tolist() == expected
    assert len(set(expected)) == 2


@pytest.mark.parametrize("number", [0, 7, 2**63 - 1, 2**63, 2**64 - 1])
def test_numbers_of_numpy_and_torch_are_those_of_python(number: int) -> None:
    expected = hps.key_of("app", str(number))
    assert hps.key_of("app", np.uint64(number)) == expected
    assert hps.keys_of("app", [number]).tolist() == [expected]
    assert hps.keys_of("app", (np.uint64(number),)).tolist() == [expected]
    assert hps.keys_of("app", np.array([number], object)).tolist() == [expected]
    if number < 2**63:
        assert hps.key_of("app", np.int64(number)) == expected
        assert hps.key_of("app", torch.tensor(number)) == expected
        assert hps.keys_of("app", torch.tensor([number])).tolist() == [expected]


def test_values_of_several_types_are_each_as_key_of_has_them() -> None:
    for values in (
        ["a", 7],
        [7, "a", b"\xff", True, np.int64(-3)],
        [-1, 2**63],
        [2**64, -(2**70)],
        np.array(["a", 7], object),
    ):
        assert hps.keys_of("app", values).tolist() == [hps.key_of("app", one) for one in values]
        assert hps.keys_of("app", iter(values)).tolist() == hps.keys_of("app", values).tolist()
    texts = np.array(["x\0y", "x"])
    assert hps.keys_of("app", texts).tolist() == [hps.key_of("app", one) for one in texts]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (["a", 7, 1.5], r"values\[2\] of feature 'app' is 1.5, a float"),
        ([7, 2.0, "a"], r"values\[1\] of feature 'app' is 2.0"),
        (["a", 7, None], r"values\[2\] of feature 'app' is None"),
        ([["a"]], r"values\[0\] of feature 'app' is \['a'\], a list"),
        (np.array([[1]]), "'app'"),
        (torch.tensor([1.5]), "'app' are of type float"),
        (7, "7 of feature 'app' is one value; use key_of"),
    ],
)
def test_the_first_value_without_a_key_is_named(values: Any, told: str) -> None:
    with pytest.raises(hps.ConfigError, match=told):
        hps.keys_of("app", values)


@pytest.mark.parametrize("value", [None, 1.5, ["a"], np.float32(2)])
def test_what_has_no_key_is_refused(value: Any) -> None:
    with pytest.raises(hps.ConfigError, match="'app'"):
        hps.key_of("app", value)
    with pytest.raises(hps.ConfigError, match="'app'"):
        hps.keys_of("app", [value])


def test_one_value_is_not_many_and_a_missing_one_is_told() -> None:
    with pytest.raises(hps.ConfigError, match="use key_of"):
        hps.keys_of("app", "abc")
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))
    with pytest.raises(hps.ConfigError, match="1 of the values"):
        hps.keys_of("app", coded)
