"""JointBatches: what several tables pin, look up and step together, all of them or none.

Above it: pytest. Below it: tests/nn/embeddings_lab.py. The bits of it all: tests/nn.
"""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.contracts.joint import JointUpdate, KeysByTable, Places
from hps.errors import ChangedError
from tests.lab import Lab, table
from tests.nn.embeddings_lab import NAMES, draw_batch, joint, open_tables

TABLES = ("ads", "users")
PLACES = Places.of(TABLES, [4, 4], [False, False], [[0], [4]], [[0], [1]])


def features_of(ads: list[int], users: list[int]) -> tuple[dict[str, hps.Ids], int]:
    """A key an example, of both tables; and how many examples."""
    features = {
        table: hps.Ids(torch.tensor(keys, dtype=torch.int64), torch.arange(len(keys) + 1))
        for table, keys in zip(TABLES, (ads, users), strict=True)
    }
    return features, len(ads)


def ids_of(ads: list[int], users: list[int]) -> KeysByTable:
    """The same, to be looked up."""
    features, num_examples = features_of(ads, users)
    return KeysByTable(list(features.values()), num_examples)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    """Two small tables; each has room for a hundred rows at least."""
    with Lab("native", tmp_path).server(*[table(name=name) for name in TABLES]) as server:
        yield server


def test_what_is_pinned_is_held_until_it_is_released(server: Any) -> None:
    rows = server.joint.pin(*features_of([1, 2], [3, 3]))
    assert server.pins == 3 and not rows.is_released and rows.num_examples == 2
    assert list(rows.of_tables()) == list(TABLES)
    assert rows.of_tables()["users"].unique_keys().tolist() == [3]
    assert all(server.holds(own) for own in rows.of_tables().values())
    with pytest.raises(hps.ConfigError, match="key 3 is pinned by a batch in flight"):
        server.erase("users", np.array([3], np.uint64))
    out = torch.empty(2, 8)
    rows.pool(PLACES, out)
    assert np.array_equal(out[:, :4], server.pull("ads", np.array([1, 2], np.uint64)))
    rows.release()
    rows.release()
    assert server.pins == 0 and rows.is_released
    with pytest.raises(hps.ConfigError, match="were released"):
        rows.pool(PLACES, out)


def test_rows_that_are_dropped_let_go(server: Any) -> None:
    rows = server.joint.pin(*features_of([1, 2], [3, 4]))
    assert server.pins == 4
    del rows
    gc.collect()
    assert server.pins == 0


def test_parts_of_a_batch_that_are_dropped_stay_pinned_with_it(server: Any) -> None:
    rows = server.joint.pin(*features_of([1, 2], [3, 4]))
    parts = rows.of_tables()
    del parts
    gc.collect()
    assert server.pins == 4 and not rows.is_released
    rows.release()


@pytest.mark.parametrize("full", TABLES)
def test_a_pin_that_one_table_refuses_holds_no_row_of_any(server: Any, full: str) -> None:
    many, few = list(range(5000)), [1] * 5000
    batch = features_of(many, few) if full == "ads" else features_of(few, many)
    with pytest.raises(hps.CapacityError, match=f"table '{full}': 5000 distinct"):
        server.joint.pin(*batch)
    assert server.pins == 0
    server.joint.pin(*features_of([1], [2])).release()


def test_a_row_that_cannot_be_read_leaves_no_pin(tmp_path: Path) -> None:
    lab = Lab("native_dram", tmp_path)
    configs = [table(name=name) for name in TABLES]
    with lab.server(*configs) as server:
        for name in TABLES:
            server.assign(name, np.arange(9, dtype=np.uint64), np.ones((9, 4), np.float32))
        server.checkpoint()
    with lab.server(*configs) as server:
        verbs: Any = server.joint

        def broken(*args: Any, **options: Any) -> None:
            raise hps.StoreError("a bad disk")

        stack = server.parts.tables.stack("users")
        fetch = stack.below.fetch
        stack.below.fetch = broken
        out = torch.empty(1, 8)
        for act in (
            lambda: verbs.pin(*features_of([1], [2])),
            lambda: verbs.look_up(ids_of([1], [2]), PLACES, out),
        ):
            with pytest.raises(hps.StoreError, match="a bad disk"):
                act()
            assert server.pins == 0
        stack.below.fetch = fetch
        verbs.look_up(ids_of([1], [2]), PLACES, out)
        assert out.tolist() == [[1.0] * 8]


def test_a_step_takes_only_rows_of_its_own_server(tmp_path: Path) -> None:
    configs = [table(name=name) for name in TABLES]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        Lab("native", tmp_path / "a").server(*configs) as here,
        Lab("native", tmp_path / "b").server(*configs) as there,
    ):
        rows = there.joint.pin(*features_of([1], [2]))
        update = JointUpdate(rows, PLACES, torch.ones(1, 8))
        with pytest.raises(hps.ConfigError, match="of another server"):
            here.joint.apply(update)
        assert there.num_rows("ads") == here.num_rows("ads") == 0
        there.joint.apply(update)
        assert there.num_rows("ads") == there.num_rows("users") == 1
        rows.release()


