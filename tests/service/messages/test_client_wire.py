"""Wire formats lose no more than hps/common/wire.py says, on any row; and what they refuse.

Above it: pytest. Below it: hps/common/wire.py, and a client that uses it.
"""

from pathlib import Path

import numpy as np
import pytest

import hps
from hps.common.wire import Wire, check_range, decode, encode
from tests.service.client.client_lab import ADS, service


def bound(rows: np.ndarray, wire: Wire) -> np.ndarray:
    """How much each value may change, as the module's first lines say."""
    magnitude = np.abs(rows.astype(np.float64))
    if wire is Wire.FLOAT32:
        return np.zeros_like(magnitude)
    if wire is Wire.FLOAT16:
        return np.maximum(magnitude / 2**11, 2.0**-25)
    if wire is Wire.BFLOAT16:
        return np.maximum(magnitude / 2**8, 2.0**-134)
    largest = magnitude.max(axis=1, keepdims=True)
    bounds = largest / 254 * (1 + 1e-6)
    return np.broadcast_to(np.where(largest < 2.0**-126, 2.0**-142, bounds), rows.shape)


def awkward_rows(seed: int, dim: int) -> np.ndarray:
    """Magnitudes from the smallest subnormal to the largest that a format takes."""
    print("seed", seed)
    random = np.random.default_rng(seed)
    exponents = random.uniform(-149, 127, (3000, dim))
    rows = (random.choice([-1, 1], (3000, dim)) * 2.0**exponents).astype(np.float32)
    rows[:1000] = random.normal(size=(1000, dim)).astype(np.float32)
    rows[1000:1500] *= np.float32(2.0**-120)
    rows[5], rows[6, 0] = 0.0, np.float32(-0.0)
    rows[7] = np.float32(2.0**-149)
    return rows


@pytest.mark.parametrize("wire", list(Wire))
@pytest.mark.parametrize("dim", [1, 16, 37])
def test_error_is_within_what_is_stated(wire: Wire, dim: int) -> None:
    rows = awkward_rows(dim, dim)
    if wire is Wire.FLOAT16:
        rows = np.clip(rows, -65504, 65504)
    if wire is Wire.BFLOAT16:
        rows = np.clip(rows, -3.3e38, 3.3e38).astype(np.float32)
    data = encode(rows, wire)
    assert data.nbytes == wire.num_bytes(*rows.shape)
    back = decode(data, *rows.shape, wire)
    error = np.abs(back.astype(np.float64) - rows)
    assert (error <= bound(rows, wire)).all()
    if wire is not Wire.FLOAT32:
        assert error.max() > 0  # the format does round
    assert check_range(rows, wire) == -1
    assert np.array_equal(encode(rows, wire, np.empty(data.nbytes, np.uint8)), data)


@pytest.mark.parametrize("wire", [Wire.FLOAT16, Wire.BFLOAT16])
def test_halves_round_to_nearest_even_and_keep_what_is_not_finite(wire: Wire) -> None:
    step = {Wire.FLOAT16: 2.0**-10, Wire.BFLOAT16: 2.0**-7}[wire]
    rows = np.array([[1 + step / 2, 1 + 3 * step / 2, np.inf, -np.inf, np.nan]], np.float32)
    back = decode(encode(rows, wire), 1, 5, wire)
    assert back[0, :4].tolist() == [1.0, 1 + 2 * step, np.inf, -np.inf]
    assert np.isnan(back[0, 4])


def test_values_beyond_a_format_are_found_before_they_travel() -> None:
    rows = np.ones((9, 3), np.float32)
    rows[4, 1] = -65520.0
    assert check_range(rows, Wire.FLOAT16) == 4
    assert np.isinf(decode(encode(rows, Wire.FLOAT16), 9, 3, Wire.FLOAT16)[4, 1])
    rows[4, 1] = 65519.0
    assert check_range(rows, Wire.FLOAT16) == -1
    rows[8, 0] = np.float32(3.4e38)
    assert check_range(rows, Wire.BFLOAT16) == 8 and check_range(rows, Wire.INT8) == -1
    rows[2, 2] = np.nan
    with pytest.raises(hps.NonFiniteError, match="row 2"):
        encode(rows, Wire.INT8)


@pytest.mark.parametrize("wire", ["float32", "float16", "bfloat16", "int8"])
def test_pulls_and_pushes_keep_to_the_bound_of_their_format(tmp_path: Path, wire: str) -> None:
    table = hps.TableConfig(
        name="t", dim=8, optimizer=hps.SGD(lr=1.0), initializer=hps.Constant(0.0)
    )
    keys = np.arange(500, dtype=np.uint64)
    grads = np.random.default_rng(3).normal(size=(500, 8)).astype(np.float32)
    form = Wire.named(wire)
    with (
        service(tmp_path, 2, tables=[table]) as servers,
        servers.client("exact") as exact,
        servers.client("narrow", wire=wire) as narrow,
    ):
        narrow.push("t", keys, grads)
        stored = exact.pull("t", keys)
        assert (np.abs(-stored.astype(np.float64) - grads) <= bound(grads, form)).all()
        pulled = narrow.pull("t", keys)
        assert (np.abs(pulled.astype(np.float64) - stored) <= bound(stored, form)).all()
        created = narrow.pull("t", keys + np.uint64(1000), create=True)
        assert not created.any() and exact.num_rows("t") == 1000


def test_gradient_too_large_for_its_format_changes_nothing(tmp_path: Path) -> None:
    with service(tmp_path, 1) as servers, servers.client(push_wire="float16") as client:
        grads = np.full((3, ADS.dim), 1e5, np.float32)
        with pytest.raises(hps.NonFiniteError, match="too large for float16"):
            client.push("ads", np.arange(3), grads)
        assert client.num_rows("ads") == 0


def test_unknown_formats_and_wrong_sizes_are_refused() -> None:
    with pytest.raises(hps.ConfigError, match="must be one of"):
        Wire.named("float8")
    with pytest.raises(hps.ConfigError, match="take 24 bytes"):
        decode(b"x" * 23, 2, 3, Wire.FLOAT32)


def test_rows_that_int8_cannot_carry_cost_no_change_after_a_creating_pull(tmp_path: Path) -> None:
    """Their creation is applied, so its number must not be used again."""
    keys = np.array([1, 2], np.uint64)
    with service(tmp_path, count=1) as made, made.client(wire="int8") as client:
        client.pull("ads", keys[:1], create=True)
        # Past the check: an older hps took any row.
        stack = made.shards[0].parts.store.server.parts.tables.stacks["ads"]
        stack.assign(keys[:1], np.full((1, ADS.dim), np.inf, np.float32), None)
        with pytest.raises(hps.NonFiniteError, match="int8"):
            client.pull("ads", keys, create=True)
        before = made.shards[0].pull("ads", keys[1:])
        client.push("ads", keys[1:], np.ones((1, ADS.dim), np.float32))
        assert (made.shards[0].pull("ads", keys[1:]) != before).all()
