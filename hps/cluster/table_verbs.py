"""TableVerbs: the verbs over all ranks for whole tables and for rows outright.

Above it: parameter_server.py, whose docstrings say what each verb takes and raises. Below it: the
rank's own server; exchanges.py and the control channel, which tell each owner what is asked of it.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch

from hps.cluster.exchanges import Exchanges
from hps.cluster.world.together import Together
from hps.common.arrays import AnyArray, HostArray, as_floats, as_keys, as_numpy, like, on_host
from hps.common.json_text import Json
from hps.common.occurrences import PACKED, pack, unpack
from hps.common.row_layout import Keys
from hps.errors import ConfigError
from hps.parameter_server.erasing import check_erasable, erase_where
from hps.parameter_server.periods import as_statistics, refuse_uncounted
from hps.parameter_server.server import ParameterServer
from hps.table.row_checks import refuse_impossible_rows, refuse_impossible_statistics
from hps.table.rows_where import RowsWhere


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
        self,
        table: str,
        keys: AnyArray,
        rows: AnyArray,
        state: AnyArray | None = None,
        statistics: Mapping[str, AnyArray] | None = None,
    ) -> None:
        """As `ClusterParameterServer.assign`."""
        config = self._exchanges.table(table)
        array = on_host(as_keys(keys, self._local.device))
        width = config.layout.state_floats
        weights = as_floats(rows, len(array), config.dim, "rows")
        floats = None if state is None else as_floats(state, len(array), width, "state")
        if statistics is not None:
            refuse_uncounted(config, "assign(statistics=)")
        counted = None if statistics is None else as_statistics(statistics, len(array))
        control = self._together.world.control
        self._refuse_some(table, "a state", state is not None)
        self._refuse_some(table, "statistics", counted is not None)
        rate, period = self._local.learning_rates[table], self._local.period
        rules = self._local.parts.tables.rules.get(table)

        def check() -> None:
            refuse_impossible_rows(config, array, weights, floats, rate)
            if counted is not None:
                refuse_impossible_statistics(config, array, counted, period, rules)

        self._together.agreed(f"assign of table {table!r}", check)
        places = self._exchanges.shard_map.split(array)
        order = np.concatenate(places)
        sizes = [len(part) for part in places]
        incoming = control.exchange_counts(sizes)

        def travelled(values: HostArray) -> HostArray:
            sent = torch.from_numpy(values[order])
            return control.exchange(sent, sizes, incoming).numpy()

        received = travelled(array.view(np.int64)).view(np.uint64)
        rows_here = travelled(weights)
        state_here = None if floats is None else travelled(floats)
        counted_here = None
        if counted is not None:
            words = pack(counted).view(np.int64).reshape(-1, 2)
            counted_here = unpack(travelled(words).view(PACKED).reshape(-1))._asdict()
        self._exchanges.rows_change()
        self._together.agreed(
            f"assign of table {table!r}",
            lambda: self._local.assign(table, received, rows_here, state_here, counted_here),
        )

    def _refuse_some(self, table: str, what: str, is_here: bool) -> None:
        """Raises ConfigError on every rank unless all ranks give it or none does."""
        told = self._together.world.control.gather(is_here)
        having = [rank for rank, is_there in enumerate(told) if is_there]
        if 0 < len(having) < len(told):
            refusal = ConfigError(
                f"assign of table {table!r}: there is {what} on rank(s) {having} alone; give one "
                "on every rank or on none"
            )
            refusal.is_shared = True
            raise refusal

    def contains(self, table: str, keys: AnyArray) -> AnyArray:
        """As `ClusterParameterServer.contains`."""
        return self._ask(table, keys, "contains", self._local.contains)

    def erase(self, table: str, keys: AnyArray) -> AnyArray:
        """As `ClusterParameterServer.erase`."""
        self._exchanges.table(table)
        self._exchanges.rows_change()
        return self._ask(table, keys, "erase", self._local.erase)

    def erase_where(self, table: str, where: RowsWhere) -> int:
        """As `ClusterParameterServer.erase_where`."""
        self._exchanges.table(table)
        what, parts = f"erase_where of table {table!r}", self._local.parts
        agreed = self._together.agreed
        agreed(what, lambda: check_erasable(parts.tables, parts.batches, table, where))
        self._exchanges.rows_change()
        erased = agreed(what, lambda: erase_where(parts.tables, parts.batches, table, where))
        return sum(self._together.world.control.gather(erased))

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
        self, table: str, batch: int = 65536, state: bool = False, statistics: bool = False
    ) -> Iterator[tuple[HostArray, ...]]:
        """As `ClusterParameterServer.items`."""
        return self._local.items(table, batch, state, statistics)

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
        exchanged, own = self._exchanges.swap_on_host(table, array)
        what = f"{verb} of table {table!r}"
        answer = self._together.agreed(what, lambda: act(table, exchanged.received))
        flags = as_numpy(answer, "flags")
        came = self._together.world.control.exchange(
            torch.from_numpy(flags.astype(np.uint8)), exchanged.counts, own.counts
        )
        found = came.numpy().astype(bool)[own.places()]
        return like(found, keys)
