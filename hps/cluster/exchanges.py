"""Exchanges: how the keys, rows and gradients of a server's tables pass between the ranks. Here a
rank learns which rank owns which keys.

Above it: rows.py, rounds.py, table_verbs.py. Below it: cluster/exchange, one class for each thing
that travels; the rank's own server.
"""

from collections.abc import Mapping
from dataclasses import asdict

from hps.cluster.config import ClusterConfig
from hps.cluster.exchange.cluster_rows import RowFetcher
from hps.cluster.exchange.float_exchange import FloatExchange
from hps.cluster.exchange.gradient_exchange import GradientExchange
from hps.cluster.exchange.hot_rows import HotRows
from hps.cluster.exchange.key_exchange import (
    MAX_IDLE_PLANS,
    ExchangedKeys,
    KeyExchange,
    counts_of_tables,
    exchange_heads,
    swap_keys,
)
from hps.cluster.world.together import Together
from hps.cluster.world.world import World
from hps.common.forked import refuse_in_children
from hps.common.json_text import Json
from hps.common.plan_pool import PlanPool
from hps.common.row_layout import Keys
from hps.common.sharding import ShardMap
from hps.common.wire import Wire
from hps.config import TableConfig
from hps.contracts.reads import in_words
from hps.errors import ConfigError, no_such_table
from hps.parameter_server.server import ParameterServer


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
        self.keys = KeyExchange(world.keys, list(tables), self.plans)
        floats = FloatExchange(world.rows, Wire.named(options.row_wire))
        self.fetcher = RowFetcher(floats, local.device)
        self.gradients = GradientExchange(
            world,
            tables,
            local.learning_rates,
            local.device,
            Wire.named(options.gradient_wire),
        )
        self.hot: HotRows | None = None
        if options.hot_rows and world.size > 1:
            self.hot = HotRows(world, local, floats, options.hot_rows)
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

    def swap_keys(self, keys: Mapping[str, Keys]) -> dict[str, ExchangedKeys]:
        """A round outside a pipeline, of some tables; every rank calls it, with the same ones.

        Raises:
            ConfigError: with others; on every rank.
        """
        own = self.keys.divide(keys)
        with self._together.block(f"keys of {in_words(list(own))}"):
            control = self._together.world.control
            heads = exchange_heads(control, list(self.tables), own)
            counts = counts_of_tables(heads, list(self.tables))
            return swap_keys(control, own, counts)

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
