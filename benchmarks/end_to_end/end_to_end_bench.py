"""Examples a second of `hps train` on generated logs, beside dense tables; spilling.

Every run, but in a smoke test, is a process of its own over the same file: `hps train` with all
rows in DRAM, and the same model over torch.nn.EmbeddingBag(sparse) and FBGEMM's table on the CPU;
DeepFM and DLRM, on a key a feature and on bags. DeepFM on a key a feature also with a budget of a
quarter of the rows. The dense part alone, without rows and reading, is what no table can beat.
Above it: benchmarks/run.py. Below it: the command line of hps, peer_train.py.
"""

import argparse
import itertools
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import hps
from benchmarks.common.modules import run_module
from benchmarks.common.peers import absent_peers
from benchmarks.common.report import Row, comparison_row
from benchmarks.common.server import row_bytes
from benchmarks.common.timing import Samples
from hps.models import MODELS

UNIT = "examples/s"
LEARNING_RATE = 0.05
IN_DRAM = "hps train, all in DRAM"
SPILLING = "hps train, DRAM for 1/4 of the rows"
PEERS = {
    "embedding_bag": "torch EmbeddingBag(sparse) + Adagrad",
    "fbgemm": "fbgemm tbe, Adagrad",
}
DENSE = "the dense part alone"
OUTSIDE = 0.25  # of a step, at most, outside the dense part's own kernels
FLOORS = {False: 1.25, True: 2.0}  # of one key a feature, and of bags
Figures = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--examples", type=float, default=600_000)
    parser.add_argument("--keys", type=float, default=2e6, help="keys of the generated log")
    with_dim = sorted(kind for kind, model in MODELS.items() if model.has_vectors)
    parser.add_argument("--models", nargs="+", default=["deepfm", "dlrm"], choices=with_dim)
    parser.add_argument("--bags", type=int, nargs="+", default=[1, 20], help="mean keys a feature")
    parser.add_argument("--bag-examples", type=float, default=150_000, help="where bags hold more")
    parser.add_argument("--bag-features", type=int, default=8)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--torch-threads", type=int, default=2)
    parser.add_argument("--folder", default=None, help="where log and stores lie while it runs")


