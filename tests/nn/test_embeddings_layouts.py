"""SparseEmbeddings whose features have no names: what the first batch tells of them, and what it
does not; names, keys and offsets that cannot be meant.

Above it: pytest. Below it: test_embeddings_pinned.py, embeddings_lab.py.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from copy import copy, deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

import hps
from benchmarks.common.jagged import JaggedTensor
from hps.nn.gradients import pending_of
from tests.nn.embeddings_lab import FEATURES, Jagged, draw_batch, joint, open_tables, tiers_of
from tests.nn.test_embeddings_pinned import batch_of, ids_of

GPU = hps.GpuCacheConfig(bytes="4MiB", device="cpu")
Spoil = Callable[[hps.Ids], None]


def open_plain(
    folder: Path, names: Sequence[str] = ("a", "b"), kind: str = "dram"
) -> hps.ParameterServer:
    """Tables whose features have no names; kinds as open_tables."""
    tables = [hps.TableConfig(name=name, dim=4, optimizer=hps.SGD(lr=1.0)) for name in names]
    gpu = GPU if kind == "gpu" else None
    dram = hps.DramCacheConfig(bytes="1MiB")  # of which the twins make lists
    config = hps.Config(path=folder / "store", tables=tables, dram=dram, gpu=gpu)
    server = hps.ParameterServer(config, _tiers=tiers_of(kind))
    assert (server.joint is None) == (kind == "twins") and list(server.tables) == list(names)
    return server


def one_example(order: Sequence[str]) -> hps.Batch:
    """One key a feature, another in each; a table "two" has two features."""
    own = {"a": ids_of([7]), "b": ids_of([5]), "two": ids_of([3], [4])}
    return batch_of(1, **{table: own[table] for table in order})


def parts_of(module: hps.SparseEmbeddings, batch: hps.Batch) -> dict[str, list[float]]:
    """What a module says is each feature's, of one example."""
    with torch.no_grad():
        return {name: part[0].tolist() for name, part in module.by_name(batch).items()}


def rows_of(server: Any, batch: hps.Batch) -> dict[str, list[float]]:
    """The rows of such a batch, from the server."""
    found: dict[str, list[float]] = {}
    for table, ids in batch.features.items():
        rows = torch.as_tensor(server.pull(table, ids.keys_L)).tolist()
        found |= {f"{table}.{number}": row for number, row in enumerate(rows)}
    assert len(set(map(tuple, found.values()))) == len(found)
    return found


# What a first batch tells.


@pytest.mark.parametrize("weights_learn", [False, True])
@pytest.mark.parametrize("kind", ["dram", "gpu", "twins"])
@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_after_a_batch_without_examples_each_table_has_its_own_rows(
    tmp_path: Path, kind: str, weights_learn: bool, order: tuple[str, str]
) -> None:
    with open_plain(tmp_path, kind=kind) as server:
        module = hps.SparseEmbeddings(server)
        empty = batch_of(0, **{table: ids_of() for table in order})
        batch = one_example(order[::-1])
        if weights_learn:  # which goes table by table
            for ids in (*empty.features.values(), *batch.features.values()):
                ids.weights_L = torch.ones(len(ids.keys_L), requires_grad=True)
        assert len(module(empty)) == 0
        expected = rows_of(server, batch)
        assert parts_of(module, batch) == expected
        module(batch).sum().backward()
        hps.RowOptimizer(server).step()
        moved = {name: [one - 1 for one in row] for name, row in expected.items()}
        for name, row in rows_of(server, batch).items():
            assert row == pytest.approx(moved[name])


@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize("kind", ["dram", "gpu", "twins"])
def test_features_without_names_are_in_the_order_of_the_servers_tables(
    tmp_path: Path, kind: str, is_pinned: bool
) -> None:
    for number, order in enumerate(itertools.permutations(("a", "b", "two"))):
        with open_plain(tmp_path / str(number), ("b", "two", "a"), kind) as server:
            module, batch = hps.SparseEmbeddings(server), one_example(order)
            with hps.Pipeline([batch] if is_pinned else [], server, 1) as batches:
                output = module(next(batches, batch)).tolist()
            assert module.feature_names == ("b.0", "two.0", "two.1", "a.0")
            rows = rows_of(server, batch)
            assert output == [[one for name in module.feature_names for one in rows[name]]]
            assert parts_of(module, one_example(order[::-1])) == rows


