"""Rows packed in their slots: the same rows, whatever is asked of them, in fewer bytes.

Above it: pytest. Below it: tests/lab.py, hps._C.DramCache(packed=True). Caches are small enough
that rows leave and return all the time, but for those whose bytes are measured.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps import _C
from hps.parameter_server.opening import Tiers
from tests.lab import Lab, dump, evictions, keys_of, random_floats, random_keys

EDGE_KEYS = keys_of(0, 1, 2**63, 2**64 - 1)
DIMS = [1, 2, 5, 8, 16, 17, 32, 64, 100]


def a_table(dim: int, dtype: str = "float32") -> hps.TableConfig:
    return hps.TableConfig(
        name="ads", dim=dim, optimizer=hps.SGD(lr=0.1), dtype=dtype, rounding="nearest"
    )


def a_lab(path: Path, kind: str = "native", packed: bool = True) -> Lab:
    lab = Lab(kind, path)
    if packed:
        lab.make_cache = partial(_C.DramCache, packed=True)
        lab.tiers = Tiers(make_cache=lab.make_cache)
    return lab


def exercise(lab: Lab, table: hps.TableConfig, **how: Any) -> tuple[dict[int, bytes], str, bytes]:
    """Rows, digest and what keys read as, after pulls, pushes, assignments, erasure, a growth and a
    reopening."""
    generator = np.random.default_rng(5)
    server, pulled = lab.server(table, **how), []
    for step in range(12):
        keys = np.concatenate([random_keys(generator, 150, 400), EDGE_KEYS])
        pulled.append(server.pull("ads", keys).tobytes())
        server.push("ads", keys, random_floats(generator, len(keys), table.dim))
        few = random_keys(generator, 10, 400)
        server.assign("ads", few, random_floats(generator, len(few), table.dim))
        some = np.unique(few)
        rows = random_floats(generator, len(some), table.dim)
        server.parts.rows.assign_beside("ads", some, rows, 4, lambda: None)
        server.erase("ads", random_keys(generator, 5, 400))
        server.pull("ads", random_keys(generator, 5, 10**9), create=True)
        if step == 6:
            server.checkpoint()
            server.close()
            server = lab.server(table, **how)
    assert evictions(server) or how.get("scale", 1) > 1
    found = dump(server), server.digest("ads"), b"".join(pulled)
    server.close()
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dim", DIMS)
def test_packed_rows_are_the_rows(dim: int, dtype: str, tmp_path: Path) -> None:
    table = a_table(dim, dtype)
    expected = exercise(a_lab(tmp_path / "plain", packed=False), table)
    assert exercise(a_lab(tmp_path / "packed"), table) == expected
    assert exercise(a_lab(tmp_path / "below", "gpu"), table) == expected  # a gpu_cache over them
    assert exercise(a_lab(tmp_path / "large"), table, scale=20.0) == expected


@pytest.mark.parametrize("dim", [17, 64])
def test_instruction_sets_and_threads_give_the_same_bits(dim: int, tmp_path: Path) -> None:
    table = a_table(dim)
    expected = exercise(a_lab(tmp_path / "plain", packed=False), table)
    for number, how in enumerate(
        [{"instruction_set": "plain", "threads": 1}, {"instruction_set": "avx2", "threads": 3}]
    ):
        try:
            assert exercise(a_lab(tmp_path / str(number)), table, **how) == expected
        except hps.ConfigError as error:
            assert "processor lacks it" in str(error)


def test_a_store_is_opened_packed_or_not(tmp_path: Path) -> None:
    """What is on disk says nothing of it."""
    table, keys = a_table(17), EDGE_KEYS
    rows = random_floats(np.random.default_rng(1), len(keys), 17)
    with a_lab(tmp_path).server(table) as server:
        server.assign("ads", keys, rows)
        digest = server.digest("ads")
    with a_lab(tmp_path, packed=False).server(table) as server:
        assert server.digest("ads") == digest
        np.testing.assert_array_equal(server.pull("ads", keys), rows)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": hps.Adagrad()}, "of another optimizer than SGD, cannot be packed"),
        ({"statistics": True}, "rows with statistics, or of another"),
        ({"dtype": "bfloat16", "rounding": "stochastic"}, "use rounding='nearest'"),
    ],
)
def test_rows_that_have_more_than_key_and_weights_are_refused(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    table = hps.TableConfig(name="ads", dim=4, **{"optimizer": hps.SGD(lr=1.0), **given})
    with pytest.raises(hps.ConfigError, match=f"table 'ads': .*{message}"):
        hps.dram_cache.make_dram_caches(
            hps.Config(path=tmp_path, tables=[table]), partial(_C.DramCache, packed=True)
        )


def bytes_a_row(server: hps.ParameterServer) -> float:
    held = server.stats()["dram_cache"]
    assert held["evictions"] <= held["rows"] / 20_000
    return float(held["bytes"] / held["rows"])


def test_a_table_that_expects_its_rows_is_as_large_as_they_need(tmp_path: Path) -> None:
    """And grows by small steps from there on."""
    many, piece, table = 200_000, 10_000, a_table(17)
    keys = np.random.default_rng(2).permutation(np.arange(2 * many, dtype=np.uint64))
    slot_bytes, marks = 80, 4 + 1 / 64
    config = hps.Config(path=tmp_path, tables=[table], dram=hps.DramCacheConfig(bytes="256MiB"))
    tiers = Tiers(make_cache=partial(_C.DramCache, packed=True))
    with hps.ParameterServer(config, _tiers=tiers) as server:
        server.parts.rows.expect("ads", many)
        cache = server.parts.tables.stacks["ads"].cache
        before = cache.num_growths
        rows = np.zeros((piece, 17), np.float32)
        for first in range(0, many, piece):
            server.assign("ads", keys[first : first + piece], rows)
        assert cache.num_growths == before
        assert bytes_a_row(server) < (slot_bytes + marks) / 0.85
        most = 0.0
        for first in range(many, 2 * many, 2000):
            server.assign("ads", keys[first : first + 2000], rows[:2000])
            most = max(most, bytes_a_row(server))
        assert cache.num_growths > before + 8
        assert most < (slot_bytes + marks) / 0.81
        server.parts.rows.expect("ads", 10)  # it has more
        assert bytes_a_row(server) <= most
