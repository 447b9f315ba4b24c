"""With a gpu_cache on the host: embeddings by slot, and failures that a device tells late."""

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.common.bags import make_bags
from hps.gpu_cache import make_gpu_caches
from hps.parameter_server.opening import Tiers
from hps.parameter_server.server import RowUpdate
from tests.front import open_server, random_bags
from tests.gpu_cache.launched import LaunchedServer
from tests.lab import dump

GPU = hps.GpuCacheConfig(bytes="300KiB", device="cpu")


def random_batch(
    seed: int, longest: int, *, weighted: bool, examples: int = 40, distinct: int = 500
) -> hps.Batch:
    """Three features; some bags are empty, some longer than a run of 32 where `longest` is."""
    generator = np.random.default_rng(seed)
    keys, offsets = random_bags(generator, 3 * examples, longest, distinct)
    weights = torch.from_numpy(generator.standard_normal(len(keys)).astype(np.float32))
    ids = hps.Ids(keys, offsets, weights if weighted else None)
    dense, labels = torch.zeros(examples, 0), torch.ones(examples)
    return hps.Batch({"ads": ids}, dense=dense, labels=labels)


def launched_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch, gpu: hps.GpuCacheConfig = GPU
) -> hps.ParameterServer:
    """A server of one table on a device, for which tensors of the host are the device's."""
    table = hps.TableConfig(name="ads", dim=6, optimizer=hps.Adagrad(lr=0.1))
    config = hps.Config(path=folder / "store", tables=[table], gpu=gpu)
    return LaunchedServer(config, monkeypatch).server


def train_batches(
    server: hps.ParameterServer, batches: list[hps.Batch], pooling: Any, depth: int = 0
) -> tuple[list[bytes], str, int]:
    """Outputs of every batch, trained with a slope as gradient, then the state of the table."""
    embedding = hps.SparseEmbedding(server, "ads", pooling=pooling)
    optimizer = hps.RowOptimizer(server)
    outputs = []
    with hps.Pipeline(batches, server, depth=depth) as pipeline:
        for batch in pipeline:
            assert batch.rows is not None
            if pooling is not None:
                # Pooled from the slots, without a copy a key.
                batch.rows["ads"].gather = None  # type: ignore[method-assign,assignment]
            output = embedding(batch)
            slope = torch.linspace(-1, 1, output.numel()).view_as(output)
            (output * slope).sum().backward()
            optimizer.step()
            outputs.append(output.detach().numpy().tobytes())
    embedding.eval()
    outputs.append(embedding(batches[0]).numpy().tobytes())
    return outputs, server.digest("ads"), server.num_rows("ads")


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("pooling", "longest"), [("sum", 5), ("mean", 5), ("sum", 300), (None, 5)])
def test_embeddings_and_updates_have_the_same_bits_with_and_without_a_gpu_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pooling: Any, longest: int, weighted: bool
) -> None:
    is_weighted = weighted and pooling is not None
    batches = [random_batch(seed, longest, weighted=is_weighted) for seed in range(4)]
    results = []
    for gpu in (None, GPU):
        with open_server(tmp_path / str(gpu), hps.Adagrad(lr=0.1), gpu=gpu, dim=6) as server:
            results.append(train_batches(server, batches, pooling))
    with launched_server(tmp_path / "launched", monkeypatch) as server:
        measured = [
            dataclasses.replace(batch, features={"ads": with_bags(batch.features["ads"])})
            for batch in batches
        ]
        results.append(train_batches(server, measured, pooling))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("depth", [1, 3])
def test_stages_over_a_device_that_rows_leave_give_the_bits_of_a_server_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """While one thread waits for the device, others queue: look-ups, updates and releases."""
    batches = [random_batch(seed, 5, weighted=False, distinct=6000) for seed in range(30)]
    with open_server(tmp_path / "plain", hps.Adagrad(lr=0.1), dim=6) as server:
        expected = train_batches(server, batches, "mean")
    small = hps.GpuCacheConfig(bytes=130_000, device="cpu")
    with launched_server(tmp_path / "launched", monkeypatch, small) as server:
        assert server.queued is not None
        measured = [
            dataclasses.replace(batch, features={"ads": with_bags(batch.features["ads"])})
            for batch in batches
        ]
        assert train_batches(server, measured, "mean", depth) == expected
        assert server.stats()["gpu_cache"]["write_backs"] > 1000, "no row has left"
        assert server.pins == 0


