"""What the service benchmark rests on: equal bytes, Redis's words, processes that tell their time.

Above it: pytest. Below it: benchmarks/service.
"""

import socket
import threading
import time

import numpy as np
import pytest

from benchmarks.common.timing import Samples
from benchmarks.service.driver import Done, Order, drive
from benchmarks.service.field import Cost, Outcome
from benchmarks.service.redis_peer import Connection
from benchmarks.service.service_bench import beside
from benchmarks.service.workload import Workload

SMALL = Workload(rows=500, batch=60)


def test_batches_name_distinct_stored_keys_and_come_again():
    keys = SMALL.keys(2)
    assert len(np.unique(keys)) == 60 and np.isin(keys, SMALL.all_keys).all()
    assert np.array_equal(keys, SMALL.keys(10)) and not np.array_equal(keys, SMALL.keys(3))
    assert SMALL.values(keys).shape == SMALL.grads(2).shape == (60, 16)
    assert len(np.unique(SMALL.values(SMALL.all_keys), axis=0)) == 500
    assert Workload.from_text(SMALL.to_text()) == SMALL


class RedisTwin(threading.Thread):
    """Understands MGET and MSET as Redis does, word by word."""

    def __init__(self):
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.commands = []

    def run(self):
        end, _ = self._listener.accept()
        stored = {}
        with end, end.makefile("rwb") as stream:
            while head := stream.readline():
                words = [self._word(stream) for _ in range(int(head[1:]))]
                self.commands.append((words[0], len(words)))
                if words[0] == b"MSET":
                    stored |= zip(words[1::2], words[2::2], strict=True)
                    stream.write(b"+OK\r\n")
                else:
                    values = [stored[word] for word in words[1:]]
                    bulks = [b"$%d\r\n%s\r\n" % (len(value), value) for value in values]
                    stream.write(b"*%d\r\n" % len(values) + b"".join(bulks))
                stream.flush()

    @staticmethod
    def _word(stream):
        size = int(stream.readline()[1:])
        return stream.read(size + 2)[:-2]


@pytest.mark.parametrize("piece", [7, 100_000])
def test_what_is_set_in_redis_comes_back_whatever_a_command_holds(piece):
    twin = RedisTwin()
    twin.start()
    connection = Connection(twin.address, SMALL.row_bytes, piece)
    for batch in (0, 1):
        keys, rows = SMALL.keys(batch), SMALL.grads(batch)
        connection.push(keys, rows)
        assert np.array_equal(connection.pull(keys), rows)
    connection.close()
    assert len(twin.commands) == 2 * 2 * -(-60 // piece)


class Slow:
    """A client whose requests take a hundredth of a second each, side by side."""

    def __init__(self):
        self.in_flight = self.most = 0

    def pull(self, batch):
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        client, ready = self, time.perf_counter() + 0.01

        class Answer:
            def result(self):
                time.sleep(max(0.0, ready - time.perf_counter()))
                client.in_flight -= 1

        return Answer()


def test_a_driver_keeps_so_many_requests_in_flight():
    client = Slow()
    latency_ms = drive(client, Order("pull", seconds=0.05, in_flight=4))
    assert client.most == 4 and client.in_flight == 0
    assert 12 <= len(latency_ms) <= 32 and min(latency_ms) >= 9


def test_rows_carry_floors_and_cpu_time():
    costs = {name: Cost() for name in ("hps", "bare gRPC")}
    costs["hps"].add(Done(10, 1.0, 0.5, 0.1, [1.0, 2.0]), keys=1000)
    costs["bare gRPC"].add(Done(10, 1.0, 0.1, 0.2, [1.0]), keys=1000)
    rates = {"hps": Samples((80.0,)), "bare gRPC": Samples((100.0,))}
    pull, cpu = beside("pull", Outcome(rates, costs))
    assert (pull["ratio"], pull["floor"]) == (0.8, 0.7)
    assert cpu["value"] == pytest.approx(600) and cpu["ratio"] == pytest.approx(0.5)
    assert cpu["notes"]["hps"]["client_user"] == pytest.approx(500)


def test_the_limit_is_what_the_work_on_rows_leaves_of_the_transport():
    costs = {name: Cost() for name in ("hps", "bare gRPC", "no network")}
    for name, seconds in (("hps", 2.0), ("bare gRPC", 0.3), ("no network", 0.6)):
        costs[name].add(Done(10, 1.0, seconds, 0.0, [1.0]), keys=1000)
    rates = {"hps": Samples((20.0,)), "bare gRPC": Samples((90.0,)), "no network": Samples((50.0,))}
    limit = list(beside("push, memory", Outcome(rates, costs)))[-1]
    assert limit["figure"] == "push, memory, limit" and limit["floor"] is None
    assert (limit["value"], limit["ratio"]) == (pytest.approx(30), pytest.approx(1 / 3))
