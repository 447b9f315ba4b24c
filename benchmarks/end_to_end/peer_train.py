"""Trains a model of hps over a peer's dense table in a process of its own; prints JSON.

The file, the reader, the dense layers and their optimizer are those of `hps train`; keys are taken
modulo the table's size, which is what one does without a parameter server. No progress, no metrics
but the loss, so that what differs speaks for the peer. Above it: end_to_end_bench.py.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass

import torch

import hps
from benchmarks.end_to_end.peer_tables import TABLES, PeerTable
from benchmarks.end_to_end.stages import Stages
from hps.models import MODELS, ClickModel
from hps.reader import ReaderConfig, open_reader
from hps.types import Batch

NAME = "rows"


@dataclass(frozen=True)
class _Tables:
    """The part of a server that a model looks at when it is made."""

    tables: dict[str, hps.TableConfig]
    device: str = "cpu"
    joint: None = None


def columns_of(kind: str, dim: int) -> int:
    """Width of a row: a first-order weight is a column more."""
    return MODELS[kind].row_columns(dim)


def peer_model(
    kind: str, table: PeerTable, dim: int, num_features: int, num_dense: int
) -> ClickModel:
    """A model of hps whose rows come from a peer's table."""
    made: type[ClickModel] = MODELS[kind]

    class PeerModel(made):  # type: ignore[valid-type, misc]
        def embed(self, batch: Batch) -> torch.Tensor:
            ids = batch.features[NAME]
            bags = table.look_up(ids.keys_L, ids.offsets)
            return bags.view(num_features, len(batch), self.columns).transpose(0, 1)

    tables = _Tables({NAME: hps.TableConfig(name=NAME, dim=columns_of(kind, dim))})
    model: ClickModel = PeerModel(tables, {NAME: num_features}, num_dense)
    return model


def train(options: argparse.Namespace) -> dict[str, object]:
    """One epoch; returns examples, seconds, loss and the stages."""
    torch.set_num_threads(options.torch_threads)
    torch.manual_seed(0)
    log = open_reader(
        options.data,
        tables=[hps.TableConfig(name=NAME, dim=columns_of(options.model, options.dim))],
        config=ReaderConfig(format=options.format, batch_size=options.batch_size),
    )
    columns = columns_of(options.model, options.dim)
    table = TABLES[options.peer](options.table_rows, columns, options.learning_rate)
    num_features = len(log.features[NAME])
    model = peer_model(options.model, table, options.dim, num_features, log.num_dense)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.dense_learning_rate)
    criterion = torch.nn.BCEWithLogitsLoss()
    stages, examples, total_loss = Stages(), 0, 0.0
    start = time.perf_counter()
    while True:
        with stages.stage("read"):
            batch = next(log, None)
        if batch is None:
            break
        with stages.stage("map keys"):
            ids = batch.features[NAME]
            ids.keys_L = torch.remainder(ids.keys_L, options.table_rows)
        with stages.stage("forward"):
            loss = criterion(model(batch), batch.labels)
        with stages.stage("backward"):
            loss.backward()
        with stages.stage("optimizers"):
            table.step()
            optimizer.step()
            optimizer.zero_grad()
        examples += len(batch)
        total_loss += float(loss.detach()) * len(batch)
    seconds = time.perf_counter() - start
    if options.peer == "none":  # reading is not the dense part's
        seconds = sum(stages.seconds[stage] for stage in ("forward", "backward", "optimizers"))
    return {
        "examples": examples,
        "seconds": seconds,
        "examples_per_second": examples / seconds,
        "train_logloss": total_loss / examples,
        "stages": stages.seconds,
    }


def main() -> int:
    """Reads the options, trains, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", choices=sorted(TABLES), required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--format", required=True)
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--table-rows", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--dense-learning-rate", type=float, default=0.001)
    parser.add_argument("--torch-threads", type=int, default=2)
    json.dump(train(parser.parse_args()), sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
