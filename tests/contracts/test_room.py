"""Slots that batches in flight have pinned: who is asked to give way, and what is never torn."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.nn.gradients import pending_of
from hps.parameter_server.server import ParameterServer, RowUpdate
from hps.tiers.batch_rows import BatchRows
from tests.lab import Lab, keys_of, table

STORED = np.arange(5000, 5100, dtype=np.uint64)


def all_slots_pinned(server: ParameterServer) -> list[BatchRows]:
    """Single keys, each pinned, until hardly a slot is left; none of them is one of STORED."""
    held = []
    for key in range(1000):
        try:
            held.append(server.pin("ads", keys_of(key)))
        except hps.CapacityError:
            continue
    return held


def ones(count: int) -> np.ndarray:
    return np.ones((count, 4), np.float32)


class Ahead:
    """Stands for a pipeline: pins batches ahead, and gives one back each time it is asked."""

    def __init__(self, server: ParameterServer) -> None:
        self.server = server
        self.rows = all_slots_pinned(server)
        pending_of(server).listeners.append(self)
        self.num_asked = 0

    def give_back_ahead(self) -> bool:
        for lock in (self.server.parts.tables.lock, *self.server.parts.tables.stack("ads").turns()):
            other = threading.Thread(target=self._take, args=(lock,))
            other.start()
            other.join(60)
            assert not other.is_alive(), "asked under the lock, or with a turn"
        self.num_asked += 1
        if not self.rows:
            return False
        self.rows.pop().release()
        return True

    def step_finished(self) -> None:
        """Holds nothing for a step."""

    def _take(self, lock: Any) -> None:
        with lock:
            pass


@pytest.mark.parametrize("verb", ["push", "create", "assign", "apply"])
def test_the_loop_has_slots_that_batches_ahead_of_it_hold(lab: Lab, verb: str) -> None:
    with lab.server(table()) as server:
        server.assign("ads", STORED, 0 * ones(100))
        ahead = Ahead(server)
        num_held = len(ahead.rows)
        mine = STORED[server.parts.tables.stack("ads").cache.contains(STORED) == 0][-8:]
        assert len(mine) == 8
        calls: dict[str, Callable[[], Any]] = {
            "push": lambda: server.push("ads", mine, ones(8)),
            "create": lambda: server.pull("ads", mine, create=True),
            "assign": lambda: server.assign("ads", mine, -ones(8)),
            "apply": lambda: server.apply([RowUpdate("ads", mine, ones(8))]),
        }
        calls[verb]()
        assert ahead.num_asked > 0 and len(ahead.rows) < num_held
        for rows in ahead.rows:
            rows.release()
        ahead.rows.clear()
        assert server.pins == 0
        expected = 0 if verb == "create" else -1
        np.testing.assert_array_equal(server.pull("ads", mine), expected * ones(8))


def test_a_push_that_pins_refuse_changes_no_row(lab: Lab) -> None:
    """Its first keys have slots, the others' are all pinned by batches that cannot be asked."""
    with lab.server(table()) as server:
        server.assign("ads", STORED, 0 * ones(100))
        held = all_slots_pinned(server)
        here = np.concatenate([rows.unique_keys() for rows in held])
        keys = np.concatenate([here, STORED])
        before, expected = server.digest("ads"), server.pull("ads", keys).copy() - np.float32(1)
        with pytest.raises(hps.CapacityError, match="depth") as error:
            server.push("ads", keys, ones(len(keys)))
        assert server.digest("ads") == before and server.num_rows("ads") == 100
        assert any("no row has changed" in note for note in error.value.__notes__)
        for rows in held:
            rows.release()
        server.push("ads", keys, ones(len(keys)))
        np.testing.assert_array_equal(server.pull("ads", keys), expected)


def test_a_key_in_too_many_batches_is_named_as_the_reason(tmp_path: Path) -> None:
    with Lab("native", tmp_path).server(table(), scale=4.0) as server:
        held = [server.pin("ads", STORED[:1]) for _ in range(255)]
        with pytest.raises(hps.CapacityError, match=r"pinned 255 times already.*accumulate"):
            server.pin("ads", STORED[:3])
        held[0].release()
        server.pin("ads", STORED[:3]).release()
        for rows in held:
            rows.release()
        assert server.pins == 0
