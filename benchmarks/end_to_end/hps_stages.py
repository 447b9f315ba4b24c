"""Where the time of a training step of hps goes: the loop of `hps train`, a clock at every line,
and the dense part alone.

One run beside the timed ones, in a process of its own; prints JSON as peer_train.py does. Above it:
end_to_end_bench.py. Below it: hps's public interface.
"""

import argparse
import json
import statistics
import sys
import time
from typing import Any

import torch

import hps
from benchmarks.common.server import scratch_server
from benchmarks.end_to_end.stages import Stages
from hps.models import MODELS, ClickModel
from hps.reader import ReaderConfig, open_reader

NAME = "rows"
_DENSE_STEPS = 30


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
    stages, examples, first = Stages(), 0, None
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
            first = batch if first is None else first
        waits = batches.seconds()
    seconds = time.perf_counter() - start
    before = {"read": waits["network"]["busy_seconds"], "fetch": waits["fetch"]["busy_seconds"]}
    alone = dense_seconds(model, first) * examples / len(first)
    figures = {"examples": examples, "seconds": seconds, "dense_seconds": alone}
    return {**figures, "stages": before | stages.seconds}


def dense_seconds(model: ClickModel, batch: hps.Batch) -> float:
    """Median seconds of a step of the layers above the embeddings, over the same batch again."""
    shape = (len(batch), model.num_features, model.columns)
    embedded = torch.randn(shape, requires_grad=True)
    model.embed = lambda _: embedded  # type: ignore[method-assign]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    criterion = torch.nn.BCEWithLogitsLoss()
    taken = []
    for _ in range(_DENSE_STEPS):
        start = time.perf_counter()
        criterion(model(batch), batch.labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        embedded.grad = None
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


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
    columns = options.dim + MODELS[options.model].has_first_order
    table = hps.TableConfig(name=NAME, dim=columns, optimizer=optimizer)
    with scratch_server(table, options.dram_bytes, threads=0) as server:
        figures = train(options, server)
    json.dump(figures, sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
