"""Each rank of a training serves its own figures, and a cluster's folder can be watched.

Above it: pytest. Below it: rank_nursery.py, which runs the real command as processes over gloo;
hps/dashboard/.
"""

import socket
import threading
import time
from pathlib import Path
from typing import Any

from hps.dashboard.collector import Collector
from hps.dashboard.fetch import Credentials
from hps.dashboard.watched import Asking, parse_watched
from tests.cluster.rank_nursery import Job, Nursery
from tests.cluster.test_rank_training import words
from tests.logs import write_criteo

SIZE = 2
_SECONDS = 60.0


def free_ports() -> int:
    """The first of two ports in a row that nobody has."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = int(first.getsockname()[1])
            try:
                socket.create_server(("127.0.0.1", port + 1)).close()
            except OSError:
                continue
            return port


def test_ranks_tell_their_own_figures_and_their_store_theirs_together(
    tmp_path: Path, ranks: Nursery
) -> None:
    log, store, base = write_criteo(tmp_path / "log.tsv", 1250), tmp_path / "store", free_ports()
    flags = ["--metrics", f"127.0.0.1:{base}", "--epochs", "60", "--checkpoint-every", "20"]
    told: list[Any] = []
    job = Job(words(log, store, *flags), SIZE)
    thread = threading.Thread(target=lambda: told.append(ranks.figures(job)))
    addresses = [f"127.0.0.1:{base + rank}" for rank in range(SIZE)]
    watched = parse_watched([*addresses, str(store)], Asking(credentials=Credentials()))
    collector = Collector(watched)
    thread.start()
    try:
        until = time.monotonic() + _SECONDS
        while True:
            state = collector.round()
            targets, values = state["targets"], state["values"]
            rows = [values[one].get("table_rows/features", 0.0) for one in addresses]
            of_store = values[watched[2].name].get("table_rows/features")
            # After the first reading of the log no row comes by; what is told is a second old.
            if state["stragglers"] and sum(rows) == of_store:
                break
            assert time.monotonic() < until and thread.is_alive(), targets
            time.sleep(0.05)
    finally:
        thread.join()
        collector.close()
    assert [one["kind"] for one in targets] == ["trainer", "trainer", "store"]
    assert [one["facts"].get("rank") for one in targets] == ["0 of 2", "1 of 2", None]
    assert min(rows) > 100 and sum(rows) == told[0]["rows"]
    assert {one["slowest"] for one in state["stragglers"]} <= set(addresses)
    assert "stage compute" in {one["what"] for one in state["stragglers"]}
