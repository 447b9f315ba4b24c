"""Handlers of the calls that carry rows: from a message's bytes to the shard and back.

Above it: server.py. Below it: `hps.service.shard.shard`, service/messages/framing.py,
service/messages/in_place.py. Keys and gradients are views on the message; a pull is written
straight into its reply.
"""

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
from google.protobuf.message import Message

from hps.common.arrays import AnyArray, as_numpy
from hps.common.occurrences import NEVER, PACKED, Occurrences, pack, unpack
from hps.common.row_layout import Floats, Keys, Statistics
from hps.common.wire import Wire, decode, encode
from hps.config import TableConfig
from hps.errors import ConfigError, NonFiniteError, no_such_table
from hps.service.messages.framing import AnyIncoming, Frame, read_small
from hps.service.messages.in_place import Outgoing
from hps.service.messages.status import mismatch, not_found, too_large
from hps.service.server.arguments import as_ack, other_history
from hps.service.server.auth import READ, WRITE, require_client, require_right
from hps.service.server.calls import Call
from hps.service.server.limits import ServerLimits
from hps.service.shard.answers import PushStep, RowState
from hps.service.shard.shard import Applied, Identity, Shard, Terms
from hps.table.rows_where import WHERE_FIELDS, RowsWhere
from hps.v1 import parameter_server_pb2 as pb

_PULL = Frame(pb.PullRequest, (15,))
_CONTAINS = Frame(pb.ContainsRequest, (15,))
_PUSH = Frame(pb.PushRequest, (10, 11, 14, 15))
_ASSIGN = Frame(pb.AssignRequest, (11, 13, 14, 15))
_ERASE = Frame(pb.EraseRequest, (15,))
_CREATE = Frame(pb.CreateRequest, (15,))
_ITEMS_REPLY = Frame(pb.ItemsReply, (11, 13, 14, 15))
_STATISTICS = Frame(pb.StatisticsRequest, (15,))
_STATISTICS_REPLY = Frame(pb.StatisticsReply, (14, 15))
_ROWS = 15  # the field of a reply's array
_REPLY_ROOM = 4096  # bytes of a message besides its arrays
_MAX_PIECE_ROWS = 65536

M = TypeVar("M", bound=Message)


