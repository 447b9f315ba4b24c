"""What RowOptimizer's steps count: every occurrence that backward went through, with the label of
its example.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.models.sequences import look_up_apart

KEYS = np.array([7, 8, 9, 10], np.uint64)
# Two features of two examples: [7, 8] and [7], then [9] and [7].
ADS = hps.Ids(torch.tensor([7, 8, 7, 9, 7]), torch.tensor([0, 2, 3, 4, 5]))
USERS = hps.Ids(torch.tensor([7, 8]), torch.tensor([0, 1, 2]))
SHOWS, CLICKS = [3.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0]  # the first example is a click


def make_batch(labels: tuple[float, ...] = (1.0, 0.0), **changes: Any) -> hps.Batch:
    features = {"ads": ADS, "users": USERS}
    return hps.Batch(features, torch.zeros(2, 0), torch.tensor(labels), **changes)


@pytest.fixture(params=["dram", "gpu"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    tables = [
        hps.TableConfig(name="ads", dim=4, features=["a", "b"], statistics=True),
        hps.TableConfig(name="users", dim=2, features=["u"]),
    ]
    gpu = hps.GpuCacheConfig(bytes="1MiB", device="cpu") if request.param == "gpu" else None
    config = hps.Config(path=tmp_path / "store", tables=tables, gpu=gpu)
    with hps.ParameterServer(config) as opened:
        yield opened


def counts(server: hps.ParameterServer) -> tuple[list[float], list[float]]:
    found = server.statistics("ads", KEYS)
    return found["show"].tolist(), found["click"].tolist()


def times(number: int) -> tuple[list[float], list[float]]:
    return [number * show for show in SHOWS], [number * click for click in CLICKS]


def test_a_step_counts_each_occurrence_of_its_forward(server: hps.ParameterServer) -> None:
    embeddings, optimizer = hps.SparseEmbeddings(server), hps.RowOptimizer(server)
    batch = make_batch()
    embeddings(batch).sum().backward()
    assert counts(server) == times(0)  # backward only collects
    optimizer.step()
    assert counts(server) == times(1)
    with torch.no_grad():
        embeddings(batch)
    embeddings.eval()(batch)
    embeddings.train()(batch).sum().backward()
    optimizer.zero_grad()  # what is dropped does not count
    optimizer.step()
    assert counts(server) == times(1)


def test_labels_count_as_they_were_at_the_forward(server: hps.ParameterServer) -> None:
    embeddings, optimizer = hps.SparseEmbeddings(server), hps.RowOptimizer(server)
    batch = make_batch()
    output = embeddings(batch)
    batch.labels.fill_(0.0)
    output.sum().backward()
    optimizer.step()
    assert counts(server) == times(1)


def test_forwards_of_one_step_count_together(server: hps.ParameterServer) -> None:
    embeddings, optimizer = hps.SparseEmbeddings(server), hps.RowOptimizer(server)
    output = embeddings(make_batch())
    (output.sum() + embeddings(make_batch()).sum()).backward(retain_graph=True)
    output.sum().backward()  # again through the same forward, whose occurrences count once
    single = hps.SparseEmbedding(server, "ads")
    single(ADS.keys_L, ADS.offsets, num_features=2).sum().backward()  # without labels
    optimizer.step()
    shows, clicks = counts(server)
    assert (shows, clicks) == (times(3)[0], times(2)[1])


def test_a_scaler_and_a_change_of_gradients_keep_the_clicks(server: hps.ParameterServer) -> None:
    embeddings, optimizer = hps.SparseEmbeddings(server), hps.RowOptimizer(server)
    embeddings(make_batch()).sum().backward()
    for group in optimizer.param_groups:  # spreads what was collected over the tables
        for parameter in group["params"]:
            parameter.grad.mul_(0.5)
    optimizer.step()
    assert counts(server) == times(1)


@pytest.mark.parametrize("pooling", ["sum", "mean", None])
def test_a_module_of_one_table_counts(server: hps.ParameterServer, pooling: Any) -> None:
    embedding, optimizer = hps.SparseEmbedding(server, "ads", pooling), hps.RowOptimizer(server)
    embedding(make_batch()).sum().backward()
    optimizer.step()
    assert counts(server) == times(1)


def test_pinned_rows_of_a_pipeline_count(server: hps.ParameterServer) -> None:
    embedding, optimizer = hps.SparseEmbedding(server, "ads"), hps.RowOptimizer(server)
    with hps.Pipeline([make_batch() for _ in range(5)], server, depth=2) as pipeline:
        for batch in pipeline:
            embedding(batch).sum().backward()
            optimizer.step()
    assert counts(server) == times(5)


@pytest.mark.parametrize("learns", [False, True])
def test_features_that_are_left_out_do_not_count(server: hps.ParameterServer, learns: bool) -> None:
    embeddings, optimizer = hps.SparseEmbeddings(server, {"b": "ads"}), hps.RowOptimizer(server)
    weights = torch.ones(5, requires_grad=True) if learns else None
    ads = hps.Ids(ADS.keys_L, ADS.offsets, weights)
    batch = make_batch()
    batch.features = {**batch.features, "ads": ads}
    embeddings(batch).sum().backward()
    optimizer.step()
    assert counts(server) == ([1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0])


def test_keys_of_sequences_count_with_their_example(server: hps.ParameterServer) -> None:
    embedding, optimizer = hps.SparseEmbedding(server, "ads"), hps.RowOptimizer(server)
    history, target = look_up_apart(embedding, make_batch(), 2, [0])
    assert isinstance(target, torch.Tensor)
    (history.rows.sum() + target.sum()).backward()  # type: ignore[union-attr]
    optimizer.step()
    assert counts(server) == times(1)


def test_a_compiled_module_counts(tmp_path: Path) -> None:
    tables = [
        hps.TableConfig(name="ads", dim=4, features=["a", "b"], statistics=True),
        hps.TableConfig(name="users", dim=2, features=["u"]),
    ]
    with hps.ParameterServer(hps.Config(path=tmp_path / "store", tables=tables)) as server:
        embeddings, optimizer = hps.SparseEmbeddings(server), hps.RowOptimizer(server)
        compiled = torch.compile(embeddings, fullgraph=True, backend="aot_eager")
        for number in (1, 2):
            compiled(make_batch()).sum().backward()
            optimizer.step()
            assert counts(server) == times(number)
        with pytest.raises(hps.ConfigError, match=r"labels\[1\] is 0.5"):
            compiled(make_batch((1.0, 0.5)))


@pytest.mark.parametrize("label", [0.5, -1.0, float("nan"), float("inf")])
def test_a_label_that_is_no_click_is_refused(server: hps.ParameterServer, label: float) -> None:
    batch = make_batch((1.0, label))
    modules: list[Callable[[hps.Batch], torch.Tensor]] = [
        hps.SparseEmbeddings(server),
        hps.SparseEmbedding(server, "ads"),
    ]
    for module in modules:
        with pytest.raises(hps.ConfigError, match=r"Batch.labels\[1\] is"):
            module(batch)
    with torch.no_grad():
        modules[0](batch)
    hps.SparseEmbedding(server, "users")(batch).sum().backward()  # which does not count
