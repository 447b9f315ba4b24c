"""What each stage before compute does with one batch, in whatever thread.

Above it: stages.py. Below it: the reader, which only `read` touches; `Ranks.exchange`, where
training has several ranks; `RowServer.pin` and `warm`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch

from hps.common.arrays import HOST
from hps.errors import BatchMemoryError
from hps.pipeline.arrival import Arrival
from hps.pipeline.clock import INPUT, StageClock
from hps.pipeline.invariants import require
from hps.pipeline.pins import pin_tables
from hps.pipeline.prepared import Ended, Prepared
from hps.types import Batch

if TYPE_CHECKING:
    from hps.contracts.joint import JointRows
    from hps.contracts.training import Ranks, RowServer


class StageWork:
    """What each stage does with one batch, in whatever thread.

    Args:
        batches: yields `hps.Batch`; touched by `read` alone.
        server: whose rows are pinned.
        clock: told about every stage's work.
        accumulate: batches a step.
        wants: tell the server of each batch that has been read, before it is fetched.
    """

    def __init__(
        self,
        batches: Iterable[Batch],
        server: "RowServer",
        clock: StageClock,
        accumulate: int,
        wants: bool = False,
    ) -> None:
        self.clock = clock
        self._accumulate = accumulate
        self._wants = wants
        self.num_asked = 0  # batches, of the reader; counted first, so that none gets lost unseen
        self._batches = batches
        self._iterator: Iterator[Batch] | None = None
        self._server = server
        self._ranks = server.ranks
        self._num_placed = 0
        self._beside: AbstractContextManager[object] | None = None
        # As Flow has them, where stages have threads: else nothing is released meanwhile.
        self.num_changes: Callable[[], int] = lambda: 0
        self.waits_for_memory: Callable[[int], bool] = lambda changes: False

    @property
    def has_gpu_cache(self) -> bool:
        return self._server.has_gpu_cache

    @property
    def pinning_stage(self) -> str:
        """The stage that pins: the one above which there are only slots."""
        return "copy" if self.has_gpu_cache else "fetch"

    @property
    def is_between_steps(self) -> bool:
        """True if the batches read so far are those of whole steps."""
        return self.num_asked % self._accumulate == 0

    def read(self) -> Prepared | Ended:
        """Network: the next batch, or the end."""
        self.num_asked += 1
        with self.clock.busy("network", self.num_asked):
            if self._iterator is None:
                self._iterator = iter(self._batches)
            batch = next(self._iterator, None)
        item: Prepared | Ended = Ended(self.num_asked, is_exhausted=True)
        if batch is not None:
            item = Prepared(self.num_asked, batch)
        if self._ranks is not None:
            item = self._exchange(item, self._ranks)
        if self._wants and isinstance(item, Prepared):
            self._want(item)
        return item

    def _exchange(self, item: Prepared | Ended, ranks: "Ranks") -> Prepared | Ended:
        """Tells the other ranks; the end, if one of them has no further batch."""
        if self._beside is None:
            self._beside = self.queueing()
        divided = None
        with self._beside:
            if isinstance(item, Prepared):
                divided = self._divide(item, ranks)
            with self.clock.waiting("network", INPUT):
                exchanged = ranks.exchange(divided)
        if exchanged is None and isinstance(item, Prepared):
            return Ended(item.number, is_exhausted=False)
        if isinstance(item, Prepared):
            item.exchanged = exchanged
        return item

    def _divide(self, item: Prepared, ranks: "Ranks") -> Mapping[str, object]:
        """The batch's keys by owner; again after each release, where a device has no memory."""
        while True:
            changes = self.num_changes()
            try:
                with self.clock.busy("network", item.number):
                    return ranks.divide(item.keys)
            except BatchMemoryError:
                if not self.waits_for_memory(changes):
                    raise

    def _want(self, prepared: Prepared) -> None:
        if self._beside is None:
            self._beside = self.queueing()
        # The reader itself stays on the stream of the one that made it.
        with self.clock.busy("network", prepared.number), self._beside:
            for table, keys in prepared.keys.items():
                self._server.want(table, keys)

    def left(self) -> Ended:
        """The end that comes although the reader may have more."""
        return Ended(self.num_asked + 1, is_exhausted=False)

    def warm(self, prepared: Prepared) -> None:
        """Fetch, with a gpu_cache: what that lacks comes into the dram_cache and stays there until
        the batch is pinned above."""
        with self.clock.busy("fetch", prepared.number):
            queued, keys = self._server.queued, prepared.keys
            if queued is None:
                pin_tables(keys, self._server.warm, prepared.warm)
            else:
                prepared.warm.update(queued.warming(keys))

    def pin(self, prepared: Prepared) -> None:
        """Fetch (copy, with a gpu_cache): every row of the batch into its slot, and held there."""
        with self.clock.busy(self.pinning_stage, prepared.number):
            self._bring(prepared)
            queued, keys = self._server.queued, prepared.keys
            prepared.let_go = None if queued is None else queued.release
            prepared.joint = self._pin_joint(prepared.batch)
            if prepared.joint is not None:
                prepared.rows.update(prepared.joint.of_tables())
            elif queued is None:
                pin_tables(keys, self._server.pin, prepared.rows)
            else:
                prepared.rows.update(queued.pinning(keys))

    def _pin_joint(self, batch: Batch) -> "JointRows | None":
        """Pins the rows of all tables together, where that can be."""
        joint, queued = self._server.joint, self._server.queued
        if not _has_bags(batch):
            return None
        if joint is not None:
            return joint.pin(batch.features, len(batch))
        return None if queued is None else queued.pin_joint(batch.features, len(batch))

    def bring_ahead(self, prepared: Prepared) -> None:
        """Fetch (copy): what else the batch's step would have to wait for. Rows are pinned."""
        tables = self._server.tables
        waiting = [rows for name, rows in prepared.rows.items() if tables[name].admission]
        if not waiting:
            return
        with self.clock.busy(self.pinning_stage, prepared.number):
            for rows in waiting:
                held = rows.bring_ahead()
                if held is not None:
                    prepared.ahead.append(held)

    def pin_again(self, prepared: Prepared) -> None:
        """Pins a batch that was given back, in the training loop's thread and on its stream."""
        prepared.receive()
        prepared.rows, prepared.joint = {}, None
        self.pin(prepared)
        prepared.is_given_back = False

    def _bring(self, prepared: Prepared) -> None:
        """Puts the batch's tensors where the rows lie, if that is not the host."""
        device = self._server.device
        if device == HOST or str(prepared.batch.labels.device) == device:
            return
        prepared.batch = prepared.batch.to(device)
        if self._ranks is not None and prepared.exchanged is not None:
            keys = {table: ids.keys_L for table, ids in prepared.batch.features.items()}
            self._ranks.moved(prepared.exchanged, keys)
        if device.startswith("cuda"):
            prepared.arrival = Arrival(prepared.batch)

    def queueing(self) -> AbstractContextManager[object]:
        """What a thread works under while it gives a CUDA device something to do: a stream of its
        own, so that it is done beside the training loop's kernels."""
        device = self._server.device  # with its index: a new thread is on device 0
        if not device.startswith("cuda"):
            return nullcontext()
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        context: AbstractContextManager[object] = torch.cuda.stream(stream)
        return context

    def place(self, prepared: Prepared) -> None:
        """Notes that a batch's rows are pinned: it may be passed on from now on (I4). What waits
        below is not needed any more."""
        prepared.release_warm()
        is_next = prepared.number == self._num_placed + 1
        require("I1", is_next, f"batch {prepared.number} after batch {self._num_placed}")
        self._num_placed = prepared.number
        prepared.is_placed = True


def _has_bags(batch: Batch) -> bool:
    """True if there are keys, and as many bags of them as features of all examples have. (What is
    looked up without pooling may be divided as it likes.)"""
    counts = [len(ids.offsets) - 1 for ids in batch.features.values()]
    if len(batch) == 0:
        return len(counts) > 0 and not any(counts)
    return len(counts) > 0 and all(count % len(batch) == 0 for count in counts)
