"""What it costs a step that most records of its waiting keys lie on SSD: in a hps.Pipeline, whose
stages bring them ahead, beside the same where each step fetches its own.

Above it: life_step_bench.py. Below it: hps.Pipeline, StageWork. Keys are uniform, all wait, and
DRAM holds a tenth of the records; the disk is read past the page cache.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

import hps
from benchmarks.common.keys import FEATURES, hashed_keys
from benchmarks.common.report import Row, comparison_row
from benchmarks.common.server import TABLE
from benchmarks.common.timing import interleave
from hps.pipeline.prepared import Prepared
from hps.pipeline.work import StageWork

AHEAD, BY_THE_STEP = "cold records, depth 2", "fetched by the step"
_NEVER = hps.Admission(count=2**24)
_DIM, _PIECE, _WARM_UP = 16, 100_000, 4


class _RowsAlone(StageWork):
    """Stages that bring nothing but rows."""

    def bring_ahead(self, prepared: Prepared) -> None:
        pass


class _RowsAlonePipeline(hps.Pipeline):
    _work_type = _RowsAlone


def cold_row(keys: int, threads: int, sizes: tuple[int, int], repetitions: int) -> Row:
    """Seconds of `RowOptimizer.step`.

    Args:
        sizes: examples a batch; batches a repetition.
    """
    table = hps.TableConfig(
        name=TABLE, dim=_DIM, optimizer=hps.RowWiseAdagrad(lr=0.01), admission=_NEVER
    )
    # As many slots for rows as for records.
    budget = keys // 10 * (table.layout.row_bytes + 32) + 2**22
    with tempfile.TemporaryDirectory() as path:
        config = hps.Config(
            path=path,
            tables=[table],
            dram=hps.DramCacheConfig(bytes=budget),
            ssd=hps.SsdStoreConfig(direct_io=True),
            threads=threads,
        )
        with hps.ParameterServer(config) as server:
            for first in range(0, keys, _PIECE):
                piece = hashed_keys(np.arange(first, min(first + _PIECE, keys)))
                server.push(TABLE, piece, np.zeros((len(piece), _DIM), np.float32))
            server.checkpoint()
            drawn = _batches(keys, sizes[0])
            contenders: dict[str, Callable[[], float]] = {
                AHEAD: lambda: _seconds(server, hps.Pipeline, drawn, sizes[1]),
                BY_THE_STEP: lambda: _seconds(server, _RowsAlonePipeline, drawn, sizes[1]),
            }
            samples = interleave(contenders, repetitions)
            assert server.num_rows(TABLE) == 0
    return comparison_row(
        {"setting": AHEAD, "dim": _DIM, "threads": threads},
        "seconds a step",
        samples[AHEAD],
        (BY_THE_STEP, samples[BY_THE_STEP]),
        lower_is_better=True,
    )


def _batches(keys: int, examples: int) -> Iterator[hps.Batch]:
    """Without end."""
    generator = np.random.default_rng(5)
    offsets = torch.arange(examples * FEATURES + 1)
    while True:
        ids = hashed_keys(generator.integers(0, keys, examples * FEATURES))
        own = hps.Ids(torch.from_numpy(ids.view(np.int64)), offsets)
        yield hps.Batch({TABLE: own}, torch.zeros(examples, 0), torch.zeros(examples))


def _seconds(
    server: hps.ParameterServer,
    pipeline: type[hps.Pipeline],
    batches: Iterator[hps.Batch],
    num: int,
) -> float:
    embeddings, optimizer = hps.SparseEmbeddings(server), hps.RowOptimizer(server)
    ours = [next(batches) for _ in range(_WARM_UP + num)]
    seconds = []
    with pipeline(ours, server, 2) as prepared:
        for batch in prepared:
            embeddings(batch).square().mean().backward()
            start = time.perf_counter()
            optimizer.step()
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[_WARM_UP:])
