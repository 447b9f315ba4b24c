"""Rows that no optimizer can make are refused before anything changes.

Above it: assign of parameter_server/rows.py, of a service's shard and client, of a cluster; `hps
verify`. Below it: numpy. A row is what its optimizer may read: finite weights, and state in the
range that csrc/optimizer keeps it in. One that is not would make NaN of a later step, far from its
cause.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hps import _C
from hps.common.bfloat16 import LARGEST_ROUNDED, narrowed, widened
from hps.common.expiry import Expiry
from hps.common.row_layout import Floats, Keys, RowLayout, Statistics
from hps.errors import ConfigError, HpsError, NonFiniteError
from hps.table.life_rules import native_rules

if TYPE_CHECKING:
    from hps.config import TableConfig


@dataclass(frozen=True)
class _Field:
    """A part of a row's state: a scalar or a vector, and the range in which it may lie."""

    name: str
    is_scalar: bool = False
    least: float = -np.inf
    most: float = np.inf

    @property
    def allowed(self) -> str:
        if self.most < np.inf:
            return f"a number from {self.least:g} to {self.most:g}"
        return "a finite number" if self.least < 0 else f"a finite number >= {self.least:g}"


# Of each optimizer, in the order of items(state=True). Rounded betas can carry Adam's 1 - beta^t a
# little above 1, never to 2.
_STATE = {
    "sgd": (),
    "adagrad": (_Field("accumulator", least=0),),
    "rowwise_adagrad": (_Field("accumulator", is_scalar=True, least=0),),
    "adam": (
        _Field("1 - beta1^t", is_scalar=True, least=0, most=2),
        _Field("1 - beta2^t", is_scalar=True, least=0, most=2),
        _Field("first moment"),
        _Field("second moment", least=0),
    ),
    "ftrl": (_Field("z"), _Field("n", least=0)),
}
_WEIGHTS = _Field("weights")
# Those of a narrow table must be finite when they are rounded, too.
_NARROW_WEIGHTS = _Field("weights", least=-LARGEST_ROUNDED, most=LARGEST_ROUNDED)
_LARGEST = float(np.finfo(np.float32).max)


def refuse_impossible_rows(
    table: "TableConfig", keys: Keys, rows: Floats, state: Floats | None, lr: float
) -> None:
    """Raises for the first row that the table's optimizer could not have made.

    Args:
        table: whose rows they are to be.
        keys: uint64 [L].
        rows: float32 [L, dim].
        state: float32 [L, state floats], or None: it starts anew, with the weights.
        lr: learning rate with which it starts.

    Raises:
        NonFiniteError: a number is NaN or infinite, a weight would be infinite as bfloat16 in a
            table of such, or (FTRL, state None) the state that belongs to the weights would be.
            ConfigError: a number of the state is out of its range.

    Cost: one pass over the numbers.
    """
    _check(table, keys, rows, "weight", _NARROW_WEIGHTS if table.is_narrow else _WEIGHTS)
    if state is None:
        if table.optimizer.kind == "ftrl":
            kept = widened(narrowed(rows)) if table.is_narrow else rows
            _check_start(table, keys, kept, lr)
        return
    first = 0
    for part in _STATE[table.optimizer.kind]:
        width = 1 if part.is_scalar else table.dim
        _check(table, keys, state[:, first : first + width], part.name, part)
        first += width


def refuse_impossible_statistics(
    table: "TableConfig",
    keys: Keys,
    statistics: Statistics,
    period: int,
    rules: Expiry | None,
) -> None:
    """Raises for the first row whose counts no updates up to a period can have left.

    Args:
        rules: that are in force; None where rows live for ever, or who looks does not know.

    Raises:
        ConfigError: show is not a finite number >= 0, click not one up to show, the last period not
            one from 0 to `period`, or one in which the row is dead.
    """
    show, click, last_period = statistics
    has_counts = _are_counts(statistics)
    is_fine = are_possible_statistics(statistics, period)
    if is_fine.all():
        if rules is not None:
            _refuse_dead(table, keys, statistics, period, rules)
        return
    row = int(np.argmin(is_fine))
    where = f"table {table.name!r}, key {int(keys[row])}"
    if not has_counts[row]:
        raise ConfigError(
            f"{where}: show {float(show[row]):g} and click {float(click[row]):g} must be finite "
            "numbers, 0 <= click <= show. Nothing was changed: correct this row or leave it out"
        )
    raise ConfigError(
        f"{where}: last_period is {int(last_period[row])}, and the store is at period {period}; "
        f"advance_period(to=...) comes first, so that no row is of a period to come"
    )


def _refuse_dead(
    table: "TableConfig", keys: Keys, statistics: Statistics, period: int, expiry: Expiry
) -> None:
    show, click, last_period = statistics
    rules = native_rules(expiry)
    dies_at = rules.dies_at(show, click, last_period.astype(np.uint32))
    is_dead = (dies_at > 0) & (dies_at <= period)
    if is_dead.any():
        row = int(np.argmax(is_dead))
        raise ConfigError(
            f"table {table.name!r}, key {int(keys[row])}: with show {float(show[row]):g}, click "
            f"{float(click[row]):g} and last_period {int(last_period[row])} the row would have "
            f"died in period {int(dies_at[row])}, and the store is at period {period}. Nothing was "
            "changed: leave this row out"
        )


