"""Outputs in bfloat16 are the float32 ones rounded; their gradients count for what they are.

Above it: pytest. Below it: embeddings_lab.py, and torch's own rounding after a float32 module.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from tests.nn.embeddings_lab import draw_batch, joint, open_tables, slope_of, tables, train
from tests.service.client.client_lab import service

NARROW = torch.bfloat16
NUM_BATCHES = 6
Result = tuple[list[bytes], dict[str, str]]


class Rounded(torch.nn.Module):
    """A module's outputs, rounded by torch, whose backward widens their gradients."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        output: torch.Tensor = self.module(*args, **kwargs)
        return output.to(NARROW)


def batches() -> list[hps.Batch]:
    return [draw_batch(seed) for seed in range(NUM_BATCHES)]


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Result]:
    """What rounding the float32 outputs makes of the batches, by batches a step."""
    found = {}
    for accumulate in (1, 2):
        with open_tables(tmp_path_factory.mktemp("rounded"), threads=1) as server:
            module = Rounded(joint(server))
            found[accumulate] = train(server, module, batches(), accumulate=accumulate)
    return found


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("instruction_set", ["auto", "avx512", "avx2", "plain"])
def test_outputs_are_rounded_and_rows_learn_the_same(
    tmp_path: Path, rounded: dict[int, Result], threads: int, instruction_set: str
) -> None:
    try:
        server = open_tables(tmp_path, threads=threads, instruction_set=instruction_set)
    except hps.ConfigError as error:
        pytest.skip(f"this processor: {error}")
    with server:
        assert train(server, joint(server, NARROW), batches()) == rounded[1]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("depth", [None, 0, 2])
def test_a_pipeline_changes_no_bit(
    tmp_path: Path, rounded: dict[int, Result], depth: int | None, accumulate: int
) -> None:
    with open_tables(tmp_path) as server:
        found = train(server, joint(server, NARROW), batches(), depth=depth, accumulate=accumulate)
    assert found == rounded[accumulate]


def test_rows_that_come_from_the_ssd_change_no_bit(
    tmp_path: Path, rounded: dict[int, Result]
) -> None:
    with open_tables(tmp_path, dram="1MiB") as server:
        found = train(server, joint(server, NARROW), batches())
        assert server.stats()["tables"]["most"]["dram_cache"]["evictions"] > 50
    assert found == rounded[1]


@pytest.mark.parametrize("kind", ["gpu", "twins"])
def test_over_other_caches_bits_are_the_same(
    tmp_path: Path, rounded: dict[int, Result], kind: str
) -> None:
    with open_tables(tmp_path, kind=kind) as server:
        assert train(server, joint(server, NARROW), batches()) == rounded[1]


def test_over_shards_bits_are_those_of_one_process(
    tmp_path: Path, rounded: dict[int, Result]
) -> None:
    with service(tmp_path, 2, tables=tables()) as servers, servers.client() as client:
        assert train(client, joint(client, NARROW), batches()) == rounded[1]


# One table.


def open_table(folder: Path, dim: int, **options: Any) -> hps.ParameterServer:
    table = hps.TableConfig(name="ads", dim=dim, optimizer=hps.Adagrad(lr=0.1))
    return hps.ParameterServer(hps.Config(path=folder, tables=[table], **{"threads": 2, **options}))


def single(num_examples: int, num_features: int = 1) -> hps.Batch:
    """A key a bag; many occur again."""
    keys = torch.randint(0, num_examples, (num_features * num_examples,))
    offsets = torch.arange(len(keys) + 1)
    return hps.Batch(
        {"ads": hps.Ids(keys, offsets)}, torch.zeros(num_examples, 0), torch.ones(num_examples)
    )


KINDS_OF_MODULES = ("joint", "one table")


@pytest.mark.parametrize(
    ("dim", "kind", "num_features"),
    [
        (dim, kind, 1 + (idx + place) % 2)
        for idx, dim in enumerate((1, 8, 16, 24, 32, 64, 100, 128))
        for place, kind in enumerate(KINDS_OF_MODULES)
    ],
)
def test_large_outputs_of_any_dim(tmp_path: Path, dim: int, num_features: int, kind: str) -> None:
    """Of more than a million floats, which are written past the caches."""
    num_examples = (1 << 20) // (dim * num_features) + 1
    torch.manual_seed(dim)
    batch = single(num_examples, num_features)
    outcomes = []
    for dtype in (torch.float32, NARROW):
        with open_table(tmp_path / str(dtype), dim) as server:
            module: torch.nn.Module = (
                hps.SparseEmbeddings(server, {"ads": num_features}, dtype=dtype)
                if kind == "joint"
                else hps.SparseEmbedding(server, "ads", dtype=dtype)
            )
            module = module if dtype == NARROW else Rounded(module)
            outcomes.append(train(server, module, [batch, batch]))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("instruction_set", ["auto", "avx2", "plain"])
