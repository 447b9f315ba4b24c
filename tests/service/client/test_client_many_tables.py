"""Models of many tables against servers: what a client has under way at once, and how many calls.

Above it: pytest. Below it: client_lab.py, fake_service.py.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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
    """Counts the calls that were started and not answered, by kind, and those that were refused."""

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
                    with cls.lock:
                        cls.counts[place] -= 1

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


def test_who_waits_for_the_last_change_starts_those_before_it() -> None:
    lab = Lab()
    with lab.client() as client:
        client._connections.sessions[0].most_under_way = 1
        *_, last = [client._pushes.begin("ads", KEYS, ONES, "memory") for _ in range(5)]
        assert last is not None and lab.counts() == [1.0] * len(KEYS)
        last.wait()
        assert lab.counts() == [5.0] * len(KEYS)


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
        with pytest.raises(ConfigError, match="of another server"):
            client.pull_tables([PooledRead("t00", keys, bags, out, other.pin("ads", keys))])
        rows = client.pin("t00", keys)
        rows.release()
        with pytest.raises(ConfigError, match="were released"):
            client.pull_tables([PooledRead("t00", keys, bags, out, rows)])
        client.pull_tables([])
        client.pull_tables([read])
        client.apply([RowUpdate("t00", keys, torch.ones(1, 2), pooling=bags)])
        assert client.num_rows("t00") == 3
