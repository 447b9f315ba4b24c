"""64 clients at once on one server, which is killed in the middle: every push once, none starves.

Above it: test_many_clients.py. Below it: service_shards.py, hps.RemoteParameterServer. Client w
pushes -1 in column w of some keys; rows begin at 0 and the learning rate is 1, so that column w of
a row counts how often client w has pushed that key. Each client reads its own pushes as it goes.
"""

import threading
from typing import Any

import numpy as np
from numpy.random import default_rng

import hps
from tests.torture.scratch import scratch_folder
from tests.torture.service_clients import ack_of, let_go
from tests.torture.service_shards import Nursery, Shard

NUM_CLIENTS = 64
LEAST_PUSHES = 12  # of each client, when they end
KILL_AT = 4  # pushes of each
MOST_RATIO = 40  # pushes of the fastest client to one of the slowest
TABLE = hps.TableConfig(
    name="counts", dim=NUM_CLIENTS, optimizer=hps.SGD(lr=1.0), initializer=hps.Constant(0.0)
)
PLANT = "marks-forgotten"
_NUM_KEYS = 200
_BATCH = 16
_DEADLINE = 120.0  # of a call: nobody is told that it was refused for load


class Clients:
    """The clients, each in a thread with a connection of its own.

    Args:
        address: of the server.
        seed: of their keys.
    """

    def __init__(self, address: str, seed: int) -> None:
        self.counts = np.zeros((_NUM_KEYS, NUM_CLIENTS), np.float32)  # what was pushed
        self.done = [0] * NUM_CLIENTS
        self.errors: list[str] = []
        self.replayed = 0
        self._address, self._seed = address, seed
        self._moved = threading.Condition()
        self._is_over = False
        self._threads = [
            threading.Thread(target=self._live, args=(client,), daemon=True)
            for client in range(NUM_CLIENTS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wait_for(self, pushes: int) -> None:
        """Until each client has done so many, or one has failed, or starves."""
        with self._moved:
            self._moved.wait_for(
                lambda: (
                    min(self.done) >= pushes
                    or self.errors
                    or max(self.done) > MOST_RATIO * max(pushes, min(self.done))
                )
            )

    def end(self) -> None:
        """All that was begun has been answered when this returns."""
        self._is_over = True
        for thread in self._threads:
            thread.join()

    def missing(self) -> list[str]:
        """What should have happened and has not."""
        found = {
            "pushes of every client": min(self.done) >= LEAST_PUSHES,
            "fair share": max(self.done) <= MOST_RATIO * min(self.done),
            "replay": self.replayed > 0,
        }
        return [what for what, is_so in found.items() if not is_so]

    def __str__(self) -> str:
        return f"pushes of one {min(self.done)} to {max(self.done)}, replayed {self.replayed}"

    def _live(self, client: int) -> None:
        try:
            remote = hps.RemoteParameterServer(
                [self._address], f"client-{client}", deadline=_DEADLINE
            )
            try:
                while not self._is_over:
                    self._push(client, remote)
                remote.flush()
            finally:
                let_go(remote)
        except BaseException as error:
            with self._moved:
                self.errors.append(f"client {client}: {type(error).__name__}: {error}")
                self._moved.notify_all()

    def _push(self, client: int, remote: Any) -> None:
        number = self.done[client]
        places = default_rng((self._seed, client, number)).integers(0, _NUM_KEYS, _BATCH)
        grads = np.zeros((_BATCH, NUM_CLIENTS), np.float32)
        grads[:, client] = -1.0
        keys = places.astype(np.uint64)
        np.add.at(self.counts[:, client], places, 1.0)  # a column of its own: no other thread's
        remote.push("counts", keys, grads, ack=ack_of(3, number))
        if number % 4 == 0:
            own = remote.pull("counts", keys)[:, client]
            if not np.array_equal(own, self.counts[places, client]):
                raise AssertionError(f"it reads {own}, pushed {self.counts[places, client]}")
        with self._moved:
            self.done[client] += 1
            self._moved.notify_all()


def run_many_clients(process: Nursery, seed: int, plant: str = "") -> Clients:
    """One run; what went wrong is in the clients' `errors`.

    Args:
        process: where the server's processes come from.
        seed: of the keys.
        plant: a bug of service_planted.py in the server, or "".
    """
    with scratch_folder() as folder:
        return _run(Shard(process, folder, 0, 1, plant), seed)


def _run(shard: Shard, seed: int) -> Clients:
    shard.options += ["--dram", "8MiB"]
    try:
        shard.start()
        shard.wait_until_ready()
        with hps.RemoteParameterServer([shard.address], "founder") as founder:
            founder.create_table(TABLE)
        clients = Clients(shard.address, seed)
        clients.start()
        clients.wait_for(KILL_AT)
        shard.kill()
        shard.start()
        shard.wait_until_ready()
        clients.wait_for(LEAST_PUSHES)
        clients.end()
        with hps.RemoteParameterServer([shard.address], "reader") as reader:
            rows = reader.pull("counts", np.arange(_NUM_KEYS, dtype=np.uint64))
            clients.replayed = int(reader.stats()["service"]["records_replayed"])
        wrong = np.argwhere(rows != clients.counts)
        if len(wrong) and not clients.errors:
            key, client = wrong[0]
            clients.errors.append(
                f"client {client} has {rows[key, client]:g} pushes of key {key}, sent were "
                f"{clients.counts[key, client]:g}"
            )
        return clients
    finally:
        shard.end()
