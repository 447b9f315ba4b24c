"""The layout of a row in Python is that of the native core, with statistics and without.

Above it: pytest. Below it: hps/common/row_layout.py, csrc/table/row_layout.h.
"""

from typing import Any

import numpy as np
import pytest

from hps import _C
from hps.common.row_layout import RowLayout, Statistics
from tests.lab import OPTIMIZERS

KINDS = [one.kind for one in OPTIMIZERS]


@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("dim", [1, 2, 3, 16, 17])
@pytest.mark.parametrize("kind", KINDS)
def test_both_sides_have_the_same_layout(kind: str, dim: int, statistics: bool) -> None:
    layout, native = RowLayout(kind, dim, statistics), _C.row_layout(kind, dim, statistics)
    assert native == {
        "row_bytes": layout.row_bytes,
        "header_bytes": 16 + 16 * statistics,
        "state_floats": layout.state_floats,
        "header_scalars": layout.header_scalars,
        "state_vectors": layout.state_vectors,
    }
    without = RowLayout(kind, dim).row_bytes
    assert layout.row_bytes == without + 16 * statistics


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_is_taken_apart_as_it_was_put_together(kind: str) -> None:
    layout = RowLayout(kind, 3, has_statistics=True)
    floats = np.arange(2 * layout.row_bytes // 4, dtype=np.float32).reshape(2, -1)
    images = np.ascontiguousarray(floats).view(np.uint8)
    given = Statistics(
        np.array([5, 2**24], np.float32),
        np.array([1, 0.5], np.float32),
        np.array([0, _C.MAX_PERIOD], np.int64),
    )
    images[:, 8:24] = given.images()
    assert given.images()[:, 12:].tolist() == [[0] * 4] * 2  # left for what comes
    for found, expected in zip(layout.statistics(images), given, strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
    np.testing.assert_array_equal(layout.weights(images), floats[:, 8:11])
    scalars = [6 + place for place in range(layout.header_scalars)]
    vectors = [11 + place for place in range(3 * layout.state_vectors)]
    np.testing.assert_array_equal(layout.state(images), floats[:, [*scalars, *vectors]])


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_row_has_counted_makes_no_step_a_trial(kind: str) -> None:
    layout = RowLayout(kind, 3, has_statistics=True)
    images: Any = np.zeros((1, layout.row_bytes), np.uint8)
    found = np.ones(1, np.uint8)
    images.view(np.uint32)[:, 2:5] = 0x7FC00000  # as floats, NaN
    assert _C.are_tame(kind, 3, images, found, True)
    images.view(np.float32)[:, 10] = np.nan  # its last weight
    assert not _C.are_tame(kind, 3, images, found, True)
