"""Memory of keys and sums on their way between ranks, which one stream takes and another works on.

Above it: pytest. Below it: hps/gpu_cache/peers.py over stream_device.py, which logs the streams.
"""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from hps.common.locks import new_lock
from hps.common.wire import Wire
from hps.gpu_cache.device_batch import DeviceBatch
from hps.gpu_cache.failures import Failures
from hps.gpu_cache.peers import Peers
from tests.gpu_cache.stream_device import FakeEvent, FakeStream, StreamDevice, as_torch_cuda

DIM = 8
KEYS = np.arange(60, dtype=np.uint64)


def sums_on_two_streams(monkeypatch: pytest.MonkeyPatch, *left_out: str) -> StreamDevice:
    """Keys are divided and their gradients summed on one stream, and judged and sent on another;
    all is given back before that is done."""
    device = StreamDevice(frozenset(left_out))
    as_torch_cuda(device, monkeypatch)
    one, other = FakeStream(device), FakeStream(device)
    with device.on(one):
        peers = Peers(DeviceBatch(device, Failures(device)), 2, new_lock())
        divided = list(
            peers.divide({"ads": KEYS, "users": KEYS}, dict(ads=DIM, users=DIM), "cpu").values()
        )
        rests = [peers.new_rests(DIM, 64) for _ in divided]
        peers.sum_gradients(divided, [torch.ones(len(KEYS), DIM) for _ in divided], [None, None])
        made = FakeEvent(device)
        made.record(one)
    with device.on(other):
        other.wait_event(made)
        assert peers.judge(divided, rests, 1.0, 2.0) == [(-1, 0.0)] * 2
        counts = np.array([[of.counts[rank] for of in divided] for rank in range(2)])
        message = peers.send_sums(divided, rests, counts, Wire.INT8)
        assert peers.receive(message, [DIM] * 2, counts, Wire.INT8)[1].eq(0.5).all()
    del peers, divided, rests, message
    gc.collect()
    device.streams.look_for_gone()
    return device


CROSSING = {
    "DeviceArena.__init__ in Failures.__init__": "ids of places, sums and what they are made in",
    "DeviceArena.__init__ in RestMemory.__init__": "what was rounded away",
}


def test_memory_of_sums_that_crosses_streams_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    device = sums_on_two_streams(monkeypatch)
    assert not device.streams.faults, "\n".join(device.streams.faults)
    assert device.streams.num_used_elsewhere >= len(CROSSING)


@pytest.mark.parametrize("place", CROSSING, ids=CROSSING.values())
def test_memory_of_sums_that_is_not_recorded_is_seen(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    device = sums_on_two_streams(monkeypatch, f"_CudaVerb._begin: record_stream: {place}")
    assert device.num_left_out > 0
    assert device.sees_unrecorded(place), device.streams.faults


def test_gradients_are_kept_until_what_judges_their_sums_is_queued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = StreamDevice()
    as_torch_cuda(device, monkeypatch)
    alive: dict[str, bool] = {}
    with device.on(FakeStream(device)):
        peers = Peers(DeviceBatch(device, Failures(device)), 2, new_lock())
        divided = list(peers.divide({"ads": KEYS}, {"ads": DIM}, "cpu").values())
        grads = torch.ones(len(KEYS), DIM)
        known, launch = weakref.ref(grads), device.launch

        def noting(kernel: str, *given: Any) -> None:
            alive[kernel] = known() is not None
            launch(kernel, *given)

        monkeypatch.setattr(device, "launch", noting)
        peers.sum_gradients(divided, [grads], [None])
        del grads
        peers.judge(divided, [None], 1.0, 2.0)
        assert alive["JudgeSum"]
        gc.collect()
        assert known() is None
        del peers, divided
