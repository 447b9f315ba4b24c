"""The network stage divides keys between ranks on a device: it waits for memory while batches that
have some are under way, and only then.

Above it: pytest. Below it: hps/pipeline/flow.py, work.py.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

import hps
from hps.errors import BatchMemoryError
from hps.pipeline.clock import StageClock
from hps.pipeline.flow import Flow, FlowStopped
from hps.pipeline.prepared import Prepared
from hps.pipeline.work import StageWork


def make_flow() -> Flow:
    return Flow(("fetch", "copy", "compute"), 2, 2, StageClock())


def batch_of(number: int) -> Prepared:
    ids = hps.Ids(torch.arange(3), torch.arange(4))
    return Prepared(number, hps.Batch({"ads": ids}, torch.zeros(3, 0), torch.ones(3)))


def started(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """A call in a thread of its own, and what it has returned or raised."""
    answers: list[object] = []

    def body() -> None:
        try:
            answers.append(call())
        except FlowStopped as stopped:
            answers.append(stopped)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread, answers


def hand_on(flow: Flow, item: Prepared) -> None:
    """From the reader to the training loop."""
    flow.put("fetch", item)
    for stage, to in (("fetch", "copy"), ("copy", "compute")):
        assert flow.take(stage) is item
        if stage == "fetch":
            flow.let_in(stage)
        flow.put(to, item)
    assert flow.take_ready(0) is item


def test_a_refused_stage_waits_for_the_next_release() -> None:
    flow = make_flow()
    flow.put("fetch", batch_of(1))
    changes = flow.num_changes()
    thread, answers = started(lambda: flow.wait_for_memory(changes))
    time.sleep(0.05)
    assert not answers
    flow.note_release()
    thread.join(5)
    assert answers == [True]


def test_a_release_between_the_attempt_and_the_wait_is_not_missed() -> None:
    flow = make_flow()
    changes = flow.num_changes()
    flow.note_release()
    assert flow.wait_for_memory(changes)


def test_a_refused_stage_is_told_that_the_loop_waits_for_its_batch() -> None:
    flow = make_flow()
    hand_on(flow, batch_of(1))
    changes = flow.num_changes()
    thread, answers = started(lambda: flow.wait_for_memory(changes))
    time.sleep(0.05)
    assert not answers, "the loop is at work on a batch, which it will release"
    loop, _ = started(lambda: flow.take_ready(0))
    thread.join(5)
    assert answers == [True], "what has changed is to be tried again"
    assert not flow.wait_for_memory(flow.num_changes())
    flow.stop()
    loop.join(5)


def test_a_batch_on_its_way_to_a_waiting_loop_is_waited_for() -> None:
    flow = make_flow()
    loop, _ = started(lambda: flow.take_ready(0))
    time.sleep(0.05)
    flow.put("fetch", batch_of(1))
    assert flow.take("fetch") is not None  # in the hands of a stage, in no queue
    thread, answers = started(lambda: flow.wait_for_memory(flow.num_changes()))
    time.sleep(0.05)
    assert not answers
    flow.stop()
    thread.join(5)
    loop.join(5)
    assert isinstance(answers[0], FlowStopped)


class Ranks:
    """Refuses so many times."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals

    def divide(self, keys: Any) -> Any:
        self.refusals -= 1
        if self.refusals >= 0:
            raise BatchMemoryError("too little")
        return keys


@pytest.mark.parametrize("can_wait", [True, False])
def test_keys_are_divided_again_after_each_release(can_wait: bool) -> None:
    with_ranks: Any = type("Server", (), {"ranks": None, "device": "cpu"})()
    work = StageWork([], cast("Any", with_ranks), StageClock(), 1)
    waits: list[int] = []
    work.num_changes = lambda: 7

    def wait(changes: int) -> bool:
        waits.append(changes)
        return can_wait

    work.waits_for_memory = wait
    item, ranks = batch_of(1), Ranks(2)
    if can_wait:
        assert work._divide(item, cast("Any", ranks)) is not None
        assert waits == [7, 7] and ranks.refusals == -1
    else:
        with pytest.raises(BatchMemoryError):
            work._divide(item, cast("Any", ranks))
        assert waits == [7]
