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
from hps.contracts.joint import JointServer
from hps.nn.gradients import pending_of
from hps.parameter_server.server import ParameterServer, RowUpdate
from tests.lab import Lab, dump, table

KEYS = np.arange(600, dtype=np.uint64)
# An interrupt in a __del__ is told of, no more.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
PACKAGE = str(Path(__file__).parents[2] / "hps")


IN_A_DEL = "in a __del__"


class Strike:
    """A tracer that interrupts at the number-th entry of a function of hps, or of what it is in of
    the standard library, once."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        is_ours = code.co_filename.startswith(PACKAGE)
        is_standard = code.co_filename.endswith(("contextlib.py", "threading.py"))
        # There a condition itself would be torn: it gives a lock back that it has not got again.
        if is_ours or (is_standard and code.co_name != "_acquire_restore"):
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt


def struck_at(number: int, call: Callable[[], Any]) -> BaseException | None:
    """The interrupt that struck at the number-th place of a call; or, with IN_A_DEL, of a __del__
    that came with it, while the call itself went on; None if it has not so many."""
    strike, before = Strike(number), sys.gettrace()
    sys.settrace(strike)
    try:
        call()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.settrace(before)
    return KeyboardInterrupt(IN_A_DEL) if strike.left == 0 else None


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
        **({} if server.joint is None else joint_calls_of(server, server.joint)),
    }


def joint_calls_of(server: ParameterServer, joint: JointServer) -> dict[str, Callable[..., Any]]:
    """The verbs of several tables at once, of one."""
    module = hps.SparseEmbeddings(server, {"ads": 1}).eval()

    def ids(keys: np.ndarray) -> hps.Ids:
        return hps.Ids(torch.from_numpy(keys.astype(np.int64)), torch.arange(len(keys) + 1))

    def look_up(keys: np.ndarray) -> None:
        module(hps.Batch({"ads": ids(keys)}, torch.zeros(len(keys), 0), torch.ones(len(keys))))

    def pin(keys: np.ndarray) -> None:
        rows = joint.pin({"ads": ids(keys)}, len(keys))
        rows.of_tables()["ads"].gather()
        rows.release()

    return {"look up of several tables": look_up, "pin of several tables": pin}


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
                tiers = server.parts.tables.tiers["ads"].caches.values()
                assert [tier.turn.num_asking for tier in tiers] == [0] * len(tiers), where
                assert not any(tier.is_moving for tier in tiers), where
                if error is None:
                    break
                num_struck += 1
                error.__traceback__ = None
                assert server.pins == 0, where
                assert not server.parts.tables.stacks["ads"].plans_in_flight, where
            assert num_struck >= 5, name
            assert server.num_rows("ads") == 600
        assert dump(server) == rows


@pytest.mark.parametrize(
    ("kind", "is_joint"), [("native", False), ("native", True), ("gpu", False)]
)
def test_an_interrupt_at_any_call_of_a_step_applies_it_to_all_tables_once_or_to_none(
    tmp_path: Path, kind: str, is_joint: bool
) -> None:
    generator = np.random.default_rng(6)
    with Lab(kind, tmp_path).server(table(name="a"), table(name="b")) as server:
        embeddings = [hps.SparseEmbedding(server, name) for name in "ab"]
        jointly = hps.SparseEmbeddings(server, {"a": 1, "b": 1})

        def collect(keys: torch.Tensor) -> None:
            ids = hps.Ids(keys, torch.arange(len(keys) + 1))
            batch = hps.Batch({"a": ids, "b": ids}, torch.zeros(10, 0), torch.ones(10))
            for module in (jointly,) if is_joint else embeddings:
                module(batch).sum().backward()

        optimizer = hps.RowOptimizer(server)
        for name in "ab":
            server.assign(name, KEYS, np.zeros((600, 4), np.float32))
        outcomes = {False: 0, True: 0}
        for number in range(1, 1000):
            keys = torch.from_numpy(generator.choice(KEYS, 10, replace=False).astype(np.int64))
            before = [server.pull(name, keys).clone() for name in "ab"]
            collect(keys)
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


def one_checkpoint(server: ParameterServer, name: str) -> set[float]:
    """What the rows of a table hold."""
    return {float(value) for _, rows in server.items(name) for value in rows.ravel()}


@pytest.mark.parametrize("kind", ["native", "gpu"])
@pytest.mark.parametrize("first", ["a", "b"])
def test_a_second_interrupt_of_a_restore_closes_a_server_that_would_mix_checkpoints(
    tmp_path: Path, kind: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first strikes where one table is at its checkpoint, the second on the way back."""
    lab = Lab(kind, tmp_path)
    outcomes = {"closed": 0, "open": 0}
    for number in range(1, 1000):
        with lab.server(table(name="a"), table(name="b")) as server:
            for name in "ab":
                server.assign(name, KEYS[:40], np.ones((40, 4), np.float32))
            server.checkpoint("old")
            for name in "ab":
                server.assign(name, KEYS[:40], np.full((40, 4), 2, np.float32))
            strike = Strike(number)

            def interrupt(strike: Strike = strike) -> None:
                monkeypatch.undo()
                sys.settrace(strike)
                raise KeyboardInterrupt

            monkeypatch.setattr(server.parts.tables.stack(first), "restart", interrupt)
            try:
                server.restore("old")
                pytest.fail("the first interrupt did not strike")
            except KeyboardInterrupt as error:
                notes = getattr(error, "__notes__", [])
            finally:
                sys.settrace(None)
            if strike.left > 0:  # the second did not
                assert [one_checkpoint(server, name) for name in "ab"] == [{1.0}, {1.0}]
                assert server.pins == 0 and outcomes["closed"] >= 5
                return
            if notes:
                outcomes["closed"] += 1
                assert "closed" in notes[0]
                for call in (lambda: server.pull("a", KEYS), server.checkpoint, server.stats):
                    with pytest.raises(hps.StoreError, match="is closed; open it again"):
                        call()
            else:
                assert [one_checkpoint(server, name) for name in "ab"] == [{1.0}, {1.0}]
                outcomes["open"] += 1
        with lab.server(table(name="a"), table(name="b")) as server:
            assert [one_checkpoint(server, name) for name in "ab"] == [{1.0}, {1.0}], (
                f"call {number}"
            )
    pytest.fail("a restore of a thousand calls")
