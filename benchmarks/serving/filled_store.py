"""The store of a trained DeepFM that holds as many rows as are asked for.

Above it: serving_bench.py, contender_server.py. Below it: `hps train`, `assign`.
"""

from pathlib import Path

import numpy as np
import torch

import hps
from benchmarks.scoring.passes import Logs
from hps.train import TrainOptions, train

DRAM = "2GiB"
KEYS_FILE = "keys.pt"
_PIECE = 2**18


def fill_store(folder: Path, num_rows: int, dim: int) -> torch.Tensor:
    """Trains on a little log, then adds rows of keys drawn at random; int64 [num_rows] of them all
    are left in the file KEYS_FILE, too."""
    logs = Logs(folder, 2000, 10, 2000)
    train(
        TrainOptions(
            data=[logs.trained], store=logs.store, format="criteo", dim=dim, dram="64MiB", depth=0
        )
    )
    random = np.random.default_rng(0)
    keys = np.unique(random.integers(0, 2**64, num_rows + num_rows // 100, np.uint64))
    keys = random.permutation(keys)[:num_rows]
    with hps.open(logs.store, read_only=False, dram=DRAM) as server:
        state, position = server.checkpoint_state()
        (table,) = server.tables
        for begin in range(0, num_rows, _PIECE):
            piece = keys[begin : begin + _PIECE]
            rows = random.normal(0, 0.05, (len(piece), server.tables[table].dim))
            server.assign(table, piece, rows.astype(np.float32))
        server.checkpoint(tag="filled", model=state, reader=position)
    found = torch.from_numpy(keys.view(np.int64))
    torch.save(found, folder / KEYS_FILE)
    return found