def test_a_step_finds_room_that_pipelines_give_back(server: Any) -> None:
    """Its rows were looked up, not pinned; batches ahead have the slots."""
    capacity = server.stats()["tables"]["ads"]["dram_cache"]["capacity_rows"]
    size = capacity // 5
    log = []
    for number in range(12):
        keys = torch.arange(100 * number, 100 * number + size)
        one = hps.Ids(keys, torch.arange(size + 1))
        features = {name: one for name in TABLES}
        log.append(hps.Batch(features, torch.zeros(size, 0), torch.ones(size)))
    module, optimizer = hps.SparseEmbeddings(server), hps.RowOptimizer(server)
    with hps.Pipeline(log, server, 4) as batches:
        for number, _ in enumerate(batches):
            own = torch.arange(50_000 + 2 * size * number, 50_000 + 2 * size * (number + 1))
            ids = hps.Ids(own, torch.arange(2 * size + 1))
            batch = hps.Batch(
                {name: ids for name in TABLES}, torch.zeros(2 * size, 0), torch.ones(2 * size)
            )
            module(batch).sum().backward()
            optimizer.step()
    assert server.pins == 0
    assert [server.num_rows(name) for name in TABLES] == [12 * 2 * size] * 2


def test_a_step_lets_go_of_what_it_has_pinned_itself(server: Any) -> None:
    """Its rows were put out since the look-up, which somebody still holds."""
    rows = server.joint.look_up(ids_of([1], [2]), PLACES, torch.empty(1, 8))
    for first in range(100, 5100, 50):
        for name in TABLES:
            server.pull(name, torch.arange(first, first + 50), create=True)
    misses = server.stats()["dram_cache"]["misses"]
    server.joint.apply(JointUpdate(rows, PLACES, torch.ones(1, 8)))
    assert server.stats()["dram_cache"]["misses"] > misses  # premise
    assert server.pins == 0 and server.num_rows("ads") == 5001


def test_look_ups_are_counted_table_by_table(tmp_path: Path) -> None:
    batch = draw_batch(1)
    with open_tables(tmp_path) as server:
        module = joint(server).eval()
        module(batch)
        before = server.stats()["tables"]
        module(batch)
        after = server.stats()["tables"]
    for name in NAMES:
        hits = after[name]["dram_cache"]["hits"] - before[name]["dram_cache"]["hits"]
        assert hits == len(batch.features[name].keys_L.unique())
        assert after[name]["dram_cache"]["misses"] == before[name]["dram_cache"]["misses"]


def test_memory_of_batches_is_used_again(tmp_path: Path) -> None:
    with open_tables(tmp_path) as server:
        module, verbs = joint(server).eval(), server.joint
        for seed in range(6):
            module(draw_batch(seed))
        gc.collect()
        (group,) = verbs._groups.values()  # type: ignore[union-attr]
        assert len(group._idle) == 1


def test_an_iteration_notices_a_step_of_its_own_table_alone(server: Any) -> None:
    for name in TABLES:
        server.push(name, np.arange(5, dtype=np.uint64), np.ones((5, 4), np.float32))
    users = hps.Ids(torch.tensor([1]), torch.tensor([0, 1]))
    nothing = hps.Ids(torch.empty(0, dtype=torch.int64), torch.tensor([0, 0]))
    ids = KeysByTable([nothing, users], 1)
    iterations = {name: server.items(name, batch=1) for name in TABLES}
    for iteration in iterations.values():
        next(iteration)
    rows = server.joint.look_up(ids, PLACES, torch.empty(1, 8))
    server.joint.apply(JointUpdate(rows, PLACES, torch.ones(1, 8)))
    next(iterations["ads"])
    with pytest.raises(ChangedError, match="'users' changed"):
        next(iterations["users"])


@pytest.mark.parametrize("rate", ["fast", None])
def test_a_step_with_a_bad_rate_changes_no_row(server: Any, rate: Any) -> None:
    rows = server.joint.look_up(ids_of([1], [2]), PLACES, torch.empty(1, 8))
    update = JointUpdate(rows, PLACES, torch.ones(1, 8))
    if rate is None:
        del server.learning_rates["users"]
    else:
        server.learning_rates["users"] = rate
    with pytest.raises((TypeError, KeyError), match=r"str|users"):
        server.joint.apply(update)
    assert server.num_rows("ads") == server.num_rows("users") == 0
    server.learning_rates["users"] = 0.1
    server.joint.apply(update)
    assert server.num_rows("ads") == server.num_rows("users") == 1


def test_each_table_steps_by_its_own_rate(server: Any) -> None:
    found = [server.pull(name, np.array([7], np.uint64)).copy() for name in TABLES]
    server.learning_rates.update(ads=0.5, users=0.0)
    rows = server.joint.look_up(ids_of([7], [7]), PLACES, torch.empty(1, 8))
    server.joint.apply(JointUpdate(rows, PLACES, torch.ones(1, 8)))
    ads, users = [server.pull(name, np.array([7], np.uint64)) for name in TABLES]
    assert not np.array_equal(ads, found[0]) and np.array_equal(users, found[1])


def test_tables_whose_rows_may_be_on_their_way_are_looked_at_closely(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in TABLES:
        server.push(name, np.array([7], np.uint64), np.ones((1, 4), np.float32))
    tables, asked = server.parts.tables, []
    for stack in tables.stacks.values():
        monkeypatch.setattr(stack, "has_pending", lambda plan, own=stack: asked.append(own.name))
    stack = tables.stack("users")
    with tables.lock:
        stack.moving = stack.plan
    rows = server.joint.look_up(ids_of([7], [7]), PLACES, torch.empty(1, 8))
    server.joint.apply(JointUpdate(rows, PLACES, torch.ones(1, 8)))
    assert sorted(asked) == ["ads", "ads", "users", "users"]
    asked.clear()
    with tables.lock:
        stack.moving = None
    server.joint.look_up(ids_of([7], [7]), PLACES, torch.empty(1, 8))
    assert not asked and not tables.pins
