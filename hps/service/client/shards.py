"""Shards: what the shards of a service say of themselves, and whether they are one service.

Above it: the parts of parameter_server.py. Below it: connections.py.
"""

from collections.abc import Callable, Sequence

from hps.config import TableConfig, differences
from hps.errors import ConfigError, RemoteError, no_such_table
from hps.service.client.connections import Connections
from hps.service.client.session import MOST_UNDER_WAY
from hps.service.messages.table_messages import from_message, without_rate, without_rules
from hps.v1 import parameter_server_pb2 as pb

_LOOKS = 3  # at shards that seem to be of different services, while checkpoints are taken


class Shards:
    """The tables, history and limits of a service, as all of its shards have them.

    Args:
        connections: to the shards, which are asked at once.

    Raises:
        ConfigError: the shards are not those of one service in the order of their indices.
        RemoteError: one does not answer within the deadline.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.shard_map = connections.shard_map
        self.tables: dict[str, TableConfig] = {}
        self._lacking: dict[str, str] = {}  # tables of some shards alone: which ones lack it
        self.learning_rates: dict[str, float] = {}
        self.seed: int | None = None  # of new rows' weights; None where the shards differ
        self._mixed_histories = ""  # why the shards cannot be used until they are restored
        self.refresh()

    @property
    def lineage(self) -> str:
        """Names the history that the rows belong to; changes with each restore."""
        return self._connections.sessions[0].lineage

    def check_usable(self, verb: str) -> None:
        """Refuses a verb of a client that is closed, or of shards that are no one service.

        Raises:
            RemoteError: says what to do.
        """
        if not self._connections.is_open:
            raise RemoteError(f"{verb}: this client is closed; make a new RemoteParameterServer")
        if self._mixed_histories:
            raise RemoteError(f"{verb}: {self._mixed_histories}")

    def table(self, table: str, verb: str) -> TableConfig:
        """The table of a name, for a verb.

        Raises:
            ConfigError: there is none, on all shards. RemoteError: as `check_usable`.
        """
        self.check_usable(verb)
        if table not in self.tables:
            if table in self._lacking:
                raise ConfigError(
                    f"table {table!r} is not on all shards: {self._lacking[table]} lack it, as "
                    f"create_table was cut short; call create_table again"
                )
            raise no_such_table(table, "the shards have", self.tables)
        return self.tables[table]

    def periods(self, verb: str) -> list[int]:
        """In which each shard counts.

        Raises:
            ConfigError: a server of an older hps, which has none. RemoteError: one does not answer.
        """
        self.check_usable(verb)
        replies = self._connections.ask_all("Describe", pb.DescribeRequest(), pb.DescribeReply)
        for session, reply in zip(self._connections.sessions, replies, strict=True):
            if not reply.HasField("period"):
                raise ConfigError(
                    f"{verb}: shard {session} is served by hps {reply.version}, which has no "
                    "periods or statistics; start it with a newer hps"
                )
        return [int(reply.period) for reply in replies]

    def refuse_older(self, verb: str) -> None:
        """Raises ConfigError for a server of an older hps, which would make a table without its
        rules and its dtype, and erases by keys alone; RemoteError where one does not answer."""
        lacks = (
            "tables with expiry, admission or bfloat16 rows, and erases no rows by what they have "
            "counted"
        )
        self._refuse_unless(lambda reply: reply.has_rules, verb, lacks)

    def refuse_rateless(self, verb: str) -> None:
        """Raises ConfigError for a server of an older hps, which would make a table without its
        negative_rate; RemoteError where one does not answer."""
        self._refuse_unless(lambda reply: reply.has_rates, verb, "tables with negative_rate")

    def _refuse_unless(
        self, knows: Callable[[pb.DescribeReply], bool], verb: str, lacks: str
    ) -> None:
        replies = self._connections.ask_all("Describe", pb.DescribeRequest(), pb.DescribeReply)
        for session, reply in zip(self._connections.sessions, replies, strict=True):
            if not knows(reply):
                raise ConfigError(
                    f"{verb}: shard {session} is served by hps {reply.version}, which makes no "
                    f"{lacks}; start it with a newer hps"
                )

    def refuse_nameless(self, verb: str) -> None:
        """Raises ConfigError where shard 0 is served by an older hps, which has no promoted names;
        RemoteError where it does not answer."""
        first = self._connections.sessions[:1]
        request = pb.DescribeRequest()
        (reply,) = self._connections.ask_all("Describe", request, pb.DescribeReply, first)
        if not reply.has_names:
            raise ConfigError(
                f"{verb}: shard {first[0]} is served by hps {reply.version}, which has no promoted "
                "names; start it with a newer hps"
            )

    def flush(self, durable: bool = False) -> None:
        """As `RemoteParameterServer.flush`."""
        self.check_usable("flush")
        self._connections.flush(durable, "what is open is kept and goes first with the next call")

    def flush_all(self, durable: bool = False) -> None:
        """As `RemoteParameterServer.flush_all`."""
        self.flush(durable)
        level = pb.DURABLE if durable else pb.LOGGED
        self._connections.ask_all("Flush", pb.FlushRequest(ack=level), pb.FlushReply)

    def refresh(self) -> None:
        """Takes in what the shards are, and checks that they are one service.

        Raises:
            ConfigError, RemoteError: as the class.
        """
        sessions = self._connections.sessions
        replies = self._connections.ask_all(
            "Describe", pb.DescribeRequest(), pb.DescribeReply, seen=self._check_map
        )
        for session, reply in zip(sessions, replies, strict=True):
            session.lineage = reply.lineage
        seeds = {reply.seed for reply in replies}
        self.seed = seeds.pop() if len(seeds) == 1 else None
        lineages = {str(session): session.lineage for session in sessions}
        self._mixed_histories = ""
        if len(set(lineages.values())) > 1:
            self._mixed_histories = (
                f"the shards are at different checkpoints, with histories {lineages}: a restore "
                "has not reached all of them, or they are not of one service; call restore() again"
            )
        else:
            self._mixed_histories = self._lacking_part(replies)
        # While servers are changed for newer ones, some do not tell the rules.
        if not all(reply.has_rules for reply in replies):
            for described in (table for reply in replies for table in reply.tables):
                without_rules(described)
        if not all(reply.has_rates for reply in replies):
            for described in (table for reply in replies for table in reply.tables):
                without_rate(described)
        tables = [{t.name: from_message(t) for t in reply.tables} for reply in replies]
        self.tables = {
            name: table
            for name, table in tables[0].items()
            if all(name in of_shard for of_shard in tables)
        }
        self._lacking = {
            name: ", ".join(
                str(session)
                for session, of_shard in zip(sessions, tables, strict=True)
                if name not in of_shard
            )
            for name in {name for of_shard in tables for name in of_shard} - set(self.tables)
        }
        for session, of_shard in zip(sessions, tables, strict=True):
            for name in self.tables:
                differing = differences(of_shard[name], self.tables[name])
                if differing:
                    raise ConfigError(
                        f"table {name!r} differs between shard {session} and shard "
                        f"{sessions[0]}: {'; '.join(differing)}"
                    )
        self.learning_rates = {name: table.optimizer.lr for name, table in self.tables.items()}
        limits = [reply.limits for reply in replies]
        self.max_keys = min(limit.max_keys or 2**31 for limit in limits)
        self.max_bytes = min(limit.max_message_bytes or 2**31 for limit in limits)
        self.max_requests = min(limit.max_client_requests or 2**31 for limit in limits)
        for session in sessions:  # reads beside them find room, too
            session.most_under_way = max(1, min(MOST_UNDER_WAY, self.max_requests // 2))

    def _lacking_part(self, replies: Sequence[pb.DescribeReply]) -> str:
        """Why the shards cannot be of one service, in words: one lacks its part of the newest
        checkpoint that shard 0 holds. Its store is another service's, or an older copy. Empty if
        all is well.
        """
        sessions = self._connections.sessions
        for _ in range(_LOOKS):
            name = next(iter(replies[0].cuts.names), "")
            lacking = [
                session
                for session, reply in zip(sessions, replies, strict=True)
                if name and reply.HasField("cuts") and name not in reply.cuts.names
            ]
            if not lacking:
                return ""
            # It may have been taken between the answers, or let go of: shard 0 is asked on both
            # sides of the others, for it is the last to have one and the first to be without.
            others = self._connections.ask_all(
                "Describe", pb.DescribeRequest(), pb.DescribeReply, sessions[1:]
            )
            first = self._connections.ask_all(
                "Describe", pb.DescribeRequest(), pb.DescribeReply, sessions[:1]
            )
            replies = [*first, *others]
            still = [
                session
                for session, reply in zip(sessions[1:], others, strict=True)
                if session in lacking and name not in reply.cuts.names
            ]
            if still and name in replies[0].cuts.names:
                return (
                    f"shard {still[0]} lacks its part of the newest checkpoint that shard "
                    f"{sessions[0]} holds (checkpoint {name}): its store is of another service, or "
                    "an older copy; start that server over its own store, or restore() a "
                    "checkpoint that all shards hold. If that part was deleted on purpose, delete "
                    "the checkpoint on shard 0, too ('hps checkpoints DIR --delete')"
                )
        return ""

    def _check_map(self, number: int, described: bytes) -> None:
        """As soon as a shard answers, though another one may not."""
        session, expected = self._connections.sessions[number], self.shard_map
        told = pb.DescribeReply.FromString(described).shard_map
        if (told.index, told.count) != (session.index, expected.count):
            raise ConfigError(
                f"{session.transport.address} is shard {told.index} of {told.count}, not "
                f"{session.index} of {expected.count}; give the addresses of all shards in the "
                "order of their indices"
            )
        if (told.num_virtual, told.hash) != (expected.num_virtual, expected.hash):
            raise ConfigError(
                f"shard {session} divides keys by {told.hash!r} over {told.num_virtual} virtual "
                f"shards, this client by {expected.hash!r} over {expected.num_virtual}; use one "
                "version of hps"
            )
