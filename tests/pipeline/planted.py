"""Pipelines with one of the seven rules broken: the wait or the order that enforces it is gone.

Above it: test_invariants.py, the C2 recipe of tests/torture. Below it: hps.pipeline, of whose parts
each fault is a subclass, so that no line of hps knows of it. I3 and I5 are kept below the pipeline:
their faults are a store and an optimizer.
"""

import time
from typing import Any

import hps
from hps.contracts.updates import RowUpdate
from hps.pipeline.flow import Attempt, Flow
from hps.pipeline.prepared import Item, Prepared
from hps.pipeline.stages import StageThreads
from hps.pipeline.work import StageWork
from tests.pipeline.scenario import Parts


class _UnorderedFlow(Flow):
    """Takes the batch that was read last first."""

    def take(self, stage: str) -> Item:
        time.sleep(0.005)  # until several have been read
        queue = self._queues[stage]
        with self._lock:
            if len(queue) > 1 and all(isinstance(item, Prepared) for item in queue):
                queue.rotate(1)
        return super().take(stage)


class UnorderedPipeline(hps.Pipeline):
    """I1: batches are pinned as they come."""

    _flow_type = _UnorderedFlow


class _UnpinningThreads(StageThreads):
    def _pin(self, prepared: Prepared) -> None:
        super()._pin(prepared)
        prepared.release()


class UnpinnedPipeline(hps.Pipeline):
    """I2: rows are let go of as soon as they are in place."""

    _threads_type = _UnpinningThreads


class LateStore:
    """I3: what is evicted reaches the store two appends later; a fetch does not wait for it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._late: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, table: str, rows: Any) -> None:
        """Keeps rows back."""
        self._late.append((table, rows.copy()))
        while len(self._late) > 2:
            self._store.append(*self._late.pop(0))


class _HastyThreads(StageThreads):
    def _pin(self, prepared: Prepared) -> None:
        self._flow.put("compute", prepared)
        time.sleep(0.01)
        super()._pin(prepared)


class HastyPipeline(hps.Pipeline):
    """I4: a batch is passed on before its rows are in place."""

    _threads_type = _HastyThreads


class PiecemealOptimizer(hps.RowOptimizer):
    """I5: each forward of a step is applied by itself."""

    def step(self, closure: Any = None) -> None:
        pending = self._pending
        for one in pending.updates():
            self._server.apply([RowUpdate(one.table, one.keys, one.grads)])
        pending.finish_step()


class _ImpatientFlow(Flow):
    def attempt(self) -> Attempt:
        return Attempt(self._changes, True, self._num_held)


class ImpatientPipeline(hps.Pipeline):
    """I6: a batch that is refused does not wait for a release."""

    _flow_type = _ImpatientFlow


class _GraspingWork(StageWork):
    def pin(self, prepared: Prepared) -> None:
        kept = self._server.__dict__.setdefault("kept", [])  # for longer than the pipeline
        kept.append({})
        for table, ids in prepared.batch.features.items():
            kept[-1][table] = self._server.pin(table, ids.keys_L)
        prepared.rows = kept.pop()


class GraspingPipeline(hps.Pipeline):
    """I6: a batch that is refused keeps the tables it had got."""

    _work_type = _GraspingWork


class ForgetfulPipeline(hps.Pipeline):
    """I7: nobody asks whether a gradient is pending."""

    def _settle(self) -> None:
        return


PLANTED = {
    "I1": Parts(pipeline=UnorderedPipeline),
    "I2": Parts(pipeline=UnpinnedPipeline),
    "I3": Parts(around_store=LateStore),
    "I4": Parts(pipeline=HastyPipeline),
    "I5": Parts(optimizer=PiecemealOptimizer),
    "I6, waits": Parts(pipeline=ImpatientPipeline),
    "I6, takes nothing": Parts(pipeline=GraspingPipeline),
    "I7": Parts(pipeline=ForgetfulPipeline),
}
