"""Scores as teams make them that keep rows in Redis: MGET of a request's distinct keys, then the
ONNX graph of the dense part by onnxruntime.

Above it: contender_server.py, serving_bench.py. Below it: redis-server (Debian's package), the
socket client of benchmarks/service/redis_peer.py, `hps.models`' export.
"""

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.service.redis_peer import PROGRAM, Connection, absent
from hps.nn.graph_run import GraphSession
from hps.publish.graph import DENSE
from hps.publish.model_files import encode_model_files
from hps.train.model import Model
from hps.types import Batch

MOST_KEYS = 10_000  # of one MGET; further ones are sent with it
_LOAD_KEYS = 1 << 16
_START_SECONDS = 20.0


def absences() -> dict[str, str]:
    """What the contender needs and is not here -> why."""
    found = {"Redis": absent()} if absent() else {}
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        found["ONNX"] = str(error)
    return found


@contextmanager
def redis_with(folder: Path, model: Model, keys: torch.Tensor) -> Iterator[str]:
    """The address of a redis-server that holds the rows of these keys, int64 [N]."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    words += ["--client-output-buffer-limit", "normal 0 0 0"]
    program = shutil.which(PROGRAM)
    assert program is not None
    process = subprocess.Popen([program, *words], stdout=subprocess.DEVNULL)
    try:
        (table,) = model.features
        connection = _connected(f"127.0.0.1:{port}", model.server.tables[table].dim)
        for begin in range(0, len(keys), _LOAD_KEYS):
            piece = keys[begin : begin + _LOAD_KEYS].numpy()
            connection.push(piece.view(np.uint64), model.lookup(table, piece))
        connection.close()
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def _connected(address: str, dim: int) -> Connection:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            return Connection(address, 4 * dim, MOST_KEYS)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


class RedisScores:
    """What a server needs of a model, whose rows come from Redis and whose dense part is ONNX.

    Args:
        model: of hps, whose dense part is exported.
        address: of Redis, which holds all rows.
    """

    def __init__(self, model: Model, address: str) -> None:
        self._model = model
        (self._table,) = model.features
        self._num_features = len(model.features[self._table])
        graph = model.module.export_dense()
        weights = encode_model_files({"model": model.module.state_dict()}).weights
        self._session = GraphSession(graph.onnx, weights)
        (self._input,) = [name for name in self._session.inputs if name != DENSE]
        self._address, self._dim = address, model.server.tables[self._table].dim
        self._connections = threading.local()  # one a thread

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def predict_with_version(self, batch: Batch) -> tuple[torch.Tensor, str]:
        """As hps.Model's."""
        keys = batch.features[self._table].keys_L.numpy().view(np.uint64)
        distinct, places = np.unique(keys, return_inverse=True)
        if not hasattr(self._connections, "redis"):
            self._connections.redis = _connected(self._address, self._dim)
        rows = self._connections.redis.pull(distinct)[places]
        pooled = rows.reshape(self._num_features, len(batch), -1).transpose(1, 0, 2)
        given = {self._input: pooled.reshape(len(batch), -1), DENSE: batch.dense.numpy()}
        logits = self._session.logits(given)
        return torch.sigmoid(torch.from_numpy(logits)), self._model.version
