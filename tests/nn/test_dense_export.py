"""export_dense: what of a module's code becomes a graph, and how what does not is told.

Above it: pytest. Below it: hps/nn/dense_export.py, onnx_graph.py, graph_seams.py, graph_run.py.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import hps
from hps.models import DIN
from hps.nn.graph_run import GraphSession
from hps.publish.model_files import encode_model_files
from tests.publish.onnx_lab import COUNTS, TABLES, Mine, a_batch

Forward = Callable[["Small", hps.Batch], torch.Tensor]


class Small(nn.Module):
    """One look-up, one layer, and a user's code between them."""

    def __init__(self, server: hps.ParameterServer, code: Forward | None = None) -> None:
        super().__init__()
        self.rows = hps.SparseEmbeddings(server, {"user": "users"})
        self.top = nn.Linear(2, 1)
        self.code = code
        self.factor = 1.0

    def forward(self, batch: hps.Batch) -> torch.Tensor:
        """Logits [B]."""
        if self.code is not None:
            return self.code(self, batch)
        return self.plain(self.rows(batch))

    def plain(self, rows: torch.Tensor) -> torch.Tensor:
        """Of rows."""
        logits: torch.Tensor = self.top(rows).squeeze(1) * self.factor
        return logits


@pytest.fixture
def server(tmp_path: Path) -> Iterator[hps.ParameterServer]:
    config = hps.Config(path=tmp_path / "store", tables=TABLES)
    with hps.ParameterServer(config) as server:
        yield server


@pytest.fixture
def batch() -> hps.Batch:
    return a_batch(1, COUNTS)


def branches(module: Small, batch: hps.Batch) -> torch.Tensor:
    rows = module.rows(batch)
    return module.plain(rows if bool(rows.sum() > 0) else -rows)


def loops(module: Small, batch: hps.Batch) -> torch.Tensor:
    rows = module.rows(batch)
    return module.plain(torch.stack([row * len(batch) for row in rows]))


def looks_at_keys(module: Small, batch: hps.Batch) -> torch.Tensor:
    return module.plain(module.rows(batch)) + batch.features["users"].offsets.diff()


def looks_up_elsewhere(module: Small, batch: hps.Batch) -> torch.Tensor:
    return module.plain(module.rows(hps.Batch(batch.features, batch.dense, batch.labels)))


def draws(module: Small, batch: hps.Batch) -> torch.Tensor:
    return module.plain(module.rows(batch)) + torch.rand(batch.dense.shape[0])


def gives_a_column(module: Small, batch: hps.Batch) -> torch.Tensor:
    return module.plain(module.rows(batch)).unsqueeze(1)


REFUSED: list[tuple[Forward, str]] = [
    (branches, "cannot be exported as a graph: .*torch.where .* or publish without ONNX"),
    (loops, r"as a graph: .*, at line \d+ of .*test_dense_export.py\. A graph does the same"),
    (looks_at_keys, "a graph has no keys: take rows by hps.SparseEmbeddings alone"),
    (looks_up_elsewhere, "is called with the batch that the module is called with, .* a Batch"),
    (draws, "the graph's logits are off by .* size or chance decide; leave that out"),
    (gives_a_column, r"returned \[2, 1\] for 2 examples; it is to return logits \[B\]"),
]


@pytest.mark.parametrize("code, told", REFUSED)
def test_code_that_makes_no_graph_is_refused(
    server: hps.ParameterServer, batch: hps.Batch, code: Forward, told: str, capfd: Any
) -> None:
    with pytest.raises(hps.ConfigError, match=told):
        hps.export_dense(Small(server, code), batch)
    assert capfd.readouterr() == ("", "")


