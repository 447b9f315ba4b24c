"""What scoring in two stages would gain: first by the rows in memory, then, of those near the top,
with their rows from the disk, too.

A DeepFM that was trained on a generated log (26 features, Zipf 1.05) scores requests of 200 lines
of a held-out one, with memory for a tenth of its rows. The second stage is simulated, and kindly:
its first pass is timed on a store that has the most frequent tenth of the rows alone, all of them
in memory, its second pass on the whole store with only the chosen candidates; a scheme that were
built would also have to find out which rows are where. Times are those of `Model.predict`; the
store's files are put out of the system's memory before each call, or left there. Decisions are the
k candidates with the highest scores. Above it: benchmarks/run.py. Below it: hps.Model, `hps
generate`, `hps train`, benchmarks/ssd_store/page_cache.py.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hps
from benchmarks.common.report import Row, comparison_row
from benchmarks.common.timing import Samples
from benchmarks.serving.serving_bench import batch_of
from benchmarks.ssd_store.page_cache import drop, files_under
from benchmarks.ssd_store.page_cache import warm as warm_files
from hps.cli.main import main as hps_main
from hps.train import TrainOptions, train
from hps.train.model import Model
from hps.types import Batch

ONE_STAGE = "one stage, a tenth of the rows in memory, the others on a cold disk"
CACHED = "one stage, a tenth of the rows in memory, the others in the system's memory"
ALL = "one stage, all rows in memory"
_ALL_DRAM = "4GiB"
_PIECE = 2**18
_PERCENTILES = {"p50": 50.0, "p99": 99.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--examples", type=float, default=1e6, help="that are trained on")
    parser.add_argument("--keys", type=float, default=1e7, help="of all features together")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--candidates", type=int, default=200)
    parser.add_argument("--second", type=int, nargs="+", default=[10, 20, 50, 100])
    parser.add_argument("--top", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--calls", type=int, default=150, help="a way, each of another request")
    parser.add_argument("--warm-up", type=int, default=400, help="calls before those of a way")


@dataclass(frozen=True)
class Request:
    """Candidates of one call: keys int64 [B, F], dense float32 [B, C]."""

    keys: torch.Tensor
    dense: torch.Tensor

    def batch(self, table: str, chosen: torch.Tensor | None = None) -> Batch:
        """Of all candidates, or of some."""
        if chosen is None:
            return batch_of(table, self.keys, self.dense)
        return batch_of(table, self.keys[chosen], self.dense[chosen])


class Stores:
    """The model's store, and a copy that has the most frequent tenth of its rows alone.

    Args:
        folder: for them.
        options: of the benchmark.
    """

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        log, test = folder / "log.tsv", folder / "test.tsv"
        num_requests = options["calls"] + options["warm_up"]
        words = ["--examples", str(int(options["examples"])), "--keys", str(int(options["keys"]))]
        words += ["--test", str(test), "--test-examples"]
        words += [str(num_requests * options["candidates"])]
        assert hps_main(["generate", str(log), *words]) == 0
        self.whole, self.hot = folder / "whole", folder / "hot"
        asked = TrainOptions(data=[log], store=self.whole, format="criteo", dim=options["dim"])
        train(asked)
        with Model.load(self.whole, dram=_ALL_DRAM) as model:
            (self.table,) = model.features
            self.num_rows = model.server.num_rows(self.table)
            counted = [_keys_of(batch, self.table) for batch in model.open_reader([log])]
            self.requests = [
                Request(_by_example(batch, self.table), batch.dense)
                for batch in model.open_reader([test], batch_size=options["candidates"])
            ]
        keys, counts = np.unique(np.concatenate(counted), return_counts=True)
        order = np.argsort(-counts, kind="stable")
        self.num_hot = self.num_rows // 10
        self.cold = keys[order[self.num_hot :]]
        hps.ssd_store.clone(self.whole, self.hot)
        with hps.open(self.hot, read_only=False, dram=_ALL_DRAM) as server:
            state, position = server.checkpoint_state()
            for first in range(0, len(self.cold), _PIECE):
                server.erase(self.table, self.cold[first : first + _PIECE])
            server.checkpoint(tag="hot", model=state, reader=position)

    def cold_share(self, requests: Sequence[Request]) -> float:
        """Of the keys of requests those that are not among the frequent ones."""
        cold = np.sort(self.cold)
        asked = np.concatenate([one.keys.numpy().view(np.uint64).reshape(-1) for one in requests])
        places = np.minimum(np.searchsorted(cold, asked), len(cold) - 1)
        return float((cold[places] == asked).mean())


def _keys_of(batch: Batch, table: str) -> np.ndarray:
    found: np.ndarray = batch.features[table].keys_L.numpy().view(np.uint64).copy()
    return found


def _by_example(batch: Batch, table: str) -> torch.Tensor:
    """Keys [B, F]; criteo has one a feature, where none is missing."""
    keys = batch.features[table].keys_L
    return keys.reshape(-1, len(batch)).T.contiguous()


def timed(model: Model, batches: Sequence[Batch], files: Sequence[Path]) -> list[float]:
    """Milliseconds of each call; before it the files are put out of the system's memory."""
    found = []
    for batch in batches:
        if files:
            drop(list(files))
        started = time.perf_counter()
        model.predict(batch)
        found.append(1000 * (time.perf_counter() - started))
    return found


