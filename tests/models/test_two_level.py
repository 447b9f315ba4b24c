"""Models of rows of two levels: the same logits and steps as over rows that hold both, to the bit.

Above it: pytest. Below it: hps/models/base.py, hps.SparseEmbeddings(beside=).
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest
import torch

import hps
from hps.models import MODELS, ClickModel, FactorizationMachine, first_order_table
from hps.pipeline import Pipeline
from tests.models.test_models import NUM_DENSE, NUM_FEATURES, hidden_of, make_batch
from tests.models.test_tables_of_features import COUNT, ids_of

KINDS = [kind for kind, model in MODELS.items() if not model.why_one_level()]
KEYS = np.arange(400, dtype=np.uint64)
ADAGRAD = hps.Adagrad(lr=0.1)


def two_tables(
    name: str, dim: int, score: float = 1.0, optimizer: Any = ADAGRAD
) -> list[hps.TableConfig]:
    first = first_order_table(name)
    rule = hps.Admission(by=first, min_score=score)
    return [
        hps.TableConfig(name=name, dim=dim, optimizer=optimizer, admission=rule),
        hps.TableConfig(name=first, dim=1, optimizer=optimizer, statistics=True),
    ]


class Pair:
    """Two servers of equal weights: whole rows, and rows of two levels."""

    def __init__(self, folder: Path, dims: Mapping[str, int], optimizer: Any = ADAGRAD) -> None:
        self.dims = dims
        whole = [
            hps.TableConfig(name=name, dim=dim + 1, optimizer=optimizer)
            for name, dim in dims.items()
        ]
        apart = [
            table
            for name, dim in dims.items()
            for table in two_tables(name, dim, optimizer=optimizer)
        ]
        self._held = ExitStack()
        self.whole, self.apart = (
            self._held.enter_context(hps.ParameterServer(hps.Config(path=path, tables=tables)))
            for path, tables in ((folder / "whole", whole), (folder / "apart", apart))
        )
        random = np.random.default_rng(3)
        for name, dim in dims.items():
            rows = random.normal(size=(len(KEYS), dim + 1)).astype(np.float32)
            self.whole.assign(name, KEYS, rows)
            self.apart.assign(name, KEYS, rows[:, :dim])
            self.apart.assign(first_order_table(name), KEYS, rows[:, dim:])

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

    def models(self, kind: str | type[ClickModel], count: int, num_dense: int) -> list[ClickModel]:
        """One over each server, of equal dense weights."""
        found = []
        made = MODELS[kind] if isinstance(kind, str) else kind
        for server in (self.whole, self.apart):
            torch.manual_seed(0)
            hidden = (8, 4) if made.has_deep_part else ()
            features = dict.fromkeys(self.dims, count)
            found.append(made(server, features, num_dense, hidden))
        return found

    def rows(self, name: str) -> list[Any]:
        """Of both servers, vectors and weights side by side."""
        parts = [self.apart.pull(table, KEYS) for table in (name, first_order_table(name))]
        return [np.asarray(self.whole.pull(name, KEYS)), np.concatenate(parts, axis=1)]


def stepped(server: hps.ParameterServer, model: ClickModel, batch: hps.Batch) -> torch.Tensor:
    torch.manual_seed(5)
    logits: torch.Tensor = model(batch)
    (logits * torch.linspace(-1, 1, len(batch))).sum().backward()
    hps.RowOptimizer(server).step()
    return logits.detach()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_both_layouts_give_the_same_bits(tmp_path: Path, kind: str, dropout: float) -> None:
    with Pair(tmp_path, {"ads": 4}) as pair:
        models, batch = pair.models(kind, NUM_FEATURES, NUM_DENSE), make_batch()
        before = pair.rows("ads")[0]
        logits = []
        for server, model in zip((pair.whole, pair.apart), models, strict=True):
            model.embedding_dropout = dropout
            logits += [stepped(server, model, batch) for _ in range(2)]
        assert torch.equal(logits[0], logits[2]) and torch.equal(logits[1], logits[3])
        assert not torch.equal(logits[0], logits[1])
        whole, apart = pair.rows("ads")
        assert np.array_equal(whole, apart) and not np.array_equal(whole, before)
        assert (models[1].dim, models[1].columns, models[1].width) == (4, 5, 4 * NUM_FEATURES)
        for one, other in zip(*(model.parameters() for model in models), strict=True):
            assert (one.grad is None) == (other.grad is None)
            assert one.grad is None or other.grad is None or torch.equal(one.grad, other.grad)


@pytest.mark.parametrize(
    "optimizer",
    [hps.SGD(lr=0.1, weight_decay=0.1), hps.Adam(lr=0.01), hps.FTRL(lr=0.1)],
    ids=lambda optimizer: optimizer.kind,
)
def test_optimizers_that_keep_a_number_a_weight_take_the_same_steps(
    tmp_path: Path, optimizer: Any
) -> None:
    with Pair(tmp_path, {"ads": 4}, optimizer) as pair:
        models = pair.models("fm", NUM_FEATURES, NUM_DENSE)
        before = pair.rows("ads")[0]
        for server, model in zip((pair.whole, pair.apart), models, strict=True):
            for _ in range(3):
                stepped(server, model, make_batch())
        whole, apart = pair.rows("ads")
        assert np.array_equal(whole, apart) and not np.array_equal(whole, before)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("dims", [{"ads": 4, "users": 4}, {"ads": 4, "users": 2}])
def test_tables_of_any_dims_with_sums_and_means(
    tmp_path: Path, dims: dict[str, int], weights: bool
) -> None:
    ids = {name: ids_of(place, 2, has_weights=weights) for place, name in enumerate(dims)}
    batch = hps.Batch(ids, torch.zeros(COUNT, 0), torch.zeros(COUNT))
    means = {"ads": [True, False], "users": [True, True]}
    with Pair(tmp_path, dims) as pair:
        models = pair.models("wide_deep", 2, 0)
        logits = []
        for server, model in zip((pair.whole, pair.apart), models, strict=True):
            model.use_means(server, means)
            logits.append(stepped(server, model, batch))
            vectors, first = model.embed_side_by_side(batch)
            assert (vectors.shape[1], first.shape[1:]) == (2 * sum(dims.values()), (4, 1))
        assert torch.equal(*logits)
        for name in dims:
            assert np.array_equal(*pair.rows(name))


class Plain(ClickModel):
    """What takes embed_side_by_side, of a user's own."""

    has_first_order: ClassVar[bool] = True
    has_deep_part: ClassVar[bool] = False
    takes_any_dims: ClassVar[bool] = True

    def forward(self, batch: hps.Batch) -> torch.Tensor:
        vectors, first = self.embed_side_by_side(batch)
        return vectors.square().sum(dim=1) + first.sum(dim=(1, 2))


