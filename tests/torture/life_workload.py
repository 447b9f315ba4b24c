"""The workload of K1, K2 and F2 with life cycle on, and what a store is to hold after each verb.

Above it: life_worker.py, life_kills.py, life_faults.py. Below it: ParameterServer. Verb number n is
a pure function of (seed, n): steps over three tables, pushes, periods, erasures. Of its rows one
cannot say in closed form what they hold, so a store that nothing disturbs takes the same verbs in
memory; after a crash the rows of all tables must be those that it had after ONE n, to the bit, with
their counts, periods of death and the keys that wait.
"""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hps
from hps.contracts.updates import RowUpdate

DIM = 4
NUM_KEYS = 1500
BATCH_KEYS = 48
DRAM_BYTES = 52_000  # two buckets a table, 128 rows, under batches whose keys drift
SEGMENT_BYTES = 2**16
CYCLE = 7  # verbs from one period to the next
NAMES = ("first", "wide", "ads")
_VERBS = ("erase", "erase_where", "create", "assign", "push", "push", *["step"] * 10)


def tables() -> list[hps.TableConfig]:
    """A narrow table by whose scores another one admits its keys, in bfloat16; one whose keys wait
    until they have been counted, with a bound."""
    scored = hps.Expiry(unseen=4, min_score=0.5, decay=0.8, nonclick=0.2, click=1.0)
    counted = hps.Expiry(unseen=3, min_score=0.9, decay=0.9, nonclick=0.3, click=1.0)
    first = hps.TableConfig(
        name="first",
        dim=1,
        optimizer=hps.SGD(lr=1.0),
        initializer=hps.Constant(0.0),
        features=["a"],
        expiry=scored,
    )
    wide = hps.TableConfig(
        name="wide",
        dim=DIM,
        optimizer=hps.RowWiseAdagrad(lr=0.1),
        features=["b"],
        dtype="bfloat16",
        expiry=replace(scored, unseen=5),
        admission=hps.Admission(by="first", min_score=0.4),
    )
    ads = hps.TableConfig(
        name="ads",
        dim=DIM,
        optimizer=hps.Adagrad(lr=0.1),
        features=["c"],
        expiry=counted,
        admission=hps.Admission(count=3),
        max_rows=60,
        share=1.4,  # so that its records have two buckets, too
    )
    return [first, wide, ads]


def config(store: Path, engine: str = "segments", dram: int = DRAM_BYTES) -> hps.Config:
    """Of a store of the workload."""
    return hps.Config(
        path=store,
        tables=tables(),
        dram=hps.DramCacheConfig(bytes=dram),
        ssd=hps.SsdStoreConfig(
            segment_bytes=SEGMENT_BYTES, compaction_threshold=0.2, engine=engine
        ),
        threads=2,
    )


def is_turn(number: int) -> bool:
    """True of a verb that begins a period."""
    return number % CYCLE == 0


class Workload:
    """The verbs of one seed, from number 1 on."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def verb(self, number: int) -> str:
        """The name of one."""
        if is_turn(number):
            return "advance_period"
        return str(np.random.default_rng((self.seed, number, 0)).choice(_VERBS))

    def run(self, server: Any, number: int) -> None:
        """Applies one verb."""
        verb, chance = self.verb(number), np.random.default_rng((self.seed, number))
        keys = self._keys(chance, number)
        if verb == "advance_period":
            leaves_out = chance.integers(8) == 0  # a period, now and then
            server.advance_period(server.period + 2 if leaves_out else None)
        elif verb == "erase":
            server.erase(NAMES[number % 3], keys[:6])
        elif verb == "erase_where":
            server.erase_where("first", show_below=1.5, unseen_for=2)
        elif verb == "create":
            server.pull("ads", keys[:8], create=True)
        elif verb == "assign":
            server.assign("wide", keys[:8], self._gradients(chance, 8, DIM)[0])
        elif verb == "push":
            grads, clicks = self._gradients(chance, len(keys), DIM)
            server.push("ads", keys, grads, clicks.astype(np.float32))
        else:
            server.apply(self._step(chance, keys))

    def _keys(self, chance: np.random.Generator, number: int) -> NDArray[np.uint64]:
        """Popular ones drift, so that some die while others are born; some come twice."""
        places = (chance.random(BATCH_KEYS) ** 2 * 400).astype(np.uint64)
        spread = (places + np.uint64(3 * number)) % np.uint64(NUM_KEYS)
        keys: NDArray[np.uint64] = spread * np.uint64(0x9E3779B97F4A7C15)
        return keys

    def _step(self, chance: np.random.Generator, keys: NDArray[np.uint64]) -> list[RowUpdate]:
        updates = []
        for name, dim in zip(NAMES, (1, DIM, DIM), strict=True):
            grads, clicks = self._gradients(chance, len(keys), dim)
            updates.append(RowUpdate(name, keys, grads, clicks=clicks))
        return updates

    def _gradients(self, chance: np.random.Generator, count: int, dim: int) -> tuple[Any, Any]:
        grads = chance.integers(-3, 4, (count, dim)).astype(np.float32)
        return grads, (chance.random(count) < 0.2).astype(np.uint8)


@dataclass(frozen=True)
class State:
    """What can be told of a store: its period, and of each table the rows, their digest, and how
    many died early as the period began."""

    period: int
    rows: tuple[int, ...]
    digests: tuple[str, ...]

    @classmethod
    def of(cls, server: Any) -> "State":
        """Reads all rows."""
        rows = tuple(server.num_rows(name) for name in NAMES)
        return cls(server.period, rows, tuple(server.digest(name) for name in NAMES))


class Reference:
    """The states after each verb, of a store that nothing disturbs, whose rows all stay in memory.

    Args:
        server: over an empty store.
        seed: of the verbs.
    """

    def __init__(self, server: Any, seed: int) -> None:
        self._server = server
        self._workload = Workload(seed)
        self._states = [State.of(server)]
        self.deaths = self.early_deaths = 0

    def at(self, number: int) -> State:
        """After so many verbs."""
        while len(self._states) <= number:
            last = self._states[-1]
            self._workload.run(self._server, len(self._states))
            self._states.append(State.of(self._server))
            if self._states[-1].period != last.period:
                self.deaths += sum(last.rows) - sum(self._states[-1].rows)
                told = self._server.stats()["tables"]["ads"]
                self.early_deaths += int(told["rows_bounded"])
        return self._states[number]

    def number_of(self, state: State) -> int | None:
        """After which verb a store is in a state; None: after none so far."""
        return self._states.index(state) if state in self._states else None

    def write(self, path: Path, number: int) -> None:
        """The states up to that of a verb, for `read_states`."""
        self.at(number)
        told = [(one.period, one.rows, one.digests) for one in self._states]
        path.write_text(json.dumps(told))


def read_states(path: Path) -> list[State]:
    """What `Reference.write` has written."""
    told = json.loads(path.read_text())
    return [State(period, tuple(rows), tuple(digests)) for period, rows, digests in told]


@contextlib.contextmanager
def reference(folder: Path, seed: int) -> Iterator[Reference]:
    """Over a store of its own in the folder; ends with the block."""
    with hps.ParameterServer(config(folder / f"undisturbed-{seed}", dram=2**22)) as server:
        yield Reference(server, seed)
