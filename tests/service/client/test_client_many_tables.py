"""Models of many tables against servers: what a client has under way at once, and how many calls.

Above it: pytest. Below it: client_lab.py, fake_service.py.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, ClassVar

import grpc
import numpy as np
import pytest
import torch

import hps
from hps.common.bags import BagPooling, make_bags
from hps.contracts.reads import PooledRead
from hps.contracts.updates import RowUpdate
from hps.errors import ConfigError
from hps.service.client.errors import Failure
from hps.service.client.parameter_server import RemoteParameterServer
from hps.service.client.rounds import Commit
from hps.service.client.transport import GrpcTransport
from hps.service.server.limits import ServerLimits
from tests.service.client.client_lab import service
from tests.service.client.test_client_sessions import KEYS, ONES, Lab

NUM_TABLES = 30
TABLES = [
    hps.TableConfig(name=f"t{i:02}", dim=2 + i % 3, optimizer=hps.Adagrad(lr=0.1))
    for i in range(NUM_TABLES)
]


class CountingTransport(GrpcTransport):
    """Counts the calls that are under way, by kind, and those that were refused. A change is until
    it is answered, a pull until its answer is taken: else a fast server would answer the first one
    before the last one is sent."""

    most: ClassVar[dict[str, int]] = {}
    counts: ClassVar[dict[tuple[str, str], int]] = {}
    num_calls = 0
    refused: ClassVar[list[str]] = []
    lock = threading.Lock()

    @classmethod
    def clear(cls) -> None:
        cls.most, cls.counts, cls.num_calls, cls.refused = {}, {}, 0, []

    def start(self, method: str, request: bytes, timeout: float) -> Any:
        cls, place = CountingTransport, (method, self.address)
        with cls.lock:
            cls.num_calls += 1
            cls.counts[place] = cls.counts.get(place, 0) + 1
            cls.most[method] = max(cls.most.get(method, 0), cls.counts[place])
        pending = super().start(method, request, timeout)

        class Counted:
            def reply(self) -> bytes:
                try:
                    return pending.reply()
                except Failure as failure:
                    cls.refused.append(f"{method}: {failure}")
                    raise
                finally:
                    if method == "Pull":
                        with cls.lock:
                            cls.counts[place] -= 1

            def then(self, call: Callable[[bool], object]) -> None:
                def counted(is_good: bool) -> None:
                    with cls.lock:
                        cls.counts[place] -= 1
                    call(is_good)

                pending.then(counted)

        return Counted()


@contextmanager
def client_of(
    folder: Path, count: int, limit: int, **options: Any
) -> Iterator[RemoteParameterServer]:
    limits = ServerLimits(client_requests=limit)
    CountingTransport.clear()
    with (
        pytest.MonkeyPatch.context() as patch,
        service(folder, count, TABLES, limits=limits) as servers,
    ):
        patch.setattr(RemoteParameterServer, "_connect", CountingTransport)
        with servers.client(**options) as client:
            yield client


def batches() -> list[hps.Batch]:
    generator = np.random.default_rng(3)
    found = []
    for _ in range(3):
        features = {}
        for table in TABLES:
            keys = torch.from_numpy(generator.integers(0, 40, 24))
            features[table.name] = hps.Ids(keys, torch.arange(0, 25, 3))
        found.append(hps.Batch(features, torch.zeros(8, 0), torch.ones(8)))
    return found


def train(server: Any) -> list[str]:
    names = {f"f{i}": table.name for i, table in enumerate(TABLES)}
    embeddings, optimizer = hps.SparseEmbeddings(server, names), hps.RowOptimizer(server)
    for batch in batches():
        (embeddings(batch) ** 2).sum().backward()
        optimizer.step()
    return [server.digest(table.name) for table in TABLES]


@pytest.mark.parametrize(("count", "limit"), [(1, 16), (2, 3), (1, 1)])
def test_more_tables_than_calls_are_allowed_are_trained_without_a_refusal(
    tmp_path: Path, count: int, limit: int
) -> None:
    config = hps.Config(path=tmp_path / "alone", tables=TABLES)
    with hps.ParameterServer(config) as server:
        wanted = train(server)
    with client_of(tmp_path / "shards", count, limit) as client:
        assert train(client) == wanted
        assert not CountingTransport.refused
        assert CountingTransport.most["Push"] == max(1, min(8, limit // 2))
        # One that goes alone is not started, but waited for at once.
        assert CountingTransport.most.get("Pull", 1) == max(1, min(4, limit // 2))
        assert all(session.last_failure is None for session in client._connections.sessions)


def test_threads_that_push_many_changes_wait_for_each_others_turn(tmp_path: Path) -> None:
    keys, ones = np.arange(5, dtype=np.uint64), np.ones((5, 2), np.float32)
    with client_of(tmp_path, 2, 8) as client:

        def push() -> None:
            sent = [client.push_async("t00", keys, ones) for _ in range(40)]
            for one in reversed(sent):
                one.result(60)

        threads = [threading.Thread(target=push) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not CountingTransport.refused and CountingTransport.most["Push"] <= 4
        found = client.pull("t00", keys)
    with hps.ParameterServer(hps.Config(path=tmp_path / "alone", tables=TABLES)) as server:
        for _ in range(120):
            server.push("t00", keys, ones)
        np.testing.assert_array_equal(found, server.pull("t00", keys))


def test_changes_that_wait_for_their_turn_are_sent_after_a_failure() -> None:
    lab = Lab()
    with lab.client() as client:
        client._connections.sessions[0].most_under_way = 2
        calls = []

        def fail_once(method: str, head: Any) -> None:
            calls.append(method)
            if len(calls) == 3:
                raise Failure(grpc.StatusCode.UNAVAILABLE, None, "the connection was reset")

        lab.services[0].refuse = fail_once
        sent = [client._pushes.begin("ads", KEYS, ONES, "memory") for _ in range(7)]
        assert lab.counts() == [2.0] * len(KEYS)  # two were sent
        for one in sent:
            assert one is not None
            one.wait()
        assert lab.counts() == [7.0] * len(KEYS)
        client.push("ads", KEYS, ONES)
        assert lab.counts() == [8.0] * len(KEYS)


def test_changes_are_sent_one_after_the_other_though_nobody_waits_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt has come before the loop could wait; a read sees the whole step."""
    lab = Lab()
    with lab.client() as client:
        client._connections.sessions[0].most_under_way = 1
        for _ in range(5):
            client._pushes.begin("ads", KEYS, ONES, "memory")
        assert lab.counts() == [5.0] * len(KEYS)
    keys = np.arange(2000, dtype=np.uint64)
    with client_of(tmp_path, 1, 16) as remote:
        updates = [
            RowUpdate(table.name, keys, np.ones((len(keys), table.dim), np.float32))
            for table in TABLES
        ]

        def interrupted(self: Commit) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Commit, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                remote.apply(updates)
        session = remote._connections.sessions[0]
        deadline = monotonic() + 20
        while session._turns or session._under_way:
            assert monotonic() < deadline, "changes were left lying"
            sleep(0.01)
        assert [remote.num_rows(table.name) for table in TABLES] == [len(keys)] * NUM_TABLES
        assert CountingTransport.most["Push"] == 8


