"""Several tables with a gpu_cache on a device are asked at once, with the bits of a server that has
none.

Above it: pytest. Below it: a server over the CUDA cache's launcher, on a device of host memory.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
import hps.nn.joint_look_up  # takes the name of the host before it is another here
from hps.common import bags
from hps.contracts.reads import PooledRead
from hps.errors import BatchMemoryError
from hps.parameter_server.batches import Batches
from hps.parameter_server.server import RowUpdate
from tests.gpu_cache.launched import LaunchedServer
from tests.parameter_server.test_gpu_tier import random_batch, with_bags

TABLES = {
    "ads": (6, hps.Adagrad(lr=0.1)),
    "users": (16, hps.SGD(lr=0.1)),
    "places": (4, hps.Adagrad(lr=0.2)),
}


def batches(are_measured: bool) -> list[hps.Batch]:
    """Of growing and shrinking numbers of keys; one table's now and then none."""
    found = []
    for seed in range(24):
        features = {}
        for number, name in enumerate(TABLES):
            longest = 0 if (seed + number) % 8 == 5 else 4
            batch = random_batch(100 * number + seed, longest, weighted=number == 1, distinct=3000)
            ids = batch.features["ads"]
            features[name] = with_bags(ids) if are_measured else ids
        found.append(hps.Batch(features, torch.zeros(40, 0), torch.ones(40)))
    return found


def config_of(folder: Path, gpu: hps.GpuCacheConfig | None) -> hps.Config:
    tables = [
        hps.TableConfig(name=name, dim=dim, optimizer=optimizer)
        for name, (dim, optimizer) in TABLES.items()
    ]
    return hps.Config(path=folder / "store", tables=tables, gpu=gpu)


def train(server: hps.ParameterServer, given: list[hps.Batch], depth: int) -> list[Any]:
    embeddings = hps.SparseEmbeddings(server, dict.fromkeys(TABLES, 3), pooling="mean")
    optimizer = hps.RowOptimizer(server)
    found: list[Any] = []
    with hps.Pipeline(given, server, depth=depth) as pipeline:
        for batch in pipeline:
            output = embeddings(batch)
            (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
            optimizer.step()
            found.append(output.detach().numpy().tobytes())
    return [found, [server.digest(name) for name in TABLES], server.pins]


class Launched(LaunchedServer):
    """One of these tables.

    Args:
        num_bytes: of its rows.
        batch_bytes: of what batches work on.
    """

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        num_bytes: int,
        batch_bytes: int = 2**24,
    ) -> None:
        gpu = hps.GpuCacheConfig(bytes=num_bytes, device="cpu")
        super().__init__(config_of(folder, gpu), monkeypatch, batch_bytes)


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("num_bytes", [400_000, 4_000_000])
def test_training_of_several_tables_has_the_same_bits_with_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int, num_bytes: int
) -> None:
    with hps.ParameterServer(config_of(tmp_path / "plain", None)) as server:
        expected = train(server, batches(are_measured=False), 0)
    launched = Launched(tmp_path / "launched", monkeypatch, num_bytes)
    with launched.server as server:
        given = batches(are_measured=True)
        assert train(server, given, depth) == expected
        # All tables at once, however many have keys.
        assert launched.launches("Pool") == launched.launches("SumRun") == len(given)
        assert launched.launches("ApplySgd") <= len(given)
        assert launched.launches("Release") == len(given)
        assert (server.stats()["gpu_cache"]["evictions"] > 0) == (num_bytes < 1_000_000)


