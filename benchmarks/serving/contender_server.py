"""A server process of the benchmark: the same front over hps.Model, over a plain torch model, or
over rows in Redis and an ONNX graph; or no front at all.

    python -m benchmarks.serving.contender_server STORE hps|torch|bare=ROWS|redis=HOST:PORT THREADS

Above it: serving_bench.py, which starts it. Below it: hps.serving; benchmarks/scoring/requests.py,
whose torch model has the same weights in an nn.Embedding; redis_scores.py. It prints both
addresses, and serves until its standard input ends. A request to the torch one holds ids in the
place of keys. The bare one is gRPC's own server, which reads nothing of a request and has the torch
model score the same examples each time: what any server in Python costs at least.
"""

import io
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import torch

from benchmarks.scoring.requests import TorchModel
from benchmarks.serving.filled_store import DRAM, KEYS_FILE
from benchmarks.serving.redis_scores import RedisScores
from hps.service.server.front import ServerOptions
from hps.service.server.log_lines import LogLines
from hps.serving.scorer import ScoringOptions
from hps.serving.server import ModelServer, ModelServerOptions
from hps.train.model import Model
from hps.types import Batch

TENTH = "tenth="  # and the bytes of memory that a tenth of the rows takes
BARE = "bare="  # and the examples of a request
_BARE_THREADS = 16
NAME = "bench"


class TorchScores:
    """What a server needs of a model, of which torch makes the scores.

    Args:
        model: of hps, whose weights it gets.
        keys: int64 [N]; an id is a place among them.
    """

    def __init__(self, model: Model, keys: torch.Tensor) -> None:
        self._model = model
        (self._table,) = model.features
        self.num_features = len(model.features[self._table])
        self.peer = TorchModel(model, keys).eval()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def predict_with_version(self, batch: Batch) -> tuple[torch.Tensor, str]:
        """Of ids in the place of keys."""
        ids = batch.features[self._table].keys_L.reshape(self.num_features, -1).T
        with torch.inference_mode():
            return self.peer(ids, batch.dense), self._model.version


class BareScores(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers every call with scores of the same examples, made anew.

    Args:
        scores: of torch.
        num_rows: examples.
        num_dense: their dense columns.
    """

    def __init__(self, scores: TorchScores, num_rows: int, num_dense: int) -> None:
        ids = torch.arange(num_rows * scores.num_features).reshape(num_rows, -1)
        dense = torch.ones(num_rows, num_dense)

        def answer(request: bytes, context: object) -> bytes:
            with torch.inference_mode():
                return bytes(scores.peer(ids, dense).numpy())

        self._handler = grpc.unary_unary_rpc_method_handler(answer)

    def service(self, details: object) -> Any:
        return self._handler


def serve_bare(scores: BareScores) -> None:
    """Serves until standard input ends, over gRPC alone."""
    server = grpc.server(ThreadPoolExecutor(_BARE_THREADS))
    server.add_generic_rpc_handlers([scores])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    print(address, address, flush=True)
    sys.stdin.read()
    server.stop(None).wait()


def main(store: str, kind: str, threads: str) -> None:
    """Serves until standard input ends."""
    torch.set_num_threads(int(threads))
    keys = torch.load(Path(store) / KEYS_FILE, weights_only=True)
    is_tenth = kind.startswith(TENTH)
    dram = int(kind.removeprefix(TENTH)) if is_tenth else DRAM
    with Model.load(Path(store) / "store", dram=dram) as model:
        scores: Any = model
        if kind == "hps" or is_tenth:
            model.lookup(next(iter(model.features)), keys.numpy())  # all rows into memory
        elif kind.startswith(BARE):
            num_rows = int(kind.removeprefix(BARE))
            return serve_bare(BareScores(TorchScores(model, keys), num_rows, model.num_dense))
        elif kind == "torch":
            scores = TorchScores(model, keys)
        else:
            scores = RedisScores(model, kind.removeprefix("redis="))
        options = ModelServerOptions(
            front=ServerOptions(listen="127.0.0.1:0"),
            scoring=ScoringOptions(name=NAME),
            http="127.0.0.1:0",
        )
        server = ModelServer(scores, options, LogLines(io.StringIO()))
        print(server.address, server.http_address, flush=True)
        sys.stdin.read()
        server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:4])