def test_a_shard_that_is_silent_does_not_hold_up_the_others() -> None:
    lab = Lab(2)
    with lab.client(deadline=2.0) as client:
        first, second = client._connections.sessions
        first.most_under_way = second.most_under_way = 1
        client.push("ads", KEYS, ONES)
        network = lab.networks[0]
        start = network.start
        network.start = lambda *words: Silent(words[2])  # type: ignore[method-assign]
        before = lab.services[1].mark(client.config.client_id)
        for _ in range(3):
            client._pushes.begin("ads", KEYS, ONES, "memory")
        assert lab.services[1].mark(client.config.client_id) == before + 3
        network.start = start  # type: ignore[method-assign]
        client.push("ads", KEYS, ONES)
        assert lab.counts() == [5.0] * len(KEYS)


class Silent:
    """A call that nobody answers."""

    def __init__(self, timeout: float) -> None:
        self._until = monotonic() + timeout

    def reply(self) -> bytes:
        sleep(max(0.0, self._until - monotonic()))
        raise Failure(grpc.StatusCode.DEADLINE_EXCEEDED, None, "no answer")

    def then(self, call: Callable[[bool], object]) -> None:
        """It does not come."""


def test_tables_are_read_together_in_few_waits(tmp_path: Path) -> None:
    """Of servers: four tables at a time, pinned or not, and each as it is read alone."""
    with client_of(tmp_path, 1, 16) as client:
        generator = np.random.default_rng(4)
        reads, alone = [], []
        for place, table in enumerate(TABLES):
            keys = generator.integers(0, 40, 12)
            client.push(table.name, keys, generator.random((12, table.dim), np.float32))
            offsets = torch.tensor([0, 0, 5, 12])
            pooling = BagPooling(make_bags(offsets, 12, "bags"), None, place % 2 == 1)
            rows = client.pin(table.name, keys) if place % 3 else None
            out = torch.empty(3, table.dim)
            reads.append(PooledRead(table.name, keys, pooling, out, rows))
            alone.append(torch.empty(3, table.dim))
            client.pull_pooled(table.name, keys, pooling, alone[-1])
        CountingTransport.clear()
        client.pull_tables(reads[::-1])
        assert all(torch.equal(read.out, own) for read, own in zip(reads, alone, strict=True))
        assert CountingTransport.most == {"Pull": 4}


