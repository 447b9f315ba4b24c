"""HostSums: sums of a rank's gradients by key, and their way to the owners, where rows lie on the
host; Sums: what is asked of them, wherever rows lie.

Above it: gradient_exchange.py. Below it: `hps._C.ShardPlan`, residuals.py, float_exchange.py. On a
device device_sums.py does the same, to the same bits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from hps.cluster.exchange.float_exchange import FloatExchange
from hps.cluster.exchange.key_exchange import AnyOwnKeys, OwnKeys
from hps.cluster.exchange.residuals import Residuals
from hps.cluster.world.world import Counts, World
from hps.common.arrays import HOST, AnyArray
from hps.common.bags import BagPooling
from hps.common.wire import Wire, check_range, decode, encode
from hps.config import TableConfig

# Sums beyond it are refused as if they were infinite: divided by their number and rounded, those of
# up to 4096 ranks below it cannot add up to an infinity at their owner.
LARGEST_SUM = 2.0**128 * (1 - 2.0**-8)
ORDINARY = 2.0**20  # gradients that overflow no row; see csrc/optimizer/safe_gradient.h


@dataclass(eq=False, slots=True)
class Summed:
    """One table's gradients on this rank, and then their sums.

    Args:
        table: its name.
        own: the keys.
        grads: float32 [L, D], or of `pooling` [F * B, D].
        pooling: makes bags of the occurrences; None where gradients are theirs.
        sums: float32 [N, D], owner after owner, divided by the number of ranks; None on a device,
            where they are in the plan.
        refused: a place in `sums` of a row that must not travel, or -1.
        may_overflow: the ranks must agree that the step leaves all rows finite before one applies.
    """

    table: str
    own: AnyOwnKeys
    grads: AnyArray
    pooling: BagPooling | None
    sums: torch.Tensor | None = None
    refused: int = -1
    may_overflow: bool = False


class Sums(Protocol):
    """Of the tables of one rank."""

    def add_up(self, parts: Sequence[Summed]) -> None:
        """Sums each table's gradients, and looks at the sums; waits for no other rank."""

    def send(
        self, parts: Sequence[Summed], outgoing: Counts, incoming: Counts
    ) -> list[torch.Tensor]:
        """Sends each rank its part of the sums; returns what came of each table, float32 [n, D],
        rank after rank.

        Args:
            parts: of the tables, those without keys here, too.
            outgoing: int64 [ranks, tables], rows for each rank.
            incoming: the same, to come from each.
        """

    def forget(self) -> None:
        """What a narrow format has rounded away."""


class HostSums:
    """Keeps the contract on the host.

    Args:
        world: the ranks.
        tables: of the server.
        wire: how gradients travel.
    """

    def __init__(self, world: World, tables: Mapping[str, TableConfig], wire: Wire) -> None:
        self._size = world.size
        self._dims = {name: table.dim for name, table in tables.items()}
        self._floats = FloatExchange(world.rows, wire)
        is_narrow = wire is not Wire.FLOAT32
        self.residuals = {name: Residuals(dim) for name, dim in self._dims.items() if is_narrow}

    def forget(self) -> None:
        """As Sums has it."""
        for residuals in self.residuals.values():
            residuals.clear()

    def add_up(self, parts: Sequence[Summed]) -> None:
        """As Sums has it."""
        for part in parts:
            sums = self._sum(part)
            if part.table in self.residuals:
                kept = self.residuals[part.table].of(part.own.unique_keys)
                sums.add_(torch.from_numpy(kept))
            part.sums = sums
            part.refused, part.may_overflow = self._look_at(sums)

    def _sum(self, part: Summed) -> torch.Tensor:
        """Sums by key, divided by the number of ranks."""
        dim = self._dims[part.table]
        if not part.own.num_unique:
            return torch.empty(0, dim)
        assert isinstance(part.own, OwnKeys)
        plan, grads = part.own.plan, part.grads
        assert isinstance(grads, np.ndarray), "gradients of the host are arrays"
        if part.pooling is None:
            plan.sum_gradients(grads)
        else:
            plan.sum_bag_gradients(*part.pooling.arguments(HOST), grads)
        return torch.from_numpy(plan.sums(dim) / np.float32(self._size))

    def _look_at(self, sums: torch.Tensor) -> tuple[int, bool]:
        """The place of the first row that must not travel, or -1; and whether one may overflow."""
        flat = sums.view(-1)
        # One pass and no array: a value that must be refused makes its own square infinite.
        square = float(torch.dot(flat, flat))
        may_overflow = not square <= (ORDINARY / self._size) ** 2
        return self._first_refused(sums, is_any=not math.isfinite(square)), may_overflow

    def _first_refused(self, sums: torch.Tensor, is_any: bool) -> int:
        if is_any:
            is_bad = ~(sums.abs() <= LARGEST_SUM / self._size).all(dim=1)
            if bool(is_bad.any()):
                return int(is_bad.nonzero()[0])
        if self._floats.wire is Wire.FLOAT16:
            return check_range(sums.numpy(), self._floats.wire)
        return -1

    def send(
        self, parts: Sequence[Summed], outgoing: Counts, incoming: Counts
    ) -> list[torch.Tensor]:
        """As Sums has it."""
        blocks = []
        for part in parts:
            self._keep_residual(part)
            blocks.append(
                torch.empty(0, self._dims[part.table]) if part.sums is None else part.sums
            )
        return self._floats.swap(blocks, outgoing, incoming)

    def _keep_residual(self, part: Summed) -> None:
        """What the format is about to round away."""
        residuals = self.residuals.get(part.table)
        if residuals is not None and part.sums is not None and len(part.sums):
            sums, wire = part.sums.numpy(), self._floats.wire
            sent = decode(encode(sums, wire), len(sums), sums.shape[1], wire)
            residuals.keep(part.own.unique_keys, sums - sent)
