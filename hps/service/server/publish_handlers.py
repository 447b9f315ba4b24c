"""Handlers of `hps.v1.Publishing`: a shard's files of versions that a client makes.

Above it: server.py. Below it: `hps.service.shard.shard`, hps/publish/places.py.
"""

import json

from hps.checkpoint.blobs import table_to_json
from hps.publish.options import PublishOptions
from hps.publish.places import PublishPlaces
from hps.service.messages.framing import read_small
from hps.service.messages.status import Code, Refusal, refusal_of
from hps.service.server.auth import ADMIN, EVERY_TABLE, require_right
from hps.service.server.calls import Call
from hps.service.server.log_lines import LogLines
from hps.service.shard.publishing import PartOrder, PartWriting
from hps.service.shard.shard import Shard
from hps.v1 import publishing_pb2 as pb
from hps.v1.parameter_server_pb2 import ErrorDetail

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Publishing"].full_name
_MAX_REQUEST_BYTES = 2**20  # names of thousands of tables
_LONGEST_WAIT_SECONDS = 30.0
_ROOM_SECONDS = 0.5  # for the reply, before the deadline


class PublishHandlers:
    """Handlers of one server; thread-safe. See RowHandlers.

    Args:
        shard: what writes.
        places: that it may write to.
        log: of the server.
    """

    def __init__(self, shard: Shard, places: PublishPlaces, log: LogLines) -> None:
        self._shard = shard
        self._places = places
        self._log = log

    def describe_part(self, call: Call, data: bytes) -> bytes:
        request = read_small(pb.DescribePartRequest, data)
        require_right(call.caller, EVERY_TABLE, ADMIN)
        self._places.check(request.place)
        if not request.HasField("created"):
            return pb.DescribePartReply().SerializeToString()
        found = self._shard.describe_part(request.created, call.remaining())
        return pb.DescribePartReply(
            store=found.store,
            lineage=found.lineage,
            period=found.period,
            seed=found.seed,
            can_follow=found.can_follow,
            tables=json.dumps([table_to_json(table) for table in found.tables]),
            rules=found.rules,
        ).SerializeToString()

    def publish_part(self, call: Call, data: bytes) -> bytes:
        request = read_small(pb.PublishPartRequest, data, _MAX_REQUEST_BYTES)
        require_right(call.caller, EVERY_TABLE, ADMIN)
        order = PartOrder(
            place=self._places.check(request.place),
            folder=request.folder,
            created=request.created,
            before=request.before if request.HasField("before") else None,
            is_base=request.is_base,
            options=PublishOptions(
                dtype=request.dtype,
                tables=tuple(request.tables.names) if request.HasField("tables") else None,
                min_score=request.min_score if request.HasField("min_score") else None,
            ),
        )
        asked = min(request.wait_ms / 1000, _LONGEST_WAIT_SECONDS)
        writing = self._shard.write_part(order, min(asked, call.remaining() - _ROOM_SECONDS))
        reply = pb.PublishPartReply(
            has_ended=writing.has_ended, rows=writing.rows, bytes=writing.num_bytes
        )
        if reply.has_ended:
            self._add_end(writing, reply, call.caller.name)
        return reply.SerializeToString()

    def _add_end(self, writing: PartWriting, reply: pb.PublishPartReply, client: str) -> None:
        folder = writing.order.folder
        if writing.files is not None:
            reply.files = json.dumps([files.to_json() for files in writing.files])
            self._log.info(
                "published",
                folder=folder,
                rows=writing.rows,
                bytes=writing.num_bytes,
                client=client,
            )
            return
        assert writing.error is not None, "a writing ends with files or an error"
        refusal = refusal_of(writing.error)
        if refusal is None:
            self._log.error("internal", method="PublishPart", trace=writing.trace)
            refusal = Refusal(
                Code.INTERNAL, ErrorDetail.OTHER, "internal error; the server's log has the trace"
            )
        reply.error.CopyFrom(refusal.detail)
        self._log.warning("not published", folder=folder, message=refusal.detail.message)

    def drop_part(self, call: Call, data: bytes) -> bytes:
        request = read_small(pb.DropPartRequest, data)
        require_right(call.caller, EVERY_TABLE, ADMIN)
        place = self._places.check(request.place)
        wait = min(_LONGEST_WAIT_SECONDS, call.remaining() - _ROOM_SECONDS)
        self._shard.drop_part(place, request.folder, wait)
        return pb.DropPartReply().SerializeToString()
