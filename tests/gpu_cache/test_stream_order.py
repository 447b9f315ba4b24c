"""All that a Pipeline's steps queue on three streams is in order, and a check that can fail.

Above it: pytest. Below it: stream_device.py, stream_order.py; a server with a gpu_cache on a
stand-in device, whose fetch stage, copy stage and training loop have a stream each.
"""

import dataclasses
import gc
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
import hps.nn.joint_look_up  # before what it takes from the arrays changes
from hps.common import arrays, bags
from hps.gpu_cache import make_gpu_caches
from hps.gpu_cache.device_cache import DeviceCache
from hps.gpu_cache.failures import Failures
from hps.parameter_server.opening import Tiers
from hps.pipeline.arrival import Arrival, tensors_of
from hps.pipeline.prepared import Prepared
from hps.pipeline.work import StageWork
from hps.tiers import batch_rows
from tests.gpu_cache.cache_pair import cache_options, capacity_of
from tests.gpu_cache.stream_device import FakeEvent, FakeStream, StreamDevice, as_torch_cuda
from tests.parameter_server.test_gpu_tier import random_batch, with_bags

TABLES = ("ads", "users")
SMALL = hps.GpuCacheConfig(bytes=220_000, device="cpu")


class CudaName(str):
    """The stand-in's name: torch takes it for the host, and the pipeline for a CUDA device."""

    def startswith(self, *_: Any) -> bool:
        return True


def run_pipeline(
    folder: Path, monkeypatch: pytest.MonkeyPatch, num_batches: int, *left_out: str
) -> StreamDevice:
    """A device that was asked for what training asks, until the server was closed."""
    device = StreamDevice(frozenset(left_out))
    as_torch_cuda(device, monkeypatch)
    failures = Failures(device)
    tiers = Tiers(
        make_gpu_caches=lambda config: make_gpu_caches(
            config, lambda options: DeviceCache(device, failures, options)
        )
    )
    for module in (arrays, batch_rows, bags):
        monkeypatch.setattr(module, "HOST", "the host")
    tables = [
        hps.TableConfig(
            name=name,
            dim=6,
            optimizer=hps.Adagrad(lr=0.1),
            features=[f"{name}{i}" for i in range(3)],
        )
        for name in TABLES
    ]

    class Work(StageWork):
        def _bring(self, prepared: Prepared) -> None:
            """As it is where `Batch.to` makes copies; here a batch lies on the device already."""
            batch = prepared.batch
            moved = {
                name: with_bags(
                    hps.Ids(
                        ids.keys_L.clone(),
                        ids.offsets.clone(),
                        None if ids.weights_L is None else ids.weights_L.clone(),
                    )
                )
                for name, ids in batch.features.items()
            }
            prepared.batch = dataclasses.replace(
                batch, features=moved, dense=batch.dense.clone(), labels=batch.labels.clone()
            )
            for tensor in tensors_of(prepared.batch):
                device.take(tensor)
                device.streams.work(device.current().number, "copy", [], device.blocks_of(tensor))
            prepared.arrival = Arrival(prepared.batch)

    class Streamed(hps.Pipeline):
        _work_type = Work

    batches = [two_tables(seed) for seed in range(num_batches)]  # of the host
    with device.on(FakeStream(device)):
        config = hps.Config(path=folder / "store", tables=tables, gpu=SMALL)
        with hps.ParameterServer(config, _tiers=tiers) as server:
            server.device = CudaName(server.device)
            train(server, Streamed, batches)
            device.num_written_back = server.stats()["gpu_cache"]["write_backs"]
        del server
        gc.collect()
        device.streams.look_for_gone()
    return device


def train(server: Any, pipeline_type: type[hps.Pipeline], batches: list[hps.Batch]) -> None:
    """Steps of growing batches, so that plans take new memory, with what else a loop asks for."""
    embeddings = hps.SparseEmbeddings(server, pooling="mean")
    optimizer = hps.RowOptimizer(server)
    with pipeline_type(batches, server, depth=2) as pipeline:
        for number, batch in enumerate(pipeline):
            labels = batch.labels.mean()  # as a model has it, before rows are asked for
            output = embeddings(batch)
            loss = (output * output).sum() + labels
            loss.backward()
            optimizer.step()
            if number == 2:
                server.checkpoint("between")
                server.pull("ads", np.arange(50, dtype=np.uint64))


def two_tables(seed: int) -> hps.Batch:
    examples = 20 + 10 * seed
    ads, users = (
        random_batch(seed + 100 * i, 4, weighted=i == 1, examples=examples, distinct=9000)
        for i in range(2)
    )
    return dataclasses.replace(
        ads, features={"ads": ads.features["ads"], "users": users.features["ads"]}
    )


def test_what_a_pipeline_queues_on_its_streams_is_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = run_pipeline(tmp_path, monkeypatch, 8)
    streams = device.streams
    assert not streams.faults, "\n".join(streams.faults)
    # There was something to see: rows that left, accesses after other streams', memory given back
    # that other streams had worked on.
    assert device.num_written_back > 100
    assert streams.num_crossings > 500 and streams.num_used_elsewhere > 10
    assert streams.num_host_accesses > 10
    # Each stage's work is a range of NVTX in its own thread, and every range has an end.
    stages = {(name.split()[1], thread) for thread, name in device.ranges.names}
    assert stages == {
        ("network", "hps network"), ("fetch", "hps fetch"), ("copy", "hps copy"),
        ("compute", "MainThread"),
    }  # fmt: skip
    assert not any(device.ranges.open.values()), device.ranges.open


