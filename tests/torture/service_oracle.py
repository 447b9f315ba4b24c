"""The oracle of the service: ONE k for each shard and client, counted in pushes.

Above it: the service_*.py recipes. Below it: oracle.py, whose batches and rows these are. A client
numbers its pushes: the odd ones train a batch in the table `sgd`, the even ones the same batch in
`adagrad`, so that one number says how far both tables are. Each push goes to all shards, each key
to the one that owns it.
"""

import numpy as np
from numpy.typing import NDArray

from hps.common.sharding import ShardMap
from tests.torture.oracle import NUM_KEYS, Counts, Oracle, OracleViolation

Keys = NDArray[np.uint64]

NUM_CLIENTS = 4
DIM = NUM_CLIENTS + 1
TABLES = ("sgd", "adagrad")


class ServiceOracle(Oracle):
    """The workload of one seed, divided over shards.

    Args:
        seed: of the batches' keys.
        num_shards: that the keys are divided over.
    """

    def __init__(self, seed: int, num_shards: int) -> None:
        super().__init__(seed, NUM_CLIENTS)
        self._shard_of = np.empty(NUM_KEYS, np.int64)
        for shard, places in enumerate(ShardMap(num_shards).split(self.keys)):
            self._shard_of[places] = shard
        self._known: dict[tuple[int, str, int], tuple[int, Counts]] = {}

    def push_of(self, client: int, number: int) -> tuple[str, Keys, NDArray[np.float32]]:
        """Table, keys and gradients of a push; numbers begin at 1."""
        name = TABLES[(number + 1) % 2]
        places = self._chosen(name, client, (number + 1) // 2)
        return name, self.keys[places], self.gradients(client, places)

    def marks(self, server: object, shard: int, limits: Counts) -> Counts:
        """int64 [clients]: the pushes of each client that a shard's rows show.

        Args:
            server: anything with the verb `items`, over that shard's store alone.
            shard: which one.
            limits: no client has begun more pushes than this.

        Raises:
            OracleViolation: no number of pushes explains the rows.
        """
        sgd, adagrad = (self._batches_in(server, name, shard, limits) for name in TABLES)
        torn = np.flatnonzero((sgd != adagrad) & (sgd != adagrad + 1))
        if len(torn):
            raise OracleViolation(
                f"shard {shard}: client {torn[0]} is at batch {sgd[torn[0]]} in sgd, "
                f"{adagrad[torn[0]]} in adagrad"
            )
        return sgd + adagrad

    def _chosen(self, name: str, client: int, batch: int) -> Counts:
        places = self.places(client, batch)
        return places if name == "sgd" else np.flatnonzero(np.bincount(places))

    def _batches_in(self, server: object, name: str, shard: int, limits: Counts) -> Counts:
        """int64 [clients]: batches that one table of a shard shows."""
        seen = self._counts_of(name, server.items(name, state=True))  # type: ignore[attr-defined]
        stray = np.flatnonzero(seen.any(axis=1) & (self._shard_of != shard))
        if len(stray):
            raise OracleViolation(f"shard {shard} has key {self.keys[stray[0]]} of another shard")
        shown = [
            self._search(name, client, shard, seen[:, client], (int(limits[client]) + 1) // 2)
            for client in range(NUM_CLIENTS)
        ]
        return np.array(shown)

    def _search(self, name: str, client: int, shard: int, seen: Counts, limit: int) -> int:
        """The k that explains one column; the search goes on from where the last one ended."""
        first, counts = self._known.get((shard, name, client), (0, np.zeros(NUM_KEYS, np.int64)))
        if (counts > seen).any():
            first, counts = 0, np.zeros(NUM_KEYS, np.int64)
        counts = counts.copy()
        nearest = (NUM_KEYS + 1, 0, 0)
        for k in range(first, limit + 1):
            if k > first:
                places = self._chosen(name, client, k)
                places = places[self._shard_of[places] == shard]
                counts += np.bincount(places, minlength=NUM_KEYS)
            wrong = np.flatnonzero(counts != seen)
            if not len(wrong):
                self._known[shard, name, client] = (k, counts)
                return k
            nearest = min(nearest, (len(wrong), k, int(wrong[0])))
        raise OracleViolation(
            f"shard {shard}, {name}: no k up to {limit} explains client {client}; nearest is "
            f"{nearest[1]}, where {nearest[0]} keys differ, the first of them "
            f"{self.keys[nearest[2]]}"
        )
