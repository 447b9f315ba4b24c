"""TableVerbs: a client's verbs for whole tables and for rows outright.

Above it: parameter_server.py, whose docstrings say what each verb takes and raises. Below it:
division.py, shards.py, connections.py. Keys travel with their duplicates, each to its shard, in
their order.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from hps import _C
from hps.common.arrays import AnyArray, HostArray, as_floats, as_keys, like
from hps.common.json_text import Json, parse_json
from hps.common.occurrences import PACKED, pack, unpack
from hps.config import TableConfig
from hps.errors import ConfigError, HpsError, RemoteError
from hps.parameter_server.periods import as_statistics, refuse_uncounted
from hps.service.client.connections import SLOW, Connections
from hps.service.client.division import KeyDivision
from hps.service.client.options import ack_number, number_of
from hps.service.client.rounds import Request, ask, stream
from hps.service.client.shards import Shards
from hps.service.client.window import METHODS, Draft
from hps.service.messages.framing import Array
from hps.service.messages.table_messages import has_rules, to_message
from hps.table.row_checks import refuse_impossible_rows, refuse_impossible_statistics
from hps.v1 import parameter_server_pb2 as pb

# Figures of a table that are the same on each shard; all other numbers of stats() add up.
_NOT_ADDED = ("dim", "row_bytes", "state_floats")


class TableVerbs:
    """Assign, erase, look into tables, and make them.

    Args:
        connections: to the shards.
        shards: what they say of themselves.
        division: of keys into messages.
    """

    def __init__(self, connections: Connections, shards: Shards, division: KeyDivision) -> None:
        self._connections = connections
        self._shards = shards
        self._division = division

    def assign(
        self,
        table: str,
        keys: AnyArray,
        rows: AnyArray,
        state: AnyArray | None = None,
        ack: str = "logged",
        statistics: Mapping[str, AnyArray] | None = None,
    ) -> None:
        """As `RemoteParameterServer.assign`."""
        config = self._shards.table(table, "assign")
        array = as_keys(keys)
        weights = as_floats(rows, len(array), config.dim, "rows")
        width = config.layout.state_floats
        floats = None if state is None else as_floats(state, len(array), width, "state")
        refuse_impossible_rows(config, array, weights, floats, self._shards.learning_rates[table])
        counted = None
        if statistics is not None:
            refuse_uncounted(config, "assign(statistics=)")
            found = as_statistics(statistics, len(array))
            refuse_impossible_statistics(config, array, found, _C.MAX_PERIOD, None)
            counted = pack(found)
        row_bytes = 24 + 4 * (config.dim + (0 if floats is None else width))
        drafts = []
        for session, places in self._division.shares(array, row_bytes):
            head = pb.AssignRequest(
                table=table, dim=config.dim, lineage=session.lineage, ack=number_of(ack_number(ack))
            )
            states = b"" if floats is None else floats[places]
            counts = b"" if counted is None else counted[places]
            parts: list[Array] = [counts, array[places], weights[places], states]
            what = f"assign of {len(places)} keys of table {table!r}"
            drafts.append((session, Draft("Assign", head, parts, ack_number(ack), what)))
        self._connections.change(drafts, f"assign to table {table!r}")

    def erase(self, table: str, keys: AnyArray, ack: str = "logged") -> AnyArray:
        """As `RemoteParameterServer.erase`."""
        self._shards.table(table, "erase")
        array = as_keys(keys)
        shares = self._division.shares(array, 8)
        drafts = []
        for session, places in shares:
            head = pb.EraseRequest(
                table=table, lineage=session.lineage, ack=number_of(ack_number(ack))
            )
            what = f"erase of {len(places)} keys of table {table!r}"
            drafts.append((session, Draft("Erase", head, [array[places]], ack_number(ack), what)))
        changes = self._connections.change(drafts, f"erase of table {table!r}")
        erased = np.zeros(len(array), bool)
        for (session, places), change in zip(shares, changes, strict=True):
            told = change.reply.array(15, np.uint8, "erased") if change.reply else ()
            if len(told) != len(places):
                raise RemoteError(
                    f"erase of table {table!r}: shard {session} has erased the keys, but its "
                    "answer, which of them were stored, was lost"
                )
            erased[places] = told
        return like(erased, keys)

    def contains(self, table: str, keys: AnyArray) -> AnyArray:
        """As `RemoteParameterServer.contains`."""
        self._shards.table(table, "contains")
        array = as_keys(keys)
        shares = self._division.shares(array, 8)
        requests = []
        for session, places in shares:
            head = pb.ContainsRequest(table=table, lineage=session.lineage)
            message = METHODS["Contains"].request.join(head, [array[places]])
            requests.append(Request(session, "Contains", message))
        stored = np.zeros(len(array), bool)
        replies = ask(requests, self._connections.until(), f"contains of table {table!r}")
        for (_, places), data in zip(shares, replies, strict=True):
            stored[places] = METHODS["Contains"].reply.split(data).array(15, np.uint8, "stored")
        return like(stored, keys)

    def num_rows(self, table: str) -> int:
        """As `RemoteParameterServer.num_rows`."""
        self._shards.table(table, "num_rows")
        request = pb.NumRowsRequest(table=table)
        return sum(
            r.num_rows for r in self._connections.ask_all("NumRows", request, pb.NumRowsReply)
        )

    def items(
        self, table: str, batch: int = 65536, state: bool = False, statistics: bool = False
    ) -> Iterator[tuple[HostArray, ...]]:
        """As `RemoteParameterServer.items`."""
        config = self._shards.table(table, "items")
        dim = config.dim
        if statistics:
            refuse_uncounted(config, "items(statistics=True)")
        if batch < 1:
            raise ConfigError(f"items(batch={batch}): batch must be at least 1")
        message = pb.ItemsRequest(table=table, batch=batch, state=state, statistics=statistics)
        request = message.SerializeToString()
        for session in self._connections.sessions:
            seconds = SLOW * self._connections.config.deadline
            until = self._connections.until()
            for data in stream(session, "Items", request, until, seconds):
                piece = METHODS["Items"].reply.split(data)
                keys = piece.array(13, np.uint64, "keys").copy()
                rows = piece.array(14, np.float32, "rows").reshape(len(keys), dim).copy()
                others: list[HostArray] = []
                if state:
                    floats = piece.array(15, np.float32, "state")
                    others.append(floats.reshape(len(keys), -1).copy())
                if statistics:
                    others += unpack(piece.array(11, PACKED, "statistics"))
                yield keys, rows, *others

    def digest(self, table: str) -> str:
        """As `RemoteParameterServer.digest`."""
        self._shards.table(table, "digest")
        replies = self._connections.ask_all("Digest", pb.DigestRequest(table=table), pb.DigestReply)
        low = sum(reply.low for reply in replies) % 2**64
        high = sum(reply.high for reply in replies) % 2**64
        return f"{high:016x}{low:016x}"

    def stats(self) -> Json:
        """As `RemoteParameterServer.stats`."""
        self._shards.check_usable("stats")
        replies = self._connections.ask_all("Stats", pb.StatsRequest(), pb.StatsReply)
        where = "the figures of a shard"
        each = [parse_json(reply.json, where, error=RemoteError) for reply in replies]
        total: Json = {}
        for part in each:
            _add_up(total, part)
        return {**total, "client": {"wait_seconds": self._connections.wait_seconds}, "shards": each}

    def create_table(self, table: TableConfig) -> bool:
        """As `RemoteParameterServer.create_table`."""
        self._shards.check_usable("create_table")
        if table.statistics:
            self._shards.periods("create_table with statistics")  # of which an older hps has none
        if has_rules(table):
            self._shards.refuse_older(f"create_table({table.name!r})")
        if table.negative_rate < 1:
            self._shards.refuse_rateless(f"create_table({table.name!r})")
        request = pb.CreateTableRequest(table=to_message(table))
        first, others = self._connections.sessions[:1], self._connections.sessions[1:]
        replies = self._connections.ask_all("CreateTable", request, pb.CreateTableReply, first)
        if others:
            (told,) = self._connections.ask_all(
                "Describe", pb.DescribeRequest(), pb.DescribeReply, first
            )
            held = next((one for one in told.tables if one.name == table.name), request.table)
            try:
                request = pb.CreateTableRequest(table=held)
                replies += self._connections.ask_all(
                    "CreateTable", request, pb.CreateTableReply, others
                )
            except HpsError as error:
                error.add_note(f"table {table.name!r} is not on all shards: call it again")
                raise
        rates = dict(self._shards.learning_rates)
        self._shards.refresh()
        self._shards.learning_rates.update(rates)
        return any(reply.is_new for reply in replies)


def _add_up(total: Json, part: Json) -> None:
    for name, value in part.items():
        if isinstance(value, dict):
            _add_up(total.setdefault(name, {}), value)
        elif isinstance(value, bool) or not isinstance(value, int | float) or name in _NOT_ADDED:
            total.setdefault(name, value)
        else:
            total[name] = total.get(name, 0) + value
