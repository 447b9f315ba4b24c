"""A user's own module published with its ONNX graph: scored without its file, by hps and others.

Above it: pytest. Below it: `hps.export_dense`, `server.publish(onnx=)`, hps.Model, the server.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow.ipc
import pytest
import torch

import hps
from hps.publish.destination import open_destination
from hps.publish.graph import DenseGraph, FixedGraph
from hps.publish.options import PublishOptions
from hps.publish.publisher import Publisher
from hps.publish.store_origin import StoreOrigin
from hps.publish.version import chain_of
from hps.service.messages.status import Refusal
from hps.serving.scorer import Scorer, ScoringOptions
from hps.serving.tensors import Tensor
from tests.publish.onnx_lab import (
    COUNTS,
    TABLES,
    Mine,
    a_batch,
    assert_close,
    graph_of,
    learn,
    scores,
)
from tests.publish.publish_lab import a_server
from tests.publish.test_published_damage import Harm, cut, drop, flip_a_bit, flip_the_last_bit

Published = tuple[Path, hps.Batch, dict[str, torch.Tensor], DenseGraph]


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """Where three versions are, a base and two deltas; a batch, its scores, and the graph."""
    folder = tmp_path_factory.mktemp("mine")
    batch, expected = a_batch(9, COUNTS, 6), {}
    with a_server(folder / "store", *TABLES) as server:
        torch.manual_seed(0)
        module = Mine(server)
        module(batch)  # which gives the layer of norms its statistics
        graph = hps.export_dense(module, batch)
        assert module.training and module.norm.training
        for number in (1, 2, 3):
            learn(server, module, number)
            kind = "auto" if number == 1 else "delta"
            server.publish(folder / "pub", model=module, onnx=graph, kind=kind)
            expected[str(number)] = scores(module, batch)
    return folder / "pub", batch, expected, graph


def test_it_is_scored_without_its_class_over_base_and_deltas(mine: Published) -> None:
    place, batch, expected, _ = mine
    with hps.Model.load(place, version=1, dram="16MiB") as model:
        assert_close(model.predict(batch), expected["1"])
        follower = model._follower
        assert follower is not None and follower.look()
        found, version = model.predict_with_version(batch)
        assert version == "3"
        assert_close(found, expected["3"])
        model.roll_back(2)
        assert_close(model.predict(batch), expected["2"])
        assert model.features == {"ads": ["shop", "ad"], "users": ["user"]}
        assert model.predict(a_batch(1, COUNTS, 0)).shape == (0,)
        with pytest.raises(hps.ConfigError, match="without the recipe of `hps train`"):
            model.predict({"user": [1]})
        with pytest.raises(hps.ConfigError, match="has no torch module here"):
            _ = model.module
        with pytest.raises(hps.ConfigError, match="1 dense columns, the model was made for 2"):
            model.predict(replace(batch, dense=batch.dense[:, :1]))


def test_a_delta_has_weights_alone_and_the_graph_stays_what_it_was(mine: Published) -> None:
    place, _, _, graph = mine
    files = {path.name for path in (place / "data").glob("00000003-*/*")}
    assert {"model.bin"} == files & {"model.bin", "dense.onnx", "model.json"}
    of_base, of_delta = graph_of(place, 1), graph_of(place, 3)
    assert of_base[1] == of_delta[1] and of_base[1].inputs == graph.inputs
    data = open_destination(place).read(of_base[1].file.name)
    assert data == graph.onnx
    assert str(Path(__file__).parent).encode() not in data  # nor any other path of this machine
    assert b".py" not in data


def rows_of_arrow(place: Path, number: int, table: str) -> dict[int, np.ndarray]:
    """Rows of a version by what docs/publishing.md says of files alone."""
    rows: dict[int, np.ndarray] = {}
    for version in chain_of(open_destination(place), number):
        own = next(one for one in version.tables if one.name == table)
        for file in own.base or own.changed or ():
            found = pyarrow.ipc.open_file(place / file.name).read_all().to_pydict()
            values = (np.frombuffer(row, np.float32) for row in found["row"])
            rows.update(zip(found["key"], values, strict=True))
    return rows


def test_another_server_scores_by_rows_and_graph_as_the_page_says(
    mine: Published, tmp_path: Path
) -> None:
    place, batch, expected, _ = mine
    about = json.loads((place / "version-00000003.json").read_text())["model"]
    shutil.copy(place / about["graph"]["file"]["name"], tmp_path / "dense.onnx")
    shutil.copy(place / about["weights"]["name"], tmp_path / "model.bin")
    session = onnxruntime.InferenceSession(tmp_path / "dense.onnx")
    assert {one.name: one.shape for one in session.get_inputs()} == {
        one["name"]: one["shape"] for one in about["graph"]["inputs"]
    }
    rows = {table: rows_of_arrow(place, 3, table) for table in COUNTS}
    given = {"dense": batch.dense.numpy()}
    for one in about["graph"]["inputs"]:
        if one["holds"] != "embeddings":
            continue
        parts = []
        for column in one["columns"]:
            ids, size = batch.features[column["keys"]], len(batch)
            bags = []
            for example in range(size):
                bag = column["place"] * size + example
                begin, end = ids.offsets[bag : bag + 2].tolist()
                keys = ids.keys_L[begin:end].tolist()
                zero = np.zeros(column["columns"], np.float32)
                own = [rows[column["table"]].get(key, zero) for key in keys]
                total = sum(own, zero)
                is_mean = column["pooling"] == "mean"
                bags.append(total / max(1, len(own)) if is_mean else total)
            parts.append(np.stack(bags))
        given[one["name"]] = np.concatenate(parts, axis=1)
    (found,) = session.run(["probability"], given)
    # Of keys without a row hps reads the initial value, which is small.
    assert np.abs(found - expected["3"].numpy()).max() < 0.05
    is_known = [
        all(
            int(key) in rows[table]
            for table, count in COUNTS.items()
            for place_ in range(count)
            for key in batch.features[table].keys_L[
                slice(*batch.features[table].offsets[place_ * 6 + n : place_ * 6 + n + 2])
            ]
        )
        for n in range(6)
    ]
    assert any(is_known)
    assert_close(torch.from_numpy(found)[is_known], expected["3"][is_known])


HARMS: list[Harm] = [drop, cut, flip_a_bit, flip_the_last_bit]


@pytest.mark.parametrize("name", ["dense.onnx", "model.bin"])
@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_graph_or_weights_are_refused_by_name(
    mine: Published, tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    place = tmp_path / "pub"
    shutil.copytree(mine[0], place)
    version, graph = graph_of(place, 3)
    assert version.model is not None
    found = graph.file.name if name == "dense.onnx" else version.model.weights.name
    harm(place / found)
    with pytest.raises(hps.CorruptionError, match=found):
        hps.Model.load(place, dram="16MiB")


def test_a_damaged_delta_leaves_the_version_before_in_service(
    mine: Published, tmp_path: Path
) -> None:
    place = tmp_path / "pub"
    shutil.copytree(mine[0], place)
    with hps.Model.load(place, version=2, dram="16MiB") as model:
        version, _ = graph_of(place, 3)
        assert version.model is not None
        flip_a_bit(place / version.model.weights.name)
        follower = model._follower
        assert follower is not None
        with pytest.raises(hps.CorruptionError, match=r"model\.bin"):
            follower.look()
        assert_close(model.predict(mine[1]), mine[2]["2"])


def test_a_version_whose_description_is_not_the_graphs_is_refused(
    mine: Published, tmp_path: Path
) -> None:
    place = tmp_path / "pub"
    shutil.copytree(mine[0], place)
    version, graph = graph_of(place, 1)
    assert version.model is not None
    other = replace(graph, inputs=graph.inputs[:-1])
    changed = replace(version, model=replace(version.model, graph=other))
    (place / "version-00000001.json").write_bytes(changed.to_bytes())
    with pytest.raises(hps.CorruptionError, match="the graph's inputs are"):
        hps.Model.load(place, version=1, dram="16MiB")


class Sums(Mine):
    """The same layers over sums, where that one has means."""

    def __init__(self, server: hps.ParameterServer) -> None:
        super().__init__(server)
        self.rows = hps.SparseEmbeddings(server, {"user": "users", "ad": "ads", "shop": "ads"})


def test_a_delta_of_the_same_graph_over_other_bags_is_scored_over_these(tmp_path: Path) -> None:
    batch, place = a_batch(9, COUNTS, 6), tmp_path / "pub"
    with a_server(tmp_path / "store", *TABLES) as server:
        means = Mine(server)
        means(batch)
        learn(server, means, 1)
        graph = hps.export_dense(means, batch)
        server.publish(place, model=means, onnx=graph)
        sums = Sums(server)
        sums.load_state_dict(means.state_dict())
        other = hps.export_dense(sums, batch)
        assert other.onnx == graph.onnx and other.inputs != graph.inputs
        learn(server, sums, 2)
        server.publish(place, model=sums, onnx=other, kind="delta")
        expected = scores(sums, batch)
    with hps.Model.load(place, dram="16MiB") as model:
        assert_close(model.predict(batch), expected)


def test_another_graph_of_the_same_checkpoint_is_published(tmp_path: Path) -> None:
    batch, place = a_batch(9, COUNTS, 6), tmp_path / "pub"
    with a_server(tmp_path / "store", *TABLES) as server:
        means = Mine(server)
        means(batch)
        learn(server, means, 1)
        graph = hps.export_dense(means, batch)
        sums = Sums(server)
        sums.load_state_dict(means.state_dict())
        other = hps.export_dense(sums, batch)
        server.publish(place, model=means, onnx=graph)
        expected = scores(sums, batch)
    origin = StoreOrigin(tmp_path / "store")
    for given, version, kind in ((graph, 1, None), (other, 2, "delta"), (other, 2, None)):
        with Publisher(origin, place, PublishOptions(graph=FixedGraph(given))) as publisher:
            made = publisher.publish()
        assert (made["version"], made["kind"]) == (version, kind)
    with hps.Model.load(place, dram="16MiB") as model:
        assert_close(model.predict(batch), expected)


def test_a_delta_may_tell_other_features_of_the_same_graph(mine: Published, tmp_path: Path) -> None:
    place, batch, expected, _ = mine
    shutil.copytree(place, tmp_path / "pub")
    version, graph = graph_of(tmp_path / "pub", 3)
    assert version.model is not None and version.kind == "delta"
    told = {"ads": ["ad", "shop"], "users": ["user"]}
    changed = replace(version, model=replace(version.model, graph=replace(graph, features=told)))
    (tmp_path / "pub" / "version-00000003.json").write_bytes(changed.to_bytes())
    with hps.Model.load(tmp_path / "pub", version=2, dram="16MiB") as model:
        follower, rows = model._follower, model.server
        assert follower is not None and follower.look()
        assert model.version == "3" and model.server is rows  # by the delta
        assert model.features == told
        assert_close(model.predict(batch), expected["3"])


def test_requests_of_keys_are_served(mine: Published) -> None:
    place, _, _, _ = mine
    with hps.Model.load(place, dram="16MiB") as model:
        scorer = Scorer(model, ScoringOptions(name="ctr"))
        described = {one.name: one.shape for one in scorer.described_inputs()}
        assert described == {"ads.keys": (-1, 2), "users.keys": (-1, 1), "dense": (-1, 2)}
        assert scorer.platform == "hps_onnx"
        keys = np.array([[7, 8], [9, 7]])
        inputs = [
            Tensor("ads.keys", "INT64", (2, 2), keys.reshape(-1)),
            Tensor("users.keys", "INT64", (2, 1), np.array([3, 4])),
            Tensor("dense", "FP32", (2, 2), np.ones(4, np.float32)),
        ]
        found = scorer.infer(inputs, {}, "", float("inf"))
        ads = hps.Ids(torch.from_numpy(keys.T.reshape(-1).copy()), torch.arange(5))
        users = hps.Ids(torch.tensor([3, 4]), torch.arange(3))
        batch = hps.Batch({"ads": ads, "users": users}, torch.ones(2, 2), torch.zeros(2))
        assert found.scores.tolist() == model.predict(batch).tolist()
        assert found.version == "3"
        lines = Tensor("lines", "BYTES", (1,), [b"1 7:1"])
        with pytest.raises(Refusal, match="has no such column"):
            scorer.infer([lines], {}, "", float("inf"))


def test_a_version_without_a_graph_is_as_it_was(mine: Published, tmp_path: Path) -> None:
    with a_server(tmp_path / "store", *TABLES) as server:
        module = Mine(server)
        server.publish(tmp_path / "pub", model=module)
        said = json.loads((tmp_path / "pub" / "version-00000001.json").read_text())
        assert sorted(said["model"]) == ["about", "tensors", "weights"]
        assert "onnx" not in said["source"]["options"]
        # With a graph from now on: another lineage, as of any other option.
        made = server.publish(tmp_path / "pub", model=module, onnx=mine[3])
        assert made["kind"] == "base"
        assert made["why_base"] == "the newest version was published with other options"
        with pytest.raises(hps.ConfigError, match="exported from a module with other weights"):
            module.top = torch.nn.Linear(12, 2)
            server.publish(tmp_path / "pub", model=module, onnx=mine[3])
        with pytest.raises(hps.ConfigError, match=r"of a Mine give the graph, onnx=hps\.export"):
            server.publish(tmp_path / "pub", model=module, onnx=True)
        with pytest.raises(hps.ConfigError, match="onnx is a str; give True, or the graph"):
            server.publish(tmp_path / "pub", model=module, onnx="yes")
