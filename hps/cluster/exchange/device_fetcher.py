"""DeviceFetcher: rows of a batch from their owners' devices to this rank's.

Above it: cluster_rows.py, hps/cluster/rows.py. Below it: gpu_cache/peers.py, the world's rows
channel. An owner's kernel writes rows from their slots into a message; the rank that asked pools
the rows of its distinct keys, or gathers them. No row of an occurrence is sent or made but where a
caller asks for it.
"""

from collections.abc import Sequence
from typing import cast

import torch

from hps import _C
from hps.cluster.exchange.fetched import OwnedRows
from hps.cluster.world.world import Channel, counts_by_rank
from hps.common.arrays import AnyArray, as_output, is_tensor
from hps.common.bags import BagPooling
from hps.common.locks import OwnedLock
from hps.common.wire import Wire
from hps.gpu_cache.peer_keys import PeerKeys
from hps.gpu_cache.peers import Peers, on_device
from hps.tiers.batch_rows import BatchRows
from hps.types import PinnedRows


class DeviceFetcher:
    """Keeps the contract of RowFetching on a device.

    Args:
        peers: of the device.
        channel: for rows.
        wire: how they travel.
        lock: of this rank's server.
        device: where results go, as torch names it.
    """

    def __init__(
        self, peers: Peers, channel: Channel, wire: Wire, lock: OwnedLock, device: str
    ) -> None:
        self._peers = peers
        self._channel = channel
        self._wire = wire
        self._lock = lock
        self._device = device

    def new_rows(self, num_rows: int, dim: int) -> torch.Tensor:
        """As RowFetching has it."""
        return torch.empty(num_rows, dim, device=self._device)

    def rows_of(self, local: PinnedRows, dim: int) -> AnyArray | PinnedRows:
        """As RowFetching has it: themselves, which lie in their slots."""
        return local

    def fetch(self, owned: OwnedRows, out: AnyArray) -> None:
        """As RowFetching has it."""
        (received,) = self._received([owned])
        keys = _keys_of(owned)
        target = as_output(out, keys.num_occurrences, received.shape[1], self._device)
        if is_tensor(target):
            return self._peers.gather(keys, received, target)
        rows = self._peers.new_rows(keys.num_occurrences, received.shape[1])
        self._peers.gather(keys, received, rows)
        target[:] = self._peers.to_host(rows)

    def fetch_pooled(
        self,
        owned: Sequence[OwnedRows],
        poolings: Sequence[BagPooling],
        outs: Sequence[torch.Tensor],
    ) -> None:
        """As RowFetching has it."""
        received = self._received(owned)
        self._peers.pool([_keys_of(one) for one in owned], received, poolings, outs)

    def _received(self, owned: Sequence[OwnedRows]) -> list[torch.Tensor]:
        """Sends rows; of each table those of this rank's distinct keys, owner after owner."""
        dims = [one.dim for one in owned]
        outgoing = counts_by_rank([one.keys.counts for one in owned])
        incoming = counts_by_rank([one.keys.own.counts for one in owned])
        tables: list[_C.SentTable] = []
        plans: list[_C.DevicePlanState] = []
        values: list[torch.Tensor] = []
        with self._lock:
            for one in owned:
                if isinstance(one.rows, BatchRows):
                    plan = cast("_C.DevicePlanState", one.rows.held_plan())
                    plans.append(plan)
                    tables.append(_C.SentTable(plan, 0, 0, one.dim))
                else:
                    values.append(on_device(cast("AnyArray", one.rows), self._peers.torch_device))
                    tables.append(_C.SentTable(None, values[-1].data_ptr(), 0, one.dim))
            message = self._peers.send(tables, dims, outgoing, self._wire, plans, *values)
        came = self._peers.exchange(self._channel, message, dims, outgoing, incoming, self._wire)
        return self._peers.receive(came, dims, incoming, self._wire)


def _keys_of(owned: OwnedRows) -> PeerKeys:
    own = owned.keys.own
    assert isinstance(own, PeerKeys), "keys of a device are divided there"
    return own
