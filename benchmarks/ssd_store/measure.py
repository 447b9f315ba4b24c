"""Measuring of contenders in turn: cold and warm reads, durable writes.

Above it: ssd_store_bench.py. Below it: the contenders, page_cache.py, benchmarks/common.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.common.timing import Samples, interleave
from benchmarks.ssd_store import page_cache
from benchmarks.ssd_store.contender import Contender, Writer
from benchmarks.ssd_store.hps_store import HpsStore
from benchmarks.ssd_store.record_file import RawReads
from benchmarks.ssd_store.records import Batch, Data, Records

Results = dict[str, Samples]


def check_same(data: Data, contenders: Sequence[Contender], batch: Batch) -> None:
    """Asserts that every contender reads the records that were stored."""
    expected = data.records(batch.places)
    for contender in contenders:
        contender.begin()
        assert np.array_equal(contender.get(batch), expected), f"{contender.name} reads wrong"
        contender.end()


def cold(
    contenders: Sequence[Contender], batches: Sequence[Batch], checks: bool = True
) -> tuple[Results, float]:
    """M keys/s of one batch a repetition, none of its pages in memory.

    Returns:
        The samples by name, and the largest part of pages that was resident when one began.

    Raises:
        AssertionError: more than a hundredth of the files' pages could not be dropped.
    """
    worst = 0.0

    def measure(contender: Contender, batch: Batch) -> float:
        nonlocal worst
        contender.begin()
        resident = page_cache.drop(contender.files())
        worst = max(worst, resident)
        assert not checks or resident <= page_cache.MOST_RESIDENT, (
            f"{contender.name}: {resident:.1%} of the pages stayed in memory"
        )
        start = time.perf_counter()
        contender.get(batch)
        seconds = time.perf_counter() - start
        contender.end()
        return batch.requested / 1e6 / seconds

    return _in_turn(contenders, batches, measure), worst


def bandwidth(store: HpsStore, raw: RawReads, batches: Sequence[Batch]) -> Results:
    """GB/s of a cold batch a repetition, and of the files read from end to end."""

    def measure(read: Callable[[], int]) -> float:
        page_cache.drop(store.files())
        start = time.perf_counter()
        num_bytes = read()
        return num_bytes / 1e9 / (time.perf_counter() - start)

    def fetch(batch: Batch) -> int:
        before = int(store.store.stats()["bytes_read"])
        store.get(batch)
        return int(store.store.stats()["bytes_read"]) - before

    figures: dict[str, list[float]] = {store.name: [], raw.name: []}
    for batch in batches:
        figures[store.name].append(measure(lambda batch=batch: fetch(batch)))
        figures[raw.name].append(measure(raw.read_all))
    return {name: Samples(tuple(values)) for name, values in figures.items()}


def warm(contenders: Sequence[Contender], batches: Sequence[Batch], steps: int) -> Results:
    """M keys/s of the median of `steps` batches a repetition, all files in memory."""

    def measure(contender: Contender, batch: Batch) -> float:
        contender.begin()
        page_cache.warm(contender.files())
        first = next(idx for idx, one in enumerate(batches) if one is batch)
        seconds = []
        for step in range(steps + 1):
            one = batches[(first + step) % len(batches)]
            start = time.perf_counter()
            contender.get(one)
            seconds.append((time.perf_counter() - start) / one.requested)
        contender.end()
        return 1e-6 / float(np.median(seconds[1:]))

    return _in_turn(contenders, batches, measure)


def puts(writers: Mapping[str, Writer], pieces: Sequence[Records]) -> Results:
    """M rows/s of one batch a repetition, until it is durable."""
    counters = dict.fromkeys(writers, 0)

    def measure(name: str) -> float:
        records = pieces[counters[name]]
        counters[name] += 1
        writers[name].begin()
        start = time.perf_counter()
        writers[name].put(records)
        seconds = time.perf_counter() - start
        writers[name].end()
        return len(records) / 1e6 / seconds

    return interleave({name: lambda n=name: measure(n) for name in writers}, len(pieces))


def _in_turn(
    contenders: Sequence[Contender],
    batches: Sequence[Batch],
    measure: Callable[[Contender, Batch], float],
) -> Results:
    """Repetition r of every contender reads batch r; every other one in the reverse order."""
    figures: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for turn, batch in enumerate(batches):
        for contender in contenders[:: 1 if turn % 2 == 0 else -1]:
            figures[contender.name].append(measure(contender, batch))
    return {name: Samples(tuple(values)) for name, values in figures.items()}
