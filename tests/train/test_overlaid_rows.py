"""Rows read from an overlay are those that the store would have, whatever bags they are in.

Above it: pytest. Below it: overlaid_rows.py, `hps._C.RowOverlay`, `TableBatch.lay_over`.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import hps
from hps import _C
from hps.common.bags import BagPooling, make_bags
from hps.contracts.joint import KeysByTable, Places
from hps.train.overlaid_rows import OverlaidRows
from hps.types import Ids

DIMS = {"ads": 4, "users": 16}
NUM_KEYS = 300


@pytest.fixture
def server(tmp_path: Path) -> Iterator[hps.ParameterServer]:
    """Two thirds of the keys have rows; some lie on disk alone."""
    tables = [hps.TableConfig(name=name, dim=dim) for name, dim in DIMS.items()]
    config = hps.Config(path=tmp_path, tables=tables, dram=hps.DramCacheConfig(bytes="60KiB"))
    with hps.ParameterServer(config) as opened:
        keys = np.arange(NUM_KEYS * 2 // 3, dtype=np.uint64)
        for name, dim in DIMS.items():
            opened.assign(name, keys, rows_of(np.random.default_rng(1), len(keys), dim))
        yield opened


def rows_of(random: np.random.Generator, count: int, dim: int) -> np.ndarray:
    rows: np.ndarray = random.standard_normal((count, dim), dtype=np.float32)
    return rows


def changes(random: np.random.Generator) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Of each table, keys with and without a row; some twice, of which the last one counts."""
    found = {}
    for name, dim in DIMS.items():
        keys = random.integers(0, NUM_KEYS, 120).astype(np.uint64)
        found[name] = keys, rows_of(random, len(keys), dim)
    return found


def ids_of(random: np.random.Generator, num_bags: int, is_single: bool, has_weights: bool) -> Ids:
    lengths = np.ones(num_bags, np.int64) if is_single else random.integers(0, 4, num_bags)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    keys = torch.from_numpy(random.integers(0, NUM_KEYS, int(offsets[-1])))
    weights = torch.from_numpy(rows_of(random, len(keys), 1)[:, 0]) if has_weights else None
    return Ids(keys, torch.from_numpy(offsets), weights)


def places(is_mean: bool) -> Places:
    """Two features of each table."""
    return Places.of(list(DIMS), [4, 16], [is_mean] * 2, [[0, 4], [8, 24]], [[0, 1], [2, 3]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_mean", [False, True])
@pytest.mark.parametrize(
    ("is_single", "has_weights"), [(True, False), (False, False), (False, True)]
)
def test_a_joint_look_up_reads_what_the_store_will_have(
    server: hps.ParameterServer,
    dtype: torch.dtype,
    is_mean: bool,
    is_single: bool,
    has_weights: bool,
) -> None:
    random = np.random.default_rng(7)
    changed, rows, where = changes(random), OverlaidRows(server), places(is_mean)
    overlays = {name: _C.RowOverlay(*given) for name, given in changed.items()}
    asked = [
        KeysByTable([ids_of(random, 2 * 9, is_single, has_weights) for _ in DIMS], 9)
        for _ in range(6)
    ]

    def look_up() -> list[torch.Tensor]:
        found = []
        for ids in asked:
            out = torch.full((9, where.width), 7.0, dtype=dtype)
            assert rows.joint is not None
            rows.joint.look_up(ids, where, out)
            found.append(out)
        return found

    before = look_up()
    rows.overlays = overlays
    laid = look_up()
    for name, (keys, values) in changed.items():  # half of them are there, and nothing is seen
        server.assign(name, keys[:60], values[:60])
    half = look_up()
    for name, (keys, values) in changed.items():
        server.assign(name, keys, values)
    rows.overlays = {}
    after = look_up()
    assert any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))
    for one, other, third in zip(laid, half, after, strict=True):
        assert torch.equal(one, third) and torch.equal(other, third)


def test_pulls_read_what_the_store_will_have(server: hps.ParameterServer) -> None:
    random = np.random.default_rng(3)
    changed, rows = changes(random), OverlaidRows(server)
    keys = random.integers(0, NUM_KEYS, 200)
    offsets = torch.tensor([0, 3, 3, 200])
    bags = BagPooling(make_bags(offsets, len(keys), "here"), None, True)

    def read(name: str) -> list[np.ndarray]:
        out = torch.empty(3, DIMS[name])
        rows.pull_pooled(name, torch.from_numpy(keys), bags, out)
        tensor = rows.pull(name, torch.from_numpy(keys))
        return [rows.pull(name, keys.astype(np.uint64)), tensor.numpy(), out.numpy()]

    rows.overlays = {name: _C.RowOverlay(*given) for name, given in changed.items()}
    laid = {name: read(name) for name in DIMS}
    rows.overlays = {}
    for name, given in changed.items():
        server.assign(name, *given)
        for one, other in zip(laid[name], read(name), strict=True):
            assert one.tobytes() == other.tobytes()


def test_rows_of_a_version_are_not_trained(server: hps.ParameterServer) -> None:
    rows = OverlaidRows(server)
    for verb in (
        lambda: rows.pull("ads", np.array([1]), create=True),
        lambda: rows.pin("ads", np.array([1])),
        lambda: rows.apply([]),
    ):
        with pytest.raises(hps.ConfigError, match="which are not trained"):
            verb()


def test_rows_are_set_in_pieces_wherever_they_lie(server: hps.ParameterServer) -> None:
    random = np.random.default_rng(5)
    pauses = []
    for name, (keys, values) in changes(random).items():
        before = server.num_rows(name)
        unique = np.unique(keys)
        is_new = ~np.isin(unique, np.arange(NUM_KEYS * 2 // 3))
        rows = server.parts.rows
        rows.assign_beside(name, keys, values, 50, lambda: pauses.append(1))
        last = {int(key): values[place] for place, key in enumerate(keys)}
        found = np.array(server.pull(name, unique))
        assert found.tobytes() == np.stack([last[int(key)] for key in unique]).tobytes()
        assert server.num_rows(name) == before + int(is_new.sum())
    assert len(pauses) == 2 * 3
