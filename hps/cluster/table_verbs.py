"""TableVerbs: the verbs of ClusterParameterServer for whole tables and for rows outright.

Above it: server.py, which is one. Below it: the rank's own server; key_exchange.py and the control
channel, which tell each owner what is asked of it.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from hps.arrays import as_floats, as_keys, like, on_host
from hps.cluster.key_exchange import ExchangedKeys
from hps.cluster.world import World
from hps.config import TableConfig
from hps.errors import ConfigError
from hps.parameter_server import ParameterServer
from hps.row_checks import refuse_impossible_rows
from hps.row_layout import Keys, RowLayout
from hps.sharding import ShardMap


class TableVerbs:
    """Assign, erase, contains, counts; its fields are set by ClusterParameterServer."""

    local: ParameterServer
    world: World
    shard_map: ShardMap
    _rows_change: Callable[[], None]
    _exchange_now: Callable[[str, Any], ExchangedKeys]
    _agreed: Callable[[str, Callable[[], Any]], Any]

    def assign(self, table: str, keys: Any, rows: Any, state: Any = None) -> None:
        """Sets rows outright; every rank calls it, with its own keys.

        Of a key that stands twice the last row counts, of several ranks' that of the highest rank.
        Either all ranks give a state or none does. Args: as `hps.ParameterServer.assign`.

        Raises:
            ConfigError, StoreError: as there; of a rank, then ClusterError on the others.
            NonFiniteError, ConfigError of a state: as there, on every rank; no rank has changed.
        """
        config = self._table(table)
        array = on_host(as_keys(keys, self.local.device))
        width = RowLayout(config.optimizer.kind, config.dim).state_floats
        weights = as_floats(rows, len(array), config.dim, "rows")
        columns = [weights]
        if state is not None:
            columns.append(as_floats(state, len(array), width, "state"))
        control = self.world.control
        with_state = [rank for rank, one in enumerate(control.gather(len(columns))) if one > 1]
        if 0 < len(with_state) < self.world.size:
            refusal = ConfigError(
                f"assign of table {table!r}: there is a state on rank(s) {with_state} alone; give "
                "one on every rank or on none"
            )
            refusal.is_shared = True
            raise refusal
        floats = columns[1] if state is not None else None
        rate = self.local.learning_rates[table]
        self._agreed(
            f"assign of table {table!r}",
            lambda: refuse_impossible_rows(config, array, weights, floats, rate),
        )
        places = self.shard_map.split(array)
        order = np.concatenate(places)
        sizes = [len(part) for part in places]
        incoming = control.exchange_counts(sizes)

        def travelled(values: Any) -> Any:
            return control.exchange(torch.from_numpy(values[order]), sizes, incoming).numpy()

        received = travelled(array.view(np.int64)).view(np.uint64)
        parts = [travelled(column) for column in columns]
        self._rows_change()
        self._agreed(
            f"assign of table {table!r}", lambda: self.local.assign(table, received, *parts)
        )

    def contains(self, table: str, keys: Any) -> Any:
        """Which keys are stored on any rank: bool [L]; every rank calls it, with its own keys."""
        return self._ask(table, keys, "contains", self.local.contains)

    def erase(self, table: str, keys: Any) -> Any:
        """Drops keys from every tier of their owners; every rank calls it, with its own keys.

        Returns:
            bool [L]: where a stored row was; a tensor if the keys were one.

        Raises:
            ConfigError: a batch in flight has one of them pinned at its owner; that rank has erased
                nothing, and the error comes on every rank.
        """
        self._table(table)
        self._rows_change()
        return self._ask(table, keys, "erase", self.local.erase)

    def num_rows(self, table: str) -> int:
        """Stored rows of a table, of all ranks; every rank calls it."""
        return sum(self.world.control.gather(self.local.num_rows(table)))

    def digest(self, table: str) -> str:
        """Order-independent hash of every stored row of all ranks; every rank calls it.

        It is that of one store with the same rows.
        """
        parts = self.world.control.gather(self.local.digest(table))
        halves = [
            sum(int(part[first : first + 16], 16) for part in parts) % 2**64 for first in (0, 16)
        ]
        return "".join(f"{half:016x}" for half in halves)

    def items(
        self, table: str, batch: int = 65536, state: bool = False
    ) -> Iterator[tuple[Any, ...]]:
        """Every stored row *of this rank* once; those of all ranks together are the table.

        Not collective. Pieces and errors: as `hps.ParameterServer.items`.
        """
        return self.local.items(table, batch, state)

    def stats(self) -> dict[str, Any]:
        """Counters *of this rank*: of each tier, then of each table, then what it sent and how long
        it waited for the others. Not collective."""
        channels = {
            name: {"bytes_sent": channel.bytes_sent, "seconds": channel.seconds}
            for name, channel in (
                ("keys", self.world.keys),
                ("rows", self.world.rows),
                ("control", self.world.control),
            )
        }
        place = {"rank": self.world.rank, "size": self.world.size}
        return {**self.local.stats(), "cluster": {**place, **channels}}

    def _ask(self, table: str, keys: Any, verb: str, act: Callable[[str, Keys], Any]) -> Any:
        """A flag for each key, from its owner."""
        self._table(table)
        exchanged = self._exchange_now(table, on_host(as_keys(keys, self.local.device)))
        flags = self._agreed(f"{verb} of table {table!r}", lambda: act(table, exchanged.received))
        own = exchanged.own
        came = self.world.control.exchange(
            torch.from_numpy(flags.astype(np.uint8)), exchanged.counts, own.counts
        )
        found = came.numpy().astype(bool)[own.places("cpu").numpy()]
        return like(found, keys)

    def _table(self, table: str) -> TableConfig:
        config = self.local.tables.get(table)
        if config is None:
            raise ConfigError(f"there is no table {table!r}; there are {sorted(self.local.tables)}")
        return config
