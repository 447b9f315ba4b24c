"""The click models against their formulas written out, and what all of them keep."""

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

import hps
from hps.models import (
    DLRM,
    MODELS,
    AutoInt,
    ClickModel,
    DCNv2,
    DeepFM,
    FactorizationMachine,
    LogisticRegression,
    WideAndDeep,
)
from tests.front import open_server
from tests.kinds import POOLING

NUM_EXAMPLES, NUM_FEATURES, NUM_DENSE = 6, 3, 2


def make_batch(
    num_dense: int = NUM_DENSE,
    num_features: int = NUM_FEATURES,
    num_examples: int = NUM_EXAMPLES,
    tables: tuple[str, ...] = ("ads",),
) -> hps.Batch:
    generator = torch.Generator().manual_seed(1)
    num_keys = num_examples * num_features
    keys = torch.randint(0, 10, (num_keys,), generator=generator)
    ids = hps.Ids(keys_L=keys, offsets=torch.arange(num_keys + 1))
    dense = torch.randn(num_examples, num_dense, generator=generator) * 10
    labels = (torch.rand(num_examples, generator=generator) < 0.5).float()
    return hps.Batch(features=dict.fromkeys(tables, ids), dense=dense, labels=labels)


def hidden_of(kind: str) -> tuple[int, ...]:
    return (8, 4) if MODELS[kind].has_deep_part else ()


def open_for(
    folder: Path, kind: str, dim: int = 4, tables: tuple[str, ...] = ("ads",)
) -> hps.ParameterServer:
    """A server whose rows are those of a model of this dim."""
    columns = MODELS[kind].row_columns(dim)
    return open_server(folder, hps.Adagrad(lr=0.1), dim=columns, names=tables)


def make_model(server: hps.ParameterServer, kind: str, num_dense: int = NUM_DENSE) -> ClickModel:
    torch.manual_seed(0)
    more: dict[str, Any] = {"sequences": {1: 0}} if MODELS[kind].takes_sequences else {}
    return MODELS[kind](server, {"ads": NUM_FEATURES}, num_dense, hidden_of(kind), **more)


def parts(model: ClickModel, batch: hps.Batch) -> tuple[torch.Tensor, torch.Tensor]:
    return model.embed(batch), model.dense_of(batch)


def test_deepfm_is_its_formula(tmp_path: Path) -> None:
    with open_server(tmp_path, dim=5) as server:
        model, batch = make_model(server, "deepfm"), make_batch()
        assert isinstance(model, DeepFM) and model.dim == 4
        torch.nn.init.normal_(model.dense_first_order)
        rows, dense = parts(model, batch)
        for example, logit in enumerate(model(batch)):
            vectors = list(rows[example, :, :4])
            vectors += [dense[example, j] * model.dense_factors[j] for j in range(NUM_DENSE)]
            pairs = sum(left @ right for left, right in combinations(vectors, 2))
            linear = rows[example, :, 4].sum() + dense[example] @ model.dense_first_order
            deep = model.deep(torch.cat([rows[example, :, :4].flatten(), dense[example]]))
            torch.testing.assert_close(logit, model.bias + linear + pairs + deep[0])


def test_wide_deep_is_its_formula(tmp_path: Path) -> None:
    with open_server(tmp_path, dim=5) as server:
        model, batch = make_model(server, "wide_deep"), make_batch()
        assert isinstance(model, WideAndDeep)
        torch.nn.init.normal_(model.dense_first_order)
        rows, dense = parts(model, batch)
        for example, logit in enumerate(model(batch)):
            linear = rows[example, :, 4].sum() + dense[example] @ model.dense_first_order
            deep = model.deep(torch.cat([rows[example, :, :4].flatten(), dense[example]]))
            torch.testing.assert_close(logit, model.bias + linear + deep[0])


