"""What a service must hold, as dicts: tables, rows with their optimizer state, checkpoints.

Above it: service_machine.py, which does each thing to the service and to this. Below it: numpy.
Gradients are small whole numbers and learning rates 1, so that SGD and Adagrad come out here in the
bits of the row kernels.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hps

Keys = NDArray[np.uint64]
Floats = NDArray[np.float32]
Row = tuple[Floats, Floats, Floats]  # weights, state; shows, clicks and last period, or nothing

START = np.float32(1.0)  # Adagrad's initial accumulator
EPS = np.float32(0.5)
NUM_KEYS = 60


class ModelViolation(AssertionError):
    """The service holds, or says, something else than it must."""


def universe() -> Keys:
    """uint64 [NUM_KEYS]: all keys, edge cases first."""
    keys = np.arange(NUM_KEYS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    keys[:5] = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
    return keys


def table_named(name: str, is_wide: bool) -> hps.TableConfig:
    """One of the two tables that may be made under a name; the optimizer follows from the name."""
    optimizer: Any = hps.SGD(lr=1.0)
    if name[-1] in "135":
        optimizer = hps.Adagrad(lr=1.0, eps=float(EPS), initial_accumulator_value=float(START))
    return hps.TableConfig(
        name=name,
        dim=8 if is_wide else 4,
        optimizer=optimizer,
        features=[f"f-{name}"],
        statistics=name[-1] in "23",
    )


@dataclass
class Table:
    """One table.

    config: as it was made.
    initial: weights of each key before anything was done to it, float32 [dim].
    rows: of each stored key.
    period: in which it counts.
    """

    config: hps.TableConfig
    initial: Mapping[int, Floats]
    rows: dict[int, Row] = field(default_factory=dict)
    period: int = 0

    @property
    def state_floats(self) -> int:
        return self.config.dim if self.config.optimizer.kind == "adagrad" else 0

    def new_state(self) -> Floats:
        return np.full(self.state_floats, START, np.float32)

    def counts_of(self, key: int, shows: int = 0, clicks: int = 0) -> Floats:
        """What a key has counted after as many more, now."""
        if not self.config.statistics:
            return np.empty(0, np.float32)
        before = self.rows[key][2] if key in self.rows else np.zeros(3, np.float32)
        counted = np.array([shows, clicks], np.float32) + before[:2]
        return np.append(counted, np.float32(self.period))

    def push(self, keys: Keys, grads: Floats, labels: Floats | None = None) -> None:
        """One update of each distinct key, by the sum of its gradients."""
        sums: dict[int, Floats] = {}
        for key, grad in zip(keys.tolist(), grads, strict=True):
            sums[key] = sums.get(key, np.zeros_like(grad)) + grad
        for key, total in sums.items():
            is_key = keys == key
            clicks = 0 if labels is None else int(labels[is_key].sum())
            counts = self.counts_of(key, int(is_key.sum()), clicks)
            weights, state, _ = self.rows.get(key, (self.initial[key], self.new_state(), counts))
            if self.state_floats:
                state = state + total * total
                total = total / (np.sqrt(state) + EPS)
            self.rows[key] = weights - total, state, counts

    def assign(self, keys: Keys, rows: Floats, states: Floats | None) -> None:
        """The last row of a key counts."""
        for number, key in enumerate(keys.tolist()):
            state = self.new_state() if states is None else states[number].copy()
            self.rows[key] = rows[number].copy(), state, self.counts_of(key)

    def erase(self, keys: Keys) -> list[bool]:
        """Which keys were stored; one that comes twice was, both times."""
        found = [key in self.rows for key in keys.tolist()]
        for key in keys.tolist():
            self.rows.pop(key, None)
        return found

    def create(self, keys: Keys) -> None:
        """Stores absent keys as they read."""
        for key in keys.tolist():
            new = (self.initial[key], self.new_state(), self.counts_of(key))
            self.rows.setdefault(key, new)

    def pull(self, keys: Keys) -> Floats:
        """float32 [L, dim]."""
        found = [self.rows.get(key, (self.initial[key],))[0] for key in keys.tolist()]
        return np.array(found, np.float32).reshape(len(keys), self.config.dim)

    def statistics(self, keys: Keys) -> Floats:
        """float32 [3, L], as `statistics` gives them."""
        absent = np.array([0, 0, -1], np.float32)
        found = [self.rows[key][2] if key in self.rows else absent for key in keys.tolist()]
        return np.array(found, np.float32).reshape(-1, 3).T

    def check_items(self, pieces: Sequence[tuple[Any, ...]]) -> None:
        """What `items(state=True)` gave, with statistics where the table has them, is all of it,
        once.

        Raises:
            ModelViolation: it is not.
        """
        name, found = self.config.name, {}
        for keys, rows, states, *counted in pieces:
            counts = np.array(counted, np.float32).reshape(-1, len(keys)).T
            for number, key in enumerate(keys.tolist()):
                if key in found:
                    raise ModelViolation(f"table {name}: items gave key {key} twice")
                found[key] = rows[number], states[number], counts[number]
        if found.keys() != self.rows.keys():
            more, less = found.keys() - self.rows.keys(), self.rows.keys() - found.keys()
            raise ModelViolation(f"table {name}: keys {more} are too many, {less} are missing")
        for key, row in self.rows.items():
            names = ("row", "state", "statistics")
            for what, here, there in zip(names, row, found[key], strict=True):
                if not np.array_equal(here, there):
                    raise ModelViolation(
                        f"table {name}, key {key}: its {what} is {there}, must be {here}"
                    )

    def frozen(self) -> tuple[Any, ...]:
        """All of it, to compare and to hash."""
        rows = ((key, *(part.tobytes() for part in row)) for key, row in self.rows.items())
        return (self.config.name, *sorted(rows))


@dataclass(eq=False)
class KnownCheckpoint:
    """A checkpoint.

    tag: or None.
    rows: of each table that there was.
    dense: (model, reader) as they were given.
    period: of then.
    id: as the service lists it; None until it has.
    """

    tag: str | None
    rows: dict[str, dict[int, Row]]
    dense: tuple[Any, Any]
    period: int
    id: int | None = None

    @property
    def num_rows(self) -> int:
        return sum(map(len, self.rows.values()))


@dataclass
class Model:
    """All of it.

    tables: by name; none ever goes.
    checkpoints: oldest first.
    current: the one that the rows descend from; it may be deleted.
    period: of all shards.
    """

    tables: dict[str, Table] = field(default_factory=dict)
    checkpoints: list[KnownCheckpoint] = field(default_factory=list)
    current: KnownCheckpoint | None = None
    period: int = 0

    def begin_period(self, period: int) -> None:
        """All tables count in it from now on."""
        self.period = period
        for table in self.tables.values():
            table.period = period

    def checkpoint(self, tag: str | None, dense: tuple[Any, Any]) -> None:
        """One of the same tag goes; of those without one the newest two stay."""
        rows = {name: copy.copy(table.rows) for name, table in self.tables.items()}
        self.checkpoints = [one for one in self.checkpoints if tag is None or one.tag != tag]
        self.current = KnownCheckpoint(tag, rows, dense, self.period)
        self.checkpoints.append(self.current)
        untagged = [one for one in self.checkpoints if one.tag is None]
        self.checkpoints = [
            one for one in self.checkpoints if one.tag is not None or one in untagged[-2:]
        ]

    def restore(self, checkpoint: KnownCheckpoint) -> int:
        """Rows of then; a table that is younger is empty. Returns how many of these had rows."""
        emptied = 0
        for name, table in self.tables.items():
            emptied += bool(table.rows) and name not in checkpoint.rows
            table.rows = copy.copy(checkpoint.rows.get(name, {}))
        self.current = checkpoint
        self.begin_period(checkpoint.period)
        return emptied

    def is_unnamed(self, checkpoint: KnownCheckpoint) -> bool:
        """A restore that names none goes to it: the current one, or the newest where none is."""
        is_kept = any(one is self.current for one in self.checkpoints)
        return checkpoint is (self.current if is_kept else self.checkpoints[-1])

    def check_checkpoints(self, listed: Sequence[Mapping[str, Any]]) -> None:
        """What `checkpoints` gave; takes the ids of those that have none yet.

        Raises:
            ModelViolation: others, another order, another number of rows, another id than before.
        """
        told = [(one["tag"], one["rows"]) for one in listed]
        expected = [(one.tag, one.num_rows) for one in self.checkpoints]
        if told != expected:
            raise ModelViolation(f"checkpoints are {told}, must be {expected}")
        for one, checkpoint in zip(listed, self.checkpoints, strict=True):
            if checkpoint.id not in (None, one["id"]):
                raise ModelViolation(
                    f"checkpoint {checkpoint.tag} has id {one['id']}, had {checkpoint.id}"
                )
            checkpoint.id = one["id"]
