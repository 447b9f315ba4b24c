"""Each rank of a training serves its own figures, and a cluster's folder can be watched.

Above it: pytest. Below it: hps/train/run_metrics.py and hps/dashboard/ over ranks as threads.
"""

import socket
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from hps.cluster.world.local_world import LocalWorld
from hps.dashboard.fetch import Credentials
from hps.dashboard.sources import StoreSource
from hps.dashboard.watched import Asking, parse_watched
from hps.train import TrainOptions, train
from hps.train.loop import TrainingLoop
from tests.cluster.ranks import run_ranks
from tests.logs import write_criteo

SIZE, EXAMPLES, BATCH = 2, 600, 100


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_criteo(tmp_path / "log.tsv", EXAMPLES)
    base = free_ports()
    options = TrainOptions(
        data=[log],
        store=tmp_path / "store",
        model="fm",
        dim=4,
        batch_size=BATCH,
        dram="2MiB",
        threads=1,
        metrics=f"127.0.0.1:{base}",
    )
    run = TrainingLoop.run
    all_done = threading.Barrier(SIZE)
    texts: dict[int, str] = {}

    def run_and_look(self: TrainingLoop, *arguments: Any) -> Any:
        ended = run(self, *arguments)
        rank = self._ranks.rank
        with urllib.request.urlopen(f"http://127.0.0.1:{base + rank}/metrics") as answer:
            texts[rank] = answer.read().decode()
        all_done.wait(30)
        return ended

    monkeypatch.setattr(TrainingLoop, "run", run_and_look)

    def body(world: LocalWorld) -> Any:
        return train(options, None, world)

    told = run_ranks(SIZE, body)
    assert all(isinstance(one, dict) for one in told), told
    for rank in range(SIZE):
        assert f'hps_train_rank{{rank="{rank}",ranks="{SIZE}"}} 1.0' in texts[rank]
        assert f"hps_train_examples_total {float(EXAMPLES)}" in texts[rank]
    rows = [
        float(text.partition('hps_table_rows{table="features"} ')[2].split()[0])
        for text in texts.values()
    ]
    assert sum(rows) == told[0]["rows"] and min(rows) > 0
    # Each measures the examples that it has read.
    losses = {text.partition("\nhps_train_logloss ")[2].split()[0] for text in texts.values()}
    assert len(losses) == SIZE
    (watched,) = parse_watched([str(tmp_path / "store")], Asking(credentials=Credentials()))
    source = watched.open()
    assert isinstance(source, StoreSource)
    figures = source.read(time.time()).figures
    assert figures["rows/ssd_store"] == figures["table_rows/features"] == told[0]["rows"]