def with_bags(ids: hps.Ids) -> hps.Ids:
    """As a batch that was moved to a device has them."""
    measured = make_bags(ids.offsets, len(ids.keys_L), "here")
    return dataclasses.replace(ids, offsets=measured.offsets, bags=measured)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_bags_of_offsets_that_were_replaced_since_are_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pooling: Any
) -> None:
    own = with_bags(hps.Ids(torch.arange(4), torch.tensor([0, 1, 2, 3, 4])))
    moved = dataclasses.replace(own, offsets=torch.tensor([0, 0, 4, 4, 4]))
    plain = hps.Ids(moved.keys_L, moved.offsets)
    assert own.known_bags is own.bags and moved.known_bags is None
    with launched_server(tmp_path, monkeypatch) as server:
        for embedding in (
            hps.SparseEmbedding(server, "ads", pooling=pooling).eval(),
            hps.SparseEmbeddings(server, {"ads": 1}, {"ads": pooling}).eval(),
        ):
            outputs = [
                embedding(hps.Batch({"ads": ids}, torch.zeros(4, 0), torch.zeros(4)))
                for ids in (moved, plain, own)
            ]
            assert torch.equal(outputs[0], outputs[1])
            assert not torch.equal(outputs[0], outputs[2])


def test_the_server_takes_and_gives_tensors_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = torch.tensor([5, -1, 5, 7])
    host_keys = keys.numpy().view(np.uint64).copy()
    with launched_server(tmp_path, monkeypatch) as server:
        before = server.pull("ads", keys)
        assert isinstance(before, torch.Tensor)
        np.testing.assert_array_equal(server.pull("ads", host_keys), before.numpy())
        server.push("ads", keys, torch.ones(4, 6))
        out = torch.empty(4, 6)
        assert server.pull("ads", keys, out=out) is out and not torch.equal(out, before)
        np.testing.assert_array_equal(server.pull("ads", host_keys), out.numpy())
        assert server.contains("ads", keys).tolist() == [True] * 4
        with server.warm("ads", keys), server.pin("ads", keys) as rows:
            assert torch.equal(rows.gather(), out)
            assert rows.are_of(keys) and not rows.are_of(keys.flip(0))
            server.apply([RowUpdate("ads", keys, torch.ones(4, 6), rows)])
            keys[0] = 6  # the memory is the same, the keys are not
            assert not rows.are_of(keys)
        moved = keys.clone()
        with server.pin("ads", moved) as rows:
            moved.data = torch.tensor([5, -1, 5, 8])  # which torch does not count
            assert not rows.are_of(moved)
            with pytest.raises(hps.ConfigError, match="other keys"):
                server.apply([RowUpdate("ads", moved, torch.ones(4, 6), rows)])
        with server.pin("ads", torch.arange(512)[::2]) as rows:  # what is pinned is a copy
            others = [torch.full((256,), i) for i in range(64)]
            assert not any(rows.are_of(other) for other in others), "memory of others is believed"
            with pytest.raises(hps.ConfigError, match="other keys"):
                server.apply([RowUpdate("ads", keys, torch.ones(4, 6), rows)])
        keys[0] = 5
        both = [RowUpdate("ads", keys, torch.ones(4, 6)), RowUpdate("ads", host_keys, out.numpy())]
        server.apply(both)
        server.assign("ads", keys, np.zeros((4, 6), np.float32))
        assert not server.pull("ads", keys).any()
        many = torch.arange(20_000)  # more than the cache has slots
        assert torch.equal(server.pull("ads", many)[:4], server.pull("ads", many[:4]))
        for bad, message in (
            (keys.float(), "float32.*int64"),
            (keys[None], "flatten"),
        ):
            with pytest.raises(hps.ConfigError, match=message):
                server.pull("ads", bad)
        with pytest.raises(hps.ConfigError, match="contiguous"):
            server.pull("ads", keys, out=torch.empty(6, 4).T)
        with pytest.raises(hps.ConfigError, match="float64"):
            server.push("ads", keys, torch.ones(4, 6).double())
        assert server.erase("ads", keys).tolist() == [True] * 4 and server.num_rows("ads") == 0
        (bad_grads := torch.ones(4, 6))[2, 1] = torch.nan
        with pytest.raises(hps.NonFiniteError, match="key 5:"):
            server.push("ads", keys, bad_grads)
        assert server.num_rows("ads") == 0


