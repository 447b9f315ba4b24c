"""RemoteNames: the promoted names of checkpoints over all shards of a service.

Above it: parameter_server.py. Below it: checkpoints.py, which finds what a name is given to; shard
0, whose store keeps the names (hps/ssd_store/promote.py).
"""

from hps.checkpoint.names import text_of
from hps.common.json_text import Json
from hps.errors import ConfigError
from hps.service.client.checkpoints import RemoteParts, ShardsCheckpoint
from hps.service.client.connections import Connections
from hps.service.client.shards import Shards
from hps.ssd_store.promote import LIVE
from hps.v1 import parameter_server_pb2 as pb


class RemoteNames:
    """Gives checkpoints names that move: what takes a checkpoint's tag takes such a name.

    Args:
        connections: to the shards.
        shards: what they say of themselves.
        parts: of the checkpoints.
    """

    def __init__(self, connections: Connections, shards: Shards, parts: RemoteParts) -> None:
        self._connections = connections
        self._shards = shards
        self._parts = parts

    def promote(self, checkpoint: str | int, name: str = LIVE) -> Json:
        """Gives a checkpoint of all shards another name, which moves there from the one that had
        it. Both are then kept, whatever newer ones come.

        Args:
            checkpoint: its tag, its id as checkpoints() lists it, or another promoted name.
            name: as a tag; no checkpoint has it as its tag, nor is it `final`, `best` or `last`.

        Returns:
            `name`, `checkpoint` (tag, or id as id:N), `id`, and `before`: what had the name, or
            None.

        Raises:
            ConfigError: no such checkpoint; the name is a tag or cannot be one; servers of an older
                hps. RemoteError: shard 0 did not answer: repeat the call.
        """
        self._check("promote")
        found = self._parts.find(checkpoint)
        before = self._holder(name)
        self._move(pb.MoveNameRequest(name=name, checkpoint=text_of(found.info.id)))
        return _moved(name, found, before)

    def roll_back(self, name: str = LIVE) -> Json:
        """Gives a name back to the checkpoint that had it before, of those that are still kept.
        Where another client gives it to one meanwhile, it stays there.

        Returns:
            As `promote`; `checkpoint` is the one that has the name now, also in that case.

        Raises:
            ConfigError: no such name, or nothing that had it before is kept; servers of an older
                hps. RemoteError: shard 0 did not answer; look where the name is before you repeat.
        """
        self._check("roll_back")
        before = self._held(name)
        reply = self._move(pb.MoveNameRequest(name=name, leaves=before.info.created))
        return _moved(name, self._parts.find(int(reply.id)), before)

    def drop(self, name: str) -> Json:
        """Takes a name away, with its history; the checkpoints stay.

        Returns:
            As `promote`; `checkpoint` and `id` are None.

        Raises:
            ConfigError: no such name, or it was given to another checkpoint meanwhile; servers of
                an older hps. RemoteError: shard 0 did not answer: repeat the call.
        """
        self._check("drop")
        before = self._held(name)
        reply = self._move(pb.MoveNameRequest(name=name, leaves=before.info.created, drop=True))
        if reply.HasField("id"):
            raise ConfigError(
                f"drop: {name!r} was given to checkpoint {text_of(int(reply.id))!r} meanwhile; "
                "repeat the call to take it away from that one"
            )
        return _moved(name, None, before)

    def _check(self, verb: str) -> None:
        self._shards.check_usable(verb)
        self._shards.refuse_nameless(verb)

    def _holder(self, name: str) -> ShardsCheckpoint | None:
        kept = self._parts.kept()
        return next((found for found in kept if name in found.info.names), None)

    def _held(self, name: str) -> ShardsCheckpoint:
        found = self._holder(name)
        if found is None:
            names = sorted({one for found in self._parts.kept() for one in found.info.names})
            told = ", ".join(map(repr, names)) or "none"
            raise ConfigError(f"{name!r} is no promoted name of the servers; there are: {told}")
        return found

    def _move(self, request: pb.MoveNameRequest) -> pb.MoveNameReply:
        first = self._connections.sessions[:1]
        (reply,) = self._connections.ask_all("MoveName", request, pb.MoveNameReply, first)
        return reply


def _moved(name: str, now: ShardsCheckpoint | None, before: ShardsCheckpoint | None) -> Json:
    return {
        "name": name,
        "checkpoint": None if now is None else now.name_now,
        "id": None if now is None else now.info.id,
        "before": None if before is None else before.name_now,
    }
