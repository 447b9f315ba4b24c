"""PeriodVerbs: the period that all shards count in, and what rows have counted.

Above it: parameter_server.py, whose docstrings say what each verb takes and raises. Below it:
shards.py, division.py, rounds.py. A new period is a change like others: it has a number at each
shard, and names the period, so that a shard which is there already, or is asked twice, stays.
"""

import numpy as np

from hps import _C
from hps.common.arrays import AnyArray, as_keys, like
from hps.common.field_checks import require_whole
from hps.common.occurrences import NEVER, PACKED
from hps.errors import ConfigError, RemoteError
from hps.parameter_server.erasing import refuse_unscored
from hps.parameter_server.periods import refuse_uncounted
from hps.service.client.connections import Connections
from hps.service.client.division import KeyDivision
from hps.service.client.options import ack_number, number_of
from hps.service.client.rounds import Request, ask
from hps.service.client.shards import Shards
from hps.service.client.training import LoopGradients
from hps.service.client.window import METHODS, Draft
from hps.table.rows_where import RowsWhere
from hps.v1 import parameter_server_pb2 as pb


class PeriodVerbs:
    """Period, advance_period, statistics, and erasure by these.

    Args:
        connections: to the shards.
        shards: what they say of themselves.
        division: of keys into messages.
        loop: knows the open pipelines, while which the period stays.
    """

    def __init__(
        self,
        connections: Connections,
        shards: Shards,
        division: KeyDivision,
        loop: LoopGradients,
    ) -> None:
        self._connections = connections
        self._shards = shards
        self._division = division
        self._loop = loop

    @property
    def period(self) -> int:
        """As `RemoteParameterServer.period`."""
        return min(self._shards.periods("period"))

    def advance(self, to: int | None) -> int:
        """As `RemoteParameterServer.advance_period`."""
        periods = self._shards.periods("advance_period")
        if to is None:
            is_apart = min(periods) < max(periods)  # one that was cut short is brought to its end
            to = max(periods) if is_apart else max(periods) + 1
        require_whole("advance_period: to", to, 0, _C.MAX_PERIOD)
        if to <= min(periods):
            raise ConfigError(
                f"advance_period(to={to}): the servers are at period {min(periods)}, and periods "
                "only go forward; restore a checkpoint to go back"
            )
        if num_open := self._loop.num_open_pipelines:
            raise ConfigError(
                f"advance_period: {num_open} open pipeline(s); leave the pipeline's `with` block "
                "first"
            )
        level, what = ack_number("logged"), f"advance_period(to={to})"
        drafts = []
        for session in self._connections.sessions:
            head = pb.AdvancePeriodRequest(
                ack=number_of(level), lineage=session.lineage, period=int(to)
            )
            drafts.append((session, Draft("AdvancePeriod", head, (), level, what)))
        self._connections.change(drafts, what)
        return int(to)

    def erase_where(self, table: str, where: RowsWhere) -> int:
        """As `RemoteParameterServer.erase_where`."""
        config, what = self._shards.table(table, "erase_where"), f"erase_where of table {table!r}"
        self._shards.refuse_older(what)  # which tells less of its tables than they have
        refuse_unscored(config, config.expiry, where)
        if num_open := self._loop.num_open_pipelines:
            raise ConfigError(
                f"erase_where: {num_open} open pipeline(s); leave the pipeline's `with` block first"
            )
        level, drafts = ack_number("logged"), []
        for session in self._connections.sessions:
            head = pb.EraseWhereRequest(
                table=table, ack=number_of(level), lineage=session.lineage, **where.described()
            )
            drafts.append((session, Draft("EraseWhere", head, (), level, what)))
        num_erased = 0
        for change, (session, _) in zip(
            self._connections.change(drafts, what), drafts, strict=True
        ):
            if change.reply is None or not change.reply.head.HasField("erased"):
                raise RemoteError(
                    f"{what}: shard {session} has erased them, but its answer, how many they were, "
                    "was lost"
                )
            num_erased += int(change.reply.head.erased)
        return num_erased

    def statistics(self, table: str, keys: AnyArray) -> dict[str, AnyArray]:
        """As `RemoteParameterServer.statistics`."""
        refuse_uncounted(self._shards.table(table, "statistics"), "statistics")
        array = as_keys(keys)
        shares = self._division.shares(array, PACKED.itemsize + 8)
        requests = []
        for session, places in shares:
            head = pb.StatisticsRequest(table=table, lineage=session.lineage)
            message = METHODS["Statistics"].request.join(head, [array[places]])
            requests.append(Request(session, "Statistics", message))
        found = np.zeros(len(array), PACKED)
        dies_at = np.full(len(array), NEVER, np.int64)
        replies = ask(requests, self._connections.until(), f"statistics of table {table!r}")
        for (_, places), data in zip(shares, replies, strict=True):
            reply = METHODS["Statistics"].reply.split(data)
            found[places] = reply.array(14, PACKED, "statistics")
            if reply.num_bytes(15):
                dies_at[places] = reply.array(15, np.int64, "dies_at")
        parts = {name: found[name].copy() for name in PACKED.fields or ()}
        return {name: like(part, keys) for name, part in (parts | {"dies_at": dies_at}).items()}
