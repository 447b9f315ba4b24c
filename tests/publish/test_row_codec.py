"""Weights as published versions have them: what each type keeps.

Above it: pytest. Below it: hps/publish/codec.py.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import hps
from hps.publish.codec import DTYPES, RowCodec

ROWS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(0, 5), st.integers(1, 9)),
    elements=st.floats(-1e4, 1e4, width=32),
)
# Of the largest weight of a row, what one may be off by.
_SHARES = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8, "int8": 0.51 / 127}
_SHARES["int4"] = 0.51 / 7


@pytest.mark.parametrize("dtype", DTYPES)
@given(rows=ROWS)
def test_a_weight_is_off_by_no_more_than_its_type_says(dtype: str, rows: np.ndarray) -> None:
    codec = RowCodec(dtype, rows.shape[1])
    encoded = codec.encode(rows)
    assert encoded.shape == (len(rows), codec.row_bytes)
    found = codec.decode(np.ascontiguousarray(encoded))
    assert found.shape == rows.shape and found.dtype == np.float32
    largest = np.abs(rows).max(axis=1, initial=0.0, keepdims=True)
    # 2^-24: numbers too small for float16 are rounded to its steps.
    assert (np.abs(found - rows) <= _SHARES[dtype] * largest * 1.001 + 2.0**-24).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_and_the_ends_of_the_range_come_back(dtype: str) -> None:
    rows = np.array([[0, 0, 0], [3.5, -3.5, 0], [1e-45, 0, 0]], np.float32)
    found = RowCodec(dtype, 3).decode(np.ascontiguousarray(RowCodec(dtype, 3).encode(rows)))
    np.testing.assert_array_equal(found[:2], rows[:2])
    assert np.isfinite(found).all()


def test_a_weight_beyond_float16_is_refused_by_table_and_key() -> None:
    rows = np.array([[1.0], [7e4]], np.float32)
    with pytest.raises(hps.NonFiniteError, match=r"table 'ads': key 9 .*65504.*float32"):
        RowCodec("float16", 1).check(np.array([8, 9], np.uint64), rows, "ads")
    RowCodec("int8", 1).check(np.array([8, 9], np.uint64), rows, "ads")


def test_another_type_is_refused() -> None:
    with pytest.raises(hps.ConfigError, match=r"'int2' must be one of .*'int4'"):
        RowCodec("int2", 4)
