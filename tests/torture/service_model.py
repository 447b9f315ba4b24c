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
Row = tuple[Floats, Floats]  # weights, state

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
        name=name, dim=8 if is_wide else 4, optimizer=optimizer, features=[f"f-{name}"]
    )


@dataclass
class Table:
    """One table.

    config: as it was made.
    initial: weights of each key before anything was done to it, float32 [dim].
    rows: of each stored key.
    """

    config: hps.TableConfig
    initial: Mapping[int, Floats]
    rows: dict[int, Row] = field(default_factory=dict)

    @property
    def state_floats(self) -> int:
        return self.config.dim if self.config.optimizer.kind == "adagrad" else 0

    def new_state(self) -> Floats:
        return np.full(self.state_floats, START, np.float32)

    def push(self, keys: Keys, grads: Floats) -> None:
        """One update of each distinct key, by the sum of its gradients."""
        sums: dict[int, Floats] = {}
        for key, grad in zip(keys.tolist(), grads, strict=True):
            sums[key] = sums.get(key, np.zeros_like(grad)) + grad
        for key, total in sums.items():
            weights, state = self.rows.get(key, (self.initial[key], self.new_state()))
            if self.state_floats:
                state = state + total * total
                total = total / (np.sqrt(state) + EPS)
            self.rows[key] = weights - total, state

    def assign(self, keys: Keys, rows: Floats, states: Floats | None) -> None:
        """The last row of a key counts."""
        for number, key in enumerate(keys.tolist()):
            state = self.new_state() if states is None else states[number].copy()
            self.rows[key] = rows[number].copy(), state

    def erase(self, keys: Keys) -> list[bool]:
        """Which keys were stored; one that comes twice was, both times."""
        found = [key in self.rows for key in keys.tolist()]
        for key in keys.tolist():
            self.rows.pop(key, None)
        return found

    def create(self, keys: Keys) -> None:
        """Stores absent keys as they read."""
        for key in keys.tolist():
            self.rows.setdefault(key, (self.initial[key], self.new_state()))

    def pull(self, keys: Keys) -> Floats:
        """float32 [L, dim]."""
        found = [self.rows.get(key, (self.initial[key],))[0] for key in keys.tolist()]
        return np.array(found, np.float32).reshape(len(keys), self.config.dim)

    def check_items(self, pieces: Sequence[tuple[Any, Any, Any]]) -> None:
        """What `items(state=True)` gave is all of it, once.

        Raises:
            ModelViolation: it is not.
        """
        name, found = self.config.name, {}
        for keys, rows, states in pieces:
            for number, key in enumerate(keys.tolist()):
                if key in found:
                    raise ModelViolation(f"table {name}: items gave key {key} twice")
                found[key] = rows[number], states[number]
        if found.keys() != self.rows.keys():
            more, less = found.keys() - self.rows.keys(), self.rows.keys() - found.keys()
            raise ModelViolation(f"table {name}: keys {more} are too many, {less} are missing")
        for key, row in self.rows.items():
            for what, here, there in zip(("row", "state"), row, found[key], strict=True):
                if not np.array_equal(here, there):
                    raise ModelViolation(
                        f"table {name}, key {key}: its {what} is {there}, must be {here}"
                    )

    def frozen(self) -> tuple[Any, ...]:
        """All of it, to compare and to hash."""
        rows = ((key, row.tobytes(), state.tobytes()) for key, (row, state) in self.rows.items())
        return (self.config.name, *sorted(rows))


@dataclass(eq=False)
class KnownCheckpoint:
    """A checkpoint.

    tag: or None.
    rows: of each table that there was.
    dense: (model, reader) as they were given.
    id: as the service lists it; None until it has.
    """

    tag: str | None
    rows: dict[str, dict[int, Row]]
    dense: tuple[Any, Any]
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
    """

    tables: dict[str, Table] = field(default_factory=dict)
    checkpoints: list[KnownCheckpoint] = field(default_factory=list)
    current: KnownCheckpoint | None = None

    def checkpoint(self, tag: str | None, dense: tuple[Any, Any]) -> None:
        """One of the same tag goes; of those without one the newest two stay."""
        rows = {name: copy.copy(table.rows) for name, table in self.tables.items()}
        self.checkpoints = [one for one in self.checkpoints if tag is None or one.tag != tag]
        self.current = KnownCheckpoint(tag, rows, dense)
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
