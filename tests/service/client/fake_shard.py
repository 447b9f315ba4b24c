"""A shard of the simplest kind: rows in a dict, and hooks that hold a call or make it fail.

Above it: the tests of the server. Below it: nothing; `hps.service.shard.shard` is the real one.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import hps
from hps.errors import GapError
from hps.service.shard.answers import PushStep
from hps.service.shard.reads import Standing
from hps.service.shard.shard import Applied, Identity, Terms
from hps.update_log import Marks

DIM = 4


class FakeShard:
    """Every key's row starts as the key; a push adds its gradients.

    `before` is called with the verb's name right before it takes effect; what it raises, the verb
    raises.
    """

    def __init__(self, *names: str) -> None:
        self.tables = [
            hps.TableConfig(name=name, dim=DIM, features=[name]) for name in names or ("ads",)
        ]
        self.index, self.count, self.lineage, self.seed = 0, 1, "0", 0
        self.period = 0
        self.is_dead = False
        self.before: Callable[[str], object] = lambda verb: None
        self.mark = 0
        self.pushed: list[tuple[Any, ...]] = []
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, int], Any] = {}

    def _row(self, table: str, key: int) -> Any:
        return self._rows.get((table, key), np.full(DIM, np.float32(key % 1000)))

    def pull(self, table: str, keys: Any, out: Any = None, timeout: float = 0.0) -> Any:
        self.before("pull")
        rows = np.empty((len(keys), DIM), np.float32) if out is None else out
        for idx, key in enumerate(keys.tolist()):
            rows[idx] = self._row(table, key)
        return rows

    def contains(self, table: str, keys: Any, timeout: float) -> Any:
        self.before("contains")
        return np.array([(table, key) in self._rows for key in keys.tolist()], bool)

    def items(
        self, table: str, batch: int, state: bool, timeout: float, statistics: bool
    ) -> Iterator[tuple[Any, ...]]:
        self.before("items")
        keys = sorted(key for name, key in self._rows if name == table)
        for first in range(0, len(keys), batch):
            part = keys[first : first + batch]
            yield np.array(part, np.uint64), np.stack([self._row(table, key) for key in part])

    def num_rows(self, table: str, timeout: float = 0.0) -> int:
        return len([key for name, key in self._rows if name == table])

    def push(
        self, identity: Identity, table: str, keys: Any, grads: Any, step: PushStep, terms: Terms
    ) -> Applied:
        self.before("push")
        with self._lock:
            if identity.sequence > self.mark + 1:
                raise GapError(f"{identity} is ahead of mark {self.mark}", self.mark)
            is_repeat = identity.sequence <= self.mark
            if not is_repeat:
                self.mark = identity.sequence
                self.pushed.append((identity, table, keys.copy(), grads.copy(), step.lr, terms))
                for key, grad in zip(keys.tolist(), grads, strict=True):
                    self._rows[table, key] = self._row(table, key) + grad
            return Applied(Marks(self.mark, self.mark, 0), is_repeat)

    def checkpoint_names(self, timeout: float = 0.0) -> list[str]:
        return []

    def standing(self, timeout: float = 0.0) -> Standing:
        return Standing(self.period, (1.5, 2.5), Path("/"))

    def stats(self, timeout: float = 0.0) -> dict[str, Any]:
        return {"tables": {one.name: {"rows": self.num_rows(one.name)} for one in self.tables}}
