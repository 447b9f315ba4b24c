"""What `hps train` stores, published with its ONNX graph: by the run, and by `hps publish --onnx`.

Above it: pytest. Below it: hps/train/checkpoint_graphs.py, run_publisher.py, hps.Model.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.cli.main import main
from hps.models import ClickModel
from hps.publish.options import PublishOptions
from hps.publish.publisher import Publisher
from hps.publish.store_origin import StoreOrigin
from hps.train import TrainOptions, train
from hps.train.checkpoint_graphs import CheckpointGraphs
from tests.logs import write_criteo
from tests.publish.onnx_lab import ROUNDING, graph_of
from tests.publish.publish_lab import SMALL, a_server, keys_of, push, write_log

KIND = "mine.py:Mine"
OWN = """
import torch
from hps.models import DIN, DeepFM

class Mine(DeepFM):
    def forward(self, batch):
        return super().forward(batch) * 0.5

class Branches(DeepFM):
    def forward(self, batch):
        logits = super().forward(batch)
        return logits if logits.sum() > 0 else -logits
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log, beside a user's own class, in the folder in which the test runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    return write_criteo(tmp_path / "log", 256)


def run(log: Path, store: str, **more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"model": KIND, "hidden": (4,), "dropout": 0.2, "negative_rate": 0.5}
    values |= {"dim": 2, "batch_size": 32, "dram": "8MiB", "depth": 0, **more}
    return train(TrainOptions(data=[log], store=store, **values))


def test_a_run_publishes_its_graph_and_learns_the_same_bits(log: Path, tmp_path: Path) -> None:
    plain = run(log, "plain")
    found = run(log, "store", publish="pub", publish_every=4, publish_onnx=True)
    assert (found["digests"], found["loss_digest"]) == (plain["digests"], plain["loss_digest"])
    assert found["publish_error"] is None and len(found["published"]) > 1
    newest = found["published"][-1]["version"]
    version, graph = graph_of(tmp_path / "pub", newest)
    assert (version.kind, graph) == ("delta", graph_of(tmp_path / "pub", 1)[1])
    assert graph.features["features"][:2] == ["C1", "C2"]

    assert main(["predict", str(log), "--store", "store", "--dram", "8MiB", "--out", "a.npy"]) == 0
    (tmp_path / "mine.py").unlink()  # no code of the class is needed from here
    assert main(["predict", str(log), "--model", "pub", "--dram", "8MiB", "--out", "b.npy"]) == 0
    by_torch, by_graph = np.load("a.npy"), np.load("b.npy")
    assert len(by_graph) == 256 and 0 < np.abs(by_graph - by_torch).max() <= ROUNDING
    with hps.Model.load("pub", dram="8MiB") as model:
        assert (model.kind, model.version) == (KIND, str(newest)) and model.has_recipe
        line = log.read_text().split("\n")[0].split("\t")
        columns = {f"I{n}": [line[n]] for n in range(1, 14)}
        columns |= {f"C{n}": [line[13 + n]] for n in range(1, 27)}
        assert abs(float(model.predict(columns)) - by_torch[0]) <= ROUNDING


def test_a_model_that_is_no_graph_is_refused_before_it_is_trained(log: Path) -> None:
    asked = {"model": "mine.py:Branches", "publish": "pub", "publish_onnx": True}
    with pytest.raises(hps.ConfigError, match=r"as a graph: .* at line 12 of .*mine\.py"):
        run(log, "store", **asked)
    with pytest.raises(hps.ConfigError, match=r"publish_onnx .* give publish \(--publish URL\)"):
        run(log, "store", publish_onnx=True)


def test_the_command_exports_once_and_models_of_hps_score_by_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, place = tmp_path / "store", tmp_path / "pub"
    words = ["publish", str(store), str(place), "--onnx"]
    for day in (1, 2, 3):
        log = write_log(tmp_path / f"{day}.libsvm", day)
        more: dict[str, Any] = {} if day == 1 else {"resume": True, "new_data": True}
        more |= {"statistics": True, "negative_rate": 0.5}  # none of it is the graph's
        train(TrainOptions(data=[log], store=store, **SMALL, **more))
        before = torch.random.get_rng_state()
        assert main(words) == 0
        assert torch.equal(torch.random.get_rng_state(), before)
        monkeypatch.setattr(ClickModel, "export_dense", None)  # from now on it is there
    versions = [graph_of(place, number) for number in (1, 2, 3)]
    assert [version.kind for version, _ in versions] == ["base", "delta", "base"]
    # A base is read alone: it has a copy.
    assert versions[1][1] == versions[0][1]
    assert versions[2][1].file.name.startswith(versions[2][0].folder)
    assert versions[2][1].file.sha256 == versions[0][1].file.sha256
    with hps.Model.load(place) as model, hps.Model.load(store) as stored:
        batch = next(iter(model.open_reader([log])))
        assert model.predict(batch).equal(stored.predict(batch))
        assert isinstance(model.module, ClickModel)
    (place / versions[2][1].file.name).write_bytes(b"")
    with pytest.raises(hps.CorruptionError, match=r"dense\.onnx"):
        hps.Model.load(place)


def test_a_checkpoint_without_a_model_or_recipe_has_no_graph(tmp_path: Path) -> None:
    with a_server(tmp_path / "store") as server:
        push(server, keys_of(1, 2), 1.0)
        server.checkpoint()
        options = PublishOptions(graph=CheckpointGraphs(tmp_path / "store"))
        with Publisher(StoreOrigin(tmp_path / "store"), tmp_path / "pub", options) as publisher:
            with pytest.raises(hps.ConfigError, match="holds no model to make an ONNX graph of"):
                publisher.publish()
            server.checkpoint(model={"model": {"weight": torch.ones(2)}})
            with pytest.raises(hps.ConfigError, match="was not stored by `hps train`"):
                publisher.publish()
        assert not list((tmp_path / "pub").glob("version-*"))
