"""RowUpdate: one table's part of a step, or of a forward.

Above it: training.py, joint.py; hps.nn, which makes them, and the servers, which apply them. Below
it: `hps.common.bags`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from hps.common.arrays import HOST, AnyArray, as_floats, as_keys, is_tensor, joined
from hps.common.occurrences import Occurrences
from hps.common.row_layout import Floats, Keys, Labels
from hps.types import PinnedRows

if TYPE_CHECKING:
    from hps.common.bags import BagPooling


@dataclass(slots=True)
class RowUpdate:
    """What one table's optimizer step starts from.

    Args:
        table: its name.
        keys: int64 or uint64 [L], in order of occurrence.
        grads: float32 [L, D], one row an occurrence; or of `pooling`, [F*B, D], one row a bag.
        rows: the pinned rows of exactly these keys, or None to pin them for the step.
        pooling: makes bags of the occurrences, feature-major; None where gradients are theirs.
        clicks: uint8 [L], 1 where an occurrence has label 1, else 0; None: no clicks. Counted in a
            table with statistics.
        occurrences: what each key stands for in such a table, where its gradients were summed
            before; then without pooling, and the only update of its table. None: one show each.
    """

    table: str
    keys: AnyArray
    grads: AnyArray
    rows: PinnedRows | None = None
    pooling: "BagPooling | None" = None
    clicks: Labels | None = None
    occurrences: Occurrences | None = None


def by_table(updates: Sequence[RowUpdate]) -> dict[str, list[RowUpdate]]:
    """The updates of each table, in their order.

    >>> list(by_table([RowUpdate("ads", 1, 1), RowUpdate("users", 2, 2), RowUpdate("ads", 3, 3)]))
    ['ads', 'users']
    """
    groups: dict[str, list[RowUpdate]] = {}
    for update in updates:
        groups.setdefault(update.table, []).append(update)
    return groups


def join_updates(
    group: "Sequence[RowUpdate]", dim: int, device: str
) -> tuple[Keys, Floats, "BagPooling | None"]:
    """Keys [L], gradients and pooling of all updates of one table, in their order.

    Raises:
        ConfigError: a dtype or shape does not fit.
    """
    keys = [as_keys(update.keys, device) for update in group]
    grads = [
        as_floats(update.grads, _num_gradients(update, len(part)), dim, "grads", device)
        for update, part in zip(group, keys, strict=True)
    ]
    pooling = group[0].pooling
    if len(group) > 1 and any(update.pooling is not None for update in group):
        import torch

        from hps.common.bags import join_poolings

        parts: list[torch.Tensor] = [
            part if is_tensor(part) else torch.from_numpy(part) for part in grads
        ]
        pooling, parts = join_poolings([update.pooling for update in group], parts)
        grads = [cast("Floats", part if device != HOST else part.numpy()) for part in parts]
    return joined(keys), joined(grads), pooling


def joined_clicks(group: Sequence[RowUpdate]) -> Labels | None:
    """Clicks [L] of all updates of one table, in their order; None where none has any."""
    if all(update.clicks is None for update in group):
        return None
    return joined(
        [
            np.zeros(len(update.keys), np.uint8) if update.clicks is None else update.clicks
            for update in group
        ]
    )


def _num_gradients(update: RowUpdate, num_keys: int) -> int:
    if update.pooling is None:
        return num_keys
    update.pooling.check(num_keys, f"table {update.table!r}")
    return len(update.pooling.bags.lengths)
