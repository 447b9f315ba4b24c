"""ClusterRows: the rows of one batch, each pinned by the rank that owns it.

Above it: SparseEmbedding, RowOptimizer, Pipeline. Below it: the owner's `hps.BatchRows` of all keys
that the ranks asked it for; RowFetcher, which brings them here over float_exchange.py where rows
lie on the host, or device_fetcher.py.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from hps import _C
from hps.cluster.exchange.fetched import OwnedRows, RowFetching
from hps.cluster.exchange.float_exchange import FloatExchange, starts_of
from hps.cluster.exchange.hot_rows import HotTable
from hps.cluster.exchange.key_exchange import ExchangedKeys, OwnKeys
from hps.common.arrays import HOST, AnyArray, as_output
from hps.common.bags import BagPooling
from hps.common.row_layout import Floats, Keys
from hps.errors import ConfigError
from hps.types import PinnedRows, Pins


class RowFetcher:
    """Keeps the contract of RowFetching on the host.

    Args:
        floats: how they travel.
    """

    def __init__(self, floats: FloatExchange) -> None:
        self._floats = floats

    def new_rows(self, num_rows: int, dim: int) -> torch.Tensor:
        """As RowFetching has it."""
        return torch.empty(num_rows, dim)

    def rows_of(self, local: PinnedRows, dim: int) -> AnyArray | PinnedRows:
        """As RowFetching has it."""
        return torch.from_numpy(local.gather())

    def fetch(self, owned: OwnedRows, out: AnyArray) -> None:
        """As RowFetching has it."""
        (received,) = self._received([owned])
        plan = _plan_of(owned.keys)
        target = as_output(out, plan.num_occurrences, received.shape[1])
        plan.scatter(_by_owner(owned.keys, received), target)

    def fetch_pooled(
        self,
        owned: Sequence[OwnedRows],
        poolings: Sequence[BagPooling],
        outs: Sequence[torch.Tensor],
    ) -> None:
        """As RowFetching has it."""
        for one, received, pooling, out in zip(
            owned, self._received(owned), poolings, outs, strict=True
        ):
            rows = _by_owner(one.keys, received)
            _plan_of(one.keys).pool(rows, *pooling.arguments(HOST), out.numpy())

    def _received(self, owned: Sequence[OwnedRows]) -> list[torch.Tensor]:
        """Sends rows; of each table those of this rank's distinct keys, owner after owner."""
        cold = [None if one.hot is None or one.hot.is_empty else _Cold(one) for one in owned]
        blocks, outgoing, incoming = [], [], []
        for one, of_one in zip(owned, cold, strict=True):
            blocks.append(one.block if of_one is None else of_one.block)
            outgoing.append(one.keys.counts if of_one is None else of_one.outgoing)
            incoming.append(one.keys.own.counts if of_one is None else of_one.incoming)
        received = self._floats.swap(blocks, np.array(outgoing).T, np.array(incoming).T)
        return [
            rows if of_one is None else of_one.with_hot(rows)
            for of_one, rows in zip(cold, received, strict=True)
        ]


class _Cold:
    """The rows of a round that are not hot. Sender and receiver leave out the same, so neither need
    be told.

    Args:
        owned: of a table with rows that every rank has.
    """

    def __init__(self, owned: OwnedRows) -> None:
        keys, hot = owned.keys, owned.hot
        assert hot is not None
        self._hot = hot
        sends = ~hot.find(keys.received)[1]
        self._slots, self._is_hot = hot.find(keys.own.unique_keys)
        own = starts_of(keys.own.counts)
        self.outgoing = [int(sends[first:end].sum()) for first, end in starts_of(keys.counts)]
        self.incoming = [int((~self._is_hot[first:end]).sum()) for first, end in own]
        block = owned.block
        self.block = block[_places(sends, block.device)]

    def with_hot(self, cold: torch.Tensor) -> torch.Tensor:
        """The rows of this rank's distinct keys: the hot ones from here, the others came."""
        is_hot, device = self._is_hot, cold.device
        rows = torch.empty(len(is_hot), cold.shape[1], device=device)
        rows.index_copy_(0, _places(~is_hot, device), cold)
        of_hot = torch.from_numpy(self._slots[is_hot].astype(np.int64)).to(device)
        return rows.index_copy_(0, _places(is_hot, device), self._hot.rows[of_hot])


def _places(flags: NDArray[np.bool_], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.flatnonzero(flags)).to(device)


def _plan_of(keys: ExchangedKeys) -> _C.ShardPlan:
    assert isinstance(keys.own, OwnKeys), "keys of the host are divided there"
    return keys.own.plan


def _by_owner(keys: ExchangedKeys, received: torch.Tensor) -> list[Floats]:
    """Rows of this rank's distinct keys, apart for each owner."""
    numbers = received.numpy()
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

    joint = None  # there is no native batch over the rows of ranks

    def __init__(
        self,
        table: str,
        keys: ExchangedKeys,
        local: PinnedRows,
        fetcher: RowFetching,
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
        return self.keys.own.num_occurrences

    @property
    def is_released(self) -> bool:
        """True when the pins are gone."""
        return self._local.is_released

    @property
    def pinned(self) -> PinnedRows:
        """The received keys' rows, whether they were released or not."""
        return self._local

    @property
    def local(self) -> PinnedRows:
        """The received keys' rows.

        Raises:
            ConfigError: they were released.
        """
        self.require_held()
        return self._local

    def require_held(self) -> None:
        """ConfigError if they were released."""
        if self._local.is_released:
            raise ConfigError(f"the rows of this batch of table {self.table!r} were released")

    def bring_ahead(self) -> Pins | None:
        """As PinnedRows has it: of the received keys."""
        return self._local.bring_ahead()

    def owned(self) -> OwnedRows:
        """What the ranks asked this one for, as it is now.

        Raises:
            ConfigError: the rows were released.
        """
        rows = self.fetcher.rows_of(self.local, self._dim)
        return OwnedRows(self.keys, rows, self._dim, self._hot)

    def unique_keys(self) -> Keys:
        """The distinct keys of this rank's batch, uint64 [N], owner after owner; none after the
        release."""
        if self.is_released:
            return np.empty(0, np.uint64)
        return self.keys.own.unique_keys.copy()

    def are_of(self, keys: AnyArray) -> bool:
        """True if these are the keys of this rank's batch, byte for byte, in their order."""
        return self.keys.own.matches(keys)

    def gather(self, out: AnyArray | None = None) -> AnyArray:
        """The rows as they are now; every rank calls it, for its batch of the same round.

        Args:
            out: float32 [L, D], contiguous, to write into; None makes a tensor.

        Raises:
            ConfigError: the rows were released, or `out` does not fit.
            ClusterError: another rank is gone or does not answer.
        """
        owned = self.owned()
        if out is None:
            out = self.fetcher.new_rows(self.num_occurrences, self._dim)
        self.fetcher.fetch(owned, out)
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
        self.fetcher.fetch_pooled([self.owned()], [pooling], [out])

    def release(self) -> None:
        """Drops the pins; nothing to do the second time."""
        self._local.release()