def test_reads_of_several_tables_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    keys = np.arange(3)
    bags = BagPooling(make_bags(torch.tensor([0, 3]), 3, "bags"), None, False)
    with client_of(tmp_path, 1, 16) as client, Lab().client() as other:
        out = torch.empty(1, 2)
        read = PooledRead("t00", keys, bags, out)
        with pytest.raises(ConfigError, match="'t00' is given twice"):
            client.pull_tables([read, read])
        with pytest.raises(ConfigError, match="no table 'users'"):
            client.pull_tables([PooledRead("users", keys, bags, out)])
        with pytest.raises(ConfigError, match="bags of 3 keys, and 2 keys"):
            client.pull_tables([PooledRead("t00", keys[:2], bags, out)])
        for rows in (other.pin("ads", keys), client.pin("t01", keys)):
            with pytest.raises(ConfigError, match="of another table or server"):
                client.pull_tables([PooledRead("t00", keys, bags, out, rows)])
        rows = client.pin("t00", keys)
        rows.release()
        with pytest.raises(ConfigError, match="were released"):
            client.pull_tables([PooledRead("t00", keys, bags, out, rows)])
        client.pull_tables([])
        client.pull_tables([read])
        client.apply([RowUpdate("t00", keys, torch.ones(1, 2), pooling=bags)])
        assert client.num_rows("t00") == 3


def test_a_table_of_many_messages_is_read_few_at_a_time(tmp_path: Path) -> None:
    limits = ServerLimits(client_requests=6, message_bytes=2**16)
    CountingTransport.clear()
    with (
        pytest.MonkeyPatch.context() as patch,
        service(tmp_path, 1, TABLES[:1], limits=limits) as servers,
    ):
        patch.setattr(RemoteParameterServer, "_connect", CountingTransport)
        with servers.client() as client:
            keys = np.arange(50_000, dtype=np.uint64)
            grads = np.ones((len(keys), 2), np.float32)
            client.push("t00", np.append(keys, keys[:1]), np.append(grads, grads[:1], axis=0))
            rows = client.pull("t00", np.append(keys, keys[:1]))
            assert rows.shape == (50_001, 2) and np.array_equal(rows[0], rows[-1])
            assert not CountingTransport.refused
            assert CountingTransport.most == {"Push": 3, "Pull": 3}
