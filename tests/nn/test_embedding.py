"""SparseEmbedding against torch.nn.EmbeddingBag, its arguments, and what it must not do."""

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch

import hps
from hps.common.bags import BagPooling, make_bags
from hps.contracts.updates import RowUpdate
from hps.nn.gradients import pending_of
from tests.front import one_feature_batch, open_server, random_bags
from tests.lab import random_floats


def rows_of(server: hps.ParameterServer, num_keys: int) -> torch.Tensor:
    return torch.as_tensor(server.pull("ads", torch.arange(num_keys))).clone()


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("num_features", [1, 3])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_output_and_gradient_equal_embedding_bag(
    tmp_path: Path, pooling: str, num_features: int, is_weighted: bool
) -> None:
    if pooling == "mean" and is_weighted:
        pytest.skip("torch.nn.EmbeddingBag has no weighted mean")
    generator = np.random.default_rng(3)
    keys, offsets = random_bags(generator, 6 * num_features, 4, 20)
    weights = torch.rand(len(keys)) if is_weighted else None
    with open_server(tmp_path) as server:
        reference = torch.nn.EmbeddingBag.from_pretrained(
            rows_of(server, 20), freeze=False, mode=pooling, include_last_offset=True
        )
        module = hps.SparseEmbedding(server, "ads", pooling=pooling)
        output = module(keys, offsets, weights, num_features=num_features)
        expected = reference(keys, offsets, weights).view(num_features, 6, 4)
        expected = expected.transpose(0, 1).reshape(6, -1)
        assert output.shape == (6, num_features * 4)
        torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-7)
        factor = torch.randn_like(output)
        (output * factor).sum().backward()
        (expected * factor).sum().backward()
        pending = pending_of(server).grads("ads")
        assert pending is not None and pending.shape == (6 * num_features, 4)
        by_bag = factor.view(6, num_features, 4).transpose(0, 1).reshape(-1, 4)
        assert torch.equal(pending, by_bag)
        before = rows_of(server, 20)
        hps.RowOptimizer(server).step()
        expected = before - 0.1 * reference.weight.grad
        torch.testing.assert_close(rows_of(server, 20), expected, rtol=1e-5, atol=1e-6)