def test_keys_of_inference_mode_are_compared_for_they_count_no_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with launched_server(tmp_path, monkeypatch) as server, torch.inference_mode():
        keys = torch.tensor([5, -1, 5, 7])
        assert keys.is_inference()
        with server.pin("ads", keys) as rows:
            assert rows.are_of(keys) and rows.are_of(keys.clone())
            assert not rows.are_of(keys.flip(0))
            keys[0] = 6  # the memory is the same, the keys are not
            assert not rows.are_of(keys)


def test_statistics_name_every_tier(tmp_path: Path) -> None:
    keys = np.arange(9000, dtype=np.uint64)
    with open_server(tmp_path, gpu=GPU, dram="400KiB") as server:
        server.push("ads", keys, np.ones((9000, 4), np.float32))
        server.pull("ads", keys)
        stats = server.stats()
        assert list(stats)[:3] == ["gpu_cache", "dram_cache", "ssd_store"]
        for part in (stats, stats["tables"]["ads"]):
            for tier in ("gpu_cache", "dram_cache"):
                assert {"hits", "misses", "evictions", "bytes", "rows"} <= part[tier].keys()
        assert stats["gpu_cache"]["evictions"] > 0 and stats["gpu_cache"]["misses"] > 0
        assert stats["gpu_cache"]["bytes"] <= stats["gpu_cache"]["budget_bytes"] == 300 * 1024
        assert server.device == "cpu"


def test_a_batch_too_large_for_the_gpu_cache_names_both_numbers(tmp_path: Path) -> None:
    small = hps.GpuCacheConfig(bytes="40KiB", device="cpu")
    with open_server(tmp_path, gpu=small) as server:
        slots = server.stats()["gpu_cache"]["capacity_rows"]
        keys = np.arange(slots + 1, dtype=np.uint64)
        message = rf"{slots + 1} distinct.*gpu_cache has {slots} slots.*GpuCacheConfig.bytes"
        with pytest.raises(hps.CapacityError, match=message):
            server.pin("ads", keys)
        server.push("ads", keys, np.ones((slots + 1, 4), np.float32))
        assert server.pull("ads", keys).shape == (slots + 1, 4)
        assert server.num_rows("ads") == slots + 1


def test_a_batch_that_fits_by_number_and_not_by_buckets_is_told_why(tmp_path: Path) -> None:
    with open_server(tmp_path, gpu=GPU) as server:
        slots = server.stats()["gpu_cache"]["capacity_rows"]
        keys = np.arange(slots, dtype=np.uint64)
        crowded = rf"{slots} slots and 0 pins on them, which are too few: .* two buckets alone"
        with pytest.raises(hps.CapacityError, match=crowded):
            server.pin("ads", keys)
        with (
            server.pin("ads", keys[:100]),
            pytest.raises(hps.CapacityError, match="100 pins on them; raise"),
        ):
            server.pin("ads", keys)


def test_a_device_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(hps.ConfigError, match=r"Config\.gpu='1GiB' must be an hps.GpuCacheConfig"):
        open_server(tmp_path, gpu="1GiB")
    tiny = hps.GpuCacheConfig(bytes="4KiB", device="cpu")
    with pytest.raises(hps.ConfigError, match=r"'ads'.*least is.*GpuCacheConfig.bytes"):
        open_server(tmp_path, gpu=tiny)


class LateCaches:
    """Caches that tell of a gradient that is not finite as a device does: later, when asked."""

    def __init__(self) -> None:
        self.failed: tuple[Any, int] | None = None  # of all caches of the device
        self.is_shown = False  # the flag has reached the host by itself

    def make(self, config: hps.Config) -> dict[str, Any]:
        return {name: _LateCache(self, cache) for name, cache in make_gpu_caches(config).items()}


class _LateCache:
    def __init__(self, device: LateCaches, cache: Any) -> None:
        self.device, self.cache = device, cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)

    def sum_gradients(self, plan: Any, *given: Any) -> int:
        return self._note(plan, self.cache.sum_gradients(plan, *given))

    def sum_bag_gradients(self, plan: Any, *given: Any) -> int:
        return self._note(plan, self.cache.sum_bag_gradients(plan, *given))

    def find_overflow(self, plan: Any, lr: float) -> int:
        return self._note(plan, self.cache.find_overflow(plan, lr))

    def _note(self, plan: Any, culprit: int) -> int:
        if culprit >= 0 and self.device.failed is None:
            self.device.failed = (self, int(plan.unique_keys[culprit]))
        return -1

    def apply(self, plan: Any, lr: float) -> None:
        if self.device.failed is None:
            self.cache.apply(plan, lr)

    def push(self, plan: Any, grads: Any, lr: float, labels: Any = None) -> int:
        self.sum_gradients(plan, grads, labels)
        self.find_overflow(plan, lr)
        self.apply(plan, lr)
        return -1

    def failed_key(self, wait: bool) -> int | None:
        if self.device.failed is None or self.device.failed[0] is not self:
            return None
        if not (wait or self.device.is_shown):
            return None
        key, self.device.failed, self.device.is_shown = self.device.failed[1], None, False
        return key