def test_a_model_of_ones_own_has_both_layouts(tmp_path: Path) -> None:
    with Pair(tmp_path, {"ads": 4, "users": 2}) as pair:
        ids = ids_of(0, 1, has_weights=False)
        batch = hps.Batch({"ads": ids, "users": ids}, torch.zeros(COUNT, 0), torch.zeros(COUNT))
        whole, apart = pair.models(Plain, 1, 0)
        assert torch.equal(stepped(pair.whole, whole, batch), stepped(pair.apart, apart, batch))


def test_both_tables_are_looked_up_and_pinned_at_once(tmp_path: Path) -> None:
    with Pair(tmp_path, {"ads": 4}) as pair:
        _, model = pair.models("fm", NUM_FEATURES, NUM_DENSE)
        joint = pair.apart.joint
        assert joint is not None
        with mock.patch.object(joint, "look_up", wraps=joint.look_up) as look_up:
            model(make_batch())
        assert look_up.call_count == 1 and look_up.call_args.args[1].width == 5 * NUM_FEATURES
        raw = make_batch()
        both = raw.with_ids_of({"ads.first_order": "ads"})
        assert both.features["ads.first_order"] is raw.features["ads"]
        expected = model(raw).detach()
        with (
            mock.patch.object(joint, "look_up", side_effect=AssertionError),
            Pipeline([both], pair.apart, depth=1) as batches,
        ):
            for batch in batches:
                assert batch.rows is not None and set(batch.rows) == {"ads", "ads.first_order"}
                found = model(batch)
                assert torch.equal(found, expected)
                found.sum().backward()
                hps.RowOptimizer(pair.apart).step()
        # Of a batch of which one table was pinned each table is looked up by itself.
        with Pipeline([raw], pair.apart, depth=1) as batches:
            for batch in batches:
                assert not torch.equal(model(batch), expected)
                assert torch.equal(model(batch), model(raw))


def test_torch_compile_sees_one_graph(tmp_path: Path) -> None:
    both = make_batch().with_ids_of({"ads.first_order": "ads"})
    with Pair(tmp_path, {"ads": 4}) as pair:
        whole, apart = pair.models("fm", NUM_FEATURES, NUM_DENSE)
        compiled = torch.compile(apart, fullgraph=True, dynamic=True, backend="aot_eager")
        for server, model in ((pair.whole, whole), (pair.apart, compiled)):
            stepped(server, model, both)  # type: ignore[arg-type]
        assert np.array_equal(*pair.rows("ads"))


def test_a_vector_waits_as_it_was_and_learns_nothing(tmp_path: Path) -> None:
    config = hps.Config(path=tmp_path, tables=two_tables("ads", 4, score=0.25))
    with hps.ParameterServer(config) as server:
        model = FactorizationMachine(server, {"ads": NUM_FEATURES}, NUM_DENSE)
        batch = make_batch()  # of labels, which are clicks
        keys = np.unique(batch.features["ads"].keys_L.numpy()).astype(np.uint64)
        initial = [np.asarray(server.pull(name, keys)) for name in server.tables]
        stepped(server, model, batch)
        after = [np.asarray(server.pull(name, keys)) for name in server.tables]
        assert np.array_equal(initial[0], after[0]) and not (initial[1] == after[1]).any()
        seen = server.statistics("ads.first_order", keys)
        has_score = 0.1 * (seen["show"] - seen["click"]) + seen["click"] >= 0.25
        assert 0 < has_score.sum() < len(keys)
        stepped(server, model, batch)
        moved = (np.asarray(server.pull("ads", keys)) != initial[0]).all(axis=1)
        assert np.array_equal(moved, has_score)
        assert np.array_equal(np.asarray(server.contains("ads", keys)), has_score)


