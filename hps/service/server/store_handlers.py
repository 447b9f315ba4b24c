"""Handlers of the calls about the shard itself: sessions, tables, checkpoints, figures.

Above it: server.py. Below it: `hps.service.shard.shard`.
"""

import json
from collections.abc import Collection

from hps.checkpoint.names import parse_name
from hps.common.json_text import check_depth
from hps.common.sharding import HASH, NUM_VIRTUAL
from hps.common.version import __version__
from hps.errors import ConfigError, HpsError, no_such_table
from hps.service.messages.framing import read_small
from hps.service.messages.status import VEILED, mismatch, not_found, too_large
from hps.service.messages.table_messages import from_message, to_message
from hps.service.server.arguments import as_ack, other_history
from hps.service.server.auth import (
    ADMIN,
    EVERY_TABLE,
    READ,
    WRITE,
    may_not_read,
    require_client,
    require_right,
    require_some_right,
)
from hps.service.server.calls import Call
from hps.service.server.limits import ServerLimits
from hps.service.server.log_lines import LogLines
from hps.service.shard.checkpoints import NameMove
from hps.service.shard.shard import Ack, Identity, Shard, Terms
from hps.v1 import parameter_server_pb2 as pb

_MAX_GROUP_BYTES = 2**16  # of a checkpoint's group
_REPLY_ROOM = 4096  # bytes of a reply beside what there may be much of
_MAX_MARK_BYTES = 128  # of one client's mark in a reply: its name has 64 at most
_MAX_CHECKPOINT_NAMES = 1000  # that a shard tells of itself
_MAX_TABLE_BYTES = 2**20  # of a table's message: thousands of names of features


