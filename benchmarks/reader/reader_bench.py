"""How fast `open_reader` makes batches of a criteo log and of csv, beside pyarrow.csv on the same
file; and of a criteo log with a features file, beside none.

Above it: benchmarks/run.py. Below it: hps.reader, hps.features, pyarrow. hps hashes keys and
delivers finished batches of tensors; pyarrow only splits and converts columns. Both use the same
number of threads, and read a file that is in the page cache.
"""

import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv

import hps
from hps.features import Features
from hps.features.open import open_with_features
from hps.reader import ReaderConfig, open_reader

NUM_DENSE = 13
NUM_CATEGORIES = 26
BATCH_SIZE = 4096
# Every number of the log normalised, and two crosses.
FEATURES = "\n".join(
    f'[columns.I{i}]\nkind = "dense"\nnormalise = {{mean = 1.5, std = 0.7}}'
    for i in range(1, NUM_DENSE + 1)
)
FEATURES += '\n[crosses.first]\ncolumns = ["C1", "C2"]\n[crosses.second]\ncolumns = ["C3", "C4"]\n'
Read = Callable[[Path, int], int]


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


def write_csv(path: Path, examples: int) -> None:
    """A header, then the columns of `write_log`: numbers with four digits, categories in quotes."""
    number = random.Random(0)
    names = ["label", *(f"I{i}" for i in range(1, NUM_DENSE + 1))]
    names += [f"C{i}" for i in range(1, NUM_CATEGORIES + 1)]
    lines = []
    for _ in range(min(examples, 20000)):
        dense = [f"{number.random():.4f}" for _ in range(NUM_DENSE)]
        categories = [f'"v{number.randrange(10**6)}"' for _ in range(NUM_CATEGORIES)]
        lines.append(",".join([str(number.randrange(2)), *dense, *categories]) + "\n")
    with path.open("w") as file:
        file.write(",".join(names) + "\n")
        for _ in range(examples // len(lines)):
            number.shuffle(lines)
            file.writelines(lines)


def read_hps(path: Path, threads: int) -> int:
    """Of either format, told by the name's end."""
    table = hps.TableConfig(name="all", dim=1)
    kind = "csv" if path.suffix == ".csv" else "criteo"
    config = ReaderConfig(format=kind, batch_size=BATCH_SIZE, threads=threads)
    return sum(len(batch) for batch in open_reader(path, tables=[table], config=config))


def read_plain(path: Path, threads: int) -> int:
    """A criteo log as a features file wants it read, without one."""
    table = hps.TableConfig(name="all", dim=1)
    config = criteo_config(threads)
    return sum(len(batch) for batch in open_reader(path, tables=[table], config=config))


def read_features(path: Path, threads: int) -> int:
    table = hps.TableConfig(name="all", dim=1)
    reader = open_with_features(
        path,
        tables=[table],
        config=criteo_config(threads),
        features=Features.from_toml(FEATURES),
    )
    return sum(map(len, reader))


def criteo_config(threads: int) -> ReaderConfig:
    return ReaderConfig(
        format="criteo", batch_size=BATCH_SIZE, threads=threads, dense_transform="signed_log1p"
    )


def read_streaming(path: Path, threads: int) -> int:
    """Block by block, in types that pyarrow finds, as a log larger than memory must be read."""
    pa.set_cpu_count(threads)
    options = csv.ReadOptions(use_threads=threads > 1)
    with csv.open_csv(path, read_options=options) as reader:
        return sum(len(batch) for batch in reader)


def read_whole(path: Path, threads: int) -> int:
    """The whole file at once, in types that pyarrow finds."""
    pa.set_cpu_count(threads)
    options = csv.ReadOptions(use_threads=threads > 1)
    return int(csv.read_csv(path, read_options=options).num_rows)


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


@dataclass(frozen=True)
class Comparison:
    """What is read in two ways.

    Args:
        format: of the log, "criteo" or "csv".
        name: of the baseline.
        read, baseline: get a file and the number of threads; return the number of examples.
        floor: the least ratio of their rates that is aimed at.
    """

    format: str
    name: str
    read: Read
    baseline: Read
    floor: float


COMPARISONS = (
    Comparison("criteo", "pyarrow.csv", read_hps, read_pyarrow, 0.7),
    Comparison("csv", "pyarrow.csv.open_csv", read_hps, read_streaming, 0.7),
    Comparison("csv", "pyarrow.csv.read_csv", read_hps, read_whole, 0.7),
    Comparison("criteo, features file", "no features file", read_features, read_plain, 0.83),
)


def compare(of: Comparison, path: Path, threads: int, repetitions: int) -> dict[str, Any]:
    """Interleaved repetitions; the row of the result."""
    readers = {"hps": of.read, of.name: of.baseline}
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
        "format": of.format,
        "threads": threads,
        "examples": counts.pop(),
        "value": ours,
        "unit": "MB/s",
        "baseline": of.name,
        "baseline_value": theirs,
        "ratio": ours / theirs,
        "floor": of.floor,
        "repetitions": repetitions,
        "spread": {
            "value": [min(rates["hps"]), max(rates["hps"])],
            "baseline_value": [min(rates[of.name]), max(rates[of.name])],
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
        log, table = Path(folder) / "log.tsv", Path(folder) / "log.csv"
        write_log(log, examples)
        write_csv(table, examples)
        rows = [
            compare(of, table if of.format == "csv" else log, count, repetitions)
            for of in COMPARISONS
            for count in threads
        ]
    formats = list(dict.fromkeys(of.format for of in COMPARISONS))
    return {"axes": {"format": formats, "threads": threads}, "rows": rows}
