"""Sizes of a rank: its GPU, DRAM, SSD and network, for a question and a number of ranks.

Above it: plan.py. Below it: keys.py (distinct keys), hps._C, whose constants are those of the
tiers, hps.common.sharding, which divides the keys. A rank is the one that owns most keys. Sizes are
bytes, unless a name says otherwise. docs/cluster_sizing.md has the formulas in the order of this
file.
"""

import math
from dataclasses import dataclass

import numpy as np

from hps import _C
from hps.common.sharding import ShardMap
from hps.common.wire import Wire
from hps.config import BATCH_SHARE, SsdStoreConfig
from hps.generate.config import cardinalities_of
from hps.plan.keys import KeyLaw
from hps.plan.question import PlanQuestion

KEY_BYTES = 8
FLOAT_BYTES = 4
DISK_PAGE_BYTES = 4096  # the least that a disk reads
DENSE_COPIES = 4  # a dense parameter's weight, gradient and Adam's two moments
PROCESS_BYTES = 1 << 30  # Python, torch, the parsed examples: an allowance
# Of a gpu_cache, an occurrence: a plan; a step's sums, beside those of runs.
PLAN_BYTES, SUMS_BYTES = 107, 21
IDS_BYTES = 4  # between ranks, an occurrence
PINNED_LOAD = 0.7  # of a cache's slots: beyond it both buckets of a key may be pinned full


@dataclass(frozen=True)
class RowSizes:
    """Of one row, in each place: its image, a slot of each cache, record and key on disk, index."""

    image: int
    gpu_slot: float
    dram_slot: float
    ssd: float
    index: float


@dataclass(frozen=True)
class StepSizes:
    """Keys of one step; distinct ones are expected numbers.

    Args:
        batch_keys: of the whole batch.
        rank_occurrences: of a rank's part of it, with repetitions.
        rank_keys: of a rank's part.
        owned_keys: of the whole batch, that a rank owns.
        received_keys: that a rank is asked for: a key once for each rank that has it.
        window_keys: of the batches prepared at once and the one computed, that a rank owns.
    """

    batch_keys: float
    rank_occurrences: float
    rank_keys: float
    owned_keys: float
    received_keys: float
    window_keys: float


@dataclass(frozen=True)
class GpuSizes:
    """Of device memory.

    Args:
        least_cache: that holds the window's rows, and what batches work on.
        buffers: keys, rows and gradients of a step, and the dense part.
        cache: what is left for the gpu_cache.
        batches: of that, what the window's batches and a step work on.
        misses: distinct keys a step that it lacks.
        copied_per_second: to and from the host, for them.
    """

    least_cache: float
    buffers: float
    cache: float
    batches: float
    misses: float
    copied_per_second: float


@dataclass(frozen=True)
class DramSizes:
    """Of host memory.

    Args:
        index: of the keys on disk.
        least_cache: that holds the window's rows.
        buffers: the process, and, where there is no GPU, keys, rows, gradients and the dense part.
        cache: what is left for the dram_cache.
        cache_rows: rows that it holds.
        misses: distinct keys a step that it lacks.
    """

    index: float
    least_cache: float
    buffers: float
    cache: float
    cache_rows: float
    misses: float


@dataclass(frozen=True)
class SsdSizes:
    """Of the disk.

    Args:
        live: records of the rows, their keys in the footers.
        bound: what live segments may take while compaction runs.
        checkpoints: what the kept checkpoints alone hold.
        reads_per_second: of single rows, one disk page or more each.
        read_per_second, written_per_second: compaction's part counted.
        checkpoint_rows: that one checkpoint finds changed in memory and writes.
        checkpoint: what it writes.
    """

    live: float
    bound: float
    checkpoints: float
    reads_per_second: float
    read_per_second: float
    written_per_second: float
    checkpoint_rows: float
    checkpoint: float


