"""The store of a trained DeepFM that holds as many rows as are asked for.

Above it: serving_bench.py, contender_server.py. Below it: `hps train`, `assign`.
"""

from pathlib import Path

import numpy as np
import torch

import hps
from hps.train import TrainOptions, train

DRAM = "2GiB"
KEYS_FILE = "keys.pt"
_PIECE = 2**18


def fill_store(folder: Path, num_rows: int, dim: int) -> torch.Tensor:
    """Trains on a little log, then adds rows of keys drawn at random; int64 [num_rows] of them all
    are left in the file KEYS_FILE, too."""
    random = np.random.default_rng(0)
    log, store = folder / "log.tsv", folder / "store"
    with log.open("w") as file:
        for values in random.integers(0, 50, (500, 40)):
            numbers, categories = values[1:14], values[14:]
            words = [values[0] % 2, *numbers, *(f"{value:08x}" for value in categories)]
            file.write("\t".join(map(str, words)) + "\n")
    options = TrainOptions(
        data=[log], store=store, format="criteo", dim=dim, dram="64MiB", depth=0, batch_size=100
    )
    train(options)
    keys = np.unique(random.integers(0, 2**64, num_rows + num_rows // 100, np.uint64))
    keys = random.permutation(keys)[:num_rows]
    with hps.open(store, read_only=False, dram=DRAM) as server:
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
