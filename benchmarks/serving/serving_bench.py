"""Requests of 200 candidates to a server of hps, beside a plain torch model behind the same front.

A DeepFM, 26 features of one key, all rows in memory, keys drawn Zipf 1.05 from those that are
stored; a request holds keys and dense values as tensors. The torch model has the same weights in an
nn.Embedding, and its requests hold ids that were made before. Where redis-server and onnxruntime
are installed, a third one has its rows in Redis and the same dense part as an ONNX graph. Last, hps
with a tenth of the rows in memory is asked beside itself with all of them. The
servers are processes that this one asks over loopback, in turn; `in process` there is none. Above
it: benchmarks/run.py. Below it: filled_store.py, contender_server.py, redis_scores.py, hps.serving.
"""

import argparse
import http.client
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch

from benchmarks.common.report import Row, comparison_row
from benchmarks.common.timing import Samples
from benchmarks.scoring.requests import PERCENTILES, milliseconds
from benchmarks.serving.contender_server import BARE, NAME, TENTH, TorchScores
from benchmarks.serving.filled_store import DRAM, fill_store
from benchmarks.serving.redis_scores import RedisScores, absences, redis_with
from hps.inference import open_inference_pb2 as pb
from hps.train.model import Model
from hps.types import Batch, Ids

HPS, TORCH = "hps", "torch nn.Embedding behind the same front, ids made before"
REDIS = "the ONNX graph over rows from Redis behind the same front"
LEAST = "a bare gRPC server that reads nothing and scores the same examples by torch"
_NUM_REQUESTS = 64
_NUM_DENSE, _NUM_FEATURES = 13, 26
ALL_ROWS = "the same with all rows in memory"
_FLOORS = {TORCH: 1 / 1.2, REDIS: 3.0, ALL_ROWS: 0.5}  # p99, over gRPC
_MOST_REQUESTS = 1024  # so many others that a tenth of the rows is not all that is asked for

Call = Callable[[int], Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--rows", type=float, default=5e6, help="that are stored")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--candidates", type=int, default=200, help="examples of a request")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--calls", type=int, default=400, help="of all clients, a repetition")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="of torch, in each server")


