"""Batches over a gpu_cache on a GPU are handed out as copies there, behind the training stream.

Above it: pytest. Below it: hps/pipeline/arrival.py.
"""

import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

import hps
from hps.common.bags import make_bags
from hps.pipeline.arrival import tensors_of
from hps.pipeline.work import StageWork
from tests.front import one_feature_batch
from tests.lab import Lab, table
from tests.pipeline.scenario import Scenario

HAS_GPU = torch.cuda.is_available()


def test_every_tensor_of_a_batch_is_named() -> None:
    batch = one_feature_batch([1, 2])
    ids = batch.features["ads"]
    assert {id(one) for one in tensors_of(batch)} == {
        id(one) for one in (batch.dense, batch.labels, ids.keys_L, ids.offsets)
    }
    ids.weights_L = torch.ones(2)
    ids.bags = make_bags(ids.offsets, 2, "test")
    found = {id(one) for one in tensors_of(batch)}
    assert {id(ids.weights_L), id(ids.bags.offsets), id(ids.bags.lengths)} <= found
    batch.weights, batch.groups = torch.ones(2), torch.tensor([3, -4])
    assert {id(batch.weights), id(batch.groups)} <= {id(one) for one in tensors_of(batch)}


def test_each_stage_that_asks_a_device_has_a_stream_of_its_own(tmp_path: Path) -> None:
    threads = set()

    class Work(StageWork):
        def queueing(self) -> AbstractContextManager[object]:
            threads.add(threading.current_thread().name)
            return super().queueing()

    class Noted(hps.Pipeline):
        _work_type = Work

    log = [one_feature_batch([number], number) for number in range(3)]
    with (
        Lab("gpu", tmp_path).server(table(name="ads")) as server,
        Noted(log, server, depth=2) as batches,
    ):
        assert len(list(batches)) == 3
    assert threads == {"hps fetch", "hps copy"}


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="no CUDA device")
@pytest.mark.parametrize("depth", [0, 2])
def test_batches_arrive_on_the_device_with_equal_rows(tmp_path: Path, depth: int) -> None:
    scenario = Scenario(seed=3)
    losses = {}
    for device in ("cpu", "cuda:0"):
        config = hps.Config(
            path=tmp_path / device.replace(":", "-"),
            tables=[table(hps.Adagrad(lr=0.1), name=name) for name in ("users", "ads")],
            dram=hps.DramCacheConfig(bytes="1MiB"),
            gpu=hps.GpuCacheConfig(bytes="1MiB", device=device),
        )
        with hps.ParameterServer(config) as server:
            embedding, optimizer = hps.SparseEmbedding(server, "ads"), hps.RowOptimizer(server)
            sums = []
            with hps.Pipeline(scenario.batches(), server, depth) as batches:
                for batch in batches:
                    assert all(str(one.device) == device for one in tensors_of(batch))
                    rows = embedding(batch)
                    rows.sum().backward()
                    optimizer.step()
                    sums.append(rows.detach().cpu())
            losses[device] = sums, server.digest("ads")
    assert losses["cpu"][1] == losses["cuda:0"][1]
    for host, device_rows in zip(losses["cpu"][0], losses["cuda:0"][0], strict=True):
        assert torch.equal(host, device_rows)