class RowHandlers:
    """Handlers of one server, named as the proto's methods; thread-safe.

    Each takes the call and its request's bytes and returns the reply's (`items` several). What they
    raise becomes the call's status: see service/messages/status.py.

    Args:
        shard: what applies.
        limits: of the server.
    """

    def __init__(self, shard: Shard, limits: ServerLimits) -> None:
        self._shard = shard
        self._limits = limits

    # Reads.

    def pull(self, call: Call, data: bytes) -> bytes:
        incoming = _PULL.split(data)
        head = incoming.head
        table = self._table(call, head.table, READ, head.lineage)
        _check_dim(table, head.dim)
        keys = self._keys(incoming, 15)
        wire = _wire(head.wire)
        reply = self._reply(call, pb.PullReply(dim=table.dim, wire=head.wire), table, keys, wire)
        seconds = call.remaining()
        if wire is Wire.FLOAT32:
            out = reply.rows.view(np.float32).reshape(len(keys), table.dim)
            self._shard.pull(table.name, keys, out, seconds)
        else:
            found = self._shard.pull(table.name, keys, timeout=seconds)
            encode(as_numpy(found, "rows"), wire, reply.rows)
        return reply.message

    def contains(self, call: Call, data: bytes) -> bytes:
        incoming = _CONTAINS.split(data)
        table = self._table(call, incoming.head.table, READ, incoming.head.lineage)
        keys = self._keys(incoming, 15)
        stored = _flags(self._shard.contains(table.name, keys, call.remaining()))
        return pb.ContainsReply(stored=stored).SerializeToString()

    def items(self, call: Call, data: bytes) -> Iterator[bytes]:
        request = read_small(pb.ItemsRequest, data)
        table = self._table(call, request.table, READ, "")
        floats = table.dim + (_state_floats(table) if request.state else 0)
        row_bytes = 8 + 4 * floats + (PACKED.itemsize if request.statistics else 0)
        most = (int(self._limits.message_bytes) - _REPLY_ROOM) // row_bytes
        batch = max(1, min(request.batch or _MAX_PIECE_ROWS, _MAX_PIECE_ROWS, most))
        call.admission.take(batch * row_bytes)
        pieces = self._shard.items(
            table.name, batch, request.state, call.remaining(), request.statistics
        )
        for keys, rows, *others in pieces:
            call.remaining()
            state = others.pop(0) if request.state else None
            head = pb.ItemsReply(dim=table.dim, state_floats=0 if state is None else state.shape[1])
            counted = pack(Statistics(*others)) if request.statistics else b""
            yield _ITEMS_REPLY.join(head, [counted, keys, rows, b"" if state is None else state])

    def statistics(self, call: Call, data: bytes) -> bytes:
        incoming = _STATISTICS.split(data)
        table = self._table(call, incoming.head.table, READ, incoming.head.lineage)
        keys = self._keys(incoming, 15)
        self._take_reply(call, len(keys) * (PACKED.itemsize + 8))
        found = self._shard.statistics(table.name, keys, call.remaining())
        dies_at = as_numpy(found["dies_at"], "dies_at")
        parts = (as_numpy(found[name], name) for name in PACKED.fields or ())
        is_mortal = bool((dies_at != NEVER).any())
        packed = pack(Statistics(*parts))
        return _STATISTICS_REPLY.join(pb.StatisticsReply(), [packed, dies_at if is_mortal else b""])

    # Changes.

    def push(self, call: Call, data: bytes) -> bytes:
        incoming = _PUSH.split(data)
        head = incoming.head
        table, identity, keys = self._change(call, incoming, 14, head.dim)
        step = PushStep(head.lr if head.HasField("lr") else None, _occurrences(incoming))
        sent = incoming.array(15, np.uint8, "grads")
        grads = decode(sent, len(keys), table.dim, _wire(head.wire))
        applied = self._shard.push(identity, table.name, keys, grads, step, _terms(call, head.ack))
        return pb.PushReply(
            marks=_marks(applied), is_repeat=applied.is_repeat, sequence=identity.sequence
        ).SerializeToString()

    def assign(self, call: Call, data: bytes) -> bytes:
        incoming = _ASSIGN.split(data)
        table, identity, keys = self._change(call, incoming, 13, incoming.head.dim)
        state = None
        if incoming.num_bytes(15):
            state = _floats(incoming, 15, len(keys), _state_floats(table), "state")
        applied = self._shard.assign(
            identity,
            table.name,
            keys,
            _floats(incoming, 14, len(keys), table.dim, "rows"),
            RowState(state, _statistics(incoming, len(keys))),
            _terms(call, incoming.head.ack),
        )
        return pb.AssignReply(
            marks=_marks(applied), is_repeat=applied.is_repeat
        ).SerializeToString()

    def erase(self, call: Call, data: bytes) -> bytes:
        incoming = _ERASE.split(data)
        table, identity, keys = self._change(call, incoming, 15)
        applied = self._shard.erase(identity, table.name, keys, _terms(call, incoming.head.ack))
        erased = b"" if applied.answer is None else _flags(applied.answer)
        return pb.EraseReply(
            marks=_marks(applied), is_repeat=applied.is_repeat, erased=erased
        ).SerializeToString()

    def erase_where(self, call: Call, data: bytes) -> bytes:
        head = read_small(pb.EraseWhereRequest, data)
        table = self._table(call, head.table, WRITE, head.lineage)
        require_client(call.caller, head.id.client_id)
        identity = Identity(head.id.client_id, head.id.incarnation, head.id.sequence)
        given = {name: getattr(head, name) for name in WHERE_FIELDS if head.HasField(name)}
        applied = self._shard.erase_where(
            identity, table.name, RowsWhere(**given), _terms(call, head.ack)
        )
        return pb.EraseWhereReply(
            marks=_marks(applied),
            is_repeat=applied.is_repeat,
            erased=None if applied.answer is None else int(applied.answer[0]),
        ).SerializeToString()

    def create(self, call: Call, data: bytes) -> bytes:
        incoming = _CREATE.split(data)
        head = incoming.head
        table, identity, keys = self._change(call, incoming, 15, head.dim)
        wire = _wire(head.wire)
        # The room is taken before the change: what is refused must not have been applied.
        self._take_reply(call, wire.num_bytes(len(keys), table.dim))
        applied = self._shard.create(identity, table.name, keys, _terms(call, head.ack))
        message = pb.CreateReply(
            marks=_marks(applied), is_repeat=applied.is_repeat, dim=table.dim, wire=head.wire
        )
        try:
            return _rows_reply(message, applied.answer, wire)
        except (NonFiniteError, MemoryError):  # it is applied: an error would call it refused
            return message.SerializeToString()

    # Arguments.

    def _change(
        self, call: Call, incoming: AnyIncoming, keys_at: int, dim: int = 0
    ) -> tuple[TableConfig, Identity, Keys]:
        """What every change begins with: its table, which change it is, its keys.

        Args:
            keys_at: the number of the keys' field.
            dim: what the client believes; 0 is not checked.
        """
        head = incoming.head
        table = self._table(call, head.table, WRITE, head.lineage)
        _check_dim(table, dim)
        require_client(call.caller, head.id.client_id)
        identity = Identity(head.id.client_id, head.id.incarnation, head.id.sequence)
        return table, identity, self._keys(incoming, keys_at)

    def _table(self, call: Call, name: str, right: int, lineage: str) -> TableConfig:
        require_right(call.caller, name, right)
        tables = {known.name: known for known in self._shard.tables}
        if name not in tables:
            raise not_found(
                f"{no_such_table(name[:80])} here; the shard has "
                f"{[known for known in tables if call.caller.right(known)]}"
            )
        if lineage and lineage != self._shard.lineage:
            raise other_history(self._shard.lineage, lineage)
        return tables[name]

    def _keys(self, incoming: AnyIncoming, number: int) -> Keys:
        keys: Keys = incoming.array(number, np.uint64, "keys")
        if len(keys) > self._limits.keys:
            raise too_large(
                f"{len(keys)} keys in one request; {self._limits.keys} at most: send several"
            )
        return keys

    def _take_reply(self, call: Call, num_bytes: int) -> None:
        limit = int(self._limits.message_bytes) - _REPLY_ROOM
        if num_bytes > limit:
            raise too_large(
                f"the reply would have {num_bytes} bytes; {limit} at most: ask for fewer keys"
            )
        call.admission.take(num_bytes)

    def _reply(
        self, call: Call, head: Message, table: TableConfig, keys: Keys, wire: Wire
    ) -> Outgoing:
        num_bytes = wire.num_bytes(len(keys), table.dim)
        self._take_reply(call, num_bytes)
        return Outgoing(head, _ROWS, num_bytes)


