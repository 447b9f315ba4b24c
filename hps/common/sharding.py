"""ShardMap: the one rule for which server or rank owns a key: virtual shards by hash.

Above it: the service's client and server; cluster/exchanges.py, by which a rank knows the owners;
a cluster's folders; `hps plan`. Below it: `hps._C`, which hashes. Each owner has a contiguous range
of virtual shards. Who talks to a server checks that both mean the same map. A batch's keys are
divided by this rule in csrc/sharding/shard_plan.cc.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hps import _C
from hps.common.row_layout import Keys
from hps.errors import ConfigError

NUM_VIRTUAL = 4096
# XXH64, seed 0, of a key's eight little-endian bytes: not the hash that chooses a cache's buckets,
# or a shard's keys would fill only some of them.
HASH = "xxh64"


@dataclass(frozen=True)
class ShardMap:
    """How keys are divided over `count` servers.

    Virtual shard v = hash(key) mod num_virtual belongs to server v * count // num_virtual.

    Raises:
        ConfigError: no server, more servers than virtual shards, or an unknown hash.

    >>> ShardMap(2).owners()[[0, 2047, 2048, 4095]].tolist()
    [0, 0, 1, 1]
    """

    count: int
    num_virtual: int = NUM_VIRTUAL
    hash: str = HASH

    def __post_init__(self) -> None:
        if not 1 <= self.count <= self.num_virtual:
            raise ConfigError(
                f"{self.count} servers cannot share {self.num_virtual} virtual shards; give 1 to "
                f"{self.num_virtual}"
            )
        if self.hash != HASH:
            raise ConfigError(f"hash {self.hash!r} of keys is unknown; this hps knows {HASH!r}")

    def owners(self) -> NDArray[np.uint32]:
        """Of each virtual shard the index of its server, uint32 [num_virtual]."""
        return (np.arange(self.num_virtual) * self.count // self.num_virtual).astype(np.uint32)

    def split(self, keys: Keys) -> list[NDArray[np.intp]]:
        """Of each server the places of its keys among `keys`, ascending; duplicates stay."""
        if self.count == 1:
            return [np.arange(len(keys))]
        owners = self.owners()[_C.virtual_shards(keys, self.num_virtual)]
        order = np.argsort(owners, kind="stable")
        ends = np.searchsorted(owners[order], np.arange(self.count + 1))
        return [order[ends[i] : ends[i + 1]] for i in range(self.count)]
