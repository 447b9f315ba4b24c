"""RemoteParts: checkpoints over all shards of a service, of which each keeps a part.

Above it: parameter_server.py, through checkpoint/over_parts.py, which says in which order a
checkpoint is taken, gone back to and deleted. Below it: shards.py, connections.py.

Shards 1, 2 ... take their parts first; shard 0 comes last, with the dense side and with the name
and marks of the whole in its group: that makes the checkpoint. What a death before it leaves behind
is deleted by a later checkpoint.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

from hps.checkpoint import blobs as dense_side
from hps.checkpoint.blobs import Dense, ModelState
from hps.checkpoint.names import AUTOMATIC, check_tag, part_name, part_tag, text_of
from hps.checkpoint.over_parts import (
    Taken,
    check_is_named,
    describe,
    find_or_current,
    fitting_all,
)
from hps.common.json_text import Json, JsonView, parse_json
from hps.errors import ConfigError, CorruptionError, HpsError
from hps.service.client.connections import Connections
from hps.service.client.session import Session
from hps.service.client.shards import Shards
from hps.service.client.training import LoopGradients
from hps.v1 import parameter_server_pb2 as pb

_KEEP_LAST = 2  # checkpoints without a tag
_MOST_TOLD = 20  # checkpoints that an error names
_LEFTOVER_SECONDS = 600.0  # a part of none may be of one that is being taken


@dataclass(frozen=True)
class ShardsCheckpoint:
    """A checkpoint of shard 0, and its parts on the others.

    Args:
        info: what shard 0 says.
        name: of the whole; empty: a checkpoint that the shard took by itself.
        others: the part of each further shard.
    """

    info: pb.CheckpointInfo
    name: str
    others: list[pb.CheckpointInfo]

    @property
    def parts(self) -> list[pb.CheckpointInfo]:
        """Of all shards, in their order."""
        return [self.info, *self.others]

    @property
    def tag(self) -> str | None:
        """As its caller named it, or None."""
        return None if not self.info.tag or part_name(self.info.tag) else self.info.tag

    @property
    def name_now(self) -> str:
        """Its tag, or its id as id:N."""
        return text_of(self.tag or int(self.info.id))

    def described(self) -> Json:
        """As ParameterServer.checkpoints() lists it."""
        parts, info = self.parts, self.info
        listed = describe(self.tag, info.id, parts, info.created, info.current)
        return {**listed, "automatic": not self.name, "names": list(info.names)}


@dataclass
class _Draft:
    """A checkpoint that is being taken.

    Args:
        name: of the whole.
        before: names of those that there were before.
        is_given: it has a model or a reader's position of its own.
        first: the request to shard 0.
        other: the request to each further shard.
        replies: of the further shards, once they have saved their parts.
    """

    name: str
    before: set[str]
    is_given: bool
    first: pb.CheckpointRequest
    other: pb.CheckpointRequest
    replies: list[pb.CheckpointReply] = field(default_factory=list)


class RemoteParts:
    """The parts on the shards; keeps hps.checkpoint.over_parts.Parts.

    Args:
        connections: to the shards.
        shards: what they say of themselves.
        loop: of the training, in which no pipeline may be open at a restore.
    """

    members = "shards"

    def __init__(self, connections: Connections, shards: Shards, loop: LoopGradients) -> None:
        self._connections = connections
        self._shards = shards
        self._loop = loop

    # A new checkpoint.

    def begin(
        self,
        tag: str | None,
        model: ModelState | None,
        reader: JsonView | None,
    ) -> _Draft:
        """As Parts; waits until the changes of this client are in the logs."""
        if tag is not None:
            check_tag(tag)
        blobs = dense_side.encode_dense(model, reader)
        first = pb.CheckpointRequest(clients=[str(self._connections.config.client_id)])
        if dense_side.MODEL in blobs:
            first.model = blobs[dense_side.MODEL]
        if dense_side.READER in blobs:
            first.reader = blobs[dense_side.READER]
        self._shards.flush()
        before = {found.name for found in self.kept()}
        name = uuid4().hex
        first.tag = tag or part_tag(name)
        other = pb.CheckpointRequest(tag=part_tag(name), group=name, clients=first.clients)
        is_given = bool(blobs)
        if is_given:
            other.model_cut = first.model_cut = name
        return _Draft(name, before, is_given, first, other)

    def save_parts(self, draft: _Draft) -> None:
        """As Parts: on all shards but the first."""
        draft.replies = self._connections.ask_all(
            "Checkpoint", draft.other, pb.CheckpointReply, self._connections.sessions[1:]
        )

    def commit(self, draft: _Draft) -> Taken:
        """As Parts: on shard 0, with the name and marks of the whole."""
        replies, request = draft.replies, draft.first
        marks = [self._mark_in(reply) for reply in replies]
        if not draft.is_given and replies:
            request.model_cut = fitting_all(reply.model_cut or None for reply in replies) or ""
        request.group = json.dumps({"cut": draft.name, "marks": marks}, sort_keys=True)
        (first,) = self._connections.ask_all(
            "Checkpoint", request, pb.CheckpointReply, self._connections.sessions[:1]
        )
        replies = [first, *replies]
        source = first.model_from
        return Taken(
            [reply.rows_written for reply in replies],
            [reply.bytes_written for reply in replies],
            {
                "marks": [self._mark_in(first), *marks],
                **({"model_from": source} if source else {}),
            },
        )

    def tidy(self, draft: _Draft) -> None:
        """As Parts: checkpoints without a tag but the newest go."""
        listed = self.listed()
        kept = self._wholes(listed)
        unnamed = [
            found
            for found in kept
            if found.tag is None and found.name and not found.info.is_promoted
        ]
        for found in unnamed[:-_KEEP_LAST]:
            with suppress(ConfigError):  # it was promoted since it was listed, and stays
                self.delete(found)
        named = {_name_of(info.group) for info in listed[0]}
        for session, infos in zip(self._connections.sessions[1:], listed[1:], strict=True):
            own = next((info.created for info in infos if info.group == draft.name), 0.0)
            for info in infos:
                is_part = part_name(info.tag) is not None and info.group not in named
                is_old = info.created < own - _LEFTOVER_SECONDS
                if is_part and (info.group in draft.before or is_old):
                    with suppress(ConfigError):  # the reply to an attempt that did it was lost
                        request = pb.DeleteCheckpointRequest(tag=text_of(info.id))
                        self._delete_one(session, request)

    # Those that are kept.

    def to_restore(self, tag: str | int | None) -> ShardsCheckpoint:
        """As Parts."""
        if self._loop.num_open_pipelines:
            raise ConfigError(
                f"restore: {self._loop.num_open_pipelines} open pipeline(s); leave the pipeline's "
                "`with` block first"
            )
        return self.find(tag)

    def to_read(self, tag: str | int | None) -> ShardsCheckpoint | None:
        """As Parts; refuses None where none of those that are kept is current."""
        if tag is None:
            kept = self.kept()
            if kept and not any(found.info.current for found in kept):
                raise _without_current(kept)
            if not kept:
                return None
        return self.find(tag)

    def to_delete(self, tag: str | int) -> ShardsCheckpoint:
        """As Parts."""
        check_is_named(tag)
        return self.find(tag)

    def state_of(self, whole: ShardsCheckpoint) -> Dense:
        """As Parts: shard 0 has it."""
        request = pb.CheckpointStateRequest(tag=text_of(whole.info.id))
        (reply,) = self._connections.ask_all(
            "CheckpointState", request, pb.CheckpointStateReply, self._connections.sessions[:1]
        )
        blobs = {}
        if reply.HasField("model"):
            blobs[dense_side.MODEL] = reply.model
        if reply.HasField("reader"):
            blobs[dense_side.READER] = reply.reader
        return dense_side.decode_dense(blobs)

    def go_back(self, whole: ShardsCheckpoint) -> Exception | None:
        """As Parts; the sessions of all clients end, and this client's begin anew."""
        lineage = uuid4().hex[:16]
        requests = [_restore_request(info, lineage) for info in whole.parts]
        self._connections.ask_each("Restore", requests, pb.RestoreReply)
        for request in requests:
            request.prepare = False
        try:
            self._connections.ask_each("Restore", requests, pb.RestoreReply)
        except HpsError as error:
            return error
        for session in self._connections.sessions:
            session.restart(lineage)
        self._shards.refresh()
        return None

    def delete(self, whole: ShardsCheckpoint) -> list[str]:
        """As Parts: on shard 0 first; without it the others' parts are parts of none."""
        readers: list[str] = []
        for index, info in enumerate(whole.parts):
            session = self._connections.sessions[index]
            request = pb.DeleteCheckpointRequest(tag=text_of(info.id))
            try:
                readers += self._delete_one(session, request)
            except ConfigError:
                # Either the reply to an attempt that deleted it was lost, or, of shard 0, it has a
                # promoted name: then it stays, and so must its other parts.
                if index == 0 and any(one.id == info.id for one in self.listed()[0]):
                    raise
        return readers

    def described(self) -> list[Json]:
        """As Parts."""
        return [found.described() for found in self.kept()]

    def find(self, tag: str | int | None) -> ShardsCheckpoint:
        """A checkpoint by its tag, promoted name or id; None is the current one, or the newest
        where none is.

        Raises:
            ConfigError: there is none, on all shards.
        """
        kept = self.kept()
        for found in kept:
            if isinstance(tag, str) and tag in found.info.names:
                return found
        current = next((found for found in kept if found.info.current), kept[-1] if kept else None)
        where = f"what all {len(self._connections.sessions)} shard(s) hold"
        words = (where, "there is no checkpoint yet")
        return find_or_current(kept, tag, lambda found: (found.tag, found.info.id), current, words)

    def kept(self) -> list[ShardsCheckpoint]:
        """Those of which all shards have their part, oldest first."""
        return self._wholes(self.listed())

    def listed(self) -> list[list[pb.CheckpointInfo]]:
        """The checkpoints of each shard; of shard 0's that is current which the rows descend from,
        also if the shard has taken one by itself since."""
        request = pb.ListCheckpointsRequest()
        replies = self._connections.ask_all("ListCheckpoints", request, pb.ListCheckpointsReply)
        if descent := replies[0].descends_from:  # empty: an older server, which does not tell
            for info in replies[0].checkpoints:
                info.current = descent in (_name_of(info.group), text_of(info.id))
        return [list(reply.checkpoints) for reply in replies]

    def _wholes(self, listed: Sequence[Sequence[pb.CheckpointInfo]]) -> list[ShardsCheckpoint]:
        """Those of which every shard has its part, oldest first."""
        parts = [{info.group: info for info in infos if info.group} for infos in listed[1:]]
        found = []
        for info in listed[0]:
            if info.tag == AUTOMATIC:
                continue
            name = _name_of(info.group)
            held = [of_shard[name] for of_shard in parts if name and name in of_shard]
            if len(held) == len(parts):
                found.append(ShardsCheckpoint(info, name, held))
        return found

    def _mark_in(self, reply: pb.CheckpointReply) -> list[int] | None:
        mark = reply.sessions.get(str(self._connections.config.client_id))
        return None if mark is None else [mark.incarnation, mark.sequence]

    def _delete_one(self, session: Session, request: pb.DeleteCheckpointRequest) -> list[str]:
        (reply,) = self._connections.ask_all(
            "DeleteCheckpoint", request, pb.DeleteCheckpointReply, [session]
        )
        return list(reply.readers)


def _without_current(kept: Sequence[ShardsCheckpoint]) -> ConfigError:
    words = ", ".join(repr(text_of(found.tag or found.info.id)) for found in kept[-_MOST_TOLD:])
    return ConfigError(
        "the rows on the servers descend from none of the checkpoints that are kept (the newest: "
        f"{words}): theirs was deleted, or an older hps took what the servers opened at. Name the "
        "one to take: 'hps evaluate --checkpoint NAME' measures its model on the rows as they are, "
        "'hps train --resume-from NAME' goes back to its rows and on from there"
    )


def _restore_request(info: pb.CheckpointInfo, lineage: str) -> pb.RestoreRequest:
    return pb.RestoreRequest(tag=text_of(info.id), group=info.group, lineage=lineage, prepare=True)


def _name_of(group: str) -> str:
    """The name of the whole that shard 0's group describes; empty for anything else."""
    try:
        value = parse_json(group, "group", max_bytes=2**16)
    except CorruptionError:  # another program's, which may be anything
        return ""
    return str(value.get("cut", "")) if isinstance(value, dict) else ""
