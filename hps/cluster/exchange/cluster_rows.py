"""ClusterRows: the rows of one batch, each pinned by the rank that owns it.

Above it: SparseEmbedding, RowOptimizer, Pipeline. Below it: the owner's `hps.BatchRows` of all keys
that the ranks asked it for; float_exchange.py, which brings them here.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from hps.cluster.exchange.device_pooling import pool_rows
from hps.cluster.exchange.float_exchange import FloatExchange, starts_of
from hps.cluster.exchange.hot_rows import HotTable
from hps.cluster.exchange.key_exchange import ExchangedKeys
from hps.common.arrays import HOST, AnyArray, as_keys, as_output, on_host
from hps.common.bags import BagPooling
from hps.common.row_layout import Floats, Keys
from hps.errors import ConfigError
from hps.types import PinnedRows


class RowFetcher:
    """Brings rows from their owners to the occurrences of a batch.

    Args:
        floats: how they travel.
        device: where the occurrences' rows go, as torch names it.
    """

    def __init__(self, floats: FloatExchange, device: str) -> None:
        self._floats = floats
        self._device = device

    def new_rows(self, num_rows: int, dim: int) -> torch.Tensor:
        """An uninitialised float32 [num_rows, dim] where rows go."""
        return torch.empty(num_rows, dim, device=self._device)

    def rows_of(self, local: PinnedRows, dim: int) -> torch.Tensor:
        """Pinned rows of this rank's own server, as they are."""
        if self._device == HOST:
            return torch.from_numpy(local.gather())
        rows = self.new_rows(local.num_occurrences, dim)
        local.gather(rows)
        return rows

    def fetch(
        self, keys: ExchangedKeys, rows: AnyArray, out: AnyArray, hot: HotTable | None = None
    ) -> None:
        """Sends the ranks the rows they asked for, and writes those that come to every occurrence.

        Args:
            keys: of one round.
            rows: float32 [received keys, D], as they are here; numpy or torch.
            out: float32 [L, D] of this rank's keys.
            hot: rows that every rank has already; None for none.
        """
        received = self._received(keys, rows, hot)
        plan = keys.own.plan
        target = as_output(out, plan.num_occurrences, received.shape[1], self._device)
        if isinstance(target, torch.Tensor):
            places = keys.own.places(self._device)
            torch.index_select(received.to(self._device), 0, places, out=target)
        else:
            plan.scatter(_by_owner(keys, received), target)

    def fetch_pooled(
        self,
        keys: ExchangedKeys,
        rows: AnyArray,
        pooling: BagPooling,
        out: torch.Tensor,
        hot: HotTable | None = None,
    ) -> None:
        """As fetch, and pools the rows that come into out [B, F * D]."""
        received = self._received(keys, rows, hot)
        if self._device == HOST:
            arguments = pooling.arguments(HOST)
            keys.own.plan.pool(_by_owner(keys, received), *arguments, out.numpy())
        else:
            places = keys.own.places(self._device)
            pool_rows(received.to(self._device).index_select(0, places), pooling, out)

    def _received(self, keys: ExchangedKeys, rows: AnyArray, hot: HotTable | None) -> torch.Tensor:
        """Sends rows; those of this rank's distinct keys, owner after owner."""
        block = rows if isinstance(rows, torch.Tensor) else torch.from_numpy(rows)
        if hot is not None and not hot.is_empty:
            return self._fetch_cold(keys, block, hot)
        outgoing, incoming = np.array(keys.counts)[:, None], np.array(keys.own.counts)[:, None]
        (received,) = self._floats.swap([block], outgoing, incoming)
        return received

    def _fetch_cold(self, keys: ExchangedKeys, block: torch.Tensor, hot: HotTable) -> torch.Tensor:
        """The rows of this rank's distinct keys: the hot ones from here, the others by message.

        Sender and receiver leave out the same, so neither need be told.
        """
        device = block.device
        sends = ~hot.find(keys.received)[1]
        slots, is_hot = hot.find(keys.own.plan.unique_keys)
        outgoing = [[int(sends[first:end].sum())] for first, end in starts_of(keys.counts)]
        incoming = [[int((~is_hot[first:end]).sum())] for first, end in starts_of(keys.own.counts)]

        def places(flags: NDArray[np.bool_]) -> torch.Tensor:
            return torch.from_numpy(np.flatnonzero(flags)).to(device)

        (cold,) = self._floats.swap([block[places(sends)]], np.array(outgoing), np.array(incoming))
        rows = self.new_rows(len(is_hot), block.shape[1])
        rows.index_copy_(0, places(~is_hot), cold)
        of_hot = torch.from_numpy(slots[is_hot].astype(np.int64)).to(device)
        return rows.index_copy_(0, places(is_hot), hot.rows[of_hot])