def ways(
    stores: Stores, options: dict[str, Any], reads: dict[str, list[float]]
) -> dict[str, list[float]]:
    """Milliseconds of the calls of each way; into `reads`, of a mean call of one stage, the rows
    that the store gave and the seconds in which it did."""
    table, warm = stores.table, stores.requests[: options["warm_up"]]
    asked = stores.requests[options["warm_up"] :][: options["calls"]]
    whole = [one.batch(table) for one in asked]
    files = files_under(stores.whole)
    found: dict[str, list[float]] = {}
    with Model.load(stores.whole, dram=_ALL_DRAM) as model:
        for one in stores.requests:
            model.predict(one.batch(table))
        found[ALL] = timed(model, whole, [])
    with Model.load(stores.hot, dram=_ALL_DRAM) as model:
        for one in stores.requests:
            model.predict(one.batch(table))
        found["first"] = timed(model, whole, [])
        first_stage = [model.predict(batch) for batch in whole]
    few = stores.num_hot * _row_bytes(stores)
    for name, cold_files in ((CACHED, []), (ONE_STAGE, files)):
        warm_files(files)
        with Model.load(stores.whole, dram=few) as model:
            _warmed(model, warm, table)
            before = model.server.stats()["ssd_store"]
            found[name] = timed(model, whole, cold_files)
            after = model.server.stats()["ssd_store"]
            reads[name] = [
                (after[of] - before[of]) / len(whole) for of in ("hits", "fetch_seconds")
            ]
    for second in options["second"]:
        chosen = [scores.topk(second).indices for scores in first_stage]
        some = [one.batch(table, part) for one, part in zip(asked, chosen, strict=True)]
        warm_files(files)
        with Model.load(stores.whole, dram=few) as model:
            _warmed(model, warm, table)
            found[f"second {second}"] = timed(model, some, files)
    return found


def _row_bytes(stores: Stores) -> int:
    with hps.open(stores.whole) as server:
        return int(server.tables[stores.table].layout.row_bytes)


def _warmed(model: Model, requests: Sequence[Request], table: str) -> None:
    """As after a while of serving: the rows in memory are those that were asked for last."""
    for one in requests:
        model.predict(one.batch(table))


def decisions(
    stores: Stores, options: dict[str, Any]
) -> dict[tuple[int, int], tuple[float, float]]:
    """By (k, candidates of the second stage): share of the top k that stays, of requests whose top
    k stays as a set."""
    asked = stores.requests[options["warm_up"] :][: options["calls"]]
    batches = [one.batch(stores.table) for one in asked]
    with Model.load(stores.whole, dram=_ALL_DRAM) as model:
        exact = [model.predict(batch) for batch in batches]
    with Model.load(stores.hot, dram=_ALL_DRAM) as model:
        partial = [model.predict(batch) for batch in batches]
    found = {}
    for k in options["top"]:
        for second in (k, *(one for one in options["second"] if one > k)):
            kept = []
            for one, guess in zip(exact, partial, strict=True):
                best = set(one.topk(k).indices.tolist())
                near = guess.topk(second).indices
                again = near[one[near].topk(k).indices]
                kept.append(len(best & set(again.tolist())) / k)
            found[k, second] = (float(np.mean(kept)), float(np.mean([part == 1 for part in kept])))
    return found


def rows_of(stores: Stores, options: dict[str, Any]) -> list[Row]:
    """Times, then decisions."""
    reads: dict[str, list[float]] = {}
    times = ways(stores, options, reads)
    means = {name: sum(times[name]) / len(times[name]) for name in reads}
    first = np.array(times.pop("first"))
    found: list[Row] = []
    two = {
        f"two stages, {second} candidates in the second": first
        + np.array(times.pop(f"second {second}"))
        for second in options["second"]
    }
    told = {ALL: times[ALL], CACHED: times[CACHED], "first stage alone": first, **two}
    for percentile, rank in _PERCENTILES.items():
        base = Samples((float(np.percentile(times[ONE_STAGE], rank)),))
        for way, values in told.items():
            value = Samples((float(np.percentile(values, rank)),))
            found.append(
                comparison_row(
                    {"what": "ms of a call", "way": way, "percentile": percentile},
                    "ms",
                    value,
                    (ONE_STAGE, base),
                    lower_is_better=True,
                )
            )
    whole = Samples((1.0,))
    for way, (rows, seconds) in reads.items():
        keys = Samples((float(options["candidates"] * stores.requests[0].keys.shape[1]),))
        axes = {"what": "rows read from the store, a call", "way": way}
        found.append(comparison_row(axes, "rows", Samples((rows,)), ("keys of a call", keys)))
        axes = {"what": "ms in the store, a mean call", "way": way}
        mean = ("ms of a mean call", Samples((means[way],)))
        found.append(comparison_row(axes, "ms", Samples((1000 * seconds,)), mean))
    for (k, second), (kept, same) in decisions(stores, options).items():
        way = f"top {k} of the {second} best of the first stage"
        for what, value in (
            ("share of the top k that stays", kept),
            ("calls that decide alike", same),
        ):
            shown = Samples((max(value, 1e-9),))
            found.append(comparison_row({"what": what, "way": way}, "", shown, ("exact", whole)))
    return found


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """All ways; see add_arguments for the options."""
    if smoke:
        options |= {"examples": 2000, "keys": 5000, "dim": 4, "candidates": 20, "calls": 4}
        options |= {"warm_up": 4, "second": [2, 5], "top": [1, 2]}
    threads_before = torch.get_num_threads()
    try:
        with tempfile.TemporaryDirectory() as folder:
            stores = Stores(Path(folder), options)
            torch.set_num_threads(1)
            asked = stores.requests[options["warm_up"] :]
            axes = {name: options[name] for name in ("examples", "dim", "candidates", "calls")}
            axes |= {"rows": stores.num_rows, "rows_in_memory": stores.num_hot, "model": "deepfm"}
            axes |= {"cold_share_of_keys": stores.cold_share(asked)}
            return {"axes": axes, "rows": rows_of(stores, options), "absent": {}}
    finally:
        torch.set_num_threads(threads_before)