def requests_of(
    keys: torch.Tensor, candidates: int, count: int = _NUM_REQUESTS
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(places [B, F] among the keys, dense [B, C]) of each request."""
    random = np.random.default_rng(1)
    weights = 1 / np.arange(1, len(keys) + 1) ** 1.05
    sums = np.cumsum(weights)
    found = []
    for _ in range(count):
        draws = random.random(candidates * _NUM_FEATURES) * sums[-1]
        places = np.searchsorted(sums, draws).reshape(candidates, _NUM_FEATURES)
        dense = random.random((candidates, _NUM_DENSE)).astype(np.float32)
        found.append((torch.from_numpy(np.minimum(places, len(keys) - 1)), torch.from_numpy(dense)))
    return found


def message_of(table: str, ids: torch.Tensor, dense: torch.Tensor) -> bytes:
    """A ModelInferRequest."""
    request = pb.ModelInferRequest(model_name=NAME)
    request.inputs.add(name=f"{table}.keys", datatype="INT64", shape=list(ids.shape))
    request.inputs.add(name="dense", datatype="FP32", shape=list(dense.shape))
    request.raw_input_contents.extend([ids.numpy().tobytes(), dense.numpy().tobytes()])
    return request.SerializeToString()


def rest_body(table: str, ids: torch.Tensor, dense: torch.Tensor) -> tuple[bytes, dict[str, str]]:
    """The same for HTTP, with bytes behind the JSON."""
    inputs, data = [], b""
    for name, datatype, tensor in ((f"{table}.keys", "INT64", ids), ("dense", "FP32", dense)):
        raw = tensor.numpy().tobytes()
        size = {"binary_data_size": len(raw)}
        shape = list(tensor.shape)
        inputs.append({"name": name, "datatype": datatype, "shape": shape, "parameters": size})
        data += raw
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return head + data, {"Inference-Header-Content-Length": str(len(head))}


def scores_of_message(reply: bytes) -> np.ndarray:
    """Of a ModelInferResponse."""
    return np.frombuffer(pb.ModelInferResponse.FromString(reply).raw_output_contents[0], "<f4")


@contextmanager
def server_of(folder: Path, kind: str, threads: int) -> Iterator[tuple[str, str]]:
    """(gRPC address, HTTP address) of a server process."""
    command = [sys.executable, "-m", "benchmarks.serving.contender_server", str(folder), kind]
    process = subprocess.Popen(
        [*command, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        words = process.stdout.readline().split()
        if len(words) != 2:
            raise SystemExit(f"the server of {kind} did not start")
        yield words[0], words[1]
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


class Contender:
    """One model in process, and behind both protocols.

    Args:
        batch_calls: scores a request by its number in this process.
        addresses: of its server.
        requests: (ids or keys [B, F], dense [B, C]).
        table: its name.
    """

    def __init__(
        self,
        in_process: Call,
        addresses: tuple[str, str],
        requests: list[tuple[torch.Tensor, torch.Tensor]],
        table: str,
    ) -> None:
        self.in_process = in_process
        self._messages = [message_of(table, *request) for request in requests]
        self._bodies = [rest_body(table, *request) for request in requests]
        method = "/inference.GRPCInferenceService/ModelInfer"
        options = [("grpc.use_local_subchannel_pool", 1)]
        # A connection each, as clients have them.
        self._callers = [
            grpc.insecure_channel(addresses[0], options).unary_unary(method) for _ in range(8)
        ]
        host, _, port = addresses[1].rpartition(":")
        self._http = http.client.HTTPConnection(host, int(port))
        self._next = 0

    def over_grpc(self, number: int) -> np.ndarray:
        """Scores of a request; each asks on the next connection."""
        return scores_of_message(self.over_bare(number))

    def over_bare(self, number: int) -> bytes:
        """The bytes of a reply."""
        self._next += 1
        ask = self._callers[self._next % len(self._callers)]
        reply: bytes = ask(self._messages[number], timeout=60)
        return reply

    def over_rest(self, number: int) -> np.ndarray:
        """Scores of a request, of one client."""
        body, headers = self._bodies[number]
        self._http.request("POST", f"/v2/models/{NAME}/infer", body, headers)
        reply = self._http.getresponse()
        data = reply.read()
        return np.frombuffer(data[int(reply.headers["Inference-Header-Content-Length"]) :], "<f4")


def check_alike(contenders: dict[str, Contender]) -> None:
    """Both models, in process and behind each protocol, score alike."""
    for number in range(3):
        expected = np.asarray(contenders[HPS].in_process(number))
        for one in contenders.values():
            for call in (one.in_process, one.over_grpc, one.over_rest):
                close = np.allclose(np.asarray(call(number)), expected, rtol=1e-4, atol=1e-6)
                assert close, "the models score otherwise"


def times_of(
    calls: dict[str, Call],
    clients: int,
    num_calls: int,
    repetitions: int,
    num_requests: int = _NUM_REQUESTS,
) -> dict[str, dict[str, Samples]]:
    """Of each contender its percentiles, ms, a figure a repetition, in turn."""
    found: dict[str, dict[str, list[float]]] = {
        name: {percentile: [] for percentile in PERCENTILES} for name in calls
    }
    for _ in range(repetitions):
        for name, call in calls.items():
            taken = milliseconds(call, num_requests, clients, max(1, num_calls // clients))
            for percentile, rank in PERCENTILES.items():
                found[name][percentile].append(float(np.percentile(taken, rank)))
    return {
        name: {percentile: Samples(tuple(ones)) for percentile, ones in of_name.items()}
        for name, of_name in found.items()
    }


def rows_of(contenders: dict[str, Contender], options: dict[str, Any]) -> list[Row]:
    """All ways of asking."""
    ways = [("in process", "in_process", 1), ("REST, binary", "over_rest", 1)]
    ways += [("gRPC", "over_grpc", clients) for clients in options["clients"]]
    found = []
    for way, name, clients in ways:
        calls = {who: getattr(one, name) for who, one in contenders.items()}
        times = times_of(calls, clients, options["calls"], options["repetitions"])
        for percentile, peer in itertools.product(PERCENTILES, contenders):
            if peer == HPS:
                continue
            has_floor = (way, percentile) == ("gRPC", "p99")
            found.append(
                comparison_row(
                    {"way": way, "clients": clients, "percentile": percentile},
                    "ms",
                    times[HPS][percentile],
                    (peer, times[peer][percentile]),
                    floor=_FLOORS[peer] if has_floor else None,
                    lower_is_better=True,
                )
            )
    return found


def least_rows(contender: Contender, least: Contender, options: dict[str, Any]) -> list[Row]:
    """hps over gRPC beside the least that a server in Python can do."""
    found = []
    for clients in options["clients"]:
        calls: dict[str, Call] = {HPS: contender.over_grpc, LEAST: least.over_bare}
        times = times_of(calls, clients, options["calls"], options["repetitions"])
        for percentile in PERCENTILES:
            found.append(
                comparison_row(
                    {"way": "gRPC", "clients": clients, "percentile": percentile},
                    "ms",
                    times[HPS][percentile],
                    (LEAST, times[LEAST][percentile]),
                    lower_is_better=True,
                )
            )
    return found


def tenth_rows(
    folder: Path, model: Model, keys: torch.Tensor, addresses: str, options: dict[str, Any]
) -> list[Row]:
    """A tenth of the rows in memory and the others on disk, beside all in memory; requests come
    from so many that new rows are asked for again and again."""
    (table,) = model.features
    layout = model.server.tables[table].layout
    dram = int(1.25 * len(keys) // 10 * layout.row_bytes)
    count = _NUM_REQUESTS if options["candidates"] < 100 else _MOST_REQUESTS
    requests = [
        (keys[places], dense) for places, dense in requests_of(keys, options["candidates"], count)
    ]
    with server_of(folder, f"{TENTH}{dram}", options["threads"]) as own:
        tenth = Contender(lambda number: None, own, requests, table)
        whole = Contender(lambda number: None, (addresses, own[1]), requests, table)
        for number in range(3):
            assert np.allclose(tenth.over_grpc(number), whole.over_grpc(number), rtol=1e-5)
        found = []
        for clients in options["clients"]:
            calls: dict[str, Call] = {"tenth": tenth.over_grpc, "whole": whole.over_grpc}
            more = (clients, options["calls"], options["repetitions"], count)
            times = times_of(calls, *more)
            for percentile in PERCENTILES:
                found.append(
                    comparison_row(
                        {
                            "way": "gRPC, a tenth of the rows in memory",
                            "clients": clients,
                            "percentile": percentile,
                        },
                        "ms",
                        times["tenth"][percentile],
                        (ALL_ROWS, times["whole"][percentile]),
                        floor=_FLOORS[ALL_ROWS] if percentile == "p99" else None,
                        lower_is_better=True,
                    )
                )
    return found


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """Both contenders, each way; see add_arguments for the options."""
    if smoke:
        options |= {"rows": 5000, "dim": 4, "candidates": 20, "calls": 16, "repetitions": 1}
    threads_before = torch.get_num_threads()
    torch.set_num_threads(options["threads"])
    try:
        with ExitStack() as held:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
            keys = fill_store(folder, int(options["rows"]), options["dim"])
            model = held.enter_context(Model.load(folder / "store", dram=DRAM))
            (table,) = model.features
            model.lookup(table, keys.numpy())
            by_ids = requests_of(keys, options["candidates"])
            by_keys = [(keys[places], dense) for places, dense in by_ids]
            asked: list[tuple[str, str, Any, Any]] = [
                (HPS, "hps", by_keys, model),
                (TORCH, "torch", by_ids, TorchScores(model, keys)),
            ]
            missing = absences()
            if not missing:
                redis = held.enter_context(redis_with(folder, model, keys))
                asked.append((REDIS, f"redis={redis}", by_keys, RedisScores(model, redis)))
            contenders = {}
            for who, kind, requests, scores in asked:
                addresses = held.enter_context(server_of(folder, kind, options["threads"]))
                batches = [batch_of(table, *request) for request in requests]

                def in_process(
                    number: int, batches: list[Batch] = batches, scores: Any = scores
                ) -> Any:
                    return scores.predict_with_version(batches[number])[0]

                contenders[who] = Contender(in_process, addresses, requests, table)
                if who == HPS:
                    whole = addresses[0]
            check_alike(contenders)
            rows = rows_of(contenders, options)
            bare = f"{BARE}{options['candidates']}"
            with server_of(folder, bare, options["threads"]) as addresses:
                least = Contender(lambda number: None, addresses, by_keys, table)
                rows += least_rows(contenders[HPS], least, options)
            rows += tenth_rows(folder, model, keys, whole, options)
    finally:
        torch.set_num_threads(threads_before)
    kept = ("rows", "dim", "candidates", "clients", "calls", "threads")
    axes = {name: options[name] for name in kept} | {"model": "deepfm"}
    return {"axes": axes, "rows": rows, "absent": missing}


def batch_of(table: str, ids: torch.Tensor, dense: torch.Tensor) -> Batch:
    """What the server makes of a request."""
    flat = ids.T.reshape(-1).contiguous()
    return Batch({table: Ids(flat, torch.arange(len(flat) + 1))}, dense, torch.zeros(len(dense)))