def test_dlrm_is_its_formula(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        model, batch = make_model(server, "dlrm"), make_batch()
        assert isinstance(model, DLRM) and model.bottom is not None
        rows, dense = parts(model, batch)
        for example, logit in enumerate(model(batch)):
            bottom = model.bottom(dense[example])
            vectors = [*rows[example], bottom]
            pairs = torch.stack([left @ right for left, right in combinations(vectors, 2)])
            torch.testing.assert_close(logit, model.top(torch.cat([bottom, pairs]))[0])


def test_dcn_v2_is_its_formula(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        model, batch = make_model(server, "dcn_v2"), make_batch()
        assert isinstance(model, DCNv2)
        rows, dense = parts(model, batch)
        for example, logit in enumerate(model(batch)):
            start = crossed = torch.cat([rows[example].flatten(), dense[example]])
            for cross in model.crosses:
                crossed = start * (cross.weight @ crossed + cross.bias) + crossed
            joined = torch.cat([crossed, model.deep(start)])
            torch.testing.assert_close(logit, model.output(joined)[0])


def lr_of(model: ClickModel, rows: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    """Of one example: rows [F, columns], dense [C]; so are the two below."""
    assert isinstance(model, LogisticRegression)
    return model.bias + rows.sum() + dense @ model.dense_first_order


def fm_of(model: ClickModel, rows: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    assert isinstance(model, FactorizationMachine) and model.dim == 4
    vectors = [*rows[:, :4], *(x * v for x, v in zip(dense, model.dense_factors, strict=True))]
    pairs = torch.stack([left @ right for left, right in combinations(vectors, 2)]).sum()
    return model.bias + rows[:, 4].sum() + dense @ model.dense_first_order + pairs


def autoint_of(model: ClickModel, rows: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    """Field by field and head by head, as equations 5 to 8 have it."""
    assert isinstance(model, AutoInt)
    fields = [*rows, *(x * v for x, v in zip(dense, model.dense_factors, strict=True))]
    for layer in model.layers:
        query, key, value, residual = layer.projections.weight.view(4, 2, 8, -1)
        mixed: list[list[torch.Tensor]] = [[] for _ in fields]
        for head in range(2):
            for place, field in enumerate(fields):
                scores = [(query[head] @ field) @ (key[head] @ other) for other in fields]
                shares = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
                values = torch.stack([value[head] @ other for other in fields])
                mixed[place].append(shares @ values)
        fields = [
            torch.relu(torch.cat(heads) + torch.cat([residual[0] @ field, residual[1] @ field]))
            for heads, field in zip(mixed, fields, strict=True)
        ]
    logit = model.output.weight[0] @ torch.cat(fields) + model.output.bias[0]
    if model.deep is not None:
        logit = logit + model.deep(torch.cat([rows.flatten(), dense]))[0]
    return logit


@pytest.mark.parametrize("num_dense", [0, NUM_DENSE])
@pytest.mark.parametrize(
    ("formula", "kind", "hidden"),
    [
        (lr_of, "lr", None),
        (fm_of, "fm", None),
        (autoint_of, "autoint", ()),
        (autoint_of, "autoint", (8, 4)),
    ],
)
def test_logits_and_gradients_are_those_of_the_formula_in_plain_torch(
    tmp_path: Path, formula: Any, kind: str, hidden: tuple[int, ...] | None, num_dense: int
) -> None:
    columns = MODELS[kind].row_columns(4)
    init = hps.Normal(std=0.5)
    table = hps.TableConfig(name="ads", dim=columns, optimizer=hps.SGD(lr=0.1), initializer=init)
    with hps.ParameterServer(hps.Config(path=tmp_path / "store", tables=[table])) as server:
        torch.manual_seed(0)
        model = MODELS[kind](server, {"ads": NUM_FEATURES}, num_dense, hidden)
        for name, parameter in model.named_parameters():
            if "first_order" in name or "bias" in name:
                torch.nn.init.normal_(parameter)
        batch = make_batch(num_dense)
        batch.dense /= 10
        keys = batch.features["ads"].keys_L
        distinct = keys.unique()
        known = torch.as_tensor(server.pull("ads", distinct)).clone().requires_grad_()
        # Keys lie feature after feature.
        rows = known[torch.searchsorted(distinct, keys)].view(NUM_FEATURES, NUM_EXAMPLES, columns)
        logits = [formula(model, rows[:, n], batch.dense[n]) for n in range(NUM_EXAMPLES)]
        expected = torch.stack(logits)
        loss_of = torch.nn.functional.binary_cross_entropy_with_logits
        wanted = torch.autograd.grad(
            loss_of(expected, batch.labels), [known, *model.parameters()], materialize_grads=True
        )
        found = model(batch)
        torch.testing.assert_close(found, expected)
        loss_of(found, batch.labels).backward()
        for gradient, parameter in zip(wanted[1:], model.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
        hps.RowOptimizer(server).step()
        moved = torch.as_tensor(server.pull("ads", distinct))
        assert wanted[0].abs().max() > 1e-3
        torch.testing.assert_close(moved, known.detach() - 0.1 * wanted[0])


def test_deepfm_keeps_the_bits_that_it_had_before_it_shared_its_pairs(tmp_path: Path) -> None:
    table = hps.TableConfig(name="ads", dim=17, initializer=hps.Normal(std=0.5))
    with hps.ParameterServer(hps.Config(path=tmp_path / "store", tables=[table])) as server:
        model, batch = make_model(server, "deepfm"), make_batch(num_examples=500)
        assert isinstance(model, DeepFM)
        torch.nn.init.normal_(model.bias)
        torch.nn.init.normal_(model.dense_first_order)

        def before(batch: hps.Batch) -> torch.Tensor:
            vectors, first_order = torch.split_with_sizes(model.embed(batch), [16, 1], dim=2)
            dense = model.dense_of(batch)
            total = vectors.sum(dim=1) + dense @ model.dense_factors
            squares = vectors.square().sum(dim=1) + dense.square() @ model.dense_factors.square()
            pairs = 0.5 * (total.square() - squares).sum(dim=1)
            linear = first_order.sum(dim=(1, 2)) + dense @ model.dense_first_order
            deep: torch.Tensor = model.deep(torch.cat([vectors.flatten(1), dense], dim=1))
            return model.bias + linear + pairs + deep.squeeze(1)

        names = {"bias", "dense_first_order", "dense_factors"}
        assert names == {name for name in model.state_dict() if not name.startswith("deep.")}
        row_optimizer = hps.RowOptimizer(server)
        gradients = []
        for forward in (before, model):
            logits = forward(batch)
            logits.square().sum().backward()
            gradients.append([logits.detach(), *(p.grad.clone() for p in model.parameters())])
            model.zero_grad()
            row_optimizer.zero_grad()
        assert all(map(torch.equal, *gradients))


@pytest.mark.parametrize("kind", POOLING)
def test_a_compiled_model_is_one_graph_with_the_logits_and_gradients_of_the_eager_one(
    tmp_path: Path, kind: str
) -> None:
    torch._dynamo.reset()
    with open_for(tmp_path, kind) as server:
        model = make_model(server, kind)
        # Gradients are traced, too, of two kinds, which is what takes the time.
        backend = "aot_eager" if kind in ("deepfm", "dlrm") else "eager"
        compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
        row_optimizer = hps.RowOptimizer(server)
        seen = []
        for forward in (model, compiled):
            for num_examples in (NUM_EXAMPLES, 5):
                logits = forward(make_batch(num_examples=num_examples))
                logits.square().sum().backward()
                row_optimizer.zero_grad()
                seen.append([logits.detach(), *(p.grad.clone() for p in model.parameters())])
                model.zero_grad()
        for eager, other in zip(seen[:2], seen[2:], strict=True):
            torch.testing.assert_close(eager, other)
    torch._dynamo.reset()


@pytest.mark.parametrize("num_dense", [0, 1])
@pytest.mark.parametrize("kind", POOLING)
def test_a_single_feature_of_one_float_and_an_empty_batch_are_taken(
    tmp_path: Path, kind: str, num_dense: int
) -> None:
    with open_for(tmp_path, kind, dim=1) as server:
        model = MODELS[kind](server, {"ads": 1}, num_dense, hidden_of(kind))
        row_optimizer = hps.RowOptimizer(server)
        for num_examples in (0, 1, 3):  # a rank's part of a batch may be none
            logits = model(make_batch(num_dense, 1, num_examples))
            logits.sum().backward()
            assert logits.shape == (num_examples,) and torch.isfinite(logits).all()
            assert all(parameter.grad is not None for parameter in model.parameters())
            row_optimizer.step()
        assert server.num_rows("ads") > 0


@pytest.mark.parametrize("kind", POOLING)
def test_the_features_of_two_tables_all_count(tmp_path: Path, kind: str) -> None:
    tables = ("ads", "users")
    with open_for(tmp_path, kind, tables=tables) as server:
        torch.manual_seed(0)
        model = MODELS[kind](server, dict.fromkeys(tables, NUM_FEATURES), 2, hidden_of(kind))
        batch = make_batch(tables=tables)
        keys = batch.features["ads"].keys_L.unique()
        assert model.num_features == 2 * NUM_FEATURES
        before = {table: torch.as_tensor(server.pull(table, keys)).clone() for table in tables}
        logits = model(batch)
        logits.square().sum().backward()
        hps.RowOptimizer(server).step()
        assert logits.shape == (NUM_EXAMPLES,)
        for table in tables:
            moved = torch.as_tensor(server.pull(table, keys)) != before[table]
            # An MLP's dead units may leave a float alone; a row as a whole has to move.
            assert moved.any(dim=1).all(), table


@pytest.mark.parametrize("num_dense", [0, NUM_DENSE])
@pytest.mark.parametrize("kind", list(MODELS))
def test_model_learns_a_batch_by_heart(tmp_path: Path, kind: str, num_dense: int) -> None:
    with open_for(tmp_path, kind) as server:
        model, batch = make_model(server, kind, num_dense), make_batch(num_dense)
        row_optimizer = hps.RowOptimizer(server)
        dense_optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(60):
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(batch), batch.labels)
            loss.backward()
            row_optimizer.step()
            dense_optimizer.step()
            dense_optimizer.zero_grad()
            losses.append(float(loss.detach()))
        assert model(batch).shape == (NUM_EXAMPLES,)
        assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("kind", list(MODELS))
def test_equal_seeds_make_equal_models(tmp_path: Path, kind: str) -> None:
    with open_for(tmp_path, kind) as server:
        first, second = make_model(server, kind).state_dict(), make_model(server, kind).state_dict()
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_two_tables_are_read_side_by_side(tmp_path: Path) -> None:
    with open_server(tmp_path, names=("ads", "users")) as server:
        batch = make_batch()
        ids = batch.features["ads"]
        batch.features = {"ads": ids, "users": ids}
        model = DLRM(server, {"ads": NUM_FEATURES, "users": NUM_FEATURES}, NUM_DENSE, (8,))
        assert model.embed(batch).shape == (NUM_EXAMPLES, 2 * NUM_FEATURES, 4)


def test_wrong_sizes_are_refused(tmp_path: Path) -> None:
    with open_server(tmp_path, dim=1) as server:
        with pytest.raises(hps.ConfigError, match="at least 2 columns"):
            DeepFM(server, {"ads": 3}, 2)
        with pytest.raises(hps.ConfigError, match="at least 2 columns"):
            FactorizationMachine(server, {"ads": 3}, 2)
        with pytest.raises(hps.ConfigError, match=r"no deep part, hidden=\(8,\)"):
            LogisticRegression(server, {"ads": 3}, 2, hidden=(8,))
        with pytest.raises(hps.ConfigError, match=r"no deep part, .* dropout=0.5"):
            LogisticRegression(server, {"ads": 3}, 2, (), 0.5)
        with pytest.raises(hps.ConfigError, match="at least one"):
            DLRM(server, {}, 2)
        with pytest.raises(hps.ConfigError, match="dropout"):
            DLRM(server, {"ads": 3}, 2, dropout=1.0)
        with pytest.raises(hps.ConfigError, match="4 features of 6 examples have 24"):
            DLRM(server, {"ads": 4}, 2)(make_batch())
        with pytest.raises(hps.ConfigError, match="dense columns"):
            DLRM(server, {"ads": 3}, 5)(make_batch())
    with (
        open_server(tmp_path / "wide", dim=2) as server,
        pytest.raises(hps.ConfigError, match="tables of 1 column, the weight; these have 2"),
    ):
        LogisticRegression(server, {"ads": 3}, 2)
