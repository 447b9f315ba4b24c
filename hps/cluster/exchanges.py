"""Exchanges: how the keys, rows and gradients of a server's tables pass between the ranks. Here a
rank learns which rank owns which keys.

Above it: rows.py, rounds.py, table_verbs.py. Below it: cluster/exchange, one class for each thing
that travels; the rank's own server.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, cast

from hps.cluster.config import ClusterConfig
from hps.cluster.exchange.cluster_rows import RowFetcher
from hps.cluster.exchange.device_division import DeviceDivision
from hps.cluster.exchange.device_fetcher import DeviceFetcher
from hps.cluster.exchange.device_sums import DeviceSums
from hps.cluster.exchange.fetched import RowFetching
from hps.cluster.exchange.float_exchange import FloatExchange
from hps.cluster.exchange.gradient_exchange import GradientExchange
from hps.cluster.exchange.hot_rows import HotRows
from hps.cluster.exchange.key_exchange import (
    MAX_IDLE_PLANS,
    AnyOwnKeys,
    Division,
    ExchangedKeys,
    HostDivision,
    KeyExchange,
    OwnKeys,
    counts_of_tables,
    exchange_heads,
    swap_keys,
)
from hps.cluster.exchange.sums import HostSums, Sums
from hps.cluster.world.together import Together
from hps.cluster.world.world import World
from hps.common.arrays import AnyArray
from hps.common.forked import refuse_in_children
from hps.common.json_text import Json
from hps.common.plan_pool import PlanPool
from hps.common.row_layout import Keys
from hps.common.sharding import ShardMap
from hps.common.wire import Wire
from hps.config import TableConfig
from hps.contracts.reads import in_words
from hps.errors import ConfigError, no_such_table
from hps.gpu_cache.peer_keys import PeerKeys
from hps.gpu_cache.peers import Peers
from hps.parameter_server.server import ParameterServer

if TYPE_CHECKING:
    from hps.gpu_cache.device_batch import DeviceBatch


class Exchanges:
    """Of all tables of one rank.

    Args:
        local: the server of this rank.
        together: all ranks.
        options: how rows and gradients travel.
        where: the server, in words.

    Raises:
        ConfigError: the ranks' options differ; on every rank.
    """

    def __init__(
        self, local: ParameterServer, together: Together, options: ClusterConfig, where: str
    ) -> None:
        world = together.world
        _check_same(world, asdict(options))
        self._local = local
        self._together = together
        self.shard_map = ShardMap(world.size)
        self.plans = PlanPool(self.shard_map.owners().tolist(), MAX_IDLE_PLANS)
        # In one order on all ranks: messages hold table after table, without their names, and a
        # loop over the tables calls collective verbs.
        self.tables = tables = dict(sorted(local.tables.items()))
        row_wire, gradient_wire = Wire.named(options.row_wire), Wire.named(options.gradient_wire)
        caches = local.parts.tables.together  # of one device
        self.hot: HotRows | None = None
        self.host_division = HostDivision(self.plans)
        self.division: Division = self.host_division
        self.fetcher: RowFetching
        self._peers: Peers | None = None  # of rows on a device
        sums: Sums
        if caches is None or world.size == 1:
            floats = FloatExchange(world.rows, row_wire)
            self.fetcher = RowFetcher(floats)
            sums = HostSums(world, tables, gradient_wire)
            if options.hot_rows and world.size > 1:
                self.hot = HotRows(world, local, floats, options.hot_rows)
        else:
            if options.hot_rows:
                raise ConfigError(
                    f"ClusterConfig.hot_rows (--hot-rows) is {options.hot_rows}, and the rows lie "
                    "on a device, of which no rank keeps copies; give 0"
                )
            lock = local.parts.tables.lock
            self._peers = peers = Peers(cast("DeviceBatch", caches.verbs), world.size, lock)
            dims = {name: table.dim for name, table in tables.items()}
            self.fetcher = DeviceFetcher(peers, world.rows, row_wire, lock, local.device)
            self.division = DeviceDivision(peers, dims, local.device)
            sums = DeviceSums(peers, world, tables, gradient_wire)
        self.are_on_device = self.division is not self.host_division
        self.keys = KeyExchange(world.keys, list(tables), self.division)
        self.gradients = GradientExchange(
            world, tables, local.learning_rates, local.device, self.division, sums
        )
        refuse_in_children(self, where, ("keys", "gradients", "fetcher", "hot"))

    def table(self, table: str) -> TableConfig:
        """The table of a name.

        Raises:
            ConfigError: there is none.
        """
        tables = self._local.tables
        config = tables.get(table)
        if config is None:
            raise no_such_table(table, "there are", tables)
        return config

    def swap_keys(self, keys: Mapping[str, AnyArray]) -> dict[str, ExchangedKeys]:
        """A round outside a pipeline, of some tables; every rank calls it, with the same ones.

        Raises:
            ConfigError: with others; on every rank.
        """
        return self.division.at_rows(self._swap(self.keys.divide(keys)))

    def swap_on_host(self, table: str, keys: Keys) -> tuple[ExchangedKeys, OwnKeys]:
        """The same of one table, for an answer a key from the host, wherever rows lie."""
        own = OwnKeys(keys, self.plans)
        return self._swap({table: own})[table], own

    def _swap(self, own: Mapping[str, AnyOwnKeys]) -> dict[str, ExchangedKeys]:
        with self._together.block(f"keys of {in_words(list(own))}"):
            control = self._together.world.control
            heads = exchange_heads(control, list(self.tables), own)
            counts = counts_of_tables(heads, list(self.tables))
            return swap_keys(control, own, counts)

    def make_room(self, keys: Sequence[AnyOwnKeys]) -> None:
        """Sees to it that a device has memory for the sums of gradients by keys of this rank.

        Raises:
            BatchMemoryError: it has not.
        """
        if self._peers is not None:
            self._peers.make_room([one for one in keys if isinstance(one, PeerKeys)])

    def rows_change(self) -> None:
        """By something else than a step: what other ranks hold of them is no longer what they are.
        Called on every rank."""
        if self.hot is not None:
            self.hot.clear()


def _check_same(world: World, options: Json) -> None:
    """Raises ConfigError on every rank unless all have the same options."""
    for rank, others in enumerate(world.control.gather(options)):
        for name, value in others.items():
            if value != options[name]:
                refusal = ConfigError(
                    f"ClusterConfig.{name} is {value!r} on rank {rank} and {options[name]!r} on "
                    f"rank {world.rank}; give every rank the same"
                )
                refusal.is_shared = True
                raise refusal