def test_other_modules_and_batches_are_refused(
    server: hps.ParameterServer, batch: hps.Batch
) -> None:
    with pytest.raises(hps.ConfigError, match="Linear looks no rows up"):
        hps.export_dense(nn.Linear(2, 1), batch)
    with pytest.raises(hps.ConfigError, match="a batch of 1 examples; give one of 2 or more"):
        hps.export_dense(Small(server), a_batch(1, COUNTS, 1))
    with pytest.raises(hps.ConfigError, match=r"batch is a Tensor; give an hps\.Batch"):
        hps.export_dense(Small(server), torch.ones(2))  # type: ignore[arg-type]
    module = Small(server)
    module.file = (one for one in ())  # type: ignore[assignment]
    with pytest.raises(hps.ConfigError, match=r"Small cannot be copied, .* keep what cannot be"):
        hps.export_dense(module, batch)

    class Unpooled(Small):
        def __init__(self, server: hps.ParameterServer) -> None:
            super().__init__(server)
            self.each = hps.SparseEmbedding(server, "ads", None)

    with pytest.raises(hps.ConfigError, match="'each' gives a row a key"):
        hps.export_dense(Unpooled(server), batch)


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named(
    server: hps.ParameterServer, batch: hps.Batch, monkeypatch: Any, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(hps.ConfigError, match=rf"'{package}'; .*pip install 'hps-ctr\[onnx\]'"):
        hps.export_dense(Small(server), batch)


class Towers(nn.Module):
    """A model of hps and a look-up of bfloat16 in one module."""

    def __init__(self, server: hps.ParameterServer) -> None:
        super().__init__()
        self.tower = DIN(server, {"ads": 2}, 2, (3,), sequences={1: 0})
        self.user = hps.SparseEmbeddings(server, {"user": "users"}, dtype=torch.bfloat16)
        self.top = nn.Linear(2, 1)

    def forward(self, batch: hps.Batch) -> torch.Tensor:
        """Logits [B]."""
        logits: torch.Tensor = self.tower(batch) + self.top(self.user(batch).float()).squeeze(1)
        return logits


def test_inputs_go_by_the_paths_of_look_ups(server: hps.ParameterServer, batch: hps.Batch) -> None:
    graph = hps.export_dense(Towers(server), batch)
    assert [(one["name"], one["holds"], one["shape"]) for one in graph.inputs] == [
        ("embeddings.tower", "embeddings", ["batch", 4]),
        ("rows.ad.tower", "rows", ["rows.ad.tower", 4]),
        ("example.ad.tower", "example", ["rows.ad.tower"]),
        ("embeddings.user", "embeddings", ["batch", 2]),
        ("dense", "dense", ["batch", 2]),
    ]
    assert graph.features == {"ads": ["shop", "ad"], "users": ["user"]}


def test_what_is_made_otherwise_has_another_mark(server: hps.ParameterServer) -> None:
    model, other = (DIN(server, {"ads": 2}, 2, (3,), sequences={1: 0}) for _ in range(2))
    assert model.graph_mark() == other.graph_mark()
    other.negative_rate = 0.5
    assert model.graph_mark() != other.graph_mark()
    other.negative_rate = 1.0
    other.use_means(server, {"ads": [True, False]})
    assert model.graph_mark() != other.graph_mark()


def test_a_graph_that_would_read_another_file_is_refused(
    server: hps.ParameterServer, batch: hps.Batch, tmp_path: Path
) -> None:
    module = Mine(server)
    graph = hps.export_dense(module, batch)
    weights = encode_model_files({"model": module.state_dict()}).weights
    assert GraphSession(graph.onnx, weights).inputs == [one["name"] for one in graph.inputs]
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(4096))
    for location, offset in (("../secret", "0"), (str(secret), "0"), ("model.bin", "1000000")):
        file = onnx.load_model_from_string(graph.onnx)
        tensor = next(one for one in file.graph.initializer if one.external_data)
        for entry in tensor.external_data:
            entry.value = {"location": location, "offset": offset}.get(entry.key, entry.value)
        with pytest.raises(hps.CorruptionError, match=f"its tensor '{tensor.name}' lies in"):
            GraphSession(file.SerializeToString(), weights)
    with pytest.raises(hps.CorruptionError, match="it is no ONNX model"):
        GraphSession(b"\x80\x04pickle", weights)
    file.graph.node[0].op_type = "NoSuchOperator"
    next(one for one in tensor.external_data if one.key == "offset").value = "0"
    with pytest.raises(hps.CorruptionError, match="onnxruntime cannot run it"):
        GraphSession(file.SerializeToString(), weights)