@pytest.mark.parametrize("duplicate", [copy, deepcopy])
@pytest.mark.parametrize("kind", ["dram", "gpu", "twins"])
@pytest.mark.parametrize("orders", [("ab", "ba"), ("ba", "ab"), ("ab", "ab")])
def test_a_copy_made_before_the_first_batch_names_its_own_columns(
    tmp_path: Path, orders: tuple[str, str], kind: str, duplicate: Callable[[Any], Any]
) -> None:
    with open_plain(tmp_path, kind=kind) as server:
        first = hps.SparseEmbeddings(server)
        modules = (first, duplicate(first))
        for module, order in zip(modules, orders, strict=True):
            assert module.feature_names == ()
            module(one_example(order))
            assert len(module.feature_names) == 2
        hps.RowOptimizer(server).zero_grad()
        expected = rows_of(server, one_example("ab"))
        with hps.Pipeline(map(one_example, ("ab", "ba", "ab")), server, 1) as batches:
            for batch in batches:
                assert [parts_of(module, batch) for module in modules] == [expected, expected]


# A first batch that is refused tells nothing.


def offsets_beyond(ids: hps.Ids) -> None:
    ids.offsets[-1] += 1


def offsets_falling(ids: hps.Ids) -> None:
    ids.offsets[1] = ids.offsets[2] + 1


def offsets_late(ids: hps.Ids) -> None:
    ids.offsets[0] = 1


def offsets_of_numbers(ids: hps.Ids) -> None:
    ids.offsets = ids.offsets.float()


def offsets_missing(ids: hps.Ids) -> None:
    ids.offsets = ids.offsets[:-1]


def keys_of_32_bits(ids: hps.Ids) -> None:
    ids.keys_L = ids.keys_L.to(torch.int32)


def keys_missing(ids: hps.Ids) -> None:
    ids.keys_L = ids.keys_L[:-1]


def keys_of_two_dimensions(ids: hps.Ids) -> None:
    ids.keys_L = ids.keys_L[:, None]


def weights_missing(ids: hps.Ids) -> None:
    ids.weights_L = torch.ones(len(ids.keys_L) - 1)


SPOILS: list[Spoil] = [
    offsets_beyond,
    offsets_falling,
    offsets_late,
    offsets_of_numbers,
    offsets_missing,
    keys_of_32_bits,
    keys_missing,
    keys_of_two_dimensions,
    weights_missing,
]


@pytest.mark.parametrize("kind", ["dram", "gpu", "twins"])
@pytest.mark.parametrize("spoil", SPOILS)
def test_a_first_batch_that_is_refused_tells_of_no_features(
    tmp_path: Path, spoil: Spoil, kind: str
) -> None:
    bags = ([1], [2], [3], [4])  # two features of two examples
    with open_plain(tmp_path, kind=kind) as server:
        module = hps.SparseEmbeddings(server)
        wrong = batch_of(2, a=ids_of(*bags), b=ids_of(*bags))
        spoil(wrong.features["b"])
        for _ in range(2):
            with pytest.raises(hps.ConfigError):
                module(wrong)
            assert module.feature_names == () and pending_of(server).is_empty
        right = batch_of(2, a=ids_of([1], [2]), b=ids_of([3], [4]))
        assert module(right).shape == (2, 8)
        assert module.feature_names == ("a.0", "b.0")


@pytest.mark.parametrize("kind", ["dram", "gpu", "twins"])
def test_a_first_jagged_tensor_that_is_refused_tells_of_no_features(
    tmp_path: Path, kind: str
) -> None:
    with open_plain(tmp_path, ("a",), kind) as server:
        module = hps.SparseEmbeddings(server)
        with pytest.raises(hps.ConfigError, match="offsets"):
            module(JaggedTensor(["x", "y"], torch.tensor([1, 2]), torch.tensor([0, 1, 3])))
        assert not module.feature_names
        output = module(JaggedTensor(["z"], torch.tensor([1, 2]), torch.tensor([0, 1, 2])))
        assert output.shape == (2, 4) and module.feature_names == ("z",)


# Names that cannot be meant.


@pytest.mark.parametrize("own", [(), ("own",)])
def test_a_feature_that_two_tables_list_is_refused_by_name(
    tmp_path: Path, own: tuple[str, ...]
) -> None:
    tables = [
        hps.TableConfig(name="a", dim=4, features=(*own, "shared")),
        hps.TableConfig(name="b", dim=4, features=("shared",)),
    ]
    with (
        hps.ParameterServer(hps.Config(path=tmp_path / "store", tables=tables)) as server,
        pytest.raises(hps.ConfigError, match=r"^SparseEmbeddings: .*'shared'"),
    ):
        hps.SparseEmbeddings(server)


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        ({"a.0": "b", "a": 1}, r"'a\.0'"),
        ({"a": 1, "a.0": "b"}, r"'a\.0'"),
        ({"a": 2, "a.1": "b"}, r"'a\.1'"),
        (["a"], "features"),
        ("a", "features"),
        ({1: "a"}, "features"),
        ({None: 1}, "features"),
        ({"a": True}, "features"),
        ({"a": False}, "features"),
        ({"a": None}, "features"),
    ],
)
def test_features_that_are_no_names_or_one_name_twice_are_refused(
    tmp_path: Path, features: Any, reason: str
) -> None:
    with (
        open_plain(tmp_path) as server,
        pytest.raises(hps.ConfigError, match=f"^SparseEmbeddings: .*{reason}"),
    ):
        hps.SparseEmbeddings(server, features)


