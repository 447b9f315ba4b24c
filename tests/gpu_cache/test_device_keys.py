"""What a step's verbs over several tables on a device are given is read once: keys, poolings.

Above it: pytest. Below it: hps._C.DeviceKeys; step_counts.py's server over the stand-in device.
"""

import array
import gc
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import hps
from hps import _C
from hps.common.bags import BagPooling, make_bags
from hps.contracts.reads import PooledRead
from hps.gpu_cache.device_cache import DeviceCache
from hps.gpu_cache.failures import Failures
from hps.parameter_server.batches import Batches
from hps.parameter_server.server import RowUpdate
from tests.gpu_cache.cache_pair import cache_options, capacity_of
from tests.gpu_cache.host_device import HostDevice
from tests.gpu_cache.step_counts import BAGS, DIM, CountedSteps

HOST, CUDA = 1, 2  # as DLPack names them


class OwnTensor(torch.Tensor):
    """It may hold no numbers."""


def test_keys_are_tensors_of_the_device_or_of_the_host_or_arrays() -> None:
    there, words = torch.arange(3), np.arange(5, dtype=np.uint64)
    given = [there, words, words.view(np.int64), torch.empty(0, dtype=torch.uint64)]
    keys = _C.DeviceKeys(HOST, 0)
    assert keys.add(given)
    assert keys.lengths == [3, 5, 5, 0] and keys.count == 13 and len(keys) == 4
    assert [one is other for one, other in zip(keys.tensors, given[::3], strict=True)] == [True] * 2
    elsewhere = _C.DeviceKeys(CUDA, 0)
    assert elsewhere.add(given) and elsewhere.lengths == [3, 5, 5, 0]
    assert elsewhere.tensors == []


@pytest.mark.parametrize(
    "keys",
    [
        [1, 2],
        None,
        array.array("Q", [1, 2]),
        memoryview(np.arange(3, dtype=np.uint64)),
        np.arange(3.0),
        np.arange(3, dtype=np.int32),
        np.arange(3, dtype=">u8"),
        np.zeros((2, 2), np.uint64),
        np.uint64(3),
        np.array(3, np.uint64),
        np.arange(6, dtype=np.uint64)[::2],
        np.arange(3, dtype=np.uint64).view(np.recarray),
        np.array([np.datetime64(1, "s")]),
        torch.arange(3.0),
        torch.arange(3, dtype=torch.int32),
        torch.zeros(2, 2, dtype=torch.int64),
        torch.tensor(3),
        torch.arange(6)[::2],
        torch.arange(3).as_subclass(OwnTensor),
    ],
    ids=lambda keys: f"{type(keys).__name__} {getattr(keys, 'dtype', '')}",
)
def test_nothing_else_is_taken_for_keys(keys: Any) -> None:
    assert not _C.DeviceKeys(HOST, 0).add([keys])


def test_a_cache_says_which_keys_it_needs() -> None:
    optimizer = hps.SGD(lr=0.1)
    options = cache_options(optimizer, 4, capacity_of(optimizer, 4, 3))
    device = HostDevice()
    cache = DeviceCache(device, Failures(device), options)
    with pytest.raises(ValueError, match="keys must be int64 or uint64"):
        cache.make_plan(np.arange(3.0), None)
    with pytest.raises(ValueError, match="keys must be int64 or uint64"):
        cache.contains(np.arange(3.0))


@pytest.fixture
def steps(tmp_path: Path) -> Any:
    made = CountedSteps(tmp_path / "store", 2)
    with made.server:
        yield made


def queued_of(steps: CountedSteps) -> Batches:
    assert isinstance(steps.server.queued, Batches)
    return steps.server.queued


def on_device(steps: CountedSteps) -> torch.Tensor:
    return torch.from_numpy(steps.new_keys().view(np.int64))


def test_pinned_rows_that_are_dropped_are_released(steps: CountedSteps) -> None:
    rows = queued_of(steps).pinning(dict.fromkeys(steps.names, on_device(steps)))
    assert steps.server.pins > 0
    del rows
    gc.collect()
    assert steps.server.pins == 0
    stacks = steps.server.parts.tables.stacks.values()
    assert [stack.plans_in_flight for stack in stacks] == [set(), set()]


def test_a_table_that_is_none_is_named_and_nothing_is_held(steps: CountedSteps) -> None:
    queued, keys = queued_of(steps), on_device(steps)
    for verb in (queued.pinning, queued.warming):
        with pytest.raises(hps.ConfigError, match="'other'"):
            verb({steps.names[0]: keys, "other": keys})
        with pytest.raises(hps.ConfigError, match="keys has dtype"):
            verb({steps.names[0]: keys, steps.names[1]: keys.float()})
    assert steps.server.pins == 0


def test_keys_that_are_not_in_one_piece_are_pinned_as_others(steps: CountedSteps) -> None:
    keys = on_device(steps)
    apart = torch.stack([keys, keys], dim=1)[:, 0]
    assert not apart.is_contiguous()
    rows = queued_of(steps).pinning(dict.fromkeys(steps.names, apart))
    expected = np.unique(keys.numpy().view(np.uint64))
    for name in steps.names:
        assert np.array_equal(np.sort(rows[name].unique_keys()), expected)


