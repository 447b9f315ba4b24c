"""How fast `open_reader` makes batches of a criteo log, beside pyarrow.csv on the same file.

Above it: benchmarks/run.py. Below it: hps.reader, pyarrow. hps hashes keys and delivers finished
batches of tensors; pyarrow only splits and converts columns. Both use the same number of threads,
and read a file that is in the page cache.
"""

import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv

import hps
from hps.reader import ReaderConfig, open_reader

NUM_DENSE = 13
NUM_CATEGORIES = 26
BATCH_SIZE = 4096


def write_log(path: Path, examples: int) -> None:
    """Rows like Criteo's: a fifth of the integers and a tenth of the categories missing."""
    number = random.Random(0)
    words = [[f"{number.getrandbits(32):08x}" for _ in range(1000)] for _ in range(NUM_CATEGORIES)]
    lines = []
    for _ in range(min(examples, 20000)):
        dense = [
            ""
            if number.random() < 0.2
            else str(int(number.expovariate(0.02 if number.random() < 0.8 else 0.0001)))
            for _ in range(NUM_DENSE)
        ]
        categories = ["" if number.random() < 0.1 else number.choice(column) for column in words]
        lines.append("\t".join([str(number.randrange(2)), *dense, *categories]) + "\n")
    with path.open("w") as file:
        for _ in range(examples // len(lines)):
            number.shuffle(lines)
            file.writelines(lines)


def read_hps(path: Path, threads: int) -> int:
    table = hps.TableConfig(name="all", dim=1)
    config = ReaderConfig(format="criteo", batch_size=BATCH_SIZE, threads=threads)
    return sum(len(batch) for batch in open_reader(path, tables=[table], config=config))


def read_pyarrow(path: Path, threads: int) -> int:
    """Columns of int64 and of strings, the whole file at once: pyarrow's quickest way."""
    pa.set_cpu_count(threads)
    dense = {f"I{i}": pa.int64() for i in range(1, NUM_DENSE + 1)}
    types = {"label": pa.int64(), **dense}
    types |= {f"C{i}": pa.string() for i in range(1, NUM_CATEGORIES + 1)}
    table = csv.read_csv(
        path,
        read_options=csv.ReadOptions(column_names=list(types), use_threads=threads > 1),
        parse_options=csv.ParseOptions(delimiter="\t", quote_char=False),
        convert_options=csv.ConvertOptions(column_types=types),
    )
    return int(table.num_rows)


def compare(path: Path, threads: int, repetitions: int) -> dict[str, Any]:
    """Interleaved repetitions; the row of the result."""
    readers: dict[str, Callable[[Path, int], int]] = {"hps": read_hps, "pyarrow.csv": read_pyarrow}
    megabytes = path.stat().st_size / 1e6
    rates: dict[str, list[float]] = {name: [] for name in readers}
    counts = set()
    for repetition in range(repetitions + 1):
        for name, read in readers.items():
            start = time.perf_counter()
            counts.add(read(path, threads))
            if repetition:  # the first warms up
                rates[name].append(megabytes / (time.perf_counter() - start))
    if len(counts) != 1:
        raise RuntimeError(f"the readers found different numbers of examples: {counts}")
    ours, theirs = (statistics.median(values) for values in rates.values())
    return {
        "format": "criteo",
        "threads": threads,
        "examples": counts.pop(),
        "value": ours,
        "unit": "MB/s",
        "baseline": "pyarrow.csv",
        "baseline_value": theirs,
        "ratio": ours / theirs,
        "floor": 0.7,
        "repetitions": repetitions,
        "spread": {
            "value": [min(rates["hps"]), max(rates["hps"])],
            "baseline_value": [min(rates["pyarrow.csv"]), max(rates["pyarrow.csv"])],
        },
    }


def run(smoke: bool) -> dict[str, Any]:
    """The result's axes and rows.

    Args:
        smoke: a tiny file and one repetition, to show that it runs.
    """
    examples, repetitions = (2000, 1) if smoke else (400_000, 7)
    threads = [count for count in (1, 2, 4) if count <= len(os.sched_getaffinity(0))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.tsv"
        write_log(path, examples)
        rows = [compare(path, count, repetitions) for count in threads]
    return {"axes": {"format": ["criteo"], "threads": threads}, "rows": rows}