def late_server(folder: Path) -> tuple[hps.ParameterServer, LateCaches]:
    device = LateCaches()
    tables = [
        hps.TableConfig(name=name, dim=4, optimizer=hps.SGD(lr=1.0), features=[name])
        for name in ("ads", "users")
    ]
    config = hps.Config(path=folder / "store", tables=tables, gpu=GPU)
    tiers = Tiers(make_gpu_caches=device.make)
    return hps.ParameterServer(config, _tiers=tiers), device


KEYS = np.array([3, 4, 3], np.uint64)


def step(server: hps.ParameterServer, bad: float = 1.0) -> None:
    ones = np.ones((3, 4), np.float32)
    broken = ones.copy()
    broken[1, 2] = bad
    server.apply([RowUpdate("ads", KEYS, ones), RowUpdate("users", KEYS, broken)])


@pytest.mark.parametrize("verb", ["pin", "apply", "checkpoint", "pull", "push", "close", "leave"])
def test_a_failure_told_late_is_raised_by_the_next_verb_and_no_row_changes(
    tmp_path: Path, verb: str
) -> None:
    server, device = late_server(tmp_path)
    message = "'users', key 4:"
    is_last = verb in ("close", "leave")
    with pytest.raises(hps.NonFiniteError, match=message) if is_last else nullcontext(), server:
        step(server)
        before = [dump(server, name) for name in server.tables]
        rows = server.pin("users", KEYS)
        step(server, np.nan)
        step(server)  # is not applied: the failure has not been told
        device.is_shown = verb in ("pin", "apply")  # these two do not wait for it
        ones = np.ones((3, 4), np.float32)
        calls = {
            "pin": lambda: server.pin("users", KEYS),
            "apply": lambda: server.apply([RowUpdate("users", KEYS, ones, rows)]),
            "checkpoint": lambda: server.checkpoint("bad"),
            "pull": lambda: server.pull("users", KEYS),
            "push": lambda: server.push("users", KEYS, ones),
            "close": server.close,
            "leave": lambda: None,
        }
        if is_last:
            calls[verb]()
        else:
            with pytest.raises(hps.NonFiniteError, match=message):
                calls[verb]()
            rows.release()
            assert [dump(server, name) for name in server.tables] == before
            assert server.pins == 0 and not server.checkpoints()
            step(server)  # goes on
            assert [dump(server, name) for name in server.tables] != before
    with pytest.raises(hps.StoreError, match="closed"):
        server.pull("ads", KEYS)


def test_the_row_optimizer_goes_on_after_a_failure_told_late(tmp_path: Path) -> None:
    server, _ = late_server(tmp_path)
    with server:
        embedding = hps.SparseEmbedding(server, "ads", pooling=None)
        optimizer = hps.RowOptimizer(server)
        keys = torch.tensor([1, 2])
        before = server.pull("ads", keys).clone()
        (embedding(keys) * float("inf")).sum().backward()
        optimizer.step()  # returns: the device has not told yet
        with pytest.raises(hps.NonFiniteError, match="'ads', key"):
            server.pull("ads", keys)
        assert torch.equal(server.pull("ads", keys), before) and server.num_rows("ads") == 0
        embedding(keys).sum().backward()
        optimizer.step()
        assert torch.equal(server.pull("ads", keys), before - 1)


def test_the_gradient_scaler_skips_a_bad_step_of_a_gpu_cache(tmp_path: Path) -> None:
    with open_server(tmp_path, hps.SGD(lr=1.0), gpu=GPU) as server:
        embedding = hps.SparseEmbedding(server, "ads", pooling=None)
        optimizer = hps.RowOptimizer(server)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
        keys = torch.tensor([1, 2])
        before = server.pull("ads", keys).clone()
        for factor, expected in ((float("inf"), before), (1.0, before - 1)):
            scaler.scale((embedding(keys) * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(server.pull("ads", keys), expected)
