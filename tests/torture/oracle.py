"""The oracle: batches whose every row tells which of them it has seen, and the search for that.

Above it: the recipes of tests/torture. Below it: numpy. Random gradients cannot be checked after a
crash; these can. A client sends numbered batches whose keys are a pure function of (seed, client,
number). Rows start at 0, the learning rate is 1 and every gradient is -1 in the client's own column
and minus the key's stamp in the last, so that under SGD column w counts the key's occurrences in
client w's batches, exactly up to 2^24, and the last column is the stamp times the sum of the
others. After a crash there must be ONE k a client that explains its column in every row. That one
search shows that nothing acknowledged is lost, nothing is applied twice, no batch is torn and no
row took its neighbour's values. A second table trains the same batches by Adagrad, whose weights
and accumulators are functions of the same counts: it must show the same k, in both.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

import hps

NUM_CLIENTS = 3
DIM = NUM_CLIENTS + 1
NUM_KEYS = 1600
BATCH_KEYS = 48
START = np.float32(1.0)  # Adagrad's initial accumulator
EPS = np.float32(1e-10)
MAX_STAMP = 251
_EDGE_KEYS = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]

Counts = NDArray[np.int64]


class OracleViolation(AssertionError):
    """Rows that no checkpoint of the workload explains."""


def tables(dim: int = DIM) -> list[hps.TableConfig]:
    """The workload's two tables."""
    zero = hps.Constant(0.0)
    adagrad = hps.Adagrad(lr=1.0, eps=float(EPS), initial_accumulator_value=float(START))
    return [
        hps.TableConfig(
            name="sgd", dim=dim, optimizer=hps.SGD(lr=1.0), initializer=zero, features=["a"]
        ),
        hps.TableConfig(
            name="adagrad", dim=dim, optimizer=adagrad, initializer=zero, features=["b"]
        ),
    ]


class AdagradCurve:
    """What Adagrad leaves after n updates by minus `stamp`: the row kernel's float32 steps."""

    def __init__(self) -> None:
        self._gradients = -np.arange(MAX_STAMP + 1, dtype=np.float32)
        self._weights = [np.zeros(MAX_STAMP + 1, np.float32)]
        self._accumulators = [np.full(MAX_STAMP + 1, START)]

    def at(self, stamps: Counts, updates: Counts) -> tuple[Any, Any]:
        """(weights, accumulators), float32, of each (stamp, number of updates)."""
        while len(self._weights) <= int(updates.max(initial=0)):
            accumulator = self._accumulators[-1] + self._gradients * self._gradients
            step = self._gradients / (np.sqrt(accumulator) + EPS)
            self._accumulators.append(accumulator)
            self._weights.append(self._weights[-1] - step)
        weights, accumulators = np.array(self._weights), np.array(self._accumulators)
        return weights[updates, stamps], accumulators[updates, stamps]


