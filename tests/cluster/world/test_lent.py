"""No thread of gloo is left with a collective's tensors when a rank's interpreter ends.

Above it: pytest. Below it: tests/cluster/ending_ranks.py, hps.cluster.world.lent.
"""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from hps.cluster.world.lent import LentTensors
from hps.cluster.world.torch_world import TorchChannel
from tests.cluster.ending_ranks import ENDS, missing_tools, run_ends


@pytest.mark.timeout(400)
@pytest.mark.skipif(bool(missing_tools()), reason=missing_tools())
def test_a_rank_that_ends_is_not_aborted_where_gloos_threads_are_late(tmp_path: Path) -> None:
    """ "terminate called without an active exception": a thread wanted the GIL of a Python that
    was ending."""
    said = run_ends(tmp_path)
    for how in ENDS:
        assert [one["status"] for one in said[how]] == [0, 0], said
        assert not any("terminate" in one["errors"] for one in said[how]), said
    for how in ("closed", "unclosed"):  # else the library has made nobody late
        assert all(one["wanted"] for one in said[how]), said
    assert said["left"][0]["wanted"] == 0, said


def test_the_end_waits_for_who_has_a_tensor_and_for_nobody_else() -> None:
    lent, tensors = LentTensors(), [torch.zeros(3), torch.ones(3)]
    lent.lend(tensors)
    other = tensors[0].detach()  # of the same memory
    assert lent.num_held == 2
    let_go = threading.Event()

    def let_go_late() -> None:
        let_go.set()
        tensors.clear()

    threading.Timer(0.2, let_go_late).start()
    lent.end()
    assert let_go.is_set() and lent.num_held == 0 and not other.any()
    lent.end()


def test_what_is_lent_again_and_again_is_forgotten() -> None:
    lent = LentTensors()
    kept = torch.zeros(1)
    lent.lend([kept])
    for _ in range(100):
        lent.lend([torch.zeros(1), torch.zeros(1)])
    assert lent.num_held == 1 and len(lent._tensors) <= 3
    del kept
    lent.end()


def test_what_was_given_up_is_not_waited_for() -> None:
    lent, tensors = LentTensors(), [torch.zeros(3), torch.ones(3)]
    lent.lend([torch.zeros(1)])
    lent.lend(tensors)
    lent.give_up(tensors, torch.distributed.Work())
    started = time.monotonic()
    lent.end()
    assert time.monotonic() - started < 5 and len(tensors) == 2


def test_a_collective_that_does_not_begin_gives_its_tensors_back() -> None:
    lent = LentTensors()
    channel = object.__new__(TorchChannel)
    channel._lent = lent

    def refuse(*_: object) -> Any:
        raise RuntimeError("the group is gone")

    channel._begin = refuse  # type: ignore[method-assign]
    received, rows = torch.zeros(2), torch.ones(2)
    with pytest.raises(RuntimeError, match="is gone") as kept:  # its frames hold the tensors
        channel._exchange_on_host(received, rows, [1, 1], [1, 1])
    assert kept.tb is not None and lent.num_held == 0
    lent.end()


def test_a_forked_child_waits_for_no_thread_of_its_parent() -> None:
    lent, kept = LentTensors(), torch.zeros(1)
    lent.lend([kept])
    child = os.fork()
    if child == 0:
        started = time.monotonic()
        lent.end()
        os._exit(int(time.monotonic() - started > 5))
    assert os.waitpid(child, 0)[1] == 0
    del kept
    lent.end()
