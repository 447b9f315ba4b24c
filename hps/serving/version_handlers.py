"""Handlers of `hps.v1.ModelServer` for operators and log pipelines: versions, outcomes.

Above it: server.py. Below it: versions.py, scorer.py, outcomes.py; hps/service/messages.
"""

import numpy as np

from hps.common.json_text import Json
from hps.service.messages.framing import read_small
from hps.service.server.auth import ADMIN, EVERY_TABLE, require_right
from hps.service.server.calls import Call, Handler, Service
from hps.service.server.limits import ServerLimits
from hps.serving.refusals import invalid
from hps.serving.row_handlers import SERVICE_NAME
from hps.serving.scorer import Scorer
from hps.serving.versions import Versions
from hps.v1 import model_server_pb2 as pb


class VersionHandlers:
    """Handlers of one server; thread-safe.

    Args:
        scorer: of the model.
        versions: of it.
        limits: of the server.
    """

    def __init__(self, scorer: Scorer, versions: Versions, limits: ServerLimits) -> None:
        self._scorer = scorer
        self._versions = versions
        self._limits = limits

    def handlers(self, calls: Service) -> dict[str, Handler]:
        """By the full names of their methods."""
        methods = {
            "GetVersions": self.get_versions,
            "SetVersion": self.set_version,
            "Outcome": self.outcome,
        }
        return {f"/{SERVICE_NAME}/{name}": calls.unary(name, run) for name, run in methods.items()}

    def get_versions(self, call: Call, data: bytes) -> bytes:
        request = read_small(pb.GetVersionsRequest, data)
        self._scorer.check_caller(call.caller)
        self._check(request.name)
        return _reply(self._versions.state(request.limit))

    def set_version(self, call: Call, data: bytes) -> bytes:
        request = read_small(pb.SetVersionRequest, data)
        require_right(call.caller, EVERY_TABLE, ADMIN)
        self._check(request.name)
        call.remaining()
        if request.WhichOneof("to") == "version":
            return _reply(self._versions.go_to(request.version, call.deadline))
        if request.follow:
            return _reply(self._versions.follow(call.deadline))
        raise invalid("give `version`, the number of one that is kept, or `follow` as true")

    def outcome(self, call: Call, data: bytes) -> bytes:
        request = read_small(pb.OutcomeRequest, data, int(self._limits.message_bytes))
        self._scorer.check_reporter(call.caller)
        self._check(request.name)
        added = self._scorer.add_outcomes(
            request.version,
            np.array(request.scores, np.float32),
            np.array(request.labels, np.float32),
            np.array(request.weights, np.float32) if request.weights else None,
            self._limits.keys,
        )
        return pb.OutcomeReply(examples=added).SerializeToString()

    def _check(self, name: str) -> None:
        """Refuses another model than the one that is there; empty is that one."""
        if name:
            self._scorer.check_model(name)


def _reply(state: Json) -> bytes:
    own = {name: value for name, value in state.items() if name != "versions"}
    reply = pb.GetVersionsReply(**own)
    for one in state["versions"]:
        known = {name: value for name, value in one.items() if value is not None}
        reply.versions.add(number=known.pop("version"), **known)
    return reply.SerializeToString()
