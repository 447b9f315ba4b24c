"""The handler of `hps.v1.ModelServer`: rows of the model by their keys.

Above it: server.py. Below it: scorer.py; hps/service/messages.
"""

import numpy as np

from hps.common.wire import Wire, encode
from hps.errors import ConfigError
from hps.service.messages.framing import Frame
from hps.service.messages.in_place import Outgoing
from hps.service.messages.status import too_large
from hps.service.server.auth import READ, require_right
from hps.service.server.calls import Call, Handler, Service
from hps.service.server.limits import ServerLimits
from hps.serving.scorer import Scorer
from hps.v1 import model_server_pb2, parameter_server_pb2

SERVICE_NAME = model_server_pb2.DESCRIPTOR.services_by_name["ModelServer"].full_name
_REQUEST = Frame(parameter_server_pb2.PullRequest, (15,))
_ROWS = 15
_REPLY_ROOM = 4096  # bytes of a message besides its array


class RowHandlers:
    """Handlers of one server; thread-safe.

    Args:
        scorer: whose model has the rows.
        limits: of the server.
    """

    def __init__(self, scorer: Scorer, limits: ServerLimits) -> None:
        self._scorer = scorer
        self._limits = limits

    def handlers(self, calls: Service) -> dict[str, Handler]:
        """By the full names of their methods."""
        return {f"/{SERVICE_NAME}/Lookup": calls.unary("Lookup", self.lookup)}

    def lookup(self, call: Call, data: bytes) -> bytes:
        incoming = _REQUEST.split(data)
        head = incoming.head
        require_right(call.caller, head.table, READ)
        keys = incoming.array(15, np.uint64, "keys")
        limit = self._limits.keys
        if len(keys) > limit:
            raise too_large(f"{len(keys)} keys in one request; {limit} at most: send several")
        try:
            wire = Wire(head.wire)
        except ValueError as error:
            raise ConfigError(f"wire={head.wire}: must be the number of a DType") from error
        call.remaining()
        rows, version = self._scorer.lookup(head.table, keys)
        dim = rows.shape[1]
        if head.dim and head.dim != dim:
            raise ConfigError(f"table {head.table!r} has dim {dim}, not {head.dim}")
        num_bytes = wire.num_bytes(len(keys), dim)
        most = int(self._limits.message_bytes) - _REPLY_ROOM
        if num_bytes > most:
            raise too_large(
                f"the reply would have {num_bytes} bytes; {most} at most: ask for fewer keys"
            )
        call.admission.take(num_bytes)
        reply = Outgoing(
            model_server_pb2.LookupReply(dim=dim, wire=head.wire, version=version), _ROWS, num_bytes
        )
        encode(rows, wire, reply.rows)
        return reply.message