def test_weighted_mean_divides_by_the_number_of_keys(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        rows = rows_of(server, 3)
        module = hps.SparseEmbedding(server, "ads", pooling="mean")
        weights = torch.tensor([2.0, 4.0])
        output = module(torch.tensor([1, 2]), torch.tensor([0, 2]), weights)
        torch.testing.assert_close(output[0], (2 * rows[1] + 4 * rows[2]) / 2)


def test_features_of_a_batch_stand_side_by_side(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        rows = rows_of(server, 10)
        ids = hps.Ids(keys_L=torch.tensor([1, 2, 3, 4]), offsets=torch.arange(5))
        batch = hps.Batch(features={"ads": ids}, dense=torch.zeros(2, 0), labels=torch.zeros(2))
        output = hps.SparseEmbedding(server, "ads")(batch)
        assert torch.equal(output[0], torch.cat([rows[1], rows[3]]))
        assert torch.equal(output[1], torch.cat([rows[2], rows[4]]))


def test_rows_pinned_by_another_server_are_looked_up_here(tmp_path: Path) -> None:
    keys = torch.tensor([1, 2])
    with open_server(tmp_path / "here") as server, open_server(tmp_path / "there") as other:
        rows = rows_of(server, 4)
        other.push("ads", keys, torch.ones(2, 4))
        with other.pin("ads", keys) as pinned:
            ids = hps.Ids(keys_L=keys, offsets=torch.arange(3))
            batch = hps.Batch(
                features={"ads": ids},
                dense=torch.zeros(2, 0),
                labels=torch.zeros(2),
                rows={"ads": pinned},
            )
            output = hps.SparseEmbedding(server, "ads")(batch)
            assert torch.equal(output, rows[[1, 2]])
            assert not torch.equal(hps.SparseEmbedding(other, "ads")(batch), output)


def test_unpooled_returns_one_embedding_a_key(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        rows = rows_of(server, 4)
        module = hps.SparseEmbedding(server, "ads", pooling=None)
        output = module(torch.tensor([3, 1, 3]))
        assert torch.equal(output, rows[[3, 1, 3]])
        output.sum().backward()
        assert torch.equal(pending_of(server).grads("ads"), torch.ones(3, 4))


def test_two_dimensional_keys_are_bags(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        rows = rows_of(server, 4)
        output = hps.SparseEmbedding(server, "ads")(torch.tensor([[1, 2], [3, 3]]))
        torch.testing.assert_close(output, torch.stack([rows[1] + rows[2], rows[3] + rows[3]]))


def test_offsets_without_the_last_one_are_accepted_when_asked_for(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        keys, starts = torch.tensor([1, 2, 3]), torch.tensor([0, 2])
        module = hps.SparseEmbedding(server, "ads", include_last_offset=False)
        expected = hps.SparseEmbedding(server, "ads")(keys, torch.tensor([0, 2, 3]))
        assert torch.equal(module(keys, starts), expected)


def test_uint64_and_numpy_keys_are_the_same_64_bits(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        module, offsets = hps.SparseEmbedding(server, "ads"), torch.tensor([0, 1, 2])
        unsigned = np.array([2**64 - 1, 2**63], dtype=np.uint64)
        expected = module(torch.tensor([-1, -(2**63)]), offsets)
        assert torch.equal(module(unsigned, offsets), expected)
        assert torch.equal(module(torch.from_numpy(unsigned), offsets), expected)


class JaggedLike:
    """What SparseEmbedding uses of a torchrec KeyedJaggedTensor."""

    def __init__(self, keys: torch.Tensor, offsets: torch.Tensor, stride: int) -> None:
        self._keys, self._offsets, self._stride = keys, offsets, stride

    def keys(self) -> list[str]:
        return ["a", "b"]

    def values(self) -> torch.Tensor:
        return self._keys

    def offsets(self) -> torch.Tensor:
        return self._offsets

    def weights_or_none(self) -> None:
        return None

    def stride(self) -> int:
        return self._stride


def test_keyed_jagged_tensor_equals_bare_keys(tmp_path: Path) -> None:
    keys, offsets = torch.tensor([5, 6, 7, 8]), torch.tensor([0, 1, 1, 3, 4])
    try:
        from torchrec import KeyedJaggedTensor

        jagged = KeyedJaggedTensor.from_offsets_sync(["a", "b"], keys, offsets)
    except ImportError:
        jagged = JaggedLike(keys, offsets, 2)
    with open_server(tmp_path) as server:
        module = hps.SparseEmbedding(server, "ads")
        output = module(jagged)
        assert output.shape == (2, 8)
        assert torch.equal(output, module(keys, offsets, num_features=2))


@pytest.mark.parametrize("mode", ["eval", "no_grad"])
def test_reading_collects_nothing_and_creates_nothing(tmp_path: Path, mode: str) -> None:
    with open_server(tmp_path) as server:
        module = hps.SparseEmbedding(server, "ads")
        batch = one_feature_batch([1, 2, 3])
        if mode == "eval":
            output = module.eval()(batch)
        else:
            with torch.no_grad():
                output = module(batch)
        assert output.shape == (3, 4) and not output.requires_grad
        assert pending_of(server).is_empty
        assert server.num_rows("ads") == 0


def test_training_forward_without_step_creates_nothing(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        hps.SparseEmbedding(server, "ads")(one_feature_batch([1, 2])).sum().backward()
        assert server.num_rows("ads") == 0


def test_module_has_no_parameters_and_no_state(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        module = torch.nn.Sequential(hps.SparseEmbedding(server, "ads"), torch.nn.Linear(4, 1))
        assert [name for name, _ in module.named_parameters()] == ["1.weight", "1.bias"]
        assert list(module.state_dict()) == ["1.weight", "1.bias"]


@pytest.mark.parametrize(
    ("offsets", "reason"),
    [
        ([0, 1], "last the number of keys"),
        ([1, 3], "first must be 0"),
        ([0, 2, 1, 3], "must not fall"),
        ([], "num_bags"),
        ([0.0, 3.0], "int64"),
    ],
)
def test_wrong_offsets_are_refused(tmp_path: Path, offsets: list[float], reason: str) -> None:
    with open_server(tmp_path) as server:
        module = hps.SparseEmbedding(server, "ads")
        with pytest.raises(hps.ConfigError, match=reason):
            module(torch.tensor([1, 2, 3]), torch.tensor(offsets))


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        module, keys, offsets = hps.SparseEmbedding(server, "ads"), torch.arange(2), torch.arange(3)
        with pytest.raises(hps.ConfigError, match="no table 'other'"):
            hps.SparseEmbedding(server, "other")
        with pytest.raises(hps.ConfigError, match="pooling='max'"):
            hps.SparseEmbedding(server, "ads", pooling="max")
        with pytest.raises(hps.ConfigError, match="int64 or uint64"):
            module(keys.float(), offsets)
        with pytest.raises(hps.ConfigError, match="needs offsets"):
            module(keys)
        with pytest.raises(hps.ConfigError, match=r"weights\[1\] is nan; weights must be finite"):
            module(keys, offsets, torch.tensor([1, torch.nan]))
        with pytest.raises(hps.ConfigError, match=r"float32 \[2\]"):
            module(keys, offsets, torch.ones(3))
        with pytest.raises(hps.ConfigError, match="num_features=3"):
            module(keys, offsets, num_features=3)
        with pytest.raises(hps.ConfigError, match="got str"):
            module("keys")


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_weights_get_the_gradient_that_torch_gives_them(tmp_path: Path, pooling: str) -> None:
    generator = np.random.default_rng(4)
    keys, offsets = random_bags(generator, 6, 9, 12)
    given = torch.from_numpy(generator.standard_normal(len(keys)).astype(np.float32))
    slope = torch.linspace(-1, 1, 3 * 8).view(3, 8)
    with open_server(tmp_path) as server:
        rows = rows_of(server, 12)
        module = hps.SparseEmbedding(server, "ads", pooling=pooling)
        weights = given.clone().requires_grad_()
        (module(keys, offsets, weights, num_features=2) * slope).sum().backward()
        hps.RowOptimizer(server).zero_grad()
    reference = given.clone().requires_grad_()
    is_mean = pooling == "mean"
    bags = [
        (rows[keys[a:b]] * reference[a:b, None]).sum(0) / (max(b - a, 1) if is_mean else 1)
        for a, b in zip(offsets.tolist(), offsets.tolist()[1:], strict=False)
    ]
    output = torch.stack(bags).view(2, 3, 4).transpose(0, 1).reshape(3, 8)
    (output * slope).sum().backward()
    torch.testing.assert_close(weights.grad, reference.grad)


def test_weights_that_learn_are_read_in_evaluation_too(tmp_path: Path) -> None:
    keys, offsets = torch.tensor([7, 8, 7]), torch.tensor([0, 2, 3])
    with open_server(tmp_path) as server:
        module = hps.SparseEmbedding(server, "ads")
        weights = torch.nn.Parameter(torch.tensor([1.0, 2.0, -1.0]))
        output = module(keys, offsets, weights)
        with torch.no_grad():
            assert torch.equal(module(keys, offsets, weights), output)
        evaluated = module.eval()(keys, offsets, weights)
        assert torch.equal(evaluated, output) and not evaluated.requires_grad


def test_what_becomes_of_offsets_and_weights_after_backward_does_not_count(tmp_path: Path) -> None:
    after = []
    for is_changed in (False, True):
        keys, offsets = torch.tensor([7, 8, 7]), torch.tensor([0, 2, 3])
        weights = torch.tensor([1.0, 2.0, -1.0])
        with open_server(tmp_path / str(is_changed), hps.SGD(lr=1.0)) as server:
            hps.SparseEmbedding(server, "ads")(keys, offsets, weights).sum().backward()
            if is_changed:
                offsets.zero_()
                weights.fill_(5)
            hps.RowOptimizer(server).step()
            after.append(rows_of(server, 10))
    assert torch.equal(after[0], after[1])


def test_bags_of_another_number_of_keys_are_refused(tmp_path: Path) -> None:
    bags = make_bags(torch.tensor([0, 2, 3]), 3, "test")
    pooling = BagPooling(bags, None, False)
    with open_server(tmp_path) as server:
        with pytest.raises(hps.ConfigError, match="bags of 3 keys, and 4 keys"):
            server.pull_pooled("ads", torch.arange(4), pooling, torch.empty(2, 4))
        update = RowUpdate("ads", torch.arange(4), torch.ones(2, 4), pooling=pooling)
        with pytest.raises(hps.ConfigError, match="bags of 3 keys, and 4 keys"):
            server.apply([update])


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_batch_that_the_cache_cannot_hold_is_pooled_to_the_same_bits(
    tmp_path: Path, pooling: str, weighted: bool
) -> None:
    generator = np.random.default_rng(4)
    keys, offsets = random_bags(generator, 400, 200, 30_000)
    weights = torch.from_numpy(random_floats(generator, len(keys))) if weighted else None
    outputs = []
    for budget in ("64KiB", "64MiB"):
        with open_server(tmp_path / budget, dram=budget) as server:
            module = hps.SparseEmbedding(server, "ads", pooling=pooling).eval()
            outputs.append(module(keys, offsets, weights, num_features=4))
            capacity = server.stats()["tables"]["ads"]["dram_cache"]["capacity_rows"]
            assert (capacity < len(keys.unique())) == (budget == "64KiB")
    assert torch.equal(outputs[0], outputs[1])


@pytest.mark.parametrize("seed", range(2))
def test_a_step_may_take_over_the_look_up_of_its_forward(tmp_path: Path, seed: int) -> None:
    """Whatever happened in between: rows came and went, were erased, set or put out."""
    digests, num_taken = [], 0
    for is_taken in (True, False):
        generator = np.random.default_rng(seed)
        with open_server(tmp_path / str(is_taken), hps.Adagrad(lr=0.1), dram="64KiB") as server:
            module, optimizer = hps.SparseEmbedding(server, "ads"), hps.RowOptimizer(server)
            stack = server.parts.tables.stacks["ads"]
            for _ in range(25):
                keys, offsets = random_bags(generator, 12, 12, 600)
                module(keys, offsets, num_features=3).sum().backward()
                some = torch.from_numpy(generator.integers(0, 3000, 200))
                match int(generator.integers(6)):
                    case 0:
                        server.erase("ads", some)
                    case 1:
                        server.assign("ads", some, torch.ones(len(some), 4))
                    case 2:
                        server.push("ads", some, torch.ones(len(some), 4))
                    case 3:
                        server.pull("ads", some, create=True)
                    case 4:
                        server.push("ads", keys, torch.ones(len(keys), 4))
                if not is_taken:
                    server.pull("ads", torch.arange(3))
                num_taken += stack.plan.matches(keys.numpy().view(np.uint64))
                optimizer.step()
            digests.append((server.digest("ads"), server.num_rows("ads")))
            assert server.stats()["dram_cache"]["evictions"] > 0
            assert server.stats()["dram_cache"]["pins"] == 0
    assert digests[0] == digests[1] and num_taken > 2


def test_forwards_of_other_kinds_make_one_step(tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    keys, offsets = random_bags(generator, 6, 40, 12)
    weights = torch.from_numpy(random_floats(generator, len(keys)))
    with open_server(tmp_path, hps.SGD(lr=1.0)) as server:
        before = rows_of(server, 12)
        total = torch.zeros(())
        for kind in ("sum", "mean", None):
            module = hps.SparseEmbedding(server, "ads", pooling=kind)
            output = module(keys) if kind is None else module(keys, offsets, weights)
            total = total + (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum()
        total.backward()
        grads = pending_of(server).grads("ads")
        assert grads is not None and len(grads) == 6 + 6 + len(keys)
        hps.RowOptimizer(server).step()
        after = rows_of(server, 12)
    reference = before.clone().requires_grad_()
    total = torch.zeros(())
    for kind in ("sum", "mean", None):
        rows = reference[keys]
        bags = [
            (rows[a:b] * weights[a:b, None]).sum(0) / (max(b - a, 1) if kind == "mean" else 1)
            for a, b in zip(offsets.tolist(), offsets.tolist()[1:], strict=False)
        ]
        output = rows if kind is None else torch.stack(bags)
        total = total + (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum()
    total.backward()
    torch.testing.assert_close(after, before - reference.grad)


def test_kept_graph_gives_its_gradient_after_the_rows_are_released(tmp_path: Path) -> None:
    with open_server(tmp_path, hps.SGD(lr=1.0)) as server:
        optimizer, module = hps.RowOptimizer(server), hps.SparseEmbedding(server, "ads")
        before = rows_of(server, 10)[[7, 8]]
        with hps.Pipeline([one_feature_batch([7, 8])], server) as batches:
            total = module(next(batches)).sum()
            total.backward(retain_graph=True)
            optimizer.step()  # releases the rows that the graph has read
            total.backward()
            optimizer.step()
        torch.testing.assert_close(rows_of(server, 10)[[7, 8]], before - 2)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_no_feature_and_no_example_keep_their_shapes(tmp_path: Path, pooling: str) -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    no_bags = hps.Ids(keys_L=nothing, offsets=torch.zeros(1, dtype=torch.int64))
    with open_server(tmp_path) as server:
        module = hps.SparseEmbedding(server, "ads", pooling=pooling)
        for num_examples, width in ((3, 0), (0, 4)):
            batch = hps.Batch({"ads": no_bags}, torch.zeros(num_examples, 0), torch.zeros(0))
            batch.labels = torch.zeros(num_examples)
            output = module(batch)
            assert output.shape == (num_examples, width)
            output.sum().backward()
        assert module(nothing, no_bags.offsets, num_features=3).shape == (0, 12)
        assert module(JaggedLike(nothing, no_bags.offsets, 0)).shape == (0, 8)
        hps.RowOptimizer(server).step()
        assert server.num_rows("ads") == 0


def test_deep_copy_shares_the_server(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        model = torch.nn.Sequential(hps.SparseEmbedding(server, "ads"), torch.nn.Linear(4, 1))
        copy = deepcopy(model.eval())
        batch = one_feature_batch([1, 2, 3])
        assert torch.equal(copy(batch), model(batch)) and not copy.training
        assert copy[0]._server is server and copy[0] is not model[0]
        copy.train()(batch).sum().backward()
        hps.RowOptimizer(server).step()
        assert server.num_rows("ads") == 3


def test_steps_of_one_forward_and_of_two_are_the_same_by_either_way(tmp_path: Path) -> None:
    """The only forward of a step goes the way of several tables; what the step before had, says
    which way is tried, and no bit hangs on it."""
    digests = []
    for name, goes_either_way in (("either", True), ("one", False)):
        with open_server(tmp_path / name, optimizer=hps.Adagrad(lr=0.1)) as server:
            module, optimizer = hps.SparseEmbedding(server, "ads"), hps.RowOptimizer(server)
            generator = np.random.default_rng(8)
            ways = []
            for num_forwards in (1, 2, 2, 1, 1):
                pending = pending_of(server)
                pending.expects_one_forward &= goes_either_way
                ways.append(pending.expects_one_forward)
                for _ in range(num_forwards):
                    keys, offsets = random_bags(generator, 6, 40, 20)
                    output = module(keys, offsets, num_features=2)
                    factor = torch.from_numpy(random_floats(generator, *output.shape))
                    (output * factor).sum().backward()
                optimizer.step()
            assert ways == ([True, True, False, False, True] if goes_either_way else [False] * 5)
            digests.append(server.digest("ads"))
    assert digests[0] == digests[1]
