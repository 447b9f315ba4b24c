"""An interrupt at every single call of a verb, one after the other: nothing stays taken.

Python takes an interrupt up on entering a function, among other places; here each such place of a
verb is struck once.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.gradients import pending_of
from hps.parameter_server import ParameterServer, RowUpdate
from tests.lab import Lab, dump, table

KEYS = np.arange(600, dtype=np.uint64)
# An interrupt in a __del__ is told of, no more.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
PACKAGE = str(Path(__file__).parents[2] / "hps")


def struck_at(number: int, call: Callable[[], Any]) -> BaseException | None:
    """Raises an interrupt at the number-th entry of a function of hps (or contextlib, for it)."""
    left = number

    def trace(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE) or name.endswith("contextlib.py"):
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.settrace(before)
    return None


def calls_of(server: ParameterServer) -> dict[str, Callable[[np.ndarray], Any]]:
    """Verbs that change no row's numbers, each of ten keys."""
    zeros = np.zeros((10, 4), np.float32)
    return {
        "pull": lambda keys: server.pull("ads", keys),
        "push": lambda keys: server.push("ads", keys, zeros),
        "create": lambda keys: server.pull("ads", keys, create=True),
        "apply": lambda keys: server.apply([RowUpdate("ads", keys, zeros)]),
        "pin": lambda keys: server.pin("ads", keys).release(),
        "warm": lambda keys: server.warm("ads", keys).release(),
        "erase": lambda keys: server.erase("ads", keys + np.uint64(10000)),
        "checkpoint": lambda keys: server.checkpoint(),
        "digest": lambda keys: server.digest("ads"),
        "items": lambda keys: list(server.items("ads")),
        "restore": lambda keys: (server.checkpoint("here"), server.restore("here")),
    }


@pytest.mark.parametrize("kind", ["native", "gpu"])
def test_an_interrupt_at_any_call_leaves_no_turn_taken_and_no_pin(
    tmp_path: Path, kind: str
) -> None:
    generator = np.random.default_rng(5)
    with Lab(kind, tmp_path).server(table()) as server:
        server.assign("ads", KEYS, np.ones((600, 4), np.float32) * KEYS[:, None].astype("f4"))
        server.checkpoint()
        rows = dump(server)
        for name, call in calls_of(server).items():
            num_struck = 0
            for number in range(1, 1000):
                keys = generator.choice(KEYS, 10, replace=False)
                error = struck_at(number, lambda call=call, keys=keys: call(keys))
                where = f"{name}, call {number}"
                # While the error lives, and with it every frame that it passed.
                tiers = server._tiers["ads"].caches.values()
                assert [tier.turn.num_asking for tier in tiers] == [0] * len(tiers), where
                assert not any(tier.is_moving for tier in tiers), where
                if error is None:
                    break
                num_struck += 1
                error.__traceback__ = None
                assert server.pins == 0, where
            assert num_struck >= 5, name
            assert server.num_rows("ads") == 600
        assert dump(server) == rows


@pytest.mark.parametrize("kind", ["native", "gpu"])
def test_an_interrupt_at_any_call_of_a_step_applies_it_to_all_tables_once_or_to_none(
    tmp_path: Path, kind: str
) -> None:
    generator = np.random.default_rng(6)
    with Lab(kind, tmp_path).server(table(name="a"), table(name="b")) as server:
        embeddings = [hps.SparseEmbedding(server, name) for name in "ab"]
        optimizer = hps.RowOptimizer(server)
        for name in "ab":
            server.assign(name, KEYS, np.zeros((600, 4), np.float32))
        outcomes = {False: 0, True: 0}
        for number in range(1, 1000):
            keys = torch.from_numpy(generator.choice(KEYS, 10, replace=False).astype(np.int64))
            before = [server.pull(name, keys).clone() for name in "ab"]
            for embedding in embeddings:
                embedding(keys, torch.arange(11)).sum().backward()
            error = struck_at(number, optimizer.step)
            if error is not None:
                error.__traceback__ = None
                is_done = pending_of(server).is_empty
                outcomes[is_done] += 1
                for name, rows in zip("ab", before, strict=True):
                    assert torch.equal(server.pull(name, keys), rows - 1 if is_done else rows)
                optimizer.step()
            for name, rows in zip("ab", before, strict=True):
                assert torch.equal(server.pull(name, keys), rows - 1), f"call {number}"
            assert server.pins == 0
            if error is None:
                break
        assert outcomes[True] >= 1 and outcomes[False] >= 10, outcomes