class StoreHandlers:
    """Handlers of one server, named as the proto's methods; thread-safe. See RowHandlers.

    Args:
        shard: what applies.
        limits: of the server.
        log: of the server.
    """

    def __init__(self, shard: Shard, limits: ServerLimits, log: LogLines) -> None:
        self._shard = shard
        self._limits = limits
        self._log = log

    def describe(self, call: Call, data: bytes) -> bytes:
        read_small(pb.DescribeRequest, data)
        limits = self._limits
        return pb.DescribeReply(
            version=__version__,
            lineage=self._shard.lineage,
            shard_map=self._shard_map(),
            limits=pb.Limits(
                max_message_bytes=int(limits.message_bytes),
                max_keys=limits.keys,
                max_dim=limits.dim,
                max_tables=limits.tables,
                max_client_bytes=int(limits.client_bytes),
                max_client_requests=limits.client_requests,
                default_deadline_ms=int(limits.deadline_seconds * 1000),
            ),
            tables=self._tables(call),
            seed=self._shard.seed,
            cuts=self._checkpoint_names(call),
            period=self._shard.period,
            has_rules=True,
            has_rates=True,
            has_names=True,
        ).SerializeToString()

    def open_session(self, call: Call, data: bytes) -> bytes:
        request = read_small(pb.OpenSessionRequest, data)
        require_some_right(call.caller, WRITE)
        require_client(call.caller, request.client_id)
        if request.HasField("shard_map") and request.shard_map != self._shard_map():
            raise mismatch(
                f"this is shard {_in_words(self._shard_map())}, not "
                f"{_in_words(request.shard_map)}; list the servers in the order of their shards"
            )
        if request.lineage and request.lineage != self._shard.lineage:
            raise mismatch(
                f"the shard's history is {self._shard.lineage!r}, not {request.lineage[:80]!r}; "
                f"restore all shards to one checkpoint"
            )
        session = self._shard.open_session(
            request.client_id,
            request.incarnation if request.HasField("incarnation") else None,
            call.remaining(),
            call.caller.name,
        )
        self._log.info(
            "session",
            client=request.client_id,
            incarnation=session.incarnation,
            mark=session.marks.applied,
        )
        marks = session.marks
        return pb.OpenSessionReply(
            incarnation=session.incarnation,
            marks=pb.Marks(applied=marks.applied, logged=marks.logged, durable=marks.durable),
            lineage=session.lineage,
        ).SerializeToString()

    def skip(self, call: Call, data: bytes) -> bytes:
        message = read_small(pb.SkipRequest, data).id
        require_some_right(call.caller, WRITE)
        require_client(call.caller, message.client_id)
        identity = Identity(message.client_id, message.incarnation, message.sequence)
        applied = self._shard.skip(identity, Terms(Ack.MEMORY, call.remaining()))
        marks = applied.marks
        return pb.SkipReply(
            marks=pb.Marks(applied=marks.applied, logged=marks.logged, durable=marks.durable),
            is_repeat=applied.is_repeat,
        ).SerializeToString()

    def advance_period(self, call: Call, data: bytes) -> bytes:
        request = read_small(pb.AdvancePeriodRequest, data)
        require_right(call.caller, EVERY_TABLE, ADMIN)
        require_client(call.caller, request.id.client_id)
        if request.lineage and request.lineage != self._shard.lineage:
            raise other_history(self._shard.lineage, request.lineage)
        message = request.id
        identity = Identity(message.client_id, message.incarnation, message.sequence)
        terms = Terms(as_ack(request.ack), call.remaining())
        applied = self._shard.advance_period(identity, request.period, terms)
        period = self._shard.period
        self._log.info("period", client=message.client_id, period=period)
        marks = applied.marks
        return pb.AdvancePeriodReply(
            marks=pb.Marks(applied=marks.applied, logged=marks.logged, durable=marks.durable),
            is_repeat=applied.is_repeat,
            period=period,
        ).SerializeToString()

    def flush(self, call: Call, data: bytes) -> bytes:
        request = read_small(pb.FlushRequest, data)
        require_some_right(call.caller, WRITE)
        if request.ack not in (pb.LOGGED, pb.DURABLE):
            raise ConfigError(f"Flush: ack={request.ack} must be 1 (LOGGED) or 2 (DURABLE)")
        self._shard.flush(Ack(request.ack), call.remaining())
        return pb.FlushReply().SerializeToString()

    def num_rows(self, call: Call, data: bytes) -> bytes:
        name = self._readable(call, read_small(pb.NumRowsRequest, data).table)
        num_rows = self._shard.num_rows(name, call.remaining())
        return pb.NumRowsReply(num_rows=num_rows).SerializeToString()

    def digest(self, call: Call, data: bytes) -> bytes:
        name = self._readable(call, read_small(pb.DigestRequest, data).table)
        low, high = self._shard.digest(name, call.remaining())
        return pb.DigestReply(low=low, high=high).SerializeToString()

    # Tables.

    def create_table(self, call: Call, data: bytes) -> bytes:
        message = read_small(pb.CreateTableRequest, data, _MAX_TABLE_BYTES).table
        require_right(call.caller, message.name, ADMIN)
        known = [table.name for table in self._shard.tables]
        if message.dim > self._limits.dim:
            raise too_large(f"dim {message.dim} of a new table; {self._limits.dim} at most here")
        if message.name not in known and len(known) >= self._limits.tables:
            raise too_large(f"there are {len(known)} tables, the most that this server takes")
        table = from_message(message)
        try:
            is_new = self._shard.create_table(table, call.remaining())
        except HpsError as error:
            names = [known.name for known in self._shard.tables]
            if not may_not_read(call.caller, str(error), names):
                raise
            self._log.warning("table refused", name=table.name, message=str(error))
            raise ConfigError(
                f"create_table({table.name[:80]!r}): it does not fit beside tables that this token "
                f"may not see; the server's log says more: give it a smaller share, or the server "
                f"more --dram"
            ) from error
        if is_new:
            self._log.info("table", name=table.name, dim=table.dim, client=call.caller.name)
        return pb.CreateTableReply(is_new=is_new).SerializeToString()

    def list_tables(self, call: Call, data: bytes) -> bytes:
        read_small(pb.ListTablesRequest, data)
        return pb.ListTablesReply(tables=self._tables(call)).SerializeToString()

    # Checkpoints.

    def checkpoint(self, call: Call, data: bytes) -> bytes:
        request = read_small(pb.CheckpointRequest, data, int(self._limits.message_bytes))
        require_right(call.caller, EVERY_TABLE, ADMIN)
        if len(request.group.encode()) > _MAX_GROUP_BYTES:
            raise ConfigError(
                f"Checkpoint: group has {len(request.group.encode())} bytes; at most "
                f"{_MAX_GROUP_BYTES} are allowed"
            )
        check_depth(request.group, "Checkpoint: group")  # every client's checkpoints() parses it
        info = self._shard.checkpoint(
            request.tag or None,
            request.model if request.HasField("model") else None,
            request.reader if request.HasField("reader") else None,
            request.group,
            call.remaining(),
            request.model_cut if request.HasField("model_cut") else None,
        )
        self._log.info("checkpoint", tag=request.tag, seconds=info["seconds"])
        return pb.CheckpointReply(
            tag=request.tag,
            rows_written=info["rows_written"],
            bytes_written=info["bytes"],
            seconds=info["seconds"],
            lineage=info["lineage"],
            sessions=self._marks_of(info["sessions"], request.clients),
            model_cut=info["model_whole"],
            model_from=info.get("model_from", ""),
        ).SerializeToString()

    def _marks_of(
        self, sessions: dict[str, tuple[int, int]], wanted: Collection[str]
    ) -> dict[str, pb.SessionMark]:
        """Those of the clients that are wanted; if none is, the newest that a reply holds."""
        chosen = [name for name in wanted if name in sessions]
        if not wanted:
            most = (int(self._limits.message_bytes) - _REPLY_ROOM) // _MAX_MARK_BYTES
            chosen = list(sessions)[-most:]
        return {
            name: pb.SessionMark(incarnation=sessions[name][0], sequence=sessions[name][1])
            for name in chosen
        }

    def restore(self, call: Call, data: bytes) -> bytes:
        request = read_small(pb.RestoreRequest, data)
        require_right(call.caller, EVERY_TABLE, ADMIN)
        tag = _tag(request.tag)
        found = self._shard.prepare_restore(tag, request.group, call.remaining())
        if not request.prepare:
            self._shard.restore(tag, request.lineage or None, call.remaining())
            self._log.info("restore", tag=found["tag"], id=found["id"], lineage=self._shard.lineage)
        return pb.RestoreReply(lineage=self._shard.lineage).SerializeToString()

    def list_checkpoints(self, call: Call, data: bytes) -> bytes:
        read_small(pb.ListCheckpointsRequest, data)
        listed, descent = self._shard.checkpoints_and_descent(call.remaining())
        return pb.ListCheckpointsReply(
            checkpoints=[
                pb.CheckpointInfo(
                    id=info["id"],
                    tag=info["tag"] or "",
                    rows=info["rows"],
                    bytes=info["bytes"],
                    created=info["created"],
                    group=info["group"],
                    current=info["current"],
                    names=info["names"],
                    is_promoted=info["is_promoted"],
                )
                for info in listed
            ],
            descends_from=descent,
        ).SerializeToString()

    def delete_checkpoint(self, call: Call, data: bytes) -> bytes:
        request = read_small(pb.DeleteCheckpointRequest, data)
        require_right(call.caller, EVERY_TABLE, ADMIN)
        tag = _tag(request.tag)
        if tag is None:
            raise ConfigError("DeleteCheckpoint: name a checkpoint by its tag or id")
        number, name = self._shard.checkpoint_named(tag, call.remaining())
        readers = self._shard.delete_checkpoint(tag, call.remaining())
        self._log.info("checkpoint deleted", tag=name, id=number)
        return pb.DeleteCheckpointReply(readers=readers).SerializeToString()

    def move_name(self, call: Call, data: bytes) -> bytes:
        request = read_small(pb.MoveNameRequest, data)
        require_right(call.caller, EVERY_TABLE, ADMIN)
        given = _tag(request.checkpoint)
        if (given is None) != bool(request.leaves) or (request.drop and given is not None):
            raise ConfigError(
                "MoveName: give the checkpoint that gets the name, or when the one that it leaves "
                "was created (leaves), and drop only with that"
            )
        move = NameMove(request.name, given, request.leaves, request.drop)
        number = self._shard.move_name(move, call.remaining())
        self._log.info("name moved", name=request.name, id=number)
        return pb.MoveNameReply(id=number).SerializeToString()

    def checkpoint_state(self, call: Call, data: bytes) -> bytes:
        request = read_small(pb.CheckpointStateRequest, data)
        require_right(call.caller, EVERY_TABLE, READ)
        tag = _tag(request.tag)
        num_bytes = self._shard.checkpoint_state_bytes(tag, call.remaining())
        if num_bytes + _REPLY_ROOM > int(self._limits.message_bytes):
            raise too_large(
                f"the checkpoint's dense side has {num_bytes} bytes; start the server with a "
                f"--max-message of {num_bytes + _REPLY_ROOM} or more"
            )
        call.admission.take(num_bytes + _REPLY_ROOM)
        model, reader, group = self._shard.checkpoint_state(tag, call.remaining())
        reply = pb.CheckpointStateReply(model=model, reader=reader, group=group)
        return reply.SerializeToString()

    def stats(self, call: Call, data: bytes) -> bytes:
        read_small(pb.StatsRequest, data)
        require_some_right(call.caller, READ)
        figures = self._shard.stats(call.remaining())
        tables = figures["tables"].items()
        figures["tables"] = {name: part for name, part in tables if call.caller.right(name)}
        names = [name for name, _ in tables]
        told = figures.get("service", {})
        for name in ("failure", "checkpoint_error"):
            if may_not_read(call.caller, str(told.get(name)), names):
                told[name] = VEILED
        return pb.StatsReply(json=json.dumps(figures, default=str)).SerializeToString()

    def _readable(self, call: Call, name: str) -> str:
        require_right(call.caller, name, READ)
        if name not in [table.name for table in self._shard.tables]:
            raise not_found(f"{no_such_table(name[:80])} here")
        return name

    def _tables(self, call: Call) -> list[pb.Table]:
        tables = self._shard.tables
        return [to_message(table) for table in tables if call.caller.right(table.name)]

    def _checkpoint_names(self, call: Call) -> pb.CutNames | None:
        """Those that matter to who compares shards; a shard whose store is gone tells none."""
        try:
            return pb.CutNames(
                names=self._shard.checkpoint_names(call.remaining())[:_MAX_CHECKPOINT_NAMES]
            )
        except HpsError:
            return None

    def _shard_map(self) -> pb.ShardMap:
        return pb.ShardMap(
            index=self._shard.index,
            count=self._shard.count,
            num_virtual=NUM_VIRTUAL,
            hash=HASH,
        )


def _in_words(shard_map: pb.ShardMap) -> str:
    return (
        f"{shard_map.index} of {shard_map.count} ({shard_map.num_virtual} virtual shards by "
        f"{shard_map.hash[:40]!r})"
    )


def _tag(text: str) -> str | int | None:
    """A checkpoint's name; nothing is the newest."""
    return parse_name(text) if text else None