@pytest.mark.parametrize(
    ("left_out", "fault"),
    [
        ("_CudaVerb._begin: wait_event", "FindSlot on stream . is not behind"),
        ("_CudaVerb.__exit__: record$", "FindSlot on stream . is not behind"),
        ("CudaDevice.event: record", "the host reads before CommitEntry"),
        ("CudaDevice.event: record", "the host writes before FillRow"),
        ("Arrival.__init__: record", "mean on stream . is not behind copy on stream"),
        ("Arrival.receive: wait_event", "mean on stream . is not behind copy on stream"),
        ("Arrival.receive: record_stream", "may be taken again before mean .* StageWork"),
    ],
)
def test_what_a_pipeline_leaves_out_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: str, fault: str
) -> None:
    device = run_pipeline(tmp_path, monkeypatch, 4, left_out)
    assert device.num_left_out > 0
    assert re.search(fault, "\n".join(device.streams.faults))


def work_on_two_streams(monkeypatch: pytest.MonkeyPatch, *left_out: str) -> StreamDevice:
    """Memory that one stream takes and another works on, given back before that is done."""
    device = StreamDevice(frozenset(left_out))
    as_torch_cuda(device, monkeypatch)
    one, other = FakeStream(device), FakeStream(device)
    optimizer = hps.SGD()
    keys = np.arange(100, dtype=np.uint64)
    with device.on(one):
        options = cache_options(optimizer, 8, capacity_of(optimizer, 8, 2))
        cache = DeviceCache(device, Failures(device), options)
        last = 100 * (2 * cache.capacity_rows // 100)
        for start in range(0, last + 1, 100):  # the last ones take the slots of dirty rows
            plan = cache.make_plan(keys + np.uint64(start), None)
            cache.find(plan, 0, -1)
            assert plan.num_missing == 100 and cache.begin_reserve(plan)
            with device.on(other if start == last else one):
                assert cache.end_reserve(plan)
            missing = np.zeros((100, cache.row_bytes), np.uint8)
            cache.fill(plan, missing, np.zeros(100, np.uint8), 0.1, create=True)
            cache.sum_gradients(plan, torch.ones(100, 8))
            if start < last:
                cache.release(plan)
        grads, out = torch.ones(100, 8), torch.zeros(100, 8)
        made = FakeEvent(device)
        made.record(one)
    with device.on(other):
        other.wait_event(made)
        cache.sum_gradients(plan, grads)
        cache.apply(plan, 0.1)
        cache.gather(plan, out)
        device.streams.record(out.untyped_storage().data_ptr(), other.number)
        device.num_written_back = len(cache.victims(plan))
    del cache, plan, grads, out
    gc.collect()
    device.streams.look_for_gone()
    return device


CROSSING = {
    "DeviceCache.__init__": "the table",
    "DeviceArena.__init__ in Failures.__init__": "what batches work on",
    "the caller": "gradients",
}


def test_memory_that_crosses_streams_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    device = work_on_two_streams(monkeypatch)
    assert not device.streams.faults, "\n".join(device.streams.faults)
    assert device.num_written_back == 100 and device.streams.num_used_elsewhere >= len(CROSSING)


@pytest.mark.parametrize("place", CROSSING, ids=CROSSING.values())
def test_memory_that_crosses_streams_and_is_not_recorded_is_seen(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    device = work_on_two_streams(monkeypatch, f"_CudaVerb._begin: record_stream: {place}")
    assert device.num_left_out > 0
    assert device.sees_unrecorded(place), device.streams.faults


def test_gradients_are_kept_until_the_update_that_reads_them_is_queued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the verb, which has told the allocator of them: nobody else may keep them."""
    device, optimizer = StreamDevice(), hps.SGD()
    as_torch_cuda(device, monkeypatch)
    alive: dict[str, bool] = {}
    with device.on(FakeStream(device)):
        options = cache_options(optimizer, 8, capacity_of(optimizer, 8, 2))
        cache = DeviceCache(device, Failures(device), options)
        plan = cache.make_plan(np.arange(100, dtype=np.uint64), None)
        cache.find(plan, 0, -1)
        assert plan.num_missing == 100 and cache.begin_reserve(plan) and cache.end_reserve(plan)
        missing = np.zeros((100, cache.row_bytes), np.uint8)
        cache.fill(plan, missing, np.zeros(100, np.uint8), 0.1, create=True)
        grads = torch.ones(100, 8)
        known, launch = weakref.ref(grads), device.launch

        def noting(kernel: str, *given: Any) -> None:
            alive[kernel] = known() is not None
            launch(kernel, *given)

        monkeypatch.setattr(device, "launch", noting)
        cache.sum_gradients(plan, grads)
        del grads
        cache.apply(plan, 0.1)
        assert alive["ApplySgd"]
        gc.collect()
        assert known() is None
        del cache, plan
