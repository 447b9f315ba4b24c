"""Models over several tables: rows side by side whatever their dims, and means of some features.

Above it: pytest. Below it: hps/models/base.py, hps/models/pooling.py.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

import hps
from hps.models import MODELS, ClickModel, WideAndDeep
from hps.models.pooling import BagMeans
from tests.front import open_server

LENGTHS = [0, 1, 2, 3, 31, 33, 64, 100]  # keys of an example's bag; runs of a sum have 32
COUNT = len(LENGTHS)


class Plain(ClickModel):
    has_deep_part = False


def ids_of(seed: int, num_features: int, *, has_weights: bool, first_key: int = 0) -> hps.Ids:
    """Each feature with keys of its own, so that a step of one changes no row of another."""
    random = np.random.default_rng(seed)
    lengths = np.concatenate([random.permutation(LENGTHS) for _ in range(num_features)])
    count = int(lengths.sum())
    features = np.repeat(np.repeat(np.arange(num_features), COUNT), lengths)
    keys = random.integers(0, 20, count) + 100 * features + first_key
    weights = random.normal(size=count).astype(np.float32) if has_weights else None
    return hps.Ids(
        torch.from_numpy(keys),
        torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])),
        None if weights is None else torch.from_numpy(weights),
    )


def one_feature(ids: hps.Ids, place: int) -> hps.Ids:
    offsets = ids.offsets[place * COUNT : (place + 1) * COUNT + 1]
    own = slice(int(offsets[0]), int(offsets[-1]))
    weights = None if ids.weights_L is None else ids.weights_L[own]
    return hps.Ids(ids.keys_L[own], offsets - offsets[0], weights)


def batch_of(**features: hps.Ids) -> hps.Batch:
    return hps.Batch(features, torch.zeros(COUNT, 0), torch.zeros(COUNT))


@pytest.mark.parametrize("has_weights", [False, True])
def test_means_have_the_bits_of_a_look_up_that_divides(tmp_path: Path, has_weights: bool) -> None:
    ads, bags = (ids_of(seed, 3, has_weights=has_weights) for seed in (1, 2))
    batch = batch_of(ads=ads, bags=bags)
    means = {"ads": [False, True, False], "bags": [True, True, True]}
    factors = torch.randn(COUNT, 6, 5, generator=torch.Generator().manual_seed(0))
    digests = []
    names = ("ads", "bags")
    with open_server(tmp_path / "model", hps.Adagrad(lr=0.1), dim=5, names=names) as server:
        model = Plain(server, dict.fromkeys(names, 3), 0)
        model.use_means(server, means)
        found = model.embed(batch)
        (found * factors).sum().backward()
        hps.RowOptimizer(server).step()
        digests.append([server.digest(name) for name in names])
        with torch.no_grad():
            after = model.eval().embed(batch)
    with open_server(tmp_path / "alone", hps.Adagrad(lr=0.1), dim=5, names=names) as server:
        parts = []
        for name, ids in (("ads", ads), ("bags", bags)):
            for place, is_mean in enumerate(means[name]):
                module = hps.SparseEmbedding(server, name, "mean" if is_mean else "sum")
                own = one_feature(ids, place)
                parts.append(module(own.keys_L, own.offsets, own.weights_L))
        expected = torch.stack(parts, dim=1)
        (expected * factors).sum().backward()
        hps.RowOptimizer(server).step()
        digests.append([server.digest(name) for name in names])
    assert torch.equal(found, expected) and digests[0] == digests[1]
    assert not torch.equal(after, found)
    sums = batch_of(ads=ads, bags=bags)
    with open_server(tmp_path / "sums", hps.Adagrad(lr=0.1), dim=5, names=names) as server:
        summed = Plain(server, dict.fromkeys(names, 3), 0).embed(sums)
    assert torch.equal(summed[:, 0], found[:, 0]) and not torch.equal(summed[:, 1], found[:, 1])


def test_a_table_of_one_pooling_is_divided_by_the_look_up_itself() -> None:
    columns = {"ads": 4, "bags": 4}
    assert BagMeans.of({"ads": [True, True], "bags": [False]}, columns) is None
    assert BagMeans.of({"ads": [True, False], "bags": [False]}, columns) is not None


def test_means_of_another_model_are_refused(tmp_path: Path) -> None:
    with open_server(tmp_path, dim=5) as server:
        model = Plain(server, {"ads": 3}, 0)
        for wrong in ({"ads": [True]}, {"users": [True]}):
            with pytest.raises(hps.ConfigError, match=r"Plain\.use_means: .* model has {'ads': 3}"):
                model.use_means(server, wrong)


SIDE_BY_SIDE = [
    kind for kind, one in MODELS.items() if one.takes_any_dims and not one.takes_sequences
]


@pytest.mark.parametrize("kind", SIDE_BY_SIDE)
def test_unequal_dims_lie_side_by_side(tmp_path: Path, kind: str) -> None:
    first = int(MODELS[kind].has_first_order)
    tables = [
        hps.TableConfig(name="wide", dim=6 + first),
        hps.TableConfig(name="thin", dim=1 + first),
    ]
    config = hps.Config(path=tmp_path, tables=tables, dram=hps.DramCacheConfig(bytes="8MiB"))
    thin, wide = (ids_of(seed, count, has_weights=False) for seed, count in ((1, 1), (2, 2)))
    batch = batch_of(wide=wide, thin=thin)
    with hps.ParameterServer(config) as server:
        model = MODELS[kind](server, {"thin": 1, "wide": 2}, 0, (4,))
        assert (model.width, model.dim, model.columns) == (13, 0, 0)
        assert model.dims_of_tables == {"thin": 1, "wide": 6}
        vectors, weights = model.embed_side_by_side(batch)
        assert vectors.shape == (COUNT, 13) and weights.shape == (COUNT, 3, first)
        of_wide = hps.SparseEmbedding(server, "wide")(batch).view(COUNT, 2, 6 + first)
        of_thin = hps.SparseEmbedding(server, "thin")(batch).view(COUNT, 1, 1 + first)
        rows = [of_thin[:, 0], of_wide[:, 0], of_wide[:, 1]]
        assert torch.equal(vectors, torch.cat([row[:, : row.shape[1] - first] for row in rows], 1))
        if first:
            assert torch.equal(weights, torch.stack([row[:, -1:] for row in rows], 1))
        logits = model(batch)
        logits.sum().backward()
        hps.RowOptimizer(server).step()
        assert logits.shape == (COUNT,) and not torch.equal(model(batch), logits)
        with pytest.raises(hps.ConfigError, match=r"'thin': .*'wide': .* embed_side_by_side takes"):
            model.embed(batch)


@pytest.mark.parametrize("kind", [kind for kind, one in MODELS.items() if not one.takes_any_dims])
def test_unequal_dims_are_refused_where_embeddings_are_multiplied(
    tmp_path: Path, kind: str
) -> None:
    columns = MODELS[kind].row_columns(4)
    with pytest.raises(hps.ConfigError) as refused:
        MODELS[kind].check_columns({"ads": columns, "users": columns + 3})
    assert "ads" in str(refused.value) or kind == "lr"
    if kind != "lr":
        assert "'users': 7} must be equal" in str(refused.value)
    with pytest.raises(hps.ConfigError, match="needs tables of"):
        WideAndDeep.check_columns({"ads": 4, "users": 1})


def test_a_compiled_model_divides_likewise(tmp_path: Path) -> None:
    ads = ids_of(1, 3, has_weights=False)
    batch = batch_of(ads=ads)
    with open_server(tmp_path, dim=5) as server:
        model = Plain(server, {"ads": 3}, 0)
        model.use_means(server, {"ads": [False, True, False]})
        compiled = torch.compile(model.embed, fullgraph=True, dynamic=True, backend="aot_eager")
        assert torch.equal(compiled(batch), model.embed(batch))
