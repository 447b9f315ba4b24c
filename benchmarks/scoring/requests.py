"""Requests of a few raw rows: dicts of columns for hps, dense ids for a plain torch model.

Above it: scoring_bench.py. Below it: `hps.Model`, torch, the clock.
"""

import threading
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import torch

from benchmarks.common.timing import Samples
from benchmarks.scoring.passes import Logs
from hps.models import DeepFM
from hps.train.model import Model
from hps.types import Batch

HPS = "hps.Model.predict of a dict"
TORCH = "torch nn.Embedding, ids made before"
PERCENTILES = {"p50": 50.0, "p99": 99.0}
_NUM_REQUESTS = 100
_WARM_UP = 10

Call = Callable[[int], torch.Tensor]


class TorchModel(torch.nn.Module):
    """The layers of a DeepFM over one nn.Embedding with the rows of some keys.

    Args:
        model: of hps, whose weights it gets.
        keys: distinct ones, int64 [N]; an id is a place among them.
    """

    def __init__(self, model: Model, keys: torch.Tensor) -> None:
        super().__init__()
        (table,) = model.features
        rows = torch.as_tensor(model.lookup(table, keys.numpy()))
        self.rows = torch.nn.Embedding.from_pretrained(rows)
        assert isinstance(model.module, DeepFM)
        self.layers = model.module

    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Probabilities [B] of ids [B, F] and dense columns [B, C]."""
        layers = self.layers
        vectors, first_order = self.rows(ids).split_with_sizes([layers.dim, 1], dim=2)
        flat = vectors.flatten(1)
        total = vectors.sum(dim=1) + dense @ layers.dense_factors
        squares = vectors.square().sum(dim=1) + dense.square() @ layers.dense_factors.square()
        pairs = 0.5 * (total.square() - squares).sum(dim=1)
        linear = first_order.sum(dim=(1, 2)) + dense @ layers.dense_first_order
        deep = layers.deep(torch.cat([flat, dense], dim=1)).squeeze(1)
        return torch.sigmoid(layers.bias + linear + pairs + deep)


def raw_requests(logs: Logs, size: int) -> list[dict[str, list[Any]]]:
    """Raw columns of rows that follow each other in the log, as a server gets them."""
    names = [*(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))]
    with logs.scored.open() as file:
        lines = [line.rstrip("\n").split("\t")[1:] for line in islice(file, _NUM_REQUESTS * size)]
    requests = []
    for first in range(0, len(lines) - size + 1, size):
        by_column = zip(*lines[first : first + size], strict=True)
        columns: dict[str, list[Any]] = dict(zip(names, map(list, by_column), strict=True))
        for name in names[:13]:
            columns[name] = [int(text) if text else None for text in columns[name]]
        requests.append(columns)
    return requests


def calls_of(model: Model, logs: Logs, size: int) -> tuple[dict[str, Call], int]:
    """What each contender does with a request by its number, and how many there are."""
    requests = raw_requests(logs, size)
    batches: list[Batch] = list(model.open_reader([logs.scored], batch_size=size))[: len(requests)]
    (table,) = model.features
    keys = torch.cat([batch.features[table].keys_L for batch in batches])
    distinct, places = torch.unique(keys, return_inverse=True)
    ids = [one.reshape(-1, size).T.contiguous() for one in places.reshape(len(batches), -1)]
    peer = TorchModel(model, distinct).eval()

    def by_ids(number: int) -> torch.Tensor:
        with torch.inference_mode():
            score: torch.Tensor = peer(ids[number], batches[number].dense)
        return score

    calls: dict[str, Call] = {
        HPS: lambda number: model.predict(requests[number]),
        TORCH: by_ids,
    }
    for number in range(min(5, len(requests))):
        own, other = (call(number) for call in calls.values())
        assert torch.allclose(own, other, rtol=1e-4, atol=1e-6), "the models score otherwise"
    return calls, len(requests)


def milliseconds(call: Call, num_requests: int, callers: int, num_calls: int) -> np.ndarray:
    """Of each call of all threads, float64 [callers * num_calls]; requests are cycled."""
    taken = np.empty((callers, num_calls))
    begin = threading.Barrier(callers)
    failed: list[BaseException] = []

    def work(caller: int) -> None:
        try:
            for number in range(_WARM_UP):
                call(number % num_requests)
            begin.wait()
            for number in range(num_calls):
                idx = (number + caller) % num_requests
                start = time.perf_counter_ns()
                call(idx)
                taken[caller, number] = time.perf_counter_ns() - start
        except BaseException as error:
            failed.append(error)
            begin.abort()

    threads = [threading.Thread(target=work, args=(caller,)) for caller in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return taken.ravel() / 1e6


def call_rates(
    logs: Logs, callers: int, num_calls: int, repetitions: int
) -> tuple[Samples, Samples]:
    """Calls of one row a second of all threads together, and of one thread, in turn; figures a
    repetition."""
    rates: dict[int, list[float]] = {callers: [], 1: []}
    with Model.load(logs.store, dram="1GiB") as model:
        calls, num_requests = calls_of(model, logs, 1)
        for _ in range(repetitions):
            for count, found in rates.items():
                start = time.perf_counter()
                milliseconds(calls[HPS], num_requests, count, num_calls)
                found.append(count * (num_calls + _WARM_UP) / (time.perf_counter() - start))
    return Samples(tuple(rates[callers])), Samples(tuple(rates[1]))


def request_times(
    logs: Logs, size: int, callers: int, num_calls: int, repetitions: int
) -> dict[str, dict[str, Samples]]:
    """Of each contender its percentiles by theirs, a figure a repetition, in turn."""
    found: dict[str, dict[str, list[float]]] = {
        name: {percentile: [] for percentile in PERCENTILES} for name in (HPS, TORCH)
    }
    with Model.load(logs.store, dram="1GiB") as model:
        calls, num_requests = calls_of(model, logs, size)
        for _ in range(repetitions):
            for name, call in calls.items():
                taken = milliseconds(call, num_requests, callers, num_calls)
                for percentile, rank in PERCENTILES.items():
                    found[name][percentile].append(float(np.percentile(taken, rank)))
    return {
        name: {percentile: Samples(tuple(ones)) for percentile, ones in by_percentile.items()}
        for name, by_percentile in found.items()
    }