@dataclass(frozen=True)
class NetworkSizes:
    """What a rank sends to others a step; then a second, and what of it leaves its host."""

    keys: float
    rows: float
    gradients: float
    dense: float
    step: float
    per_second: float
    node_per_second: float


class Sizer:
    """The sizes of one question, for any number of ranks."""

    def __init__(self, question: PlanQuestion) -> None:
        self.question = question
        self.space = _C.space_of(question.layout.row_bytes)
        self.row = RowSizes(
            image=question.layout.row_bytes,
            gpu_slot=self.space["gpu_slot_bytes"],
            dram_slot=self.space["dram_slot_bytes"],
            ssd=self.space["ssd_row_bytes"],
            index=self.space["index_bytes_most"],
        )
        sizes = [int(size) for size in cardinalities_of(question.keys, question.features)]
        self.law = KeyLaw(sizes, question.alpha, question.ids_per_feature)

    def step(self, ranks: int) -> StepSizes:
        """Keys of a step."""
        question, share = self.question, largest_share(ranks)
        part = math.ceil(question.batch_size / ranks)
        rank_keys = self.law.unique(part)
        batch_keys = self.law.unique(question.batch_size)
        return StepSizes(
            batch_keys=batch_keys,
            rank_occurrences=part * question.features * question.ids_per_feature,
            rank_keys=rank_keys,
            owned_keys=share * batch_keys,
            received_keys=share * ranks * rank_keys,
            window_keys=share * self.law.unique((question.depth + 1) * question.batch_size),
        )

    def gpu(self, ranks: int, step: StepSizes) -> GpuSizes | None:
        """Of device memory; None where there is no GPU."""
        question = self.question
        if question.gpu is None:
            return None
        buffers = self._step_buffers(step) + self._dense()
        cache = max(0.0, int(question.gpu) - buffers)
        batches = self._batches(ranks, step)
        rows = cache - max(batches, cache / BATCH_SHARE)
        least_rows = self._least_cache(step, self.row.gpu_slot)
        misses = self._misses(ranks, max(0.0, rows) / self.row.gpu_slot)
        return GpuSizes(
            least_cache=max(least_rows + batches, least_rows * BATCH_SHARE / (BATCH_SHARE - 1)),
            buffers=buffers,
            cache=cache,
            batches=batches,
            misses=misses,
            # The row that comes, and the changed one that gives way.
            copied_per_second=2 * misses * self.row.image * question.steps_per_second,
        )

    def dram(self, ranks: int, step: StepSizes) -> DramSizes:
        """Of host memory."""
        question = self.question
        index = largest_share(ranks) * question.keys * self.row.index
        buffers = float(PROCESS_BYTES)
        if question.gpu is None:
            buffers += self._step_buffers(step) + self._dense()
        cache = max(0.0, int(question.dram) - index - buffers)
        rows = cache / self.row.dram_slot
        return DramSizes(
            index=index,
            least_cache=self._least_cache(step, self.row.dram_slot),
            buffers=buffers,
            cache=cache,
            cache_rows=rows,
            misses=self._misses(ranks, rows),
        )

    def ssd(self, ranks: int, dram: DramSizes) -> SsdSizes:
        """Of the disk."""
        question, share, config = self.question, largest_share(ranks), SsdStoreConfig()
        threshold = config.compaction_threshold
        live = share * question.keys * self.row.ssd
        examples = question.examples_per_second * question.checkpoint_seconds
        # A checkpoint writes the rows that have changed since the last and are still in memory; the
        # others were written when they gave way.
        changed = min(share * self.law.unique(examples), dram.cache_rows)
        missed = dram.misses * question.steps_per_second
        appended = (missed + changed / question.checkpoint_seconds) * self.row.ssd
        # Compaction copies the live part of segments of which `threshold` is dead.
        copied = appended * (1 - threshold) / threshold
        between = (appended + copied) * question.checkpoint_seconds
        pages = math.ceil(self.row.ssd / DISK_PAGE_BYTES)
        return SsdSizes(
            live=live,
            bound=live / (1 - threshold) + self.space["spare_segments"] * self._segment(live),
            checkpoints=config.keep_last * min(live / (1 - threshold), between),
            reads_per_second=missed,
            read_per_second=missed * pages * DISK_PAGE_BYTES + appended / threshold,
            written_per_second=appended + copied,
            checkpoint_rows=changed,
            checkpoint=changed * self.row.ssd,
        )

    def network(self, ranks: int, step: StepSizes) -> NetworkSizes:
        """What a rank sends."""
        question, share = self.question, largest_share(ranks)
        row = Wire.named(question.row_wire).num_bytes(1, question.dim)
        gradient = Wire.named(question.gradient_wire).num_bytes(1, question.dim)
        # Its part's keys that others own; others' keys that it owns; the sums of the first.
        foreign = step.rank_keys * (1 - 1 / ranks)
        keys = KEY_BYTES * foreign
        rows = row * step.rank_keys * (ranks - 1) * share
        gradients = gradient * foreign
        # Every rank sums up a share of them, then sends its means to all.
        dense = 2 * (1 - 1 / ranks) * FLOAT_BYTES * question.dense_parameters
        total = keys + rows + gradients + dense
        on_node = min(question.ranks_per_node, ranks)
        leaving = 0.0 if ranks == on_node else (ranks - on_node) / (ranks - 1)
        return NetworkSizes(
            keys=keys,
            rows=rows,
            gradients=gradients,
            dense=dense,
            step=total,
            per_second=total * question.steps_per_second,
            node_per_second=leaving * on_node * total * question.steps_per_second,
        )

    def _misses(self, ranks: int, cache_rows: float) -> float:
        """Distinct keys of a step that a cache of so many rows on each rank lacks, of one rank."""
        share = largest_share(ranks)
        return share * self.law.misses(self.question.batch_size, cache_rows / share)

    def _least_cache(self, step: StepSizes, slot_bytes: float) -> float:
        return step.window_keys / PINNED_LOAD * slot_bytes

    def _batches(self, ranks: int, step: StepSizes) -> float:
        """Plans of the window and of a batch that is made; sums of a step. Between ranks keys are
        sent without repetitions; a rank's own have a plan from when they are read, and their
        gradients are summed before they are sent."""
        depth, dim = self.question.depth, self.question.dim
        own, of_sums = step.rank_occurrences, SUMS_BYTES + dim / 4
        if ranks == 1:
            return (PLAN_BYTES * (depth + 2) + of_sums) * own
        received = step.received_keys
        plans = (
            PLAN_BYTES * (depth + 2) * received + (PLAN_BYTES + IDS_BYTES) * (2 * depth + 3) * own
        )
        return plans + of_sums * max(own, received) + FLOAT_BYTES * dim * step.rank_keys

    def _step_buffers(self, step: StepSizes) -> float:
        """Keys of the window; a step's rows and gradients by occurrence, by key, and as owner."""
        keys = KEY_BYTES * (self.question.depth + 1) * (step.rank_occurrences + step.received_keys)
        places = step.rank_occurrences + step.rank_keys + step.received_keys
        return keys + 2 * FLOAT_BYTES * self.question.dim * places

    def _dense(self) -> float:
        return float(DENSE_COPIES * FLOAT_BYTES * self.question.dense_parameters)

    def _segment(self, live: float) -> float:
        most = float(SsdStoreConfig().segment_bytes)
        return min(max(live / self.space["segment_share"], self.space["least_segment_bytes"]), most)


def largest_share(ranks: int) -> float:
    """The part of all keys that the rank with most virtual shards owns.

    >>> largest_share(1), largest_share(4), largest_share(3) > 1 / 3
    (1.0, 0.25, True)
    """
    shards = ShardMap(ranks)
    return float(np.bincount(shards.owners()).max() / shards.num_virtual)
