"""DeviceDivision: keys of batches deduplicated and divided over their owners on a device.

Above it: hps/cluster/exchanges.py; key_exchange.py says what is asked. Below it:
gpu_cache/peers.py.
"""

from collections.abc import Mapping

from hps.cluster.exchange.key_exchange import AnyOwnKeys, ExchangedKeys
from hps.common.arrays import HOST, AnyArray
from hps.gpu_cache.peers import Peers


class DeviceDivision:
    """Keeps the contract of Division.

    Args:
        peers: of the device.
        dims: of the tables' rows.
        device: where rows lie, as torch names it.
    """

    def __init__(self, peers: Peers, dims: Mapping[str, int], device: str) -> None:
        self._peers = peers
        self._dims = dims
        self._device = device

    def divide(self, keys: Mapping[str, AnyArray]) -> dict[str, AnyOwnKeys]:
        """As Division has it. Waits for the device, once."""
        return dict(self._peers.divide(keys, self._dims, self._device))

    def at_rows(self, exchanged: dict[str, ExchangedKeys]) -> dict[str, ExchangedKeys]:
        """As Division has it: one copy for all tables, unless the server takes arrays of the host
        alone."""
        if self._device == HOST:
            return exchanged
        there = self._peers.upload([keys.received for keys in exchanged.values()])
        for keys, own in zip(exchanged.values(), there, strict=True):
            keys.there = own
        return exchanged
