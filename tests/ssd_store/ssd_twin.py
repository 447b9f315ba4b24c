"""StoreTwin: what SsdStore promises, in a few readable lines over dicts; and helpers to make rows.

Above it: the tests of ssd_store. Below it: nothing. A state is {table: {key: row bytes}};
a checkpoint is a copy of it.
"""

import copy
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hps.common.row_layout import RowLayout
from hps.contracts.tiers import Keys, Rows
from hps.ssd_store import SsdStore, TableSchema

EDGE_KEYS = [0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
State = dict[str, dict[int, bytes]]


def schema(name: str = "ads", dim: int = 4, optimizer: str = "sgd") -> TableSchema:
    return TableSchema(
        name=name,
        dim=dim,
        optimizer=optimizer,
        initializer="normal",
        numbers=(0.01, 0.0),
        row_bytes=RowLayout(optimizer, dim).row_bytes,
    )


def keys_of(values: list[int] | range) -> Keys:
    return np.array(list(values), dtype=np.uint64)


def make_rows(keys: Keys, value: int, num_bytes: int = 32) -> Rows:
    """Row images of `keys` whose other bytes depend on key and value."""
    rows = np.zeros((len(keys), num_bytes), np.uint8)
    words = rows.view(np.uint64)
    words[:, 0] = keys
    words[:, 2] = keys * np.uint64(0x9E3779B97F4A7C15) + np.uint64(value)
    return rows


def dump(store: SsdStore, table: str) -> dict[int, bytes]:
    """All rows by a scan; fails if a key comes twice or the count differs."""
    rows: dict[int, bytes] = {}
    for piece in store.scan(table, 100):
        for row in piece:
            key = int(row[:8].view(np.uint64)[0])
            assert key not in rows, f"key {key} was scanned twice"
            rows[key] = row.tobytes()
    assert len(rows) == store.num_rows(table)
    return rows


def fetch(store: SsdStore, table: str, keys: Keys) -> dict[int, bytes]:
    """The stored ones among `keys`, by fetch."""
    rows = np.zeros((len(keys), store.schemas[table].row_bytes), np.uint8)
    found = np.full(len(keys), 9, np.uint8)
    store.fetch(table, keys, rows, found)
    assert set(found.tolist()) <= {0, 1}
    assert store.contains(table, keys).tolist() == found.tolist()
    pairs = zip(keys.tolist(), rows, found.tolist(), strict=True)
    return {key: row.tobytes() for key, row, is_found in pairs if is_found}


def row_files(path: Path) -> set[Path]:
    """What holds the rows of checkpoints, by either engine."""
    return {*path.glob("segment-*"), *path.glob("cut-*")}


def segment_files(path: Path) -> list[Path]:
    return sorted(path.glob("segment-*"))


@dataclass
class StoreTwin:
    """The model of a store: appends, erases, checkpoints by name, the one a crash returns to."""

    tables: list[str]
    keep_last: int = 2
    state: State = field(default_factory=dict)
    checkpoints: dict[int, tuple[str | None, State]] = field(default_factory=dict)
    current: State = field(default_factory=dict)
    current_id: int = 0
    next_id: int = 1
    is_changed: bool = False

    def __post_init__(self) -> None:
        self.state = {table: {} for table in self.tables}
        self.current = copy.deepcopy(self.state)

    def append(self, table: str, rows: Rows) -> None:
        self.is_changed |= len(rows) > 0
        for row in rows:
            self.state[table][int(row[:8].view(np.uint64)[0])] = row.tobytes()

    def erase(self, table: str, keys: Keys) -> list[int]:
        self.is_changed = True
        return [int(self.state[table].pop(key, None) is not None) for key in keys.tolist()]

    def checkpoint(self, tag: str | None) -> None:
        if tag is not None:
            self.checkpoints = {i: one for i, one in self.checkpoints.items() if one[0] != tag}
        self.current = copy.deepcopy(self.state)
        self.checkpoints[self.next_id] = (tag, self.current)
        self.current_id = self.next_id
        self.next_id += 1
        self.is_changed = False
        untagged = [i for i, one in self.checkpoints.items() if one[0] is None]
        for old in untagged[: -self.keep_last]:
            del self.checkpoints[old]

    def restore(self, number: int | None) -> None:
        if number is not None:
            self.current = self.checkpoints[number][1]
            self.current_id = number
        self.state = copy.deepcopy(self.current)
        self.is_changed = False

    def compact(self, listed: list[int]) -> None:
        """Nothing changes but, if nothing was stored since, the current checkpoint's id."""
        renewed = set(listed) - set(self.checkpoints)
        if renewed:
            assert renewed == {self.next_id} and not self.is_changed
            self.checkpoints[self.next_id] = self.checkpoints.pop(self.current_id)
            self.current_id = self.next_id
            self.next_id += 1

    def delete(self, number: int) -> None:
        del self.checkpoints[number]
