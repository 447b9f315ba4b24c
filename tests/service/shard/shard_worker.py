"""The process that gets killed: a shard over the native log, with clients that push until then.

Above it: test_shard_kills.py, which starts it as `python -m tests.service.shard.shard_worker`.
Below it: Shard, the clients of shard_lab.py. As tests/torture/worker.py: the process that is
started only imports; for each line of its input it forks one that works, and is killed.
"""

import json
import os
import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hps.service.shard.shard import Shard, ShardOptions
from hps.update_log import open_update_log
from tests.service.shard.shard_lab import ShardLab, TestClient, check_rows, run_together
from tests.torture.oracle import NUM_CLIENTS, Oracle

_FIELDS = ("incarnation", "sent", "acknowledged", "next")
TALLIES = ("openings", "replayed", "evictions", "checkpoints", "pushes", "is_working")


class Ledger:
    """Numbers in a shared file, which outlive whoever writes them."""

    def __init__(self, path: Path) -> None:
        is_new = not path.exists()
        size = NUM_CLIENTS * len(_FIELDS) + len(TALLIES)
        self.words = np.memmap(path, np.int64, "w+" if is_new else "r+", shape=(size,))

    def tally(self, name: str) -> int:
        """A number that is counted over all lives."""
        return int(self.words[-1 - TALLIES.index(name)])

    def count(self, name: str, number: int = 1) -> None:
        """Adds to it."""
        self.words[-1 - TALLIES.index(name)] += number


class LedgerClient(TestClient):
    """A client whose numbers are in a ledger."""

    def __init__(self, number: int, oracle: Oracle, ledger: Ledger, seed: int) -> None:
        self.__dict__["ledger"] = ledger
        self.__dict__["place"] = number * len(_FIELDS)
        # `next` is never 0 and is written last. What an earlier life has left is not written over,
        # not even for a moment: the kill may come then.
        self.__dict__["keeps"] = self.next > 0
        super().__init__(number, oracle, seed)
        self.__dict__["keeps"] = False

    def __getattribute__(self, name: str) -> Any:
        if name not in _FIELDS:
            return super().__getattribute__(name)
        value = int(self.ledger.words[self.place + _FIELDS.index(name)])
        return None if name == "incarnation" and not value else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _FIELDS:
            super().__setattr__(name, value)
            return
        if self.keeps:
            return
        self.ledger.count("pushes", name == "next")
        self.ledger.words[self.place + _FIELDS.index(name)] = value or 0


def plant_unlogged(shard: Shard) -> None:
    """A planted bug: now and then a record says nothing, and its mutation is applied."""
    from hps.update_log import Kind, Mutation, encode
    from hps.update_log import records as module

    def planted(mutation: Any) -> Any:
        if mutation.kind == Kind.PUSH and mutation.identity.sequence % 3 == 0:
            mutation = Mutation(Kind.NOTHING, mutation.identity)
        return encode(mutation)

    module.encode = planted


PLANTED: dict[str, Callable[[Shard], None]] = {"": lambda shard: None, "unlogged": plant_unlogged}


def work(folder: Path, seed: int, plant: str) -> None:
    """One life; ends by a kill, or by what is wrong."""
    ledger = Ledger(folder / "ledger")
    oracle = Oracle(seed)
    lab = ShardLab(folder, seed)
    lab.open_log = open_update_log
    shard = Shard(lab.config, ShardOptions(log_bytes=30_000), _tiers=lab.tiers())
    PLANTED[plant](shard)
    ledger.count("openings")
    ledger.count("replayed", shard.stats()["service"]["records_replayed"])
    life = random.randrange(10**9)
    clients = [LedgerClient(number, oracle, ledger, life) for number in range(NUM_CLIENTS)]
    for client in clients:
        client.connect(shard)
    check_rows(shard, oracle, [client.next - 1 for client in clients])
    ledger.count("is_working")
    while True:
        run_together([_worker(client, shard) for client in clients])
        for client in clients:
            if client.errors:
                raise client.errors[0]
        ledger.count("evictions", int(shard.stats()["dram_cache"]["evictions"]))
        ledger.count("checkpoints", shard.stats()["service"]["checkpoints"])


def _worker(client: TestClient, shard: Shard) -> Callable[[], None]:
    return lambda: client.live(shard, 10)


def main() -> None:
    """Forks a worker for each line of the input, and says how it ended."""
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                work(Path(order["folder"]), order["seed"], order["plant"])
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        print(pid, flush=True)
        sys.stdin.readline()
        print(os.waitpid(pid, 0)[1], flush=True)


if __name__ == "__main__":
    main()
