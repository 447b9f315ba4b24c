"""The four click models against their formulas written out, and what all of them keep."""

from itertools import combinations
from pathlib import Path

import pytest
import torch

import hps
from hps.models import DLRM, MODELS, ClickModel, DCNv2, DeepFM, WideAndDeep
from tests.front import open_server

NUM_EXAMPLES, NUM_FEATURES, NUM_DENSE = 6, 3, 2


def make_batch(num_dense: int = NUM_DENSE) -> hps.Batch:
    generator = torch.Generator().manual_seed(1)
    num_keys = NUM_EXAMPLES * NUM_FEATURES
    keys = torch.randint(0, 10, (num_keys,), generator=generator)
    ids = hps.Ids(keys_L=keys, offsets=torch.arange(num_keys + 1))
    dense = torch.randn(NUM_EXAMPLES, num_dense, generator=generator) * 10
    labels = (torch.rand(NUM_EXAMPLES, generator=generator) < 0.5).float()
    return hps.Batch(features={"ads": ids}, dense=dense, labels=labels)


def make_model(server: hps.ParameterServer, kind: str, num_dense: int = NUM_DENSE) -> ClickModel:
    torch.manual_seed(0)
    return MODELS[kind](server, {"ads": NUM_FEATURES}, num_dense, hidden=(8, 4))


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


@pytest.mark.parametrize("num_dense", [0, NUM_DENSE])
@pytest.mark.parametrize("kind", list(MODELS))
def test_model_learns_a_batch_by_heart(tmp_path: Path, kind: str, num_dense: int) -> None:
    with open_server(tmp_path, hps.Adagrad(lr=0.1)) as server:
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
    with open_server(tmp_path) as server:
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
        with pytest.raises(hps.ConfigError, match="at least one"):
            DLRM(server, {}, 2)
        with pytest.raises(hps.ConfigError, match="dropout"):
            DLRM(server, {"ads": 3}, 2, dropout=1.0)
        with pytest.raises(hps.ConfigError, match="4 features of 6 examples have 24"):
            DLRM(server, {"ads": 4}, 2)(make_batch())
        with pytest.raises(hps.ConfigError, match="dense columns"):
            DLRM(server, {"ads": 3}, 5)(make_batch())
