"""The parts of a client, each without the others; and who holds which lock.

Above it: pytest. Below it: hps/service/client, over a service of this process.
"""

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hps.common.locks import new_lock
from hps.common.plan_pool import PlanPool
from hps.common.sharding import ShardMap
from hps.errors import ConfigError, HpsError, RemoteError
from hps.service.client.connections import Connections
from hps.service.client.division import KeyDivision
from hps.service.client.options import ClientConfig
from hps.service.client.plans import RemoteRows
from hps.service.client.shards import Shards
from hps.service.client.training import LoopGradients
from hps.service.client.waiters import Waiters
from hps.service.client.window import LOGGED, Draft, Window
from hps.v1 import parameter_server_pb2 as pb
from tests.service.client.fake_service import FakeService
from tests.service.client.test_client_sessions import FaultyNetwork

KEYS = np.arange(1000, dtype=np.uint64)


def connected(count: int) -> Connections:
    """To services of this process."""
    services = iter([FakeService(i, count) for i in range(count)])
    config = ClientConfig(addresses=[f"shard{i}:1" for i in range(count)], deadline=5.0)
    return Connections(config, lambda address, _: FaultyNetwork(address, next(services), None))


def test_connections_ask_the_shards_that_are_named() -> None:
    connections = connected(3)
    replies = connections.ask_all("Describe", pb.DescribeRequest(), pb.DescribeReply)
    assert [reply.shard_map.index for reply in replies] == [0, 1, 2]
    (last,) = connections.ask_all(
        "Describe", pb.DescribeRequest(), pb.DescribeReply, connections.sessions[2:]
    )
    assert last.shard_map.index == 2
    connections.close()
    assert not connections.is_open


def test_shards_refuse_verbs_of_a_client_that_is_closed() -> None:
    connections = connected(2)
    shards = Shards(connections)
    with pytest.raises(ConfigError, match="there is no table 'none'"):
        shards.table("none", "pull")
    assert shards.table("ads", "pull") == shards.tables["ads"]
    connections.drop()
    with pytest.raises(RemoteError, match="pull: this client is closed"):
        shards.table("ads", "pull")


def test_keys_are_divided_into_messages_that_each_shard_takes() -> None:
    sessions = [SimpleNamespace(index=i) for i in range(2)]
    owners = ShardMap(2)
    connections: Any = SimpleNamespace(sessions=sessions, where="nowhere")
    shards: Any = SimpleNamespace(shard_map=owners, max_keys=300, max_bytes=2**20)
    plans = PlanPool(owners.owners().tolist(), 8)
    division = KeyDivision(connections, shards, plans)
    shares = division.shares(KEYS, 8)
    assert max(len(places) for _, places in shares) == 300
    assert sorted(np.concatenate([places for _, places in shares])) == list(range(len(KEYS)))
    for session, places in shares:
        assert set(places) <= set(owners.split(KEYS)[session.index])
    plan = plans.take(KEYS)
    pieces = division.pieces(plan, 8)
    assert [first for _, _, first in pieces] == sorted(first for _, _, first in pieces)
    assert np.array_equal(np.concatenate([keys for _, keys, _ in pieces]), plan.unique_keys)
    assert not division.go_whole(KEYS, 8), "there are two shards"
    shards.max_bytes = 4096 + 80
    assert division.most_rows(8) == 10 and division.most_rows(2**20) == 1


def test_waiters_refuse_work_once_they_are_closed() -> None:
    waiters = Waiters("nowhere")
    assert waiters.wait(lambda: 3).result(60) == 3
    waiters.close()
    with pytest.raises(RemoteError, match="closed"):
        waiters.wait(lambda: 3)


def test_pipelines_are_counted_by_who_listens_to_the_gradients() -> None:
    loop = LoopGradients()
    assert loop.num_open_pipelines == 0
    loop.pending_gradients = SimpleNamespace(listeners=["one", "two"])
    assert loop.num_open_pipelines == 2


def test_a_window_is_changed_under_the_lock_of_its_session_alone() -> None:
    lock = new_lock()
    window = Window("trainer-0", 2**20, lock)
    change = window.number(Draft("Skip", pb.SkipRequest(), (), LOGGED, "a skip"), 1)
    for use in (
        lambda: window.fits(1),
        lambda: window.take_in(pb.Marks()),
        lambda: window.start_from(pb.Marks()),
        lambda: window.next_to_send(0),
        lambda: window.withdraw_unsent(HpsError()),
        lambda: window.renumber(1, pb.Marks()),
        lambda: window.clear(HpsError()),
    ):
        with pytest.raises(AssertionError, match="without the lock"):
            use()
        with lock:
            use()
    with pytest.raises(AssertionError, match="without the lock"):
        window.give_up(change)


def test_changes_are_numbered_and_sent_by_who_holds_the_lock_of_the_session() -> None:
    (session,) = connected(1).sessions
    with pytest.raises(AssertionError, match="without the lock"):
        session.commit([])
    with pytest.raises(AssertionError, match="without the lock"):
        session.send(SimpleNamespace(attempts=0), 0.0)  # type: ignore[arg-type]
    with session.lock:
        assert session.commit([]) == []


def test_the_plan_of_a_batch_is_used_under_its_lock() -> None:
    pool = PlanPool(ShardMap(1).owners().tolist(), 8)
    rows = RemoteRows(SimpleNamespace(), pool, "ads", KEYS)  # type: ignore[arg-type]
    held = []

    def elsewhere() -> None:
        with pytest.raises(AssertionError, match="without the lock"):
            rows.held_plan()
        held.append(True)

    with rows.lock:
        assert rows.held_plan() is rows.plan
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(60)
    assert held == [True] and rows.are_of(KEYS)
    rows.release()
    with rows.lock, pytest.raises(ConfigError, match="released"):
        rows.held_plan()