def _check_dim(table: TableConfig, dim: int) -> None:
    if dim and dim != table.dim:
        raise mismatch(f"table {table.name!r} has dim {table.dim}, not {dim}; check the layout")


def _state_floats(table: TableConfig) -> int:
    return table.layout.state_floats


def _floats(incoming: AnyIncoming, number: int, num_rows: int, width: int, what: str) -> Floats:
    floats: Floats = incoming.array(number, np.float32, what)
    if len(floats) != num_rows * width:
        raise ConfigError(
            f"{what} has {len(floats)} floats; {num_rows} keys of {width} need {num_rows * width}"
        )
    return floats.reshape(num_rows, width)


def _occurrences(incoming: AnyIncoming) -> Occurrences | None:
    """What the keys of a push stand for; None where it does not say."""
    parts = [
        incoming.array(number, np.uint32, what) if incoming.num_bytes(number) else None
        for number, what in ((10, "shows"), (11, "clicks"))
    ]
    return None if all(part is None for part in parts) else Occurrences(*parts)


def _statistics(incoming: AnyIncoming, num_rows: int) -> Statistics | None:
    """Those of an assign; None where there are none."""
    if not incoming.num_bytes(11):
        return None
    packed = incoming.array(11, PACKED, "statistics")
    if len(packed) != num_rows:
        raise ConfigError(f"statistics has {len(packed)} rows for {num_rows} keys")
    return unpack(packed)


def _rows_reply(message: pb.CreateReply, rows: AnyArray | None, wire: Wire) -> bytes:
    """The reply with rows [L, dim], or without any if there are none."""
    if rows is None:
        return message.SerializeToString()
    reply = Outgoing(message, _ROWS, wire.num_bytes(*rows.shape))
    encode(as_numpy(rows, "rows"), wire, reply.rows)
    return reply.message


def _wire(number: int) -> Wire:
    try:
        return Wire(number)
    except ValueError as error:
        known = {wire.name: int(wire) for wire in Wire}
        raise ConfigError(f"wire={number}: must be the number of a DType: {known}") from error


def _marks(applied: Applied) -> pb.Marks:
    marks = applied.marks
    return pb.Marks(applied=marks.applied, logged=marks.logged, durable=marks.durable)


def _terms(call: Call, ack: int) -> Terms:
    """What the shard is to wait for: asked right before it starts, so that nothing late begins."""
    return Terms(as_ack(ack), call.remaining())


def _flags(values: AnyArray) -> bytes:
    """One byte a key, 1 or 0."""
    return np.ascontiguousarray(values, np.uint8).tobytes()