def test_any_float32_is_rounded_as_torch_does(tmp_path: Path, instruction_set: str) -> None:
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**32, (4000, 33), np.uint32)
    bits[::3] &= 0xFFFF8000  # halves, which go to the even neighbour
    bits[1] = 0x7F7FFFFF  # the largest: rounded to infinity
    bits[2] = 0x00000001
    bits[3] = 0x80000000
    rows = bits.view(np.float32)
    rows[~np.isfinite(rows)] = 1.0
    keys = np.arange(4000, dtype=np.int64)
    try:
        server = open_table(tmp_path, 33, instruction_set=instruction_set)
    except hps.ConfigError as error:
        pytest.skip(f"this processor: {error}")
    with server:
        server.assign("ads", keys, rows)
        embedding = hps.SparseEmbedding(server, "ads", dtype=NARROW).eval()
        found = embedding(torch.from_numpy(keys), offsets=torch.arange(4001))
        expected = torch.from_numpy(rows).to(NARROW)
        assert torch.equal(found.view(torch.int16), expected.view(torch.int16))
        # A run of 32 rows sums to infinity, the next to minus infinity.
        server.assign("ads", keys[:2], np.full((2, 33), [[3e38], [-3e38]], np.float32))
        bag = torch.tensor([0] * 32 + [1] * 32)
        assert embedding(bag, offsets=torch.tensor([0, 32, 64])).isinf().all()
        assert embedding(bag, offsets=torch.tensor([0, 64])).isnan().all()


def plain(module: hps.SparseEmbedding) -> torch.Tensor:
    return module(torch.tensor([[3, 4], [3, 5], [7, 7]]))


def weighted(module: hps.SparseEmbedding) -> torch.Tensor:
    weights = torch.tensor([0.3, -0.7, 0.0, 1.1])
    return module(torch.tensor([3, 4, 3, 5]), torch.tensor([0, 2, 2, 4]), weights)


def learned_weights(module: hps.SparseEmbedding) -> torch.Tensor:
    weights = torch.tensor([0.3, -0.7, 0.0, 1.1], requires_grad=True)
    return module(torch.tensor([3, 4, 3, 5]), torch.tensor([0, 2, 2, 4]), weights)


def features(module: hps.SparseEmbedding) -> torch.Tensor:
    keys = torch.tensor([3, 4, 3, 5, 6, 7])
    return module(keys, torch.tensor([0, 2, 2, 4, 5, 5, 6]), num_features=2)


def unsigned(module: hps.SparseEmbedding) -> torch.Tensor:
    keys = torch.tensor([-3, 4, -3], dtype=torch.int64).view(torch.uint64)
    return module(keys, torch.tensor([0, 2, 3]))


Call = Callable[[hps.SparseEmbedding], torch.Tensor]
CALLS: list[Call] = [plain, weighted, learned_weights, features, unsigned]


@pytest.mark.parametrize("pooling", ["sum", "mean", None])
@pytest.mark.parametrize("call", CALLS)
def test_whatever_one_table_is_called_with(tmp_path: Path, call: Call, pooling: Any) -> None:
    if pooling is None and "weights" in call.__code__.co_varnames:
        pytest.skip("weights act in pooling")
    outcomes: list[Any] = []
    for dtype in (torch.float32, NARROW):
        with open_table(tmp_path / str(dtype), 20) as server:
            module = hps.SparseEmbedding(server, "ads", pooling, dtype=dtype)
            optimizer = hps.RowOptimizer(server)
            for _ in range(2):
                output = call(module)
                assert output.dtype == dtype
                output = output.to(NARROW)
                output.backward(slope_of(output))
                optimizer.step()
            read = call(module.eval()).to(NARROW)
            assert not read.requires_grad or "learned" in call.__name__
            outcomes.append((output.tolist(), read.tolist(), server.digest("ads")))
    assert outcomes[0] == outcomes[1]


def test_several_backwards_sum_unrounded(tmp_path: Path) -> None:
    """Through one forward, and of several forwards; and what may be read and clipped is float32."""
    outcomes = []
    for dtype in (torch.float32, NARROW):
        with open_tables(tmp_path / str(dtype)) as server:
            module = joint(server, dtype)
            optimizer = hps.RowOptimizer(server)
            for seed in range(3):
                output = module(draw_batch(seed)).to(NARROW)
                output.backward(slope_of(output), retain_graph=True)
                output.backward(slope_of(output) / 3)
                other = module(draw_batch(seed + 9)).to(NARROW)
                other.backward(slope_of(other))
                if seed == 1:
                    for group in optimizer.param_groups:
                        (rows,) = group["params"]
                        assert rows.grad.dtype == torch.float32
                        rows.grad.clamp_(-0.5, 0.5)
                optimizer.step()
            outcomes.append({name: server.digest(name) for name in server.tables})
    assert outcomes[0] == outcomes[1]


def test_a_gradient_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    with open_tables(tmp_path) as server:
        before = [server.digest(name) for name in server.tables]
        output = joint(server, NARROW)(draw_batch(1))
        slope = slope_of(output)
        slope[3] = torch.inf
        output.backward(slope)
        with pytest.raises(hps.NonFiniteError):
            hps.RowOptimizer(server).step()
        assert [server.digest(name) for name in server.tables] == before


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_module_has_the_same_bits(tmp_path: Path, rounded: dict[int, Result]) -> None:
    with open_tables(tmp_path) as server:
        module = torch.compile(joint(server, NARROW), fullgraph=True, backend="aot_eager")
        assert train(server, module, batches()) == rounded[1]


def test_copies_keep_it_and_other_dtypes_are_refused(tmp_path: Path) -> None:
    with open_tables(tmp_path) as server:
        for module in (joint(server, NARROW), hps.SparseEmbedding(server, "one", dtype=NARROW)):
            assert deepcopy(module)(draw_batch(0)).dtype == NARROW
        for dtype in (torch.float16, torch.float64, torch.int16):
            with pytest.raises(hps.ConfigError, match="dtype"):
                joint(server, dtype)
            with pytest.raises(hps.ConfigError, match="dtype"):
                hps.SparseEmbedding(server, "one", dtype=dtype)
