"""RowOptimizer: one update a key, all or none, schedulers, GradScaler, accumulation, zero_grad."""

from pathlib import Path

import numpy as np
import pytest
import torch

import hps
from hps.nn.gradients import pending_of
from tests.front import open_server, random_bags


def pull(server: hps.ParameterServer, keys: list[int], table: str = "ads") -> torch.Tensor:
    return torch.as_tensor(server.pull(table, torch.tensor(keys))).clone()


@pytest.mark.parametrize(
    ("row_kind", "dense_kind"), [(hps.SGD, torch.optim.SGD), (hps.Adagrad, torch.optim.Adagrad)]
)
def test_one_step_equals_embedding_bag_and_torch_optimizer(
    tmp_path: Path, row_kind: type, dense_kind: type
) -> None:
    keys, offsets = random_bags(np.random.default_rng(1), 50, 5, 30)
    with open_server(tmp_path, row_kind(lr=0.1)) as server:
        reference = torch.nn.EmbeddingBag.from_pretrained(
            pull(server, list(range(30))), freeze=False, mode="sum", include_last_offset=True
        )
        dense_optimizer = dense_kind(reference.parameters(), lr=0.1)
        row_optimizer = hps.RowOptimizer(server)
        factor = torch.randn(50, 4)
        (hps.SparseEmbedding(server, "ads")(keys, offsets) * factor).sum().backward()
        (reference(keys, offsets) * factor).sum().backward()
        row_optimizer.step()
        dense_optimizer.step()
        touched = sorted(set(keys.tolist()))
        difference = pull(server, touched) - reference.weight.detach()[touched]
        assert float(difference.abs().max()) <= 1e-6
        assert server.num_rows("ads") == len(touched)


