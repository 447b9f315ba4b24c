"""OwnedRows: rows that the ranks have asked this one for; RowFetching: what brings them to those
who asked, wherever rows lie.

Above it: cluster_rows.py and device_fetcher.py, which keep it; hps/cluster/rows.py. Below it:
key_exchange.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch

from hps.cluster.exchange.hot_rows import HotTable
from hps.cluster.exchange.key_exchange import ExchangedKeys
from hps.common.arrays import AnyArray, is_tensor
from hps.common.bags import BagPooling
from hps.types import PinnedRows


@dataclass(frozen=True, slots=True)
class OwnedRows:
    """Of one table.

    Args:
        keys: of one round.
        rows: float32 [received keys, dim], as they are here, numpy or torch; or pinned rows on a
            device, which go out from their slots.
        dim: of a row.
        hot: rows of the table that every rank has already; None for none.
    """

    keys: ExchangedKeys
    rows: AnyArray | PinnedRows
    dim: int
    hot: HotTable | None = None

    @property
    def block(self) -> torch.Tensor:
        """The rows, of the host, as a tensor."""
        rows = cast("AnyArray", self.rows)
        return rows if is_tensor(rows) else torch.from_numpy(rows)


class RowFetching(Protocol):
    """Brings rows from their owners to the occurrences of a batch; every rank calls it, for its
    batch of the same round."""

    def new_rows(self, num_rows: int, dim: int) -> torch.Tensor:
        """An uninitialised float32 [num_rows, dim] where rows go."""

    def rows_of(self, local: PinnedRows, dim: int) -> AnyArray | PinnedRows:
        """Pinned rows of this rank's own server, as OwnedRows has them."""

    def fetch(self, owned: OwnedRows, out: AnyArray) -> None:
        """Sends the ranks the rows they asked for, and writes those that come to every occurrence.

        Args:
            owned: of the round.
            out: float32 [L, D] of this rank's keys.
        """

    def fetch_pooled(
        self,
        owned: Sequence[OwnedRows],
        poolings: Sequence[BagPooling],
        outs: Sequence[torch.Tensor],
    ) -> None:
        """As fetch, of several tables in one message a rank, and pools the rows that come into the
        table's out [B, F * D]."""
