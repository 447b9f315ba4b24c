"""Exactly once, on a network that loses, doubles, delays and reorders, over shards that restart.

Above it: pytest. Below it: `hps.RemoteParameterServer` over fake_service.py. Each push adds 1 to
its keys, so a row is the number of pushes that reached it.
"""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from hps.errors import CapacityError, ConfigError, RemoteError, StoreError
from hps.service.client.parameter_server import RemoteParameterServer
from hps.v1 import parameter_server_pb2 as pb
from tests.service.client.fake_service import DIM, FakeService, FaultyNetwork, refusal

Code, Kind = grpc.StatusCode, pb.ErrorDetail
KEYS = np.arange(40, dtype=np.uint64)
ONES = np.ones((len(KEYS), DIM), np.float32)


class Lab:
    """A client over fake shards; `network(i)` is the way to one of them."""

    def __init__(self, count: int = 1, seed: int | None = None, **shard: Any) -> None:
        print("seed", seed)
        self.services = [FakeService(i, count, **shard) for i in range(count)]
        self.networks: list[FaultyNetwork] = []
        self.chance = None if seed is None else random.Random(seed)

    def client(self, **options: Any) -> RemoteParameterServer:
        """Another client of the same shards."""
        services = iter(self.services)

        class Client(RemoteParameterServer):
            @staticmethod
            def _connect(address: str, config: Any) -> FaultyNetwork:
                self.networks.append(FaultyNetwork(address, next(services), self.chance))
                return self.networks[-1]

        options = {"client_id": "trainer-0", "deadline": 5.0, **options}
        return Client([f"shard{i}:1" for i in range(len(self.services))], **options)

    def counts(self) -> list[float]:
        """How often each of KEYS was reached."""
        merged: dict[int, Any] = {}
        for service in self.services:
            merged.update(service.rows)
        return [float(merged[key][0]) if key in merged else 0.0 for key in KEYS.tolist()]

    def faults(self) -> int:
        return sum(sum(network.faults.values()) for network in self.networks)


@pytest.mark.parametrize("seed", range(6))
def test_every_push_is_applied_once_whatever_the_network_does(seed: int) -> None:
    lab = Lab(count=3, seed=seed)
    chance = random.Random(seed + 1000)
    with lab.client() as client:
        for number in range(1, 31):
            client.push("ads", KEYS, ONES, ack=chance.choice(["memory", "logged", "durable"]))
            assert lab.counts() == [number] * len(KEYS)
    assert lab.counts() == [30.0] * len(KEYS)
    assert lab.faults() > 5 and sum(service.num_repeats for service in lab.services) > 0


@pytest.mark.parametrize("seed", range(6))
def test_restarts_lose_nothing_that_the_window_holds(seed: int) -> None:
    """Pushes acknowledged in memory are sent again to a shard that has forgotten them."""
    lab = Lab(count=2, seed=seed, log_after=3)
    chance = random.Random(seed + 2000)
    with lab.client() as client:
        for _ in range(30):
            client.push("ads", KEYS, ONES, ack="memory")
            if chance.random() < 0.3:
                chance.choice(lab.services).restart()
        client.flush()
        assert lab.counts() == [30.0] * len(KEYS)
    assert sum(service.num_restarts for service in lab.services) > 2
    assert sum(service.num_gaps for service in lab.services) > 0