def test_step_without_gradient_changes_nothing(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        hps.RowOptimizer(server).step()
        assert server.num_rows("ads") == 0


def test_step_applies_a_gradient_once(tmp_path: Path) -> None:
    with open_server(tmp_path, hps.SGD(lr=1.0)) as server:
        optimizer = hps.RowOptimizer(server)
        before = pull(server, [7])
        hps.SparseEmbedding(server, "ads", pooling=None)(torch.tensor([7])).sum().backward()
        optimizer.step()
        optimizer.step()
        torch.testing.assert_close(pull(server, [7]), before - 1)


def test_accumulated_forwards_equal_one_forward_of_all(tmp_path: Path) -> None:
    """Adagrad tells one update of a sum from two updates."""
    parts = [[1, 2, 1], [2, 3], [1, 1, 1, 3]]
    results = []
    for pieces in (parts, [[key for part in parts for key in part]]):
        folder = tmp_path / str(len(pieces))
        with open_server(folder, hps.Adagrad(lr=0.1)) as server:
            module = hps.SparseEmbedding(server, "ads", pooling=None)
            outputs = [module(torch.tensor(piece)) for piece in pieces]
            grads = torch.sin(torch.arange(9 * 4, dtype=torch.float32)).view(9, 4)
            first = 0
            chunks = []
            for output in outputs:
                chunks.append(grads[first : first + len(output)])
                first += len(output)
            for output, chunk in reversed(list(zip(outputs, chunks, strict=True))):
                output.backward(chunk)
            assert torch.equal(pending_of(server).grads("ads"), grads)  # forward order
            hps.RowOptimizer(server).step()
            results.append(pull(server, [1, 2, 3]))
    assert torch.equal(results[0], results[1])


def test_second_backward_through_one_forward_sums(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        output = hps.SparseEmbedding(server, "ads", pooling=None)(torch.tensor([1, 2]))
        output.sum().backward(retain_graph=True)
        (2 * output).sum().backward()
        assert torch.equal(pending_of(server).grads("ads"), torch.full((2, 4), 3.0))


def test_gradient_buffers_are_reused_without_mixing_steps(tmp_path: Path) -> None:
    with open_server(tmp_path, hps.SGD(lr=1.0)) as server:
        module = hps.SparseEmbedding(server, "ads", pooling=None)
        optimizer = hps.RowOptimizer(server)
        before = pull(server, [1, 2, 3])
        for keys in ([1, 2, 3], [1], [2, 3], [3]):
            module(torch.tensor(keys)).sum().backward()
            optimizer.step()
        expected = before - torch.tensor([[2.0], [2.0], [3.0]])
        torch.testing.assert_close(pull(server, [1, 2, 3]), expected)


def test_zero_grad_drops_what_is_pending(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        optimizer = hps.RowOptimizer(server)
        hps.SparseEmbedding(server, "ads", pooling=None)(torch.tensor([7])).sum().backward()
        optimizer.zero_grad()
        optimizer.step()
        assert server.num_rows("ads") == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_gradient_changes_no_table(tmp_path: Path, bad: float) -> None:
    with open_server(tmp_path, names=("ads", "users")) as server:
        optimizer = hps.RowOptimizer(server)
        before = pull(server, [1]), pull(server, [2], "users")
        for table, key, factor in (("ads", 1, 1.0), ("users", 2, bad)):
            module = hps.SparseEmbedding(server, table, pooling=None)
            (module(torch.tensor([key])) * factor).sum().backward()
        for _ in range(2):  # what was refused stays pending, and is refused again
            with pytest.raises(hps.NonFiniteError, match="users"):
                optimizer.step()
        assert torch.equal(before[0], pull(server, [1]))
        assert torch.equal(before[1], pull(server, [2], "users"))
        assert server.num_rows("ads") == 0
        optimizer.zero_grad()
        optimizer.step()
        assert server.num_rows("ads") == 0


def test_scheduler_changes_the_learning_rate_of_rows(tmp_path: Path) -> None:
    with open_server(tmp_path, hps.SGD(lr=1.0)) as server:
        optimizer = hps.RowOptimizer(server)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        module = hps.SparseEmbedding(server, "ads", pooling=None)
        before = pull(server, [7])
        for _ in range(3):
            module(torch.tensor([7])).sum().backward()
            optimizer.step()
            scheduler.step()
        torch.testing.assert_close(pull(server, [7]), before - 1.75)


def test_state_dict_carries_learning_rates(tmp_path: Path) -> None:
    with open_server(tmp_path, names=("ads", "users")) as server:
        optimizer = hps.RowOptimizer(server)
        optimizer.param_groups[1]["lr"] = 0.25
        state = optimizer.state_dict()
        resumed = hps.RowOptimizer(server)
        resumed.load_state_dict(state)
        assert [group["lr"] for group in resumed.param_groups] == [0.1, 0.25]
        resumed.step()
        assert server.learning_rates == {"ads": 0.1, "users": 0.25}
        state["param_groups"][0]["table"] = "other"
        with pytest.raises(hps.ConfigError, match="other"):
            resumed.load_state_dict(state)


def test_rates_are_given_to_the_server_at_each_step(tmp_path: Path) -> None:
    """Also one that somebody else has changed there, and that of a tensor which changed."""
    with open_server(tmp_path, names=("ads", "users")) as server:
        optimizer = hps.RowOptimizer(server)
        rate = torch.tensor(0.5)
        optimizer.param_groups[1]["lr"] = rate
        optimizer.step()
        server.learning_rates["ads"] = 9.0
        optimizer.step()
        assert server.learning_rates == {"ads": 0.1, "users": 0.5}
        rate.fill_(0.25)
        optimizer.step()
        assert server.learning_rates == {"ads": 0.1, "users": 0.25}
        optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = 0.75, 1
        optimizer.step()
        assert server.learning_rates == {"ads": 0.75, "users": 1.0}
        server.learning_rates["ads"] = 9.0
        optimizer.step()
        assert server.learning_rates == {"ads": 0.75, "users": 1.0}


def test_wrong_learning_rate_and_dense_parameters_are_refused(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        optimizer = hps.RowOptimizer(server)
        with pytest.raises(hps.ConfigError, match="torch optimizer"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
        hps.SparseEmbedding(server, "ads", pooling=None)(torch.tensor([7])).sum().backward()
        optimizer.param_groups[0]["lr"] = float("nan")
        with pytest.raises(hps.ConfigError, match="lr=nan"):
            optimizer.step()
        assert server.num_rows("ads") == 0


def test_closure_is_evaluated_with_gradients_on(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        module = hps.SparseEmbedding(server, "ads", pooling=None)

        def closure() -> float:
            loss = module(torch.tensor([7])).sum()
            loss.backward()
            return float(loss.detach())

        with torch.no_grad():
            assert isinstance(hps.RowOptimizer(server).step(closure), float)
        assert server.num_rows("ads") == 1


def test_clipping_sees_row_gradients(tmp_path: Path) -> None:
    with open_server(tmp_path, hps.SGD(lr=1.0)) as server:
        optimizer = hps.RowOptimizer(server)
        before = pull(server, [7])
        hps.SparseEmbedding(server, "ads", pooling=None)(torch.tensor([7])).sum().backward()
        parameters = [group["params"][0] for group in optimizer.param_groups]
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        assert float(norm) == 2.0
        torch.testing.assert_close(pull(server, [7]), before - 0.5)


class AmpLoop:
    """A dense layer over two lookups of one table, stepped through a GradScaler."""

    def __init__(self, server: hps.ParameterServer, scale: float) -> None:
        self.module = hps.SparseEmbedding(server, "ads", pooling=None)
        self.dense = torch.nn.Linear(4, 1)
        self.row_optimizer = hps.RowOptimizer(server)
        self.dense_optimizer = torch.optim.SGD(self.dense.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale)

    def step(self, factor: float = 1.0, *, unscale: bool = False) -> None:
        for keys in ([1, 2], [2]):
            loss = self.dense(self.module(torch.tensor(keys))).sum() * factor
            self.scaler.scale(loss).backward()
        if unscale:
            self.scaler.unscale_(self.row_optimizer)
            self.scaler.unscale_(self.dense_optimizer)
        self.scaler.step(self.row_optimizer)
        self.scaler.step(self.dense_optimizer)
        self.scaler.update()
        self.dense_optimizer.zero_grad()


@pytest.mark.parametrize("unscale", [False, True])
def test_grad_scaler_unscales_row_gradients(tmp_path: Path, unscale: bool) -> None:
    results = []
    for scale in (1.0, 1024.0):
        torch.manual_seed(0)
        with open_server(tmp_path / str(scale)) as server:
            loop = AmpLoop(server, scale)
            loop.step(unscale=unscale)
            loop.step(unscale=unscale)
            results.append((pull(server, [1, 2]), loop.dense.weight.detach().clone()))
    assert torch.equal(results[0][0], results[1][0])  # a power of two changes no bit
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("unscale", [False, True])
def test_grad_scaler_skips_a_bad_step_and_goes_on(tmp_path: Path, unscale: bool) -> None:
    torch.manual_seed(0)
    with open_server(tmp_path) as server:
        loop = AmpLoop(server, 1024.0)
        before = loop.dense.weight.detach().clone()
        loop.step(float("inf"), unscale=unscale)
        assert server.num_rows("ads") == 0
        assert torch.equal(before, loop.dense.weight)
        assert pending_of(server).is_empty
        assert loop.scaler.get_scale() == 512.0
        loop.step(unscale=unscale)
        assert server.num_rows("ads") == 2
        assert not torch.equal(before, loop.dense.weight)
        loop.row_optimizer.step()  # without the scaler: no mark of it is left


def test_disabled_grad_scaler_is_a_plain_step(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        loop = AmpLoop(server, 1024.0)
        loop.scaler = torch.amp.GradScaler("cpu", enabled=False)
        loop.step()
        assert server.num_rows("ads") == 2


@pytest.mark.parametrize("rate", [0.0, 1e-45, -1.0])
def test_ftrl_refuses_a_rate_it_cannot_divide_by(tmp_path: Path, rate: float) -> None:
    with open_server(tmp_path, hps.FTRL(lr=0.1), names=("ads", "users")) as server:
        optimizer, module = hps.RowOptimizer(server), hps.SparseEmbedding(server, "ads")
        before = pull(server, [1, 2])
        module(torch.tensor([1, 2]), torch.tensor([0, 1, 2])).sum().backward()
        optimizer.param_groups[0]["lr"] = 0.5
        optimizer.param_groups[1]["lr"] = rate
        with pytest.raises(hps.ConfigError, match="table 'users': lr="):
            optimizer.step()
        assert server.learning_rates == {"ads": 0.1, "users": 0.1}
        assert torch.equal(pull(server, [1, 2]), before) and server.num_rows("ads") == 0


def test_sgd_takes_a_rate_of_nothing(tmp_path: Path) -> None:
    with open_server(tmp_path, hps.SGD(lr=0.0)) as server:
        before = pull(server, [1])
        module = hps.SparseEmbedding(server, "ads")
        module(torch.tensor([1]), torch.tensor([0, 1])).sum().backward()
        hps.RowOptimizer(server).step()
        assert torch.equal(pull(server, [1]), before)