class Oracle:
    """The workload of one seed.

    Args:
        seed: of the batches' keys.
        num_clients: that send batches; rows are one float wider.
    """

    def __init__(self, seed: int, num_clients: int = NUM_CLIENTS) -> None:
        self.seed = seed
        self.num_clients = num_clients
        self._curve = AdagradCurve()

    @cached_property
    def keys(self) -> NDArray[np.uint64]:
        """uint64 [NUM_KEYS]: all keys of the workload, spread over 64 bits, edge cases first."""
        keys = np.arange(NUM_KEYS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        keys[: len(_EDGE_KEYS)] = _EDGE_KEYS
        return keys

    @cached_property
    def stamps(self) -> Counts:
        """int64 [NUM_KEYS]: s(key), in 1..251."""
        return (self.keys % np.uint64(MAX_STAMP) + np.uint64(1)).astype(np.int64)

    def places(self, client: int, number: int) -> Counts:
        """int64 [BATCH_KEYS]: where the keys of a batch stand in `keys`; some come twice."""
        chance = default_rng((self.seed, client, number))
        return (chance.random(BATCH_KEYS) ** 2 * NUM_KEYS).astype(np.int64)

    def push(self, server: Any, client: int, number: int) -> None:
        """Trains one batch in both tables; in Adagrad's, each key once."""
        places = self.places(client, number)
        for name, chosen in (("sgd", places), ("adagrad", _distinct(places))):
            server.push(name, self.keys[chosen], self.gradients(client, chosen))

    def gradients(self, client: int, places: Counts) -> Any:
        """float32 [N, DIM]: those of a client's keys."""
        grads = np.zeros((len(places), self.num_clients + 1), np.float32)
        grads[:, client] = -1
        grads[:, -1] = -self.stamps[places]
        return grads

    def find(self, server: Any, limits: Counts) -> tuple[int, ...]:
        """The k of each client that explains every row of both tables.

        Args:
            server: an open ParameterServer, or anything with its items().
            limits: no client has sent more batches than this.

        Raises:
            OracleViolation: there is none; says which key is the first that does not fit.
        """
        found = [self.find_in(server, name, limits) for name in ("sgd", "adagrad")]
        if found[0] != found[1]:
            raise OracleViolation(f"the sgd table is at {found[0]}, the adagrad table {found[1]}")
        return found[0]

    def find_in(self, server: Any, name: str, limits: Counts) -> tuple[int, ...]:
        """As `find`, of one table."""
        counts = self._counts_of(name, server.items(name, state=True))
        return tuple(
            self._find_one(name, client, counts[:, client], int(limits[client]))
            for client in range(self.num_clients)
        )

    def _counts_of(self, name: str, pieces: Iterator[tuple[Any, ...]]) -> Counts:
        """int64 [NUM_KEYS, clients], after every row has been checked in itself."""
        place_of = {key: place for place, key in enumerate(self.keys.tolist())}
        counts = np.zeros((NUM_KEYS, self.num_clients), np.int64)
        for keys, weights, state in pieces:
            places = np.array([place_of.get(key, -1) for key in keys.tolist()], np.int64)
            if len(places) and places.min() < 0:
                raise OracleViolation(f"{name}: key {keys[places.argmin()]} was never sent")
            floats = weights if name == "sgd" else state - START
            seen = floats[:, :-1].astype(np.int64)
            expected = self._rows(name, self.stamps[places], seen)
            actual = weights if name == "sgd" else np.hstack([weights, state])
            torn = np.flatnonzero((actual != expected).any(axis=1) | (seen.sum(axis=1) == 0))
            if len(torn):
                at = torn[0]
                raise OracleViolation(
                    f"{name}: the row of key {keys[at]} contradicts itself: {actual[at]}, "
                    f"expected after {seen[at]} updates: {expected[at]}"
                )
            counts[places] = seen
        return counts

    def _rows(self, name: str, stamps: Counts, seen: Counts) -> Any:
        """What rows [N, floats] must be, given their counts [N, clients]."""
        total = seen.sum(axis=1)
        if name == "sgd":
            return np.column_stack([seen, stamps * total]).astype(np.float32)
        ones = np.ones_like(stamps)
        columns = [self._curve.at(ones, seen[:, client]) for client in range(self.num_clients)]
        columns.append(self._curve.at(stamps, total))
        return np.column_stack([weights for weights, _ in columns] + [sums for _, sums in columns])

    def _find_one(self, name: str, client: int, seen: Counts, limit: int) -> int:
        counts = np.zeros(NUM_KEYS, np.int64)
        nearest = (NUM_KEYS + 1, 0, 0)
        for k in range(limit + 1):
            if k:
                places = self.places(client, k)
                places = places if name == "sgd" else _distinct(places)
                counts += np.bincount(places, minlength=NUM_KEYS)
            wrong = np.flatnonzero(counts != seen)
            if not len(wrong):
                return k
            nearest = min(nearest, (len(wrong), k, int(wrong[0])))
        raise OracleViolation(
            f"{name}: no k up to {limit} explains client {client}; nearest is {nearest[1]}, where "
            f"{nearest[0]} keys differ, the first of them {self.keys[nearest[2]]}"
        )


def _distinct(places: Counts) -> Counts:
    """As np.unique, which would import 40 ms of numpy.ma into every worker."""
    return np.flatnonzero(np.bincount(places))