def test_pushes_of_several_threads_are_each_applied_once() -> None:
    lab = Lab(count=2, seed=5)
    with lab.client() as client:

        def push_all() -> None:
            for _ in range(25):
                client.push("ads", KEYS, ONES)

        threads = [threading.Thread(target=push_all) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert lab.counts() == [100.0] * len(KEYS)
    assert lab.faults() > 20


def test_async_pushes_keep_their_order() -> None:
    lab = Lab()
    with lab.client() as client:
        futures = [client.push_async("ads", KEYS[:1], ONES[:1] * i) for i in range(50)]
        for future in futures:
            future.result(60)
    applied = [change.grads[0][0] for change in lab.services[0].memory]
    assert applied == [float(i) for i in range(50)]


def test_two_threads_that_begin_at_once_share_one_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    pools, second = [], threading.Event()

    class Pool(ThreadPoolExecutor):
        def __init__(self, *arguments: Any) -> None:
            pools.append(self)
            if len(pools) == 2:
                second.set()
            elif threading.current_thread() is not threading.main_thread():
                second.wait(5)  # the other one is to come while this one is being made
            super().__init__(*arguments)

    monkeypatch.setattr("hps.service.client.waiters.ThreadPoolExecutor", Pool)
    with Lab().client() as client:
        threads = [
            threading.Thread(target=lambda: client.pull_async("ads", KEYS).result(60))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(pools) == 1
    with pytest.raises(RemoteError, match="closed"):
        client.pull_async("ads", KEYS)


def test_answer_from_before_a_restart_proves_nothing_after_it() -> None:
    """It comes while the client sends again what the shard has forgotten."""
    lab = Lab()
    with lab.client() as client:
        client.push("ads", KEYS, ONES)
        sent = [client._pushes.begin("ads", KEYS, ONES, "memory") for _ in range(2)]
        assert lab.counts() == [3.0] * len(KEYS)
        lab.services[0].restart()
        session = client._connections.sessions[0]

        def answer_late(method: str, head: Any) -> None:
            if head.id.sequence == 2:
                session.receive(*sent[1].pending[0][1:])

        lab.services[0].refuse = answer_late
        session.break_off()
        assert session.heal(time.monotonic() + 60) is None
        assert lab.counts() == [3.0] * len(KEYS)
        for commit in sent:
            commit.wait()


def test_memory_pushes_lost_beyond_the_window_are_named_once_and_the_client_goes_on() -> None:
    lab = Lab()
    with lab.client(window=3000) as client:
        for _ in range(10):
            client.push("ads", KEYS, ONES, ack="memory")
        held = len(client._connections.sessions[0].window.changes)
        assert 0 < held < 10
        lab.services[0].restart()
        with pytest.raises(RemoteError, match=rf"changes 1 to {11 - held} of client 'trainer-0'"):
            client.push("ads", KEYS, ONES)
        assert lab.counts() == [held] * len(KEYS)  # the new one among them
        assert client._connections.sessions[0].window.incarnation == 2
        client.push("ads", KEYS, ONES)
        assert lab.counts() == [held + 1.0] * len(KEYS)


def test_flush_says_what_a_restart_beside_it_has_lost() -> None:
    lab = Lab()
    with lab.client(window=3000) as client:
        for _ in range(10):
            client.push("ads", KEYS, ONES, ack="memory")
        flush = lab.services[0]._flush

        def flush_after_a_restart(request: bytes) -> bytes:
            lab.services[0]._flush = flush  # type: ignore[method-assign]
            lab.services[0].restart()
            lab.services[0].log_after = -1  # what is sent again is logged at once
            return flush(request)

        lab.services[0]._flush = flush_after_a_restart  # type: ignore[method-assign]
        with pytest.raises(RemoteError, match="a restart has lost them"):
            client.flush()


def test_flush_does_not_wait_for_what_is_pushed_meanwhile() -> None:
    lab = Lab()
    with lab.client(deadline=1.0) as client:
        client.push("ads", KEYS, ONES, ack="memory")
        session = client._connections.sessions[0]
        safe_up_to = session.safe_up_to

        def push_first(level: int, until: float) -> int:
            safe = safe_up_to(level, until)
            client.push("ads", KEYS, ONES, ack="memory")
            return safe

        session.safe_up_to = push_first  # type: ignore[method-assign]
        client.flush()
        del session.safe_up_to
        assert session.window.last == 2


def test_shard_that_is_down_is_named_and_what_is_open_goes_first_next_time() -> None:
    lab = Lab(count=3)
    with lab.client(deadline=0.3) as client:
        client.push("ads", KEYS, ONES)
        lab.services[1].is_up = False
        with pytest.raises(RemoteError) as caught:
            client.push("ads", KEYS, ONES * 2)
        message = str(caught.value)
        assert "done: 0 (shard0:1), 2 (shard2:1)" in message and "open: 1 (shard1:1)" in message
        assert "do not give it again" in message
        assert {1.0, 3.0} == set(lab.counts())  # in part on the shards that are up
        lab.services[1].is_up = True
        client.pull("ads", KEYS)  # a read sees what was pushed before
        assert set(lab.counts()) == {3.0}


def test_close_waits_for_what_is_open_and_says_what_is_lost() -> None:
    lab = Lab()
    client = lab.client(deadline=0.2)
    client.push("ads", KEYS, ONES)
    lab.services[0].is_up = False
    with pytest.raises(RemoteError):
        client.push("ads", KEYS, ONES)
    with pytest.raises(RemoteError, match=r"flush: deadline passed.*is lost with it"):
        client.close()
    assert lab.networks[0].is_closed
    with pytest.raises(RemoteError, match="closed"):
        client.push("ads", KEYS, ONES)


def test_refused_push_raises_its_error_and_the_next_one_goes_on() -> None:
    lab = Lab(count=2)
    with lab.client() as client:

        def refuse(method: str, head: Any) -> None:
            raise refusal(Code.RESOURCE_EXHAUSTED, Kind.CAPACITY, "too many rows")

        client.push("ads", KEYS, ONES)
        lab.services[1].refuse = refuse
        with pytest.raises(CapacityError, match="shard1:1") as caught:
            client.push("ads", KEYS, ONES)
        assert "done on shards 0 (shard0:1)" in caught.value.__notes__[0]
        lab.services[1].refuse = None
        client.push("ads", KEYS, ONES)
    assert {2.0, 3.0} == set(lab.counts())


def test_push_whose_number_went_to_one_that_was_called_refused_is_not_lost_in_silence() -> None:
    lab = Lab()
    with lab.client() as client:
        client.push("ads", KEYS, ONES)

        def refuse(method: str, head: Any) -> None:
            raise refusal(Code.INVALID_ARGUMENT, Kind.CONFIG, "no such thing")

        lab.services[0].refuse = refuse
        with pytest.raises(ConfigError):
            client.push("ads", KEYS, ONES)
        lab.services[0].refuse = None
        old = lab.services[0].memory[-1]
        lab.services[0].memory.append(replace(old, sequence=2))  # as a kill may bring it back
        with pytest.raises(RemoteError, match="number 2 went to a change that had been refused"):
            client.push("ads", KEYS, ONES)
        client.push("ads", KEYS, ONES)
        assert lab.services[0].mark("trainer-0") == 3
    assert not client._connections.sessions[0].window.changes


def test_push_refused_in_the_middle_of_others_becomes_nothing() -> None:
    """Those behind it were sent already: its number must be filled."""
    lab = Lab()
    with lab.client() as client:
        refusals = iter([True])

        def refuse(method: str, head: Any) -> None:
            if method == "Push" and head.id.sequence == 2 and next(refusals, False):
                raise refusal(Code.INVALID_ARGUMENT, Kind.CONFIG, "no such thing")

        client.push("ads", KEYS, ONES)
        lab.services[0].refuse = refuse
        session = client._connections.sessions[0]
        session.break_off()  # so that all three wait in the window and go together
        with session.lock:
            futures = [client.push_async("ads", KEYS, ONES) for _ in range(3)]
        results = [future.exception(5) for future in futures]
        assert [error is not None for error in results] == [True, False, False]
        assert "no such thing" in str(results[0])
    assert lab.counts() == [3.0] * len(KEYS)
    assert lab.networks[0].calls.count("Skip") == 1


def test_full_disk_fails_whole_and_goes_on_when_space_returns() -> None:
    lab = Lab()
    with lab.client() as client:

        def refuse(method: str, head: Any) -> None:
            raise refusal(Code.RESOURCE_EXHAUSTED, Kind.STORE, "disk full", retry_ms=1000)

        client.push("ads", KEYS, ONES)
        lab.services[0].refuse = refuse
        for _ in range(3):
            with pytest.raises(StoreError, match="disk full"):
                client.push("ads", KEYS, ONES)
        lab.services[0].refuse = None
        client.push("ads", KEYS, ONES)
    assert set(lab.counts()) == {2.0}


def test_refusal_that_asks_to_try_again_is_tried_again() -> None:
    lab = Lab()
    with lab.client() as client:
        left = iter([1, 2, 3])

        def refuse(method: str, head: Any) -> None:
            if next(left, None) is not None:
                raise refusal(
                    Code.RESOURCE_EXHAUSTED, Kind.OVERLOADED, "too much in flight", retry_ms=5
                )

        lab.services[0].refuse = refuse
        client.push("ads", KEYS, ONES)
    assert set(lab.counts()) == {1.0}


class Interrupted:
    """An answer that is never waited for to the end."""

    def reply(self) -> bytes:
        raise KeyboardInterrupt

    def then(self, call: Any) -> None:
        """It never comes."""


@pytest.mark.parametrize("has_arrived", [False, True])
def test_interrupted_push_is_on_its_way_and_goes_first_with_the_next(has_arrived: bool) -> None:
    lab = Lab()
    with lab.client() as client:
        client.push("ads", KEYS, ONES)
        network = lab.networks[0]
        start = network.start

        def interrupt(method: str, request: bytes, timeout: float) -> Any:
            if has_arrived:
                start(method, request, timeout)
            return Interrupted()

        network.start = interrupt  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            client.push("ads", KEYS, ONES)
        network.start = start  # type: ignore[method-assign]
        assert lab.counts() == [2.0 if has_arrived else 1.0] * len(KEYS)
        assert (
            client.pull("ads", KEYS).tolist() == (2 * ONES).tolist()
        )  # a read, too, comes after it
        client.push("ads", KEYS, ONES)
        assert lab.counts() == [3.0] * len(KEYS)


def test_newer_process_of_the_same_client_fences_the_older_one() -> None:
    lab = Lab()
    old = lab.client()
    old.push("ads", KEYS, ONES)
    with lab.client() as new:
        new.push("ads", KEYS, ONES)
        with pytest.raises(RemoteError, match="session of client 'trainer-0' has ended"):
            old.push("ads", KEYS, ONES)
        calls = list(lab.networks[0].calls)
        for call in (lambda: old.push("ads", KEYS, ONES), lambda: old.flush(durable=True)):
            with pytest.raises(RemoteError, match="session of client 'trainer-0' has ended"):
                call()
        assert lab.networks[0].calls == calls  # nobody was asked once more
        assert old.pull("ads", KEYS).shape == (len(KEYS), DIM)  # it may go on reading
        new.push("ads", KEYS, ONES)
    old.close()
    assert set(lab.counts()) == {3.0}


def test_session_that_was_fenced_while_changes_were_open_says_so_at_once() -> None:
    lab = Lab()
    old = lab.client(deadline=0.5)
    old.push("ads", KEYS, ONES)
    lab.services[0].is_up = False
    with pytest.raises(RemoteError, match="deadline passed"):
        old.push("ads", KEYS, ONES)
    lab.services[0].is_up = True
    with lab.client() as new:
        new.push("ads", KEYS, ONES)
        for _ in range(2):
            calls = list(lab.networks[0].calls)
            with pytest.raises(RemoteError, match="session of client 'trainer-0' has ended"):
                old.push("ads", KEYS, ONES)
        assert old._connections.sessions[0].ended is not None and lab.networks[0].calls == calls
        assert old.pull("ads", KEYS).shape == (len(KEYS), DIM)
    old.close()
    assert set(lab.counts()) == {2.0}


def test_session_that_may_not_go_on_is_told_before_the_deadline() -> None:
    """An expired token, or shards that another client has restored: waiting would not help."""
    lab = Lab(count=2)
    client = lab.client(deadline=30.0)
    client.push("ads", KEYS, ONES)
    service, network = lab.services[1], lab.networks[1]
    network.chance, network.rate = random.Random(1), 1.0  # the next push goes nowhere
    network.faults = {"request": 0}

    def deny(data: bytes) -> bytes:
        raise refusal(Code.UNAUTHENTICATED, Kind.AUTHENTICATION, "the token has expired")

    service._opensession = deny  # type: ignore[method-assign]
    heal = client._connections.sessions[1].heal

    def heal_by_a_whole_network(until: float) -> Any:
        network.chance = None
        return heal(until)

    client._connections.sessions[1].heal = heal_by_a_whole_network  # type: ignore[method-assign]
    started = time.monotonic()
    with pytest.raises(RemoteError, match=r"refused; shards done: 0 .*token has expired.*is kept"):
        client.push("ads", KEYS, ONES)
    assert time.monotonic() - started < 20
    del service._opensession
    client.push("ads", KEYS, ONES)
    client.close()
    assert set(lab.counts()) == {3.0}


def test_large_push_is_cut_in_pieces_that_the_shard_takes() -> None:
    lab = Lab(count=2)
    keys = np.arange(7000, dtype=np.uint64)
    with lab.client() as client:
        client.push("ads", keys, np.ones((7000, DIM), np.float32))
        rows = client.pull("ads", keys)
    assert np.array_equal(rows, np.ones((7000, DIM)))
    sizes = [len(change.keys) for service in lab.services for change in service.memory]
    assert max(sizes) <= 1000 and len(sizes) >= 7


def test_first_open_to_a_shard_that_is_down_does_nothing_anywhere() -> None:
    lab = Lab(count=2)
    with lab.client(deadline=0.3) as client:
        lab.services[1].is_up = False
        with pytest.raises(RemoteError, match="nothing was done on any shard"):
            client.push("ads", KEYS, ONES)
        assert lab.services[0].memory == []
        lab.services[1].is_up = True
        client.push("ads", KEYS, ONES)
    assert set(lab.counts()) == {1.0}


def test_shards_in_the_wrong_order_or_of_different_checkpoints_are_refused() -> None:
    lab = Lab(count=2)
    lab.services.reverse()
    with pytest.raises(ConfigError, match="in the order of their indices"):
        lab.client()
    lab.services.reverse()
    lab.services[1].lineage = "other"
    client = lab.client()
    with pytest.raises(RemoteError, match="at different checkpoints"):
        client.push("ads", KEYS, ONES)
    client.close()


def test_window_that_is_full_of_open_changes_refuses_more() -> None:
    lab = Lab()
    with lab.client(deadline=0.2, window=3000) as client:
        client.push("ads", KEYS, ONES)
        lab.services[0].is_up = False
        messages = []
        for _ in range(5):
            with pytest.raises(RemoteError) as caught:
                client.push("ads", KEYS, ONES)
            messages.append("window is full" in str(caught.value))
        assert messages[0] is False and messages[-1] is True
        kept = messages.count(False)
        lab.services[0].is_up = True
        client.flush()
        assert set(lab.counts()) == {1.0 + kept}


def test_flush_without_an_answer_says_that_changes_are_kept() -> None:
    lab = Lab()
    client = lab.client(deadline=0.2)
    client.push("ads", KEYS, ONES)
    lab.services[0].is_up = False
    with pytest.raises(RemoteError, match="what is open is kept"):
        client.flush()
    lab.services[0].is_up = True
    client.close()