class Runs:
    """Starts runs of one model over one log and keeps their figures by contender.

    Args:
        folder: for the log, which is made if it is not there, and for stores.
        model: its kind.
        bag: mean number of keys a feature.
        is_here: in this process, for a smoke test.
    """

    def __init__(
        self, folder: Path, options: dict[str, Any], model: str, bag: int, is_here: bool
    ) -> None:
        self._folder = folder
        self._options = options
        self._model = model
        self._run = partial(run_module, is_here=is_here)
        self._format = "criteo" if bag == 1 else "parquet"
        self._log = folder / f"log-{bag}.{self._format}"
        self.figures: dict[str, list[Figures]] = {}
        # One column more than dim may hold the first-order weights.
        table = hps.TableConfig(name="rows", dim=options["dim"] + 1, optimizer=hps.Adagrad())
        self._row_bytes = row_bytes(table)
        self._ample_bytes = int(1.3 * options["keys"] * self._row_bytes) + (1 << 20)
        if self._log.exists():
            return
        examples = int(options["examples"] if bag == 1 else options["bag_examples"])
        words: list[object] = ["--examples", examples, "--keys", int(options["keys"])]
        if bag > 1:
            words += ["--bag", bag, "--features", options["bag_features"]]
        self._run("hps", "generate", self._log, "--format", self._format, *words)

    def hps_train(self, name: str, dram_bytes: int) -> Figures:
        """`hps train` into a fresh store with that budget."""
        out = self._folder / "hps.json"
        with tempfile.TemporaryDirectory(dir=self._folder) as store:
            model = ["--model", self._model, "--dim", self._options["dim"]]
            model += ["--optimizer", "adagrad", "--lr", LEARNING_RATE]
            sizes = ["--batch-size", self._options["batch_size"], "--dram", dram_bytes]
            sizes += ["--torch-threads", self._options["torch_threads"]]
            where = ["--format", self._format, "--store", store, "--json", out]
            self._run("hps", "train", self._log, *where, *model, *sizes)
        figures: Figures = json.loads(out.read_text())
        self.figures.setdefault(name, []).append(figures)
        return figures

    def in_dram(self) -> None:
        figures = self.hps_train(IN_DRAM, self._ample_bytes)
        # A table that grows while large batches come puts some out before its budget is used.
        few = num_rows_of(figures) // 1000
        assert evictions(figures) <= few, "rows were evicted in the run that keeps all in DRAM"

    def spilling(self) -> None:
        num_rows = num_rows_of(self.figures[IN_DRAM][0])
        figures = self.hps_train(SPILLING, num_rows * self._row_bytes // 4)
        assert evictions(figures) > 0, "no row was evicted with DRAM for a quarter of the rows"

    def peer(self, peer: str) -> None:
        """peer_train.py with a table as large as the log has keys."""
        printed = self._run(
            "benchmarks.end_to_end.peer_train",
            *("--peer", peer),
            *("--table-rows", int(self._options["keys"])),
            *self._loop_options(),
        )
        name = PEERS.get(peer, DENSE)
        self.figures.setdefault(name, []).append(json.loads(printed))

    def stages(self) -> Figures:
        """hps_stages.py: a run with everything in DRAM that is not timed against anyone."""
        name = "benchmarks.end_to_end.hps_stages"
        printed = self._run(name, "--dram-bytes", self._ample_bytes, *self._loop_options())
        return dict(json.loads(printed))

    def _loop_options(self) -> list[object]:
        return [
            *("--data", self._log, "--format", self._format, "--model", self._model),
            *("--dim", self._options["dim"]),
            *("--batch-size", self._options["batch_size"]),
            *("--learning-rate", LEARNING_RATE),
            *("--torch-threads", self._options["torch_threads"]),
        ]


def evictions(figures: Figures) -> int:
    """Rows that left DRAM during a run of `hps train`."""
    return int(figures["tiers"]["dram_cache"]["evictions"])


def num_rows_of(figures: Figures) -> int:
    """Rows stored at the end of a run of `hps train`, all tables together."""
    rows = figures["rows"]
    return int(sum(rows.values()) if isinstance(rows, dict) else rows)


def stage_table(figures: dict[str, list[Figures]]) -> str:
    """Where the time went, in the last run of each contender."""
    lines = ["seconds by stage (last repetition)"]
    for name, runs in figures.items():
        stages = runs[-1]["stages"]
        parts = [
            f"{stage} {value['busy_seconds'] if isinstance(value, dict) else value:.2f}"
            for stage, value in stages.items()
        ]
        lines.append(f"  {name}: total {runs[-1]['seconds']:.2f}; {', '.join(parts)}")
    return "\n".join(lines)


def rate(runs: list[Figures]) -> Samples:
    """Examples a second, a repetition each."""
    return Samples(tuple(float(one["examples_per_second"]) for one in runs))


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """Interleaved runs of everyone; see add_arguments for the options."""
    if smoke:
        options |= {"examples": 2000, "keys": 20_000, "batch_size": 64, "repetitions": 1}
        options |= {"torch_threads": 1, "bag_examples": 500}
    absent = absent_peers("fbgemm_gpu")
    peers = [peer for peer in PEERS if peer != "fbgemm" or not absent]
    rows: list[Row] = []
    tables: list[str] = []
    with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
        for bag, model in itertools.product(options["bags"], options["models"]):
            runs = Runs(Path(folder), options, model, bag, is_here=smoke)
            spills = bag == 1 and model == "deepfm"
            for _ in range(options["repetitions"]):
                runs.in_dram()
                for peer in [*peers, "none"]:
                    runs.peer(peer)
                if spills:
                    runs.spilling()
            rows += cell_rows({"model": model, "bag": bag}, runs.figures, peers)
            by_stage = {"hps, step by step (not timed above)": [runs.stages()], **runs.figures}
            tables.append(f"{model}, bags of {bag}: {stage_table(by_stage)}")
    names = ("examples", "bag_examples", "bag_features", "keys", "dim", "batch_size")
    axes = {key: options[key] for key in (*names, "torch_threads")}
    return {"axes": axes, "rows": rows, "absent": absent, "tables": tables}


def cell_rows(
    axes: dict[str, Any], figures: dict[str, list[Figures]], peers: list[str]
) -> list[Row]:
    """The rows of one model over one log."""
    counts = {name: {one["examples"] for one in ones} for name, ones in figures.items()}
    assert len(set.union(*counts.values())) == 1, f"not everyone saw the same examples: {counts}"
    axes |= {"rows": num_rows_of(figures[IN_DRAM][0])}
    own, rows = rate(figures[IN_DRAM]), []
    floor = FLOORS[axes["bag"] > 1]
    for peer in peers:
        other = (PEERS[peer], rate(figures[PEERS[peer]]))
        rows.append(comparison_row({**axes, "run": IN_DRAM}, UNIT, own, other, floor=floor))
    alone = (DENSE, rate(figures[DENSE]))
    rows.append(comparison_row({**axes, "run": IN_DRAM}, UNIT, own, alone, floor=1 - OUTSIDE))
    if SPILLING in figures:
        spilled = rate(figures[SPILLING])
        rows.append(
            comparison_row({**axes, "run": SPILLING}, UNIT, spilled, (IN_DRAM, own), floor=0.8)
        )
    add_notes(rows, figures)
    return rows


def add_notes(rows: list[Row], figures: dict[str, list[Figures]]) -> None:
    """Loss and stages beside each figure, so that a faster run that learns less would show."""
    for row in rows:
        for side in ("run", "baseline"):
            last = figures[row[side]][-1]
            row[f"{side}_logloss"] = last["train_logloss"]
            row.setdefault("stages", {})[row[side]] = last["stages"]
