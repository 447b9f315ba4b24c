"""How fast `hps generate` writes a criteo log, beside numpy drawing and Python formatting one.

Above it: benchmarks/run.py. Below it: hps.generate. The baseline is what one writes by hand: ranks
by numpy's searchsorted over the cumulated law, effects from a table, text by string formatting. It
runs on fewer lines and is compared by its rate. Compiling is timed apart and left out.
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.report import comparison_row
from benchmarks.common.timing import interleave
from hps.generate import GeneratorConfig
from hps.generate.log import LogWriter

BASELINE_EXAMPLES = 20_000


def write_by_hand(path: Path, config: GeneratorConfig) -> None:
    """A log of the same shape and law, by numpy and Python's formatting."""
    generator = np.random.default_rng(config.seed)
    columns = []
    logits = np.full(config.examples, -1.0)
    for size in config.cardinalities():
        law = np.cumsum(np.arange(1, size + 1, dtype=np.float64) ** -config.alpha)
        ranks = np.searchsorted(law, generator.random(config.examples) * law[-1])
        logits += generator.normal(size=size)[ranks] * 0.2
        columns.append(generator.permutation(np.arange(size))[ranks])
    dense = np.exp(generator.normal(2.0, 1.0, (config.examples, config.dense))).astype(np.int64)
    labels = (generator.random(config.examples) < 1 / (1 + np.exp(-logits))).astype(np.int64)
    with path.open("w") as file:
        for label, numbers, ids in zip(
            labels.tolist(), dense.tolist(), np.stack(columns, 1).tolist(), strict=True
        ):
            fields = [str(label), *map(str, numbers), *(f"{i:08x}" for i in ids)]
            file.write("\t".join(fields) + "\n")


def compare(folder: Path, threads: int, keys: int, smoke: bool) -> dict[str, Any]:
    """Rates of both in MB/s, interleaved."""
    examples = 8_000 if smoke else 400_000
    config = GeneratorConfig(examples=examples, keys=keys)
    by_hand = GeneratorConfig(examples=1_000 if smoke else BASELINE_EXAMPLES, keys=keys)
    writer = LogWriter(config, "criteo", threads)

    def ours() -> float:
        return float(writer.write(folder / "log")["megabytes_per_second"])

    def theirs() -> float:
        started = time.perf_counter()
        write_by_hand(folder / "by_hand", by_hand)
        seconds = time.perf_counter() - started
        return (folder / "by_hand").stat().st_size / seconds / 1e6

    samples = interleave({"hps": ours, "by hand": theirs}, 1 if smoke else 5)
    row = comparison_row(
        {"threads": threads, "keys": keys},
        "MB/s",
        samples["hps"],
        ("numpy and Python formatting, one thread", samples["by hand"]),
    )
    line_bytes = (folder / "log").stat().st_size / examples
    keys_per_second = row["value"] * 1e6 / line_bytes * config.features
    return row | {"M keys/s": keys_per_second / 1e6, "compile s": writer.compile_seconds}


def run(smoke: bool) -> dict[str, Any]:
    """Rates for one thread and for all cores (two in the figures of record)."""
    threads = [1] if smoke else sorted({1, len(os.sched_getaffinity(0))})
    keys = [10_000] if smoke else [100_000, 10_000_000]
    with tempfile.TemporaryDirectory() as folder:
        rows = [compare(Path(folder), count, size, smoke) for count in threads for size in keys]
    return {"axes": {"threads": threads, "keys": keys}, "rows": rows}
