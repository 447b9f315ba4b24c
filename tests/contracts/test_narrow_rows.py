"""Rows with bfloat16 weights: the native caches against the readable twin, and what holds of both.

Above it: pytest. Below it: tests/lab.py, tests/twins/narrow_rows.py. Caches are small enough that
rows leave and return all the time.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps import _C
from hps.common.bfloat16 import narrowed, widened
from tests.lab import (
    OPTIMIZERS,
    Lab,
    dump,
    evictions,
    keys_of,
    optimizer_id,
    random_floats,
    random_keys,
)
from tests.twins.narrow_rows import at_random, to_nearest

ROUNDINGS = ("nearest", "stochastic")
EDGE_KEYS = keys_of(0, 1, 2**63, 2**64 - 1)
Bits = dict[int, bytes]


def narrow_table(
    optimizer: Any = None, *, dim: int = 21, rounding: str = "stochastic", **others: Any
) -> hps.TableConfig:
    return hps.TableConfig(
        name="ads",
        dim=dim,
        optimizer=optimizer or hps.SGD(lr=0.1),
        dtype="bfloat16",
        rounding=rounding,
        **others,
    )


def exercise(lab: Lab, table: hps.TableConfig, **how: Any) -> tuple[Bits, str]:
    """Rows and digest after pulls, pushes, assignments and a reopening."""
    generator = np.random.default_rng(11)
    read_ahead = how.pop("pulls", True)
    server = lab.server(table, **how)
    for step in range(12):
        keys = np.concatenate([random_keys(generator, 150, 400), EDGE_KEYS])
        if read_ahead:
            server.pull("ads", keys)
        server.push("ads", keys, random_floats(generator, len(keys), table.dim))
        if step % 4 == 3:
            few = random_keys(generator, 10, 400)
            server.assign("ads", few, random_floats(generator, len(few), table.dim))
            server.pull("ads", random_keys(generator, 5, 10**9), create=True)
        if step == 6:
            server.checkpoint()
            server.close()
            server = lab.server(table, **how)
    moved = evictions(server)
    found = dump(server), server.digest("ads")
    assert moved or how.get("scale", 1) > 1
    server.close()
    return found


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=optimizer_id)
def test_native_caches_agree_with_the_twin(optimizer: Any, rounding: str, tmp_path: Path) -> None:
    for dim, statistics in ((21, False), (64, True)):
        table = narrow_table(optimizer, dim=dim, rounding=rounding, statistics=statistics)
        folder = tmp_path / str(dim)
        rows, digest = exercise(Lab("twins", folder / "twins"), table)
        for kind in ("native_dram", "native_gpu", "native", "rocksdb", "gpu"):
            assert exercise(Lab(kind, folder / kind), table) == (rows, digest), kind


@pytest.mark.parametrize("dim", [1, 8, 16, 17, 64, 200])
def test_instruction_sets_threads_and_budgets_give_the_same_bits(dim: int, tmp_path: Path) -> None:
    table = narrow_table(hps.RowWiseAdagrad(lr=0.1), dim=dim)
    first = exercise(Lab("native", tmp_path / "first"), table, instruction_set="plain", threads=1)
    hows: list[dict[str, Any]] = [
        {"instruction_set": "avx2"},
        {"instruction_set": "avx512", "threads": 3},
        {"scale": 8.0},
        {"pulls": False},
    ]
    for number, how in enumerate(hows):
        try:
            found = exercise(Lab("native", tmp_path / str(number)), table, **how)
        except hps.ConfigError as error:
            assert "processor lacks it" in str(error)
            continue
        assert found == first, how
    assert exercise(Lab("gpu", tmp_path / "gpu"), table) == first


def test_a_row_takes_about_half_the_bytes_and_reads_back_as_it_was_kept(tmp_path: Path) -> None:
    wide = hps.TableConfig(name="ads", dim=64, optimizer=hps.RowWiseAdagrad())
    table = narrow_table(hps.RowWiseAdagrad(), dim=64)
    assert (wide.layout.row_bytes, table.layout.row_bytes) == (272, 144)
    lab = Lab("native", tmp_path)
    with lab.server(table) as server:
        rows = random_floats(np.random.default_rng(3), len(EDGE_KEYS), 64)
        server.assign("ads", EDGE_KEYS, rows)
        np.testing.assert_array_equal(server.pull("ads", EDGE_KEYS), to_nearest(rows))
        assert server.stats()["tables"]["ads"]["dtype"] == "bfloat16"
        server.checkpoint()
        digest = server.digest("ads")
    with hps.open(lab.path) as server:
        assert server.tables["ads"] == table and server.digest("ads") == digest
        np.testing.assert_array_equal(server.pull("ads", EDGE_KEYS), to_nearest(rows))


def test_an_absent_key_reads_as_the_rounded_initial_weights(tmp_path: Path) -> None:
    initializer = hps.Uniform(low=-1, high=1)
    wide = hps.TableConfig(name="ads", dim=21, initializer=initializer)
    with Lab("native", tmp_path / "wide").server(wide) as server:
        expected = to_nearest(server.pull("ads", EDGE_KEYS))
    for kind in ("native", "gpu", "twins"):
        with Lab(kind, tmp_path / kind).server(narrow_table(initializer=initializer)) as server:
            np.testing.assert_array_equal(server.pull("ads", EDGE_KEYS), expected)
            server.pull("ads", EDGE_KEYS, create=True)
            np.testing.assert_array_equal(server.pull("ads", EDGE_KEYS), expected)


@pytest.mark.parametrize("kind", ["native", "gpu"])
def test_stochastic_rounding_is_unbiased(kind: str, tmp_path: Path) -> None:
    table = narrow_table(hps.SGD(lr=1.0), dim=16, initializer=hps.Constant(1.0))
    keys = np.arange(20_000, dtype=np.uint64)
    step = np.float32(2**-7 * 0.3)  # of the distance between two bfloat16s at 1
    with Lab(kind, tmp_path).server(table, scale=30.0) as server:
        server.push("ads", keys, np.full((len(keys), 16), -step))
        rows = server.pull("ads", keys)
    assert set(np.unique(rows).tolist()) == {1.0, 1.0 + 2**-7}
    share = (rows > 1).mean(axis=0)
    deviation = np.sqrt(0.3 * 0.7 / len(keys))
    assert np.abs(share - 0.3).max() < 5 * deviation, "of a column"
    assert abs(share.mean() - 0.3) < 5 * deviation / 4
    # Columns of a row, and rows of a column, are independent.
    centred = (rows > 1) - 0.3
    between = np.corrcoef(centred.T) - np.eye(16)
    assert np.abs(between).max() < 6 / np.sqrt(len(keys))


def test_small_updates_stick_only_with_rounding_to_the_nearest(tmp_path: Path) -> None:
    generator = np.random.default_rng(7)
    grads = [generator.uniform(0, 1.9e-3, (50, 8)).astype(np.float32) for _ in range(400)]
    exact = 1 - np.sum(grads, axis=0, dtype=np.float64)
    keys = np.arange(50, dtype=np.uint64)
    found = {}
    for rounding in ROUNDINGS:
        table = narrow_table(
            hps.SGD(lr=1.0), dim=8, rounding=rounding, initializer=hps.Constant(1.0)
        )
        with Lab("native", tmp_path / rounding).server(table, scale=4.0) as server:
            for grad in grads:
                server.push("ads", keys, grad)
            found[rounding] = server.pull("ads", keys)
    assert (found["nearest"] > 0.99).all(), "less than 2^-9, half a step below 1"
    drift = found["stochastic"] - exact
    # 400 roundings of at most 2^-8 each way: about 400^0.5 * 2^-9, of one weight.
    assert np.abs(drift).max() < 0.25 and abs(drift.mean()) < 0.02


@pytest.mark.parametrize("kind", ["twins", "native", "gpu"])
def test_a_weight_that_rounds_to_infinity_is_an_overflow(kind: str, tmp_path: Path) -> None:
    largest = float(widened(np.array([0x7F7F], np.uint16))[0])
    table = narrow_table(hps.SGD(lr=1.0), dim=4, rounding="nearest")
    with Lab(kind, tmp_path).server(table) as server:
        server.assign("ads", EDGE_KEYS[:1], np.full((1, 4), largest, np.float32))
        before = server.digest("ads")
        with pytest.raises(hps.NonFiniteError):
            server.push("ads", EDGE_KEYS[:1], np.full((1, 4), -1.2e36, np.float32))
        with pytest.raises(hps.NonFiniteError, match="weight of column 2"):
            server.assign("ads", EDGE_KEYS[1:2], np.array([[0, 0, 3.4e38, 0]], np.float32))
        assert server.digest("ads") == before
        server.push("ads", EDGE_KEYS[:1], np.full((1, 4), 1.2e36, np.float32))
        assert (server.pull("ads", EDGE_KEYS[:1]) < largest).all()


def test_ftrl_keeps_zeros_and_moves_by_its_sums(tmp_path: Path) -> None:
    optimizer = hps.FTRL(lr=0.5, l1=1.0)
    found = {}
    for dtype in ("float32", "bfloat16"):
        table = hps.TableConfig(
            name="ads", dim=8, optimizer=optimizer, initializer=hps.Constant(), dtype=dtype
        )
        generator = np.random.default_rng(2)
        with Lab("native", tmp_path / dtype).server(table) as server:
            for _ in range(300):
                grads = generator.normal(0.05, 0.2, (4, 8)).astype(np.float32)
                grads[:, 0] = generator.normal(0, 1e-3, 4)
                server.push("ads", EDGE_KEYS, grads)
            found[dtype] = server.pull("ads", EDGE_KEYS)
    np.testing.assert_array_equal(found["bfloat16"][:, 0], 0)
    np.testing.assert_allclose(found["bfloat16"], found["float32"], rtol=0.03)


def test_a_store_refuses_another_dtype_and_tells_older_versions(tmp_path: Path) -> None:
    narrow, lab = narrow_table(dim=8), Lab("native", tmp_path)
    lab.server(narrow).close()
    assert _version_of(lab.path) == 4
    wide = hps.TableConfig(name="ads", dim=8, optimizer=hps.SGD(lr=0.1))
    words = r"dtype is bfloat16, requested is float32.*'hps import --row-dtype float32'"
    with pytest.raises(hps.ConfigError, match=words):
        lab.server(wide)
    other = Lab("native", tmp_path / "other")
    other.server(wide).close()
    assert _version_of(other.path) == 1
    with pytest.raises(hps.ConfigError, match="dtype is float32, requested is bfloat16"):
        other.server(narrow)
    # How to round is not part of a stored row.
    lab.server(narrow_table(dim=8, rounding="nearest")).close()
    others = r"dtype is float32, requested is bfloat16.*'hps import --row-dtype bfloat16'"
    for made, asked, match in ((narrow, wide, words), (wide, narrow, others)):
        rocksdb = Lab("rocksdb", tmp_path / f"of {made.dtype}")
        rocksdb.server(made).close()
        assert (b"dtype" in (rocksdb.path / "ROCKSDB").read_bytes()) == (made is narrow)
        with pytest.raises(hps.ConfigError, match=match):
            rocksdb.server(asked)


def _version_of(store: Path) -> int:
    """The format version that CURRENT names."""
    return int.from_bytes((store / "CURRENT").read_bytes()[32:36], "little")


def test_what_cannot_have_narrow_rows_refuses_them_first(tmp_path: Path) -> None:
    table = narrow_table()
    gpu = hps.GpuCacheConfig(bytes="1GiB")
    with pytest.raises(hps.ConfigError, match=r"dtype='bfloat16', but .*gpu_cache on cuda:0"):
        hps.Config(path=tmp_path / "store", tables=[table], gpu=gpu)
    assert not (tmp_path / "store").exists()
    for field, value in (("dtype", "float16"), ("rounding", "up")):
        with pytest.raises(hps.ConfigError, match=f"{field}='{value}' must be one of"):
            hps.TableConfig(name="ads", dim=4, **{field: value})
    with pytest.raises(hps.ConfigError, match="beyond bfloat16"):
        narrow_table(initializer=hps.Constant(3.395e38))
    hps.TableConfig(name="ads", dim=4, initializer=hps.Constant(3.395e38))


def test_roundings_of_the_twin_and_of_numpy_are_those_of_the_page() -> None:
    generator = np.random.default_rng(1)
    bits = generator.integers(0, 2**32, 10_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values) & (np.abs(values) < 3.3e38)]
    np.testing.assert_array_equal(widened(narrowed(values)), to_nearest(values))
    below = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    zeros = np.zeros(len(values), np.uint32)
    np.testing.assert_array_equal(at_random(values, zeros), below)
    above = at_random(values, zeros + np.uint32(65535))
    assert ((np.abs(above) > np.abs(values)) | (values == below)).all()
    assert _C.row_layout("adam", 9, False, True)["row_bytes"] == 16 + 32 + 72 + 8
