"""The processes that publish and serve, forked from one that has imported everything.

Above it: publishing_kills.py, which starts it as `python -m tests.torture.publishing_worker`. Below
it: publishing_workload.py, `hps serve-model`, the loop of service_nursery.py. A planted bug is put
into the forked process before its work begins: no line of hps knows of it.
"""

import random
import sys
import time
from pathlib import Path

import numpy as np

import hps
import hps.cli.serve_model
import hps.serving.rest
import hps.serving.server
from hps.cli.main import main as hps_main
from tests.torture.publishing_planted import PLANTED
from tests.torture.publishing_workload import (
    MARKER,
    TABLE,
    apply,
    config,
    model_of,
    number_of,
    with_bias,
)
from tests.torture.service_nursery import Order, obey, take_streams

PUBLISH = "publish-for-torture"
KEEP = 6  # versions that stay
_MOST_BATCHES = 3  # between two versions
_COMPACTIONS = 0.1  # of versions, before which the store is compacted


class PublishingLedger:
    """What a publisher notes for the process that will kill it, in a file of memory: versions and
    the batches that they hold, and what failed for the destination's sake."""

    def __init__(self, path: Path) -> None:
        is_new = not path.exists()
        self._words = np.memmap(path, np.int64, "w+" if is_new else "r+", shape=(5,))

    @property
    def acknowledged(self) -> tuple[int, int]:
        """(version, its batches) of the last `publish` that has returned; (0, 0): none yet."""
        version = int(self._words[0])
        return version, int(self._words[1])

    @property
    def tallies(self) -> dict[str, int]:
        """What was done, over all lives."""
        names = ("versions published", "publishings that failed", "bases")
        return dict(zip(names, map(int, self._words[2:]), strict=True))

    def acknowledge(self, version: int, number: int) -> None:
        """`publish` has returned. The batches are written first: read with an older version they
        claim too little."""
        self._words[1] = number
        self._words[0] = version

    def count(self, *, base: bool = False, failed: bool = False) -> None:
        """One attempt."""
        self._words[3 if failed else 2] += 1
        self._words[4] += base


def publish_for_ever(store: Path, recipe: Path, place: str, seed: int, ledger_path: Path) -> None:
    """A trainer's life: batches and versions until it is killed."""
    model, ledger = model_of(recipe), PublishingLedger(ledger_path)
    chance = random.Random(time.monotonic_ns())
    with hps.ParameterServer(config(store)) as server:
        number = number_of(server.pull(TABLE, np.array([MARKER], np.uint64))[0, 0])
        while True:
            for _ in range(chance.randint(1, _MOST_BATCHES)):
                number += 1
                apply(server, seed, number)
            if chance.random() < _COMPACTIONS:
                server.compact()
            publish_once(server, place, with_bias(model, number), number, ledger)


def publish_once(
    server: hps.ParameterServer, place: str, model: dict[str, object], number: int,
    ledger: PublishingLedger,
) -> None:  # fmt: skip
    """One version, if the destination lets it be made."""
    try:
        made = server.publish(place, model=model, keep=KEEP)
    except hps.StoreError:  # the next attempt may do better; the destination is at fault
        ledger.count(failed=True)
        return
    if made["kind"] is not None:
        ledger.count(base=made["kind"] == "base")
        ledger.acknowledge(made["version"], number)


def live(order: Order) -> int:
    """A process's whole life; its exit code."""
    take_streams(order)
    if order.plant in PLANTED:
        PLANTED[order.plant].put_in(sys.modules[__name__])
    if order.arguments[0] != PUBLISH:
        return hps_main(order.arguments)
    store, recipe, place, seed, ledger = order.arguments[1:]
    publish_for_ever(Path(store), Path(recipe), place, int(seed), Path(ledger))
    return 0


if __name__ == "__main__":
    obey(live)
