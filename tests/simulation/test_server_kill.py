"""A server killed with SIGKILL at a random moment opens at its newest complete checkpoint."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import hps
from tests.lab import Lab, table

NUM_KILLS = 4
# Prints the digest of each cut before it is taken and the cut's tag when it is durable.
WORKER = """
import sys
from pathlib import Path
import numpy as np
import hps
from tests.lab import Lab, table

lab = Lab("native", Path(sys.argv[1]))
generator = np.random.default_rng(int(sys.argv[2]))
with lab.server(table(hps.Adagrad(lr=0.1))) as server:
    for step in range(10**6):
        keys = generator.integers(0, 2000, 300).astype(np.uint64)
        server.push("ads", keys, np.ones((300, 4), np.float32))
        if step % 3 == 2:
            print("taking", server.digest("ads"), flush=True)
            server.checkpoint()
            evictions = server.stats()["dram_cache"]["evictions"]
            print("durable", server.digest("ads"), evictions, flush=True)
"""


def test_a_killed_server_opens_at_its_newest_checkpoint(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    moments = random.Random(seed)
    lab = Lab("native", tmp_path)
    for turn in range(NUM_KILLS):
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path), str(turn)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert worker.stdout is not None
        said = [worker.stdout.readline(), worker.stdout.readline()]
        time.sleep(moments.random() * 0.3)
        worker.send_signal(signal.SIGKILL)
        said += worker.stdout.read().splitlines(keepends=True)
        worker.wait()
        said = [line for line in said if line.endswith("\n")]  # the last may be torn
        durable = [line.split() for line in said if line.startswith("durable")]
        taking = [line.split()[1] for line in said if line.startswith("taking")]
        assert durable and int(durable[-1][2]) > 0, said
        with lab.server(table(hps.Adagrad(lr=0.1))) as server:
            # Either the last that was acknowledged, or the one that was being taken.
            assert server.digest("ads") in {durable[-1][1], taking[-1]}
            server.push("ads", np.arange(3, dtype=np.uint64), np.ones((3, 4), np.float32))
    with lab.open() as reader:
        assert reader.num_rows("ads") > 0
