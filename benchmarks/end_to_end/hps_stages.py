"""Where the time of a training step of hps goes: the loop of `hps train`, a clock at every line.

One run beside the timed ones, in a process of its own; prints JSON as peer_train.py does. Above it:
end_to_end_bench.py. Below it: hps's public interface.
"""

import argparse
import json
import sys
import time
from typing import Any

import torch

import hps
from benchmarks.common.server import scratch_server
from benchmarks.end_to_end.stages import Stages
from hps.models import MODELS
from hps.reader import ReaderConfig, open_reader

NAME = "rows"


def train(options: argparse.Namespace, server: Any) -> dict[str, Any]:
    """One epoch over an open server; returns examples, seconds and the stages."""
    log = open_reader(
        options.data,
        tables=list(server.tables.values()),
        config=ReaderConfig(format=options.format, batch_size=options.batch_size),
    )
    features = {name: len(columns) for name, columns in log.features.items()}
    model = MODELS[options.model](server, features, log.num_dense)
    rows, dense = hps.RowOptimizer(server), torch.optim.Adam(model.parameters(), lr=0.001)
    criterion = torch.nn.BCEWithLogitsLoss()
    stages, examples = Stages(), 0
    start = time.perf_counter()
    with hps.Pipeline(log, server, depth=0) as batches:
        for batch in batches:
            with stages.stage("forward"):
                loss = criterion(model(batch), batch.labels)
            with stages.stage("backward"):
                loss.backward()
            with stages.stage("row optimizer"):
                rows.step()
            with stages.stage("dense optimizer"):
                dense.step()
                dense.zero_grad()
            examples += len(batch)
        waits = batches.seconds()
    seconds = time.perf_counter() - start
    before = {"read": waits["network"]["busy_seconds"], "fetch": waits["fetch"]["busy_seconds"]}
    return {"examples": examples, "seconds": seconds, "stages": before | stages.seconds}


def main() -> int:
    """Reads the options, trains, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--format", required=True)
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--dram-bytes", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--torch-threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.torch_threads)
    torch.manual_seed(0)
    optimizer = hps.Adagrad(options.learning_rate)
    columns = MODELS[options.model].row_columns(options.dim)
    table = hps.TableConfig(name=NAME, dim=columns, optimizer=optimizer)
    with scratch_server(table, options.dram_bytes, threads=0) as server:
        figures = train(options, server)
    json.dump(figures, sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
