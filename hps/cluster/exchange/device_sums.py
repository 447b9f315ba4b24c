"""DeviceSums: sums of a rank's gradients by key, and their way to the owners, where rows lie on a
device.

Above it: gradient_exchange.py; sums.py says what is asked. Below it: gpu_cache/peers.py: the
kernels that sum gradients in one process do it here, so that the bits are the host's. The host
waits once a step, for whether a sum must not travel.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from hps.cluster.exchange.residuals import NUM_SLOTS
from hps.cluster.exchange.sums import LARGEST_SUM, ORDINARY, Summed
from hps.cluster.world.world import Counts, World
from hps.common.wire import Wire
from hps.config import TableConfig
from hps.gpu_cache.peer_keys import PeerKeys
from hps.gpu_cache.peers import Peers, RestMemory, on_device

_LARGEST_FLOAT16 = float(np.nextafter(np.float32(65520.0), np.float32(0.0)))  # that is not infinite


class DeviceSums:
    """Keeps the contract of Sums on a device.

    Args:
        peers: of the device.
        world: the ranks.
        tables: of the server.
        wire: how gradients travel.
    """

    def __init__(
        self, peers: Peers, world: World, tables: Mapping[str, TableConfig], wire: Wire
    ) -> None:
        self._peers = peers
        self._world = world
        self._dims = {name: table.dim for name, table in tables.items()}
        self._wire = wire
        self._limit = LARGEST_SUM / world.size
        if wire is Wire.FLOAT16:
            self._limit = min(self._limit, _LARGEST_FLOAT16)
        self.residuals: dict[str, RestMemory] = {}
        if wire is not Wire.FLOAT32:
            self.residuals = {
                name: peers.new_rests(dim, NUM_SLOTS) for name, dim in self._dims.items()
            }

    def forget(self) -> None:
        """As Sums has it."""
        for residuals in self.residuals.values():
            residuals.clear()

    def add_up(self, parts: Sequence[Summed]) -> None:
        """As Sums has it. Waits for the device, once."""
        having = [part for part in parts if part.own.num_unique]
        if not having:
            return
        keys = [_keys_of(part) for part in having]
        device = self._peers.torch_device
        grads = [on_device(part.grads, device) for part in having]
        self._peers.sum_gradients(keys, grads, [part.pooling for part in having])
        ordinary = ORDINARY / self._world.size
        kept = self._kept(having)
        for part, (refused, largest) in zip(
            having, self._peers.judge(keys, kept, ordinary, self._limit), strict=True
        ):
            part.refused, part.may_overflow = refused, largest != 0.0

    def send(
        self, parts: Sequence[Summed], outgoing: Counts, incoming: Counts
    ) -> list[torch.Tensor]:
        """As Sums has it."""
        dims = [self._dims[part.table] for part in parts]
        having = [at for at, part in enumerate(parts) if part.own.num_unique]
        sending = [parts[at] for at in having]
        message = self._peers.send_sums(
            [_keys_of(part) for part in sending],
            self._kept(sending),
            np.ascontiguousarray(outgoing[:, having]),
            self._wire,
        )
        channel = self._world.rows
        came = self._peers.exchange(channel, message, dims, outgoing, incoming, self._wire)
        return self._peers.receive(came, dims, incoming, self._wire)

    def _kept(self, parts: Sequence[Summed]) -> list[RestMemory | None]:
        return [self.residuals.get(part.table) for part in parts]


def _keys_of(part: Summed) -> PeerKeys:
    assert isinstance(part.own, PeerKeys), "keys of a device are divided there"
    return part.own
