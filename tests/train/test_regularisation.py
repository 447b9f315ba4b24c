"""Weight decay and dropout of embeddings in a training run: what they do, how a run goes on.

Above it: pytest. Below it: `hps.train`, `hps.models`. The arithmetic of the rows' decay is held by
tests/contracts/test_optimizers.py.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.checkpoint.blobs import table_from_json, table_to_json
from hps.cli.main import make_parser
from hps.config import TableConfig
from hps.models import MODELS
from hps.service.client.options import ClientConfig
from hps.service.messages.table_messages import from_message, to_message
from hps.train import TrainOptions, evaluate_store, train
from hps.train.recipe import ModelRecipe
from hps.train.shape_rules import what_it_lacks
from tests.kinds import POOLING
from tests.lab import DECAYING, optimizer_id
from tests.logs import write_criteo
from tests.service.client.client_lab import service

pytestmark = pytest.mark.usefixtures("one_torch_thread")
DECAYS = {"weight_decay": 0.5, "dense_weight_decay": 2.0}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    log = write_criteo(tmp_path / "log", 640)

    def trained(store: str = "store", **changes: Any) -> dict[str, Any]:
        values: dict[str, Any] = {"store": tmp_path / store, "dim": 4, "hidden": (8,), "depth": 0}
        values |= {"batch_size": 64, "dram": "8MiB", "threads": 1, "seed": 3}
        if changes.get("resume"):
            values = {k: value for k, value in values.items() if k not in ("dim", "hidden")}
        if "remote" in changes:
            del values["store"]
        return train(TrainOptions(data=[log], **{**values, **changes}))

    return trained


def state_of(folder: Path) -> dict[str, Any]:
    with hps.open(folder) as server:
        state, _ = server.checkpoint_state("final")
    assert state is not None
    return state


@pytest.mark.parametrize("name", DECAYS)
def test_a_decay_shrinks_its_part_of_the_model_and_0_changes_no_bit(
    tmp_path: Path, run: Any, name: str
) -> None:
    plain, nothing = run("plain"), run("nothing", **{name: 0.0})
    decayed = run("decayed", **{name: 20.0})
    for figure in ("digests", "loss_digest"):
        assert plain[figure] == nothing[figure] != decayed[figure]
    norms = []
    for store in ("plain", "decayed"):
        if name == "weight_decay":
            with hps.open(tmp_path / store) as server:
                norms.append(
                    sum(float(np.square(rows).sum()) for _, rows in server.items("features"))
                )
        else:
            weights = state_of(tmp_path / store)["model"]
            norms.append(sum(float(value.square().sum()) for value in weights.values()))
    assert norms[1] < 0.95 * norms[0]


def test_the_dense_parts_optimizer_is_adamw(tmp_path: Path, run: Any) -> None:
    run(dense_weight_decay=3.0)
    state = state_of(tmp_path / "store")
    group = state["dense_optimizer"]["param_groups"][0]
    assert group["weight_decay"] == 3.0 and group["decoupled_weight_decay"] is True


@pytest.mark.parametrize("model", ["deepfm", "lr"])
def test_a_stopped_run_goes_on_with_its_decays_and_dropout_to_the_same_bits(
    run: Any, model: str
) -> None:
    more: dict[str, Any] = {"embedding_dropout": 0.3, "model": model, "epochs": 2, **DECAYS}
    more |= what_it_lacks(model)
    whole = run("whole", **more)
    run(limit=448, **more)
    resumed = run(resume=True, epochs=2)
    assert resumed["examples"] == 1280 - 448 and resumed["resumed_with"] == []
    for figure in ("digests", "loss_digest", "train_logloss"):
        assert resumed[figure] == whole[figure]


def test_a_given_decay_wins_over_the_stored_one(tmp_path: Path, run: Any) -> None:
    run(limit=128)
    figures = run(resume=True, limit=256, **DECAYS)
    assert figures["resumed_with"] == [
        "weight_decay 0 of the checkpoint is now 0.5",
        "dense_weight_decay 0 of the checkpoint is now 2",
    ]
    assert run(resume=True, limit=320)["resumed_with"] == []
    with hps.open(tmp_path / "store") as server:
        assert server.tables["features"].optimizer.weight_decay == 0.5
    group = state_of(tmp_path / "store")["dense_optimizer"]["param_groups"][0]
    assert group["weight_decay"] == 2.0 and group["decoupled_weight_decay"] is True
    figures = run(resume=True, weight_decay=0.0)
    assert figures["resumed_with"] == ["weight_decay 0.5 of the checkpoint is now 0"]
    with hps.open(tmp_path / "store") as server:
        assert server.tables["features"].optimizer.weight_decay == 0


def test_a_decay_that_the_stored_rate_cannot_have_is_refused_before_the_store_goes_back(
    run: Any,
) -> None:
    rate = {"lr": 0.004, "weight_decay": 200.0}  # more than a new run's rate could have
    digests = run(limit=128, **rate)["digests"]
    with pytest.raises(hps.ConfigError, match=r"weight_decay=251.0 .*lr=0.004 .*--lr\)"):
        run(resume=True, weight_decay=251.0)
    with pytest.raises(hps.ConfigError, match=r"weight_decay=200.0 .*lr=0.006"):
        run(resume=True, lr=0.006)
    figures = run(resume=True, limit=128)
    assert figures["digests"] == digests and figures["examples"] == 0
    assert run(resume=True)["examples"] == 512


def test_dropout_of_embeddings_is_part_of_the_model(run: Any) -> None:
    run(embedding_dropout=0.25, limit=128)
    with pytest.raises(
        hps.ConfigError, match=r"embedding_dropout=0.25, .* asks for 0.5 \(--embedding-dropout\)"
    ):
        run(resume=True, embedding_dropout=0.5)
    assert run(resume=True)["examples"] == 512


@pytest.mark.parametrize("kind", POOLING)
def test_embeddings_drop_elements_in_training_alone(tmp_path: Path, kind: str) -> None:
    made = MODELS[kind]
    tables = [TableConfig(name="ads", dim=made.row_columns(4), initializer=hps.Constant(1.0))]
    keys = torch.arange(120)
    batch = hps.Batch(
        {"ads": hps.Ids(keys, offsets=torch.arange(121))}, torch.ones(60, 3), torch.ones(60)
    )
    config = hps.Config(path=tmp_path, tables=tables, dram=hps.DramCacheConfig(bytes="1MiB"))
    with hps.ParameterServer(config) as server:
        model = made(server, {"ads": 2}, num_dense=3)
        model.embedding_dropout = 0.25
        torch.manual_seed(5)
        first, second = model.embed(batch), model.embed(batch)
        torch.manual_seed(5)
        assert torch.equal(model.embed(batch), first) and not torch.equal(first, second)
        many = torch.cat([model.embed(batch) for _ in range(40)])
        torch.testing.assert_close(many.unique(), torch.tensor([0.0, 1 / 0.75]))
        assert float((many == 0).float().mean()) == pytest.approx(0.25, abs=0.03)
        first_order = many[..., -1]
        assert 0 < float((first_order == 0).float().mean()) < 1
        model.eval()
        state = torch.get_rng_state()
        assert bool((model.embed(batch) == 1).all())
        model.train().embedding_dropout = 0.0
        assert bool((model.embed(batch) == 1).all())
        assert torch.equal(torch.get_rng_state(), state)


def test_rows_of_sequences_drop_elements_as_others_do(tmp_path: Path) -> None:
    table = TableConfig(name="ads", dim=4, initializer=hps.Constant(1.0))
    ids = hps.Ids(torch.arange(180), offsets=torch.tensor([*range(60), *range(60, 181, 2)]))
    batch = hps.Batch({"ads": ids}, torch.ones(60, 3), torch.ones(60))
    with hps.ParameterServer(hps.Config(path=tmp_path, tables=[table])) as server:
        model = MODELS["din"](server, {"ads": 2}, num_dense=3, sequences={1: 0})
        model.embedding_dropout = 0.25
        for _ in range(2):
            target, sequence = model.embed_apart(batch)
            for values in (target, sequence.rows):  # type: ignore[union-attr]
                torch.testing.assert_close(values.unique(), torch.tensor([0.0, 1 / 0.75]))
        model.eval()
        target, sequence = model.embed_apart(batch)
        assert bool((target == 1).all() and (sequence.rows == 1).all())  # type: ignore[union-attr]


def test_progressive_scores_and_measuring_are_without_the_dropout(tmp_path: Path, run: Any) -> None:
    test_log = write_criteo(tmp_path / "test", 200, seed=1)
    plain = run("plain", limit=64, embedding_dropout=0.5)
    told = run("told", limit=64, embedding_dropout=0.5, progressive=True, test=[test_log])
    assert told["digests"] == plain["digests"]  # scoring draws nothing
    bare = run("bare", limit=64, progressive=True)  # the first batch, of an untrained model
    assert told["progressive"] == bare["progressive"] != []
    state = state_of(tmp_path / "told")
    measured = evaluate_store([test_log], tmp_path / "told")
    assert measured["auc"] == told["test_auc"] and state["recipe"]["embedding_dropout"] == 0.5


def test_a_recipe_and_a_table_of_an_earlier_version_have_none_of_it() -> None:
    recipe = ModelRecipe(
        kind="deepfm", features={"ads": ["a"]}, num_dense=0, hidden=[8], dropout=0.0, reader={}
    )
    assert "embedding_dropout" not in recipe.to_dict()
    assert ModelRecipe.from_dict(recipe.to_dict()).embedding_dropout == 0
    with pytest.raises(hps.ConfigError, match=r"embedding_dropout=0.0, .* asks for 0.5"):
        recipe.check_same(replace(recipe, embedding_dropout=0.5))
    one = TableConfig(name="ads", dim=4, optimizer=hps.Adam())
    stored = json.dumps(table_to_json(one))
    assert "weight_decay" not in stored and table_from_json(json.loads(stored)) == one
    assert "weight_decay" not in to_message(one).optimizer.numbers
    assert from_message(to_message(one)) == one


@pytest.mark.parametrize("optimizer", DECAYING, ids=optimizer_id)
def test_a_tables_decay_is_kept_and_travels(
    tmp_path: Path, optimizer: hps.common.optimizers.Optimizer
) -> None:
    one = TableConfig(name="ads", dim=4, optimizer=optimizer)
    assert table_from_json(json.loads(json.dumps(table_to_json(one)))) == one
    assert from_message(to_message(one)) == one
    with hps.ParameterServer(hps.Config(path=tmp_path, tables=[one])) as server:
        server.push("ads", np.array([1], np.uint64), np.ones((1, 4), np.float32))
        server.checkpoint()
    with hps.open(tmp_path) as server:
        assert server.tables["ads"].optimizer == optimizer


def test_servers_refuse_a_decay_that_is_not_their_tables(tmp_path: Path, run: Any) -> None:
    embedded = run("embedded", limit=128, weight_decay=0.5, seed=0)
    with service(tmp_path / "servers", 2, tables=()) as servers:
        where = {"remote": ClientConfig(addresses=servers.addresses, client_id="trainer")}
        served = run(**where, limit=128, weight_decay=0.5, seed=0)
        assert served["digests"] == embedded["digests"]
        with pytest.raises(hps.ConfigError, match=r"weight_decay=0.5.* not .*weight_decay=0.25"):
            run(**where, resume=True, weight_decay=0.25, seed=0)
        assert run(**where, resume=True, seed=0)["examples"] == 512


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weight_decay": -0.1}, r"weight_decay=-0.1 must be"),
        ({"weight_decay": float("nan")}, r"weight_decay=nan must be"),
        ({"dense_weight_decay": True}, r"dense_weight_decay=True must be"),
        ({"weight_decay": 51}, r"weight_decay=51 \(--weight-decay\) with lr=0.05 \(--lr\)"),
        ({"weight_decay": 5e-7}, r"is 1 in float32, .* weight decay of 1e-06 or more"),
        ({"dense_weight_decay": 1001.0}, r"--dense-weight-decay\) with dense_lr=0.001"),
        ({"weight_decay": 0.1, "optimizer": "ftrl"}, r"optimizer ftrl takes none"),
        ({"embedding_dropout": 1.0}, r"embedding_dropout=1.0 must be a number"),
        ({"embedding_dropout": -0.5}, r"embedding_dropout=-0.5 must be"),
        ({"embedding_dropout": "0.1"}, r"embedding_dropout='0.1' must be"),
    ],
)
def test_what_cannot_be_is_refused(run: Any, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(hps.ConfigError, match=reason):
        run(**changes)


def test_flags_that_are_not_given_are_none() -> None:
    names = ("weight_decay", "dense_weight_decay", "embedding_dropout")
    parse = make_parser("train").parse_args
    bare = parse(["train", "log"])
    given = parse(
        ["train", "log"]
        + [
            f"--{name.replace('_', '-')}={number}"
            for name, number in zip(names, (0.5, 1e-2, 0), strict=True)
        ]
    )
    assert [getattr(bare, name) for name in names] == [None] * 3
    assert [getattr(given, name) for name in names] == [0.5, 0.01, 0]