def test_a_batch_that_cannot_be_pinned_gives_back_the_tables_that_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables whose rows are all here are pinned by their look-up, before others are refused."""
    launched = Launched(tmp_path, monkeypatch, 120_000)
    with launched.server as server:
        queued = server.queued
        assert queued is not None
        few, many = torch.arange(4), torch.arange(5000)
        server.pull("ads", few)
        with server.pin("ads", few):
            pass
        for order in (("ads", "users"), ("users", "ads")):
            keys = {"ads": few, "users": many}
            with pytest.raises(hps.CapacityError, match="'users'"):
                queued.pinning({name: keys[name] for name in order})
            assert server.pins == 0, "rows that nobody was given are held"


def test_a_refused_gradient_of_one_table_changes_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = Launched(tmp_path, monkeypatch, 4_000_000)
    with launched.server as server:
        keys = torch.arange(5)
        widths = {name: dim for name, (dim, _) in TABLES.items()}
        server.apply([RowUpdate(name, keys, torch.ones(5, dim)) for name, dim in widths.items()])
        before = [server.pull(name, keys).numpy().copy() for name in TABLES]
        grads = {name: torch.ones(5, dim) for name, dim in widths.items()}
        grads["places"][3, 1] = np.inf
        server.apply([RowUpdate(name, keys, one) for name, one in grads.items()])
        with pytest.raises(hps.NonFiniteError, match="'places', key 3:"):
            server.pull("places", keys)
        for name, rows in zip(TABLES, before, strict=True):
            assert np.array_equal(server.pull(name, keys).numpy(), rows)


@pytest.mark.parametrize("depth", [0, 2])
def test_a_batch_without_any_table_is_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    given = [hps.Batch({}, torch.zeros(4, 1), torch.ones(4))]
    launched = Launched(tmp_path, monkeypatch, 400_000)
    with launched.server as server, hps.Pipeline(given, server, depth=depth) as pipeline:
        assert len(list(pipeline)) == 1


@pytest.mark.parametrize("verb", ["begin_reserve", "look_up"])
def test_a_device_without_memory_leaves_nothing_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    launched = Launched(tmp_path, monkeypatch, 400_000)
    with launched.server as server:
        queued, keys = server.queued, torch.arange(4)
        assert isinstance(queued, Batches)
        stacks = [queued._tables.stacks[name] for name in ("ads", "users")]
        for stack in stacks:
            server.pull(stack.name, keys)
            with server.pin(stack.name, keys):
                pass
        together = queued._tables.together
        assert together is not None

        def refuse(*_: Any) -> None:
            raise hps.ConfigError("too little memory")

        with monkeypatch.context() as patched:
            patched.setattr(together._verbs, verb, refuse)
            with pytest.raises(hps.ConfigError, match="too little") as caught:
                queued.pinning({stack.name: torch.arange(8) for stack in stacks})
            # Rows are alive by the error's traceback; a plan that they held would be in flight.
            assert [stack.plans_in_flight for stack in stacks] == [set(), set()]
        assert [stack.cache.num_held for stack in stacks] == [0, 0]  # type: ignore[attr-defined]
        assert server.pins == 0
        del caught


def test_rows_of_another_server_are_pooled_by_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its order of verbs, and under its lock."""
    own = Launched(tmp_path / "own", monkeypatch, 400_000)
    other = Launched(tmp_path / "other", monkeypatch, 400_000)
    keys = torch.arange(4)
    pooling = bags.BagPooling(bags.make_bags(torch.arange(5), 4, "here"), None, False)
    with own.server as server, other.server as another, another.pin("ads", keys) as rows:
        out = torch.empty(4, TABLES["ads"][0])
        server.pull_tables([PooledRead("ads", keys, pooling, out, rows)])
        assert own.launches("Pool") == 0 and other.launches("Pool") == 1
        np.testing.assert_array_equal(out.numpy(), np.asarray(another.pull("ads", keys)))


@pytest.mark.parametrize("gives_way", [False, True])
def test_updates_that_are_joined_find_room_where_batches_ahead_give_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gives_way: bool
) -> None:
    """Two of one table, which no pin has made room for."""
    launched = Launched(tmp_path, monkeypatch, 400_000)
    with launched.server as server:
        batches, keys = server.parts.batches, torch.arange(4)
        together = server.parts.tables.together
        assert together is not None
        updates = [RowUpdate("ads", keys, torch.ones(4, 6)) for _ in range(2)]
        asked: list[str] = []
        whole = together.sum_gradients

        def sum_gradients(*given: Any) -> None:
            asked.append("sums")
            if len(asked) == 1:
                raise BatchMemoryError("no room")
            whole(*given)

        monkeypatch.setattr(together, "sum_gradients", sum_gradients)
        monkeypatch.setattr(batches, "_make_room", lambda: gives_way)
        if not gives_way:
            with pytest.raises(BatchMemoryError):
                server.apply(updates)
            assert server.num_rows("ads") == 0
            return
        server.apply(updates)
        assert asked == ["sums", "sums"] and server.num_rows("ads") == 4
