"""RemoteTables: the verbs of RemoteParameterServer for whole tables and for rows outright.

Above it: client.py, which is one. Below it: client_cuts.py, client_rounds.py. Keys travel with
their duplicates, each to its shard, in their order.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from hps.arrays import as_floats, as_keys, like
from hps.config import TableConfig
from hps.errors import ConfigError, HpsError, RemoteError
from hps.json_text import parse_json
from hps.row_checks import refuse_impossible_rows
from hps.row_layout import Keys, RowLayout
from hps.service.client_base import SLOW
from hps.service.client_cuts import RemoteCuts
from hps.service.client_errors import Failure
from hps.service.client_options import ack_number
from hps.service.client_rounds import Request, ask, commit
from hps.service.client_session import Session
from hps.service.client_window import METHODS, Change, Draft
from hps.service.table_messages import to_message
from hps.v1 import parameter_server_pb2 as pb

_MESSAGE_ROOM = 4096  # bytes of a message besides its arrays
# Figures of a table that are the same on each shard; all other numbers of stats() add up.
_NOT_ADDED = ("dim", "row_bytes", "state_floats")


class RemoteTables(RemoteCuts):
    """Assign, erase, look into tables, and make them."""

    def assign(
        self, table: str, keys: Any, rows: Any, state: Any = None, ack: str = "logged"
    ) -> None:
        """Sets rows outright; of a key that stands twice the last row counts.

        Args:
            table: its name.
            keys: int64 or uint64 [L].
            rows: float32 [L, dim].
            state: float32 [L, state floats of a row], as items(state=True) gives it; None starts
                the optimizer's state anew.
            ack: as push.

        Raises:
            ConfigError: unknown table, wrong dtype or shape; a state that the optimizer cannot have
                made. NonFiniteError: NaN or infinity. No shard has changed a row.
            Others: as push.
        """
        config = self._table(table, "assign")
        array = as_keys(keys)
        weights = as_floats(rows, len(array), config.dim, "rows")
        width = RowLayout(config.optimizer.kind, config.dim).state_floats
        floats = None if state is None else as_floats(state, len(array), width, "state")
        refuse_impossible_rows(config, array, weights, floats, self.learning_rates[table])
        row_bytes = 8 + 4 * (config.dim + (0 if floats is None else width))
        drafts = []
        for session, places in self._shares(array, row_bytes):
            head = pb.AssignRequest(
                table=table, dim=config.dim, lineage=session.lineage, ack=number_of(ack_number(ack))
            )
            parts = [array[places], weights[places], b"" if floats is None else floats[places]]
            what = f"assign of {len(places)} keys of table {table!r}"
            drafts.append((session, Draft("Assign", head, parts, ack_number(ack), what)))
        self._change(drafts, f"assign to table {table!r}")

    def erase(self, table: str, keys: Any, ack: str = "logged") -> Any:
        """Drops keys.

        Returns:
            bool [L]: where a stored row was; a tensor if the keys were one.

        Raises:
            RemoteError: also where the keys are erased, but the answer that tells which were
                stored was lost.
        """
        self._table(table, "erase")
        array = as_keys(keys)
        shares = self._shares(array, 8)
        drafts = []
        for session, places in shares:
            head = pb.EraseRequest(
                table=table, lineage=session.lineage, ack=number_of(ack_number(ack))
            )
            what = f"erase of {len(places)} keys of table {table!r}"
            drafts.append((session, Draft("Erase", head, [array[places]], ack_number(ack), what)))
        changes = self._change(drafts, f"erase of table {table!r}")
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

    def contains(self, table: str, keys: Any) -> Any:
        """Which keys are stored: bool [L], a tensor if the keys were one."""
        self._table(table, "contains")
        array = as_keys(keys)
        shares = self._shares(array, 8)
        requests = []
        for session, places in shares:
            head = pb.ContainsRequest(table=table, lineage=session.lineage)
            message = METHODS["Contains"].request.join(head, [array[places]])
            requests.append(Request(session, "Contains", message))
        stored = np.zeros(len(array), bool)
        replies = ask(requests, self._until(), f"contains of table {table!r}")
        for (_, places), data in zip(shares, replies, strict=True):
            stored[places] = METHODS["Contains"].reply.split(data).array(15, np.uint8, "stored")
        return like(stored, keys)

    def num_rows(self, table: str) -> int:
        """Stored rows of a table over all shards."""
        self._table(table, "num_rows")
        request = pb.NumRowsRequest(table=table)
        return sum(r.num_rows for r in self._ask_all("NumRows", request, pb.NumRowsReply))

    def items(
        self, table: str, batch: int = 65536, state: bool = False
    ) -> Iterator[tuple[Any, ...]]:
        """Every stored row once, in no order: (keys, rows) or, with state, (keys, rows, state).

        Pieces are copies of up to `batch` rows. A change of the table makes the next piece raise.

        Raises:
            ConfigError: unknown table; batch < 1. RemoteError: a shard has gone, or the table was
            changed.
        """
        dim = self._table(table, "items").dim
        if batch < 1:
            raise ConfigError(f"items(batch={batch}): at least 1 row a piece is needed")
        request = pb.ItemsRequest(table=table, batch=batch, state=state).SerializeToString()
        for session in self._sessions:
            seconds = SLOW * self.config.deadline
            try:
                for data in session.transport.stream("Items", request, seconds):
                    piece = METHODS["Items"].reply.split(data)
                    keys = piece.array(13, np.uint64, "keys").copy()
                    rows = piece.array(14, np.float32, "rows").reshape(len(keys), dim).copy()
                    if not state:
                        yield keys, rows
                        continue
                    floats = piece.array(15, np.float32, "state")
                    yield keys, rows, floats.reshape(len(keys), -1).copy()
            except Failure as failure:
                raise failure.typed(session.transport.address) from None

    def digest(self, table: str) -> str:
        """Order-independent hash of every stored row: the one that a single store would have."""
        self._table(table, "digest")
        replies = self._ask_all("Digest", pb.DigestRequest(table=table), pb.DigestReply)
        low = sum(reply.low for reply in replies) % 2**64
        high = sum(reply.high for reply in replies) % 2**64
        return f"{high:016x}{low:016x}"

    def stats(self) -> dict[str, Any]:
        """Counters of each tier, then of each table, added up over the shards; under "shards"
        those of each; under "client" the seconds for which pulls and steps waited for them."""
        self._check_usable("stats")
        replies = self._ask_all("Stats", pb.StatsRequest(), pb.StatsReply)
        where = "the figures of a shard"
        each = [parse_json(reply.json, where, error=RemoteError) for reply in replies]
        total: dict[str, Any] = {}
        for part in each:
            _add_up(total, part)
        return {**total, "client": {"wait_seconds": self._wait_seconds}, "shards": each}

    def create_table(self, table: TableConfig) -> bool:
        """Makes a table on all shards, durably; nothing to do where it is there just so.

        Shard 0 comes first, and the others get what it has then: so they agree, whoever asks for
        what at the same time. No restore takes the table away; see `restore`.

        Returns:
            True if it was new on any shard.

        Raises:
            RemoteError: a table of that name is there and differs; or a shard did not answer, and
                the same call again makes the table where it is missing.
        """
        self._check_usable("create_table")
        request = pb.CreateTableRequest(table=to_message(table))
        first, others = self._sessions[:1], self._sessions[1:]
        replies = self._ask_all("CreateTable", request, pb.CreateTableReply, first)
        if others:
            (told,) = self._ask_all("Describe", pb.DescribeRequest(), pb.DescribeReply, first)
            held = next((one for one in told.tables if one.name == table.name), request.table)
            try:
                request = pb.CreateTableRequest(table=held)
                replies += self._ask_all("CreateTable", request, pb.CreateTableReply, others)
            except HpsError as error:
                error.add_note(f"table {table.name!r} is not on all shards: call it again")
                raise
        rates = dict(self.learning_rates)
        self._describe()
        self.learning_rates.update(rates)
        return any(reply.is_new for reply in replies)

    def _table(self, table: str, verb: str) -> TableConfig:
        self._check_usable(verb)
        if table not in self.tables:
            if table in self._lacking:
                raise ConfigError(
                    f"table {table!r} is not on all shards: {self._lacking[table]} lack it, as "
                    f"create_table was cut short; call create_table again"
                )
            raise ConfigError(f"there is no table {table!r}; the shards have {sorted(self.tables)}")
        return self.tables[table]

    def _change(self, drafts: list[tuple[Session, Draft]], what: str) -> list[Change]:
        return commit(drafts, self._until(), what).wait() if drafts else []

    def _most_rows(self, row_bytes: int) -> int:
        """Keys of one message, whose request and reply take so many bytes each."""
        return int(max(1, min(self._max_keys, (self._max_bytes - _MESSAGE_ROOM) // row_bytes)))

    def _shares(self, keys: Keys, row_bytes: int) -> list[tuple[Session, Any]]:
        """(shard, places of its keys) of each message, duplicates and order kept."""
        most = self._most_rows(row_bytes)
        return [
            (session, places[first : first + most])
            for session, places in zip(self._sessions, self.shard_map.split(keys), strict=True)
            for first in range(0, len(places), most)
        ]


def number_of(value: int) -> Any:
    """An enum's number, as the generated messages take it."""
    return int(value)


def _add_up(total: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        if isinstance(value, dict):
            _add_up(total.setdefault(name, {}), value)
        elif isinstance(value, bool) or not isinstance(value, int | float) or name in _NOT_ADDED:
            total.setdefault(name, value)
        else:
            total[name] = total.get(name, 0) + value