# Offsets and weights that cannot be meant.


def wrapped() -> hps.Batch:
    """Offsets that rise if their differences are taken in 64 bits: each is above 0."""
    offsets = torch.tensor([0, 2**62, 2**63 - 1, -(2**62), -1, 3])
    assert bool((offsets.diff() > 0).all())
    return batch_of(5, a=hps.Ids(torch.tensor([1, 2, 3]), offsets))


@pytest.fixture(params=["dram", "gpu", "twins"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[hps.ParameterServer]:
    with open_plain(tmp_path, ("a",), request.param) as server:
        yield server


@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda server: hps.SparseEmbeddings(server, {"a": 1}),
        lambda server: hps.SparseEmbeddings(server, {"a": 1}, "mean").eval(),
        lambda server: hps.SparseEmbedding(server, "a"),
        lambda server: hps.SparseEmbedding(server, "a", "mean").eval(),
    ],
    ids=["tables", "tables-eval", "table", "table-eval"],
)
def test_offsets_that_leave_64_bits_are_refused(
    server: hps.ParameterServer, make: Callable[[Any], torch.nn.Module], is_pinned: bool
) -> None:
    module = make(server)
    with pytest.raises(hps.ConfigError, match="offsets"):
        if is_pinned:
            with hps.Pipeline([wrapped()], server, 1) as batches:
                module(next(batches))
        else:
            module(wrapped())
    assert server.pins == 0 and pending_of(server).is_empty
    right = batch_of(1, a=ids_of([1, 2, 3]))
    assert module(right).isfinite().all()


def test_jagged_offsets_that_leave_64_bits_are_refused(server: hps.ParameterServer) -> None:
    ids = wrapped().features["a"]
    module = hps.SparseEmbeddings(server, {"x": "a"})
    with pytest.raises(hps.ConfigError, match="offsets"):
        module(JaggedTensor(["x"], ids.keys_L, ids.offsets))
    assert pending_of(server).is_empty


def weights_of_64_bits(jagged: Jagged) -> None:
    jagged.weights_L = jagged.weights_L.double()


def weights_of_two_dimensions(jagged: Jagged) -> None:
    jagged.weights_L = jagged.weights_L[:, None]


def offsets_of_two_dimensions(jagged: Jagged) -> None:
    jagged.offsets_L = jagged.offsets_L[:, None]


def offsets_of_two_columns(jagged: Jagged) -> None:
    jagged.offsets_L = torch.stack([jagged.offsets_L, jagged.offsets_L], dim=1)


@pytest.mark.parametrize("kind", ["dram", "gpu", "twins", "weights"])
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (weights_of_64_bits, "weights"),
        (weights_of_two_dimensions, "weights"),
        (offsets_of_two_dimensions, "offsets"),
        (offsets_of_two_columns, "offsets"),
    ],
)
def test_a_jagged_tensor_of_other_types_and_shapes_is_refused(
    tmp_path: Path, spoil: Callable[[Jagged], None], reason: str, kind: str
) -> None:
    jagged = Jagged(draw_batch(1), list(FEATURES))
    spoil(jagged)
    jagged.weights_L.requires_grad_(kind == "weights")  # which goes table by table
    with open_tables(tmp_path, kind=kind) as server:
        with pytest.raises(hps.ConfigError, match=reason):
            joint(server)(jagged)
        assert server.pins == 0 and pending_of(server).is_empty


def test_a_jagged_tensor_with_gaps_or_unsigned_keys_is_taken(tmp_path: Path) -> None:
    def with_gaps(values: torch.Tensor) -> torch.Tensor:
        return torch.stack([values, values], dim=1)[:, 0]

    plain, gaps, unsigned = (Jagged(draw_batch(1), list(FEATURES)) for _ in range(3))
    gaps.keys_L, gaps.offsets_L = with_gaps(gaps.keys_L), with_gaps(gaps.offsets_L)
    gaps.weights_L = with_gaps(gaps.weights_L)
    assert not gaps.keys_L.is_contiguous()
    unsigned.keys_L = unsigned.keys_L.view(torch.uint64)
    with open_tables(tmp_path) as server:
        module = joint(server).eval()
        wanted = module(plain)
        assert torch.equal(module(gaps), wanted) and torch.equal(module(unsigned), wanted)