def _by_owner(keys: ExchangedKeys, received: torch.Tensor) -> list[Floats]:
    """Rows of this rank's distinct keys, apart for each owner."""
    numbers = received.cpu().numpy()
    return [numbers[first:end] for first, end in starts_of(keys.own.counts)]


class ClusterRows:
    """The rows of one batch of one table: pinned by their owners, fetched when they are asked for.

    Made by `ClusterParameterServer.pin`. What this object holds is what the ranks asked *this* one
    for; the rows of this rank's batch are held by the other ranks' objects of the same round.

    Args:
        table: its name.
        keys: of the round.
        local: the received keys' rows, pinned here.
        fetcher: brings the rows.
        dim: of a row.
        hot: the table's rows that every rank has; None where there are none.
    """

    joint = None  # rows of ranks go table by table

    def __init__(
        self,
        table: str,
        keys: ExchangedKeys,
        local: PinnedRows,
        fetcher: RowFetcher,
        dim: int,
        hot: HotTable | None,
    ) -> None:
        self.table = table
        self.keys = keys
        self.fetcher = fetcher
        self._local = local
        self._dim = dim
        self._hot = hot

    @property
    def num_occurrences(self) -> int:
        """L, keys of this rank's batch with their repetitions."""
        return self.keys.own.plan.num_occurrences

    @property
    def is_released(self) -> bool:
        """True when the pins are gone."""
        return self._local.is_released

    @property
    def local(self) -> PinnedRows:
        """The received keys' rows.

        Raises:
            ConfigError: they were released.
        """
        if self._local.is_released:
            raise ConfigError(f"the rows of this batch of table {self.table!r} were released")
        return self._local

    def unique_keys(self) -> Keys:
        """The distinct keys of this rank's batch, uint64 [N], owner after owner; none after the
        release."""
        if self.is_released:
            return np.empty(0, np.uint64)
        return self.keys.own.plan.unique_keys.copy()

    def are_of(self, keys: AnyArray) -> bool:
        """True if these are the keys of this rank's batch, byte for byte, in their order."""
        device = str(keys.device) if isinstance(keys, torch.Tensor) else HOST
        return self.keys.own.plan.matches(on_host(as_keys(keys, device)))

    def gather(self, out: AnyArray | None = None) -> AnyArray:
        """The rows as they are now; every rank calls it, for its batch of the same round.

        Args:
            out: float32 [L, D], contiguous, to write into; None makes a tensor.

        Raises:
            ConfigError: the rows were released, or `out` does not fit.
            ClusterError: another rank is gone or does not answer.
        """
        rows = self.fetcher.rows_of(self.local, self._dim)
        if out is None:
            out = self.fetcher.new_rows(self.num_occurrences, self._dim)
        self.fetcher.fetch(self.keys, rows, out, self._hot)
        return out

    def pool(self, pooling: BagPooling, out: torch.Tensor) -> None:
        """Sums or means of bags of the rows as they are now; every rank calls it, for its batch of
        the same round.

        Args:
            pooling: of all occurrences, where rows go.
            out: float32 [B, F * D], contiguous, there too, written.

        Raises:
            ConfigError: the rows were released.
            ClusterError: another rank is gone or does not answer.
        """
        rows = self.fetcher.rows_of(self.local, self._dim)
        self.fetcher.fetch_pooled(self.keys, rows, pooling, out, self._hot)

    def release(self) -> None:
        """Drops the pins; nothing to do the second time."""
        self._local.release()