@pytest.mark.parametrize("counts", [True, False], ids=["counted", "inference"])
def test_keys_that_were_changed_since_are_not_those_of_the_rows(
    steps: CountedSteps, counts: bool
) -> None:
    name = steps.names[0]
    with torch.inference_mode(not counts):
        keys = on_device(steps).clone()
        rows = queued_of(steps).pinning({name: keys})[name]
        grads = torch.zeros(len(keys), rows.gather().shape[1])
        steps.server.apply([RowUpdate(name, keys, grads, rows)])
        keys += 1
        with pytest.raises(hps.ConfigError, match="other keys"):
            steps.server.apply([RowUpdate(name, keys, grads, rows)])


def test_a_table_that_cannot_be_warmed_lets_go_of_those_that_were(
    steps: CountedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued, done = queued_of(steps), []
    warm_missing = queued._warm_missing

    def warm(table: str, *given: Any) -> Any:
        if done:
            raise hps.StoreError("no bytes")
        done.append(warm_missing(table, *given))
        return done[0]

    keys = steps.new_keys()
    steps.step(keys)  # stored, then pushed out of the gpu_cache
    steps.overfill()
    monkeypatch.setattr(queued, "_warm_missing", warm)
    with pytest.raises(hps.StoreError, match="no bytes"):
        queued.warming(dict.fromkeys(steps.names, keys))
    assert len(done) == 1 and done[0].is_released


def test_a_table_that_lacks_no_row_is_not_warmed(steps: CountedSteps) -> None:
    queued, here, others = queued_of(steps), steps.new_keys(), steps.new_keys()
    steps.step(here)
    warm = queued.warming({steps.names[0]: here, steps.names[1]: others})
    assert list(warm) == [steps.names[1]]
    for rows in warm.values():
        rows.release()


def test_an_update_by_another_pooling_than_the_forward_s_is_by_its_own(tmp_path: Path) -> None:
    digests = []
    for pools in (True, False):
        made = CountedSteps(tmp_path / str(pools), 2)
        with made.server as server:
            keys, outs = on_device(made), [torch.empty(BAGS, DIM) for _ in made.names]
            offsets = torch.tensor([0, 3, len(keys)])
            own = BagPooling(make_bags(offsets, len(keys), "bags"), None, False)
            rows = queued_of(made).pinning(dict.fromkeys(made.names, keys))
            if pools:
                given = zip(made.names, outs, strict=True)
                server.pull_tables(
                    [PooledRead(name, keys, made.pooling, out, rows[name]) for name, out in given]
                )
            grads = torch.arange(2.0 * DIM).view(2, DIM)
            server.apply([RowUpdate(name, keys, grads, rows[name], own) for name in made.names])
            queued_of(made).release(list(rows.values()))
            digests.append([server.digest(name) for name in made.names])
    assert digests[0] == digests[1]


def test_a_pooling_of_a_batch_before_is_checked_anew(steps: CountedSteps) -> None:
    name, out = steps.names[0], torch.empty(BAGS, DIM)
    keys = on_device(steps)
    steps.step(keys.numpy().view(np.uint64))
    fewer = keys[:-1].clone()
    for _ in range(4):  # plans are used in turns
        rows = queued_of(steps).pinning({name: fewer})[name]
        with pytest.raises(hps.ConfigError, match="bags of 64 keys, and 63 keys are given"):
            steps.server.pull_tables([PooledRead(name, fewer, steps.pooling, out, rows)])
        rows.release()


@pytest.mark.parametrize("length", [0, 63, 65])
def test_weights_of_another_number_than_the_keys_are_refused_and_named(
    steps: CountedSteps, length: int
) -> None:
    """With pinned rows, which are read natively at first, and without."""
    name, keys, out = steps.names[0], on_device(steps), torch.empty(BAGS, DIM)
    pooling = BagPooling(steps.pooling.bags, torch.ones(length), False)
    message = rf"table '{name}'.*weights have shape \({length},\), and 64 keys"
    with queued_of(steps).pinning({name: keys})[name] as rows:
        for held in (rows, None):
            with pytest.raises(hps.ConfigError, match=message):
                steps.server.pull_tables([PooledRead(name, keys, pooling, out, held)])
            with pytest.raises(hps.ConfigError, match=message):
                grads = torch.zeros(BAGS, DIM)
                steps.server.apply([RowUpdate(name, keys, grads, held, pooling)])


class OwnRead:
    """A PooledRead of a user's own, without slots: fields of the object, and one that is made."""

    def __init__(self, read: PooledRead) -> None:
        self.table, self.keys, self.out, self.rows = read.table, read.keys, read.out, read.rows
        self._pooling = read.pooling

    @property
    def pooling(self) -> BagPooling:
        return self._pooling


@pytest.mark.parametrize("own", [(0,), (1,), (0, 1), ()])
def test_objects_without_slots_are_read_like_those_with_them(
    steps: CountedSteps, own: tuple[int, ...]
) -> None:
    keys, outs = on_device(steps), [torch.zeros(BAGS, DIM) for _ in range(4)]
    rows = queued_of(steps).pinning(dict.fromkeys(steps.names, keys))
    together = steps.server.parts.tables.together
    assert together is not None
    for given in (outs[:2], outs[2:]):
        reads: list[Any] = [
            PooledRead(name, keys, steps.pooling, out, rows[name])
            for name, out in zip(steps.names, given, strict=True)
        ]
        if given[0] is outs[2]:
            reads = [OwnRead(read) if at in own else read for at, read in enumerate(reads)]
        assert together.pool(reads)
    steps.device.work_off(steps.device.num_queued)
    assert torch.equal(torch.stack(outs[:2]), torch.stack(outs[2:])) and outs[0].any()
    with pytest.raises(AttributeError, match="rows"):
        together.pool([cast("Any", object())])
    queued_of(steps).release(list(rows.values()))