@pytest.mark.parametrize("kind", ["dlrm", "lr"])
def test_other_models_take_no_notice(tmp_path: Path, kind: str) -> None:
    tables = two_tables("ads", MODELS[kind].row_columns(4))
    with hps.ParameterServer(hps.Config(path=tmp_path, tables=tables)) as server:
        model = MODELS[kind](server, {"ads": NUM_FEATURES}, NUM_DENSE, hidden_of(kind))
        assert not model.first_order_tables and model.columns == tables[0].dim
        assert model(make_batch()).shape == (6,)


def test_a_table_of_features_may_have_the_name_of_one_of_weights(tmp_path: Path) -> None:
    tables = [hps.TableConfig(name=name, dim=3) for name in ("ads", "ads.first_order")]
    with hps.ParameterServer(hps.Config(path=tmp_path, tables=tables)) as server:
        model = Plain(server, {"ads": 1, "ads.first_order": 1}, 0)
        assert not model.first_order_tables and model.width == 4


def test_shared_ids_move_once() -> None:
    batch = make_batch().with_ids_of({"ads.first_order": "ads"}).to("meta")
    own = batch.features
    assert str(batch.labels.device) == str(own["ads"].keys_L.device) == "meta"
    assert own["ads"] is own["ads.first_order"] and len(own) == 2


class Sequences(Plain):
    takes_sequences: ClassVar[bool] = True


def test_tables_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    tables = two_tables("ads", 4)
    first = hps.TableConfig(name="ads.first_order", dim=2, statistics=True)
    users = hps.TableConfig(name="users", dim=4)
    for place, (made, given, message) in enumerate(
        (
            (Plain, [tables[0], first], "holds first-order weights: its dim must be 1, not 2"),
            (Plain, [*tables, users], r"no table 'users\.first_order'; give all tables"),
            (Sequences, tables, "looks at the keys of sequences one by one"),
        )
    ):
        features = {one.name: 2 for one in given if one.name in ("ads", "users")}
        config = hps.Config(path=tmp_path / str(place), tables=given)
        with (
            hps.ParameterServer(config) as server,
            pytest.raises(hps.ConfigError, match=message),
        ):
            made(server, features, 0)
    config = hps.Config(path=tmp_path / "names", tables=tables)
    with hps.ParameterServer(config) as server:
        for named in ({"ad": "ads"}, None):
            with pytest.raises(hps.ConfigError, match="do not go by their number"):
                hps.SparseEmbeddings(server, named, beside={"ads": "ads.first_order"})


@pytest.mark.parametrize(
    ("features", "beside", "pooling", "message"),
    [
        ({"ads": 1}, "w", "sum", "give a dict"),
        ({"ads": 1}, {"ads": 3}, "sum", "give a dict"),
        ({"ads": 1}, {"nope": "w"}, "sum", "no table 'nope'"),
        ({"ads": 1}, {"ads": "nope"}, "sum", "no table 'nope'"),
        ({"ads": 1}, {"ads": "ads"}, "sum", "'ads' comes behind another one"),
        ({"ads": 1, "w": 1}, {"ads": "w"}, "sum", "'w' comes behind another one"),
        ({"ads": 1, "x": "w"}, {"ads": "w"}, "sum", "'w' comes behind another one"),
        ({"ads": 1, "users": 1}, {"ads": "w", "users": "w"}, "sum", "'w' comes behind another"),
        ({"ads": 1, "users": 1}, {"ads": "w", "users": "ads"}, "sum", "'ads' comes behind"),
        ({"ads": 1}, {"ads": "w", "w": "users"}, "sum", "'w' do not go by their number"),
        ({"ads": 1}, {"ads": "w"}, {"ads": "mean", "w": "sum"}, "leave 'w' out of `pooling`"),
        ({"ads": 1}, {"ads": "w"}, {"w": "mean"}, "leave 'w' out of `pooling`"),
    ],
)
def test_tables_beside_one_another_are_told_once(
    tmp_path: Path, features: Any, beside: Any, pooling: Any, message: str
) -> None:
    tables = [hps.TableConfig(name=name, dim=2) for name in ("ads", "users", "w")]
    with (
        hps.ParameterServer(hps.Config(path=tmp_path, tables=tables)) as server,
        pytest.raises(hps.ConfigError, match=message),
    ):
        hps.SparseEmbeddings(server, features, pooling=pooling, beside=beside)