def _are_counts(statistics: Statistics) -> NDArray[np.bool_]:
    show, click, _ = statistics
    return (show >= 0) & (show <= _LARGEST) & (click >= 0) & (click <= show)


def are_possible_statistics(statistics: Statistics, period: int) -> NDArray[np.bool_]:
    """bool [n]: where updates up to a period may have left these counts."""
    last_period = statistics.last_period
    return _are_counts(statistics) & (last_period >= 0) & (last_period <= period)


def are_possible(layout: RowLayout, rows: Floats, state: Floats) -> NDArray[np.bool_]:
    """bool [n]: where rows [n, dim] and their state [n, state floats] may be an optimizer's."""
    are_fine: NDArray[np.bool_] = np.ones(len(rows), bool)
    are_fine &= np.all(_is_allowed(rows, _WEIGHTS), axis=1)
    first = 0
    for part in _STATE[layout.optimizer_kind]:
        width = 1 if part.is_scalar else layout.dim
        are_fine &= np.all(_is_allowed(state[:, first : first + width], part), axis=1)
        first += width
    return are_fine


def state_by_name(layout: RowLayout, state: Floats) -> dict[str, Floats]:
    """The parts of one row's state [state floats], by name: a scalar [1] or a vector [dim] each.

    >>> state_by_name(RowLayout("rowwise_adagrad", 8), np.ones(1, np.float32))
    {'accumulator': array([1.], dtype=float32)}
    """
    parts, first = {}, 0
    for part in _STATE[layout.optimizer_kind]:
        width = 1 if part.is_scalar else layout.dim
        parts[part.name] = state[first : first + width]
        first += width
    return parts


def _is_allowed(values: Floats, part: _Field) -> NDArray[np.bool_]:
    # NaN is neither.
    return np.isfinite(values) & (values >= part.least) & (values <= part.most)


def _check(table: "TableConfig", keys: Keys, values: Floats, what: str, part: _Field) -> None:
    is_allowed = _is_allowed(values, part)
    if is_allowed.all():
        return
    row, column = np.argwhere(~is_allowed)[0].tolist()
    value = float(values[row, column])
    where = what if part.is_scalar else f"{what} of column {column}"
    is_finite = np.isfinite(value) and part is not _NARROW_WEIGHTS
    kind: type[HpsError] = ConfigError if is_finite else NonFiniteError
    raise kind(
        f"table {table.name!r}, key {int(keys[row])}: {where} is {value:g}; it must be "
        f"{part.allowed}. Nothing was changed: correct this row or leave it out"
    )


def _start_scale(table: "TableConfig", lr: float) -> float:
    """FTRL's z is chosen so that its closed form returns the weights: -weight * scale, about."""
    beta, _, l2, start = (np.float32(number) for number in table.optimizer.hyperparameters())
    with np.errstate(all="ignore"):
        return float((beta + np.sqrt(start)) / np.float32(lr) + l2)


def _check_start(table: "TableConfig", keys: Keys, rows: Floats, lr: float) -> None:
    l1 = np.float32(table.optimizer.hyperparameters()[1])
    z = np.abs(rows)
    with np.errstate(all="ignore"):
        z *= np.float32(_start_scale(table, lr))
        z += l1
    is_finite = np.isfinite(z)
    if is_finite.all():
        return
    row, column = np.argwhere(~is_finite)[0].tolist()
    raise NonFiniteError(
        f"table {table.name!r}, key {int(keys[row])}: weight of column {column} is "
        f"{float(rows[row, column]):g}, too large for the state that FTRL starts with at "
        f"lr={lr:g}. Nothing was changed: scale the weights, or give their state"
    )


# What follows tells a cache which rows may overflow in a step by ordinary gradients.


def starts_tame(table: "TableConfig", lr: float) -> bool:
    """True if rows that are created now start with a state that is tame (csrc/optimizer/trial.h).

    Raises:
        NonFiniteError: it is not even finite.
    """
    if table.optimizer.kind != "ftrl":
        return True
    most = float(table.initializer.largest())
    largest = most * _start_scale(table, lr) + table.optimizer.hyperparameters()[1]
    if not largest < _LARGEST:
        raise NonFiniteError(
            f"table {table.name!r}: with lr={lr:g} the state that FTRL starts new rows with is "
            f"beyond float32; no row was changed. Raise lr"
        )
    return bool(most <= _C.TAME_FTRL_WEIGHT and largest <= _C.TAME_FTRL_LINEAR)


def assigns_tame(table: "TableConfig", rows: Floats, state: Floats | None, lr: float) -> bool:
    """True if rows [L, dim] with this state (or a new one) are tame and an optimizer's own."""
    layout = table.layout
    kind, dim = layout.optimizer_kind, table.dim
    if state is not None:
        if not are_possible(layout, rows, state).all():
            return False  # what the log of an older version holds
        limits = {"adam": _C.TAME_FIRST_MOMENT, "ftrl": _C.TAME_FTRL_LINEAR}
        first = state[:, layout.header_scalars :][:, :dim]
        if kind in limits and not bool((np.abs(first) <= limits[kind]).all()):
            return False
    if kind != "ftrl":
        return bool(np.isfinite(rows).all())
    largest = float(np.abs(rows).max(initial=0.0))
    z = largest * _start_scale(table, lr) + table.optimizer.hyperparameters()[1]
    is_z_tame = state is not None or z <= _C.TAME_FTRL_LINEAR
    return bool(largest <= _C.TAME_FTRL_WEIGHT and is_z_tame)
