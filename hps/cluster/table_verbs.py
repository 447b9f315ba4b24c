"""TableVerbs: the verbs over all ranks for whole tables and for rows outright.

Above it: parameter_server.py, whose docstrings say what each verb takes and raises. Below it: the
rank's own server; exchanges.py and the control channel, which tell each owner what is asked of it.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch

from hps.cluster.exchanges import Exchanges
from hps.cluster.world.together import Together
from hps.common.arrays import AnyArray, HostArray, as_floats, as_keys, as_numpy, like, on_host
from hps.common.json_text import Json
from hps.common.row_layout import Keys
from hps.errors import ConfigError
from hps.parameter_server.server import ParameterServer
from hps.table.row_checks import refuse_impossible_rows


class TableVerbs:
    """Assign, erase, contains, counts.

    Args:
        local: the server of this rank.
        together: all ranks.
        exchanges: of keys and rows between them.
    """

    def __init__(self, local: ParameterServer, together: Together, exchanges: Exchanges) -> None:
        self._local = local
        self._together = together
        self._exchanges = exchanges

    def assign(
        self, table: str, keys: AnyArray, rows: AnyArray, state: AnyArray | None = None
    ) -> None:
        """As `ClusterParameterServer.assign`."""
        config = self._exchanges.table(table)
        array = on_host(as_keys(keys, self._local.device))
        width = config.layout.state_floats
        weights = as_floats(rows, len(array), config.dim, "rows")
        columns = [weights]
        if state is not None:
            columns.append(as_floats(state, len(array), width, "state"))
        control = self._together.world.control
        with_state = [rank for rank, one in enumerate(control.gather(len(columns))) if one > 1]
        if 0 < len(with_state) < self._together.world.size:
            refusal = ConfigError(
                f"assign of table {table!r}: there is a state on rank(s) {with_state} alone; give "
                "one on every rank or on none"
            )
            refusal.is_shared = True
            raise refusal
        floats = columns[1] if state is not None else None
        rate = self._local.learning_rates[table]
        self._together.agreed(
            f"assign of table {table!r}",
            lambda: refuse_impossible_rows(config, array, weights, floats, rate),
        )
        places = self._exchanges.shard_map.split(array)
        order = np.concatenate(places)
        sizes = [len(part) for part in places]
        incoming = control.exchange_counts(sizes)

        def travelled(values: HostArray) -> HostArray:
            sent = torch.from_numpy(values[order])
            return control.exchange(sent, sizes, incoming).numpy()

        received = travelled(array.view(np.int64)).view(np.uint64)
        weights, *states = [travelled(column) for column in columns]
        own = states[0] if states else None
        self._exchanges.rows_change()
        self._together.agreed(
            f"assign of table {table!r}", lambda: self._local.assign(table, received, weights, own)
        )

    def contains(self, table: str, keys: AnyArray) -> AnyArray:
        """As `ClusterParameterServer.contains`."""
        return self._ask(table, keys, "contains", self._local.contains)

    def erase(self, table: str, keys: AnyArray) -> AnyArray:
        """As `ClusterParameterServer.erase`."""
        self._exchanges.table(table)
        self._exchanges.rows_change()
        return self._ask(table, keys, "erase", self._local.erase)

    def num_rows(self, table: str) -> int:
        """As `ClusterParameterServer.num_rows`."""
        return sum(self._together.world.control.gather(self._local.num_rows(table)))

    def digest(self, table: str) -> str:
        """As `ClusterParameterServer.digest`."""
        parts = self._together.world.control.gather(self._local.digest(table))
        halves = [
            sum(int(part[first : first + 16], 16) for part in parts) % 2**64 for first in (0, 16)
        ]
        return "".join(f"{half:016x}" for half in halves)

    def items(
        self, table: str, batch: int = 65536, state: bool = False
    ) -> Iterator[tuple[HostArray, ...]]:
        """As `ClusterParameterServer.items`."""
        return self._local.items(table, batch, state)

    def stats(self) -> Json:
        """As `ClusterParameterServer.stats`."""
        channels = {
            name: {"bytes_sent": channel.bytes_sent, "seconds": channel.seconds}
            for name, channel in (
                ("keys", self._together.world.keys),
                ("rows", self._together.world.rows),
                ("control", self._together.world.control),
            )
        }
        place = {"rank": self._together.world.rank, "size": self._together.world.size}
        return {**self._local.stats(), "cluster": {**place, **channels}}

    def _ask(
        self, table: str, keys: AnyArray, verb: str, act: Callable[[str, Keys], AnyArray]
    ) -> AnyArray:
        """A flag for each key, from its owner."""
        self._exchanges.table(table)
        array = on_host(as_keys(keys, self._local.device))
        exchanged = self._exchanges.swap_keys({table: array})[table]
        what = f"{verb} of table {table!r}"
        answer = self._together.agreed(what, lambda: act(table, exchanged.received))
        flags = as_numpy(answer, "flags")
        own = exchanged.own
        came = self._together.world.control.exchange(
            torch.from_numpy(flags.astype(np.uint8)), exchanged.counts, own.counts
        )
        found = came.numpy().astype(bool)[own.places("cpu").numpy()]
        return like(found, keys)
