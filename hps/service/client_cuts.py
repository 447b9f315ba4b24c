"""RemoteCuts: the verbs of RemoteParameterServer for cuts over all shards: take, list, go back.

Above it: client.py, which is one. Below it: client_base.py, hps.checkpoint (the dense side).

A cut has a name of its own. Shards 1, 2 ... take their parts first, tagged `cut-NAME`; shard 0
comes last, with the dense side and the cut's name and marks: that makes the cut, all at once. What
a death before it leaves behind is deleted by a later checkpoint.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from hps import checkpoint as cut
from hps.checkpoint_names import AUTOMATIC, check_tag, find_named, part_name, text_of
from hps.errors import ConfigError, CorruptionError, HpsError
from hps.json_text import parse_json
from hps.service.client_base import Shards
from hps.service.client_session import Session
from hps.v1 import parameter_server_pb2 as pb

_KEEP_LAST = 2  # cuts without a tag
_MOST_TOLD = 20  # cuts that an error names
_LEFTOVER_SECONDS = 600.0  # a part that no cut names may be of one that is being taken


@dataclass(frozen=True)
class _Cut:
    """A checkpoint of shard 0, and its parts on the others.

    Args:
        info: what shard 0 says.
        name: of the cut; empty: a checkpoint that the shard took by itself.
        parts: on each further shard.
    """

    info: pb.CheckpointInfo
    name: str
    parts: list[pb.CheckpointInfo]

    @property
    def tag(self) -> str | None:
        return None if not self.info.tag or part_name(self.info.tag) else self.info.tag

    def described(self) -> dict[str, Any]:
        """As ParameterServer.checkpoints() lists it."""
        return {
            "tag": self.tag,
            "id": self.info.id,
            "rows": sum(info.rows for info in (self.info, *self.parts)),
            "bytes": sum(info.bytes for info in (self.info, *self.parts)),
            "created": self.info.created,
            "current": self.info.current,
            "automatic": not self.name,
        }


class RemoteCuts(Shards):
    """Checkpoint, restore and what goes with them."""

    def checkpoint(
        self,
        tag: str | None = None,
        model: Mapping[str, Any] | None = None,
        reader: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Makes everything durable in one cut over all shards: rows, model, reader position.

        Changes of this client that come before are in it, those after are not; other clients must
        hold still meanwhile, or each shard has its own idea of theirs. Without model and reader it
        takes over those of the cut that the rows descend from, if no client has pushed since.

        Args:
            tag: its name; it replaces an older one of that name. None: the newest two are kept.
            model: what torch.load(weights_only=True) reads: state dicts, tensors, numbers.
            reader: the position of a reader, as its state_dict() gives it; JSON.

        Returns:
            {"tag", "rows_written", "bytes", "seconds", "marks"}: of each shard this client's
            incarnation and the last change that the cut holds; None on a shard it never changed.
            "model_from" as hps.ParameterServer.checkpoint says.

        Raises:
            ConfigError: a bad tag, or a model or reader that could not be read back.
            RemoteError: a shard did not answer; the cut before it stays the newest.
        """
        if tag is not None:
            check_tag(tag)
        dense = pb.CheckpointRequest(clients=[str(self.config.client_id)])
        if model is not None:
            dense.model = cut.encode_model(model)
        if reader is not None:
            dense.reader = cut.encode_json(dict(reader), "reader")
        started = time.perf_counter()
        self.flush()
        before = {found.name for found in self._cuts(self._listed())}
        name = uuid4().hex
        dense.tag = tag or f"cut-{name}"
        part = pb.CheckpointRequest(tag=f"cut-{name}", group=name, clients=dense.clients)
        is_given = model is not None or reader is not None
        if is_given:
            part.model_cut = dense.model_cut = name
        replies = self._ask_all("Checkpoint", part, pb.CheckpointReply, self._sessions[1:])
        marks = [self._mark_in(reply) for reply in replies]
        fitting = {reply.model_cut for reply in replies}
        if not is_given and replies:
            dense.model_cut = fitting.pop() if len(fitting) == 1 else ""
        dense.group = json.dumps({"cut": name, "marks": marks}, sort_keys=True)
        first = self._ask_all("Checkpoint", dense, pb.CheckpointReply, self._sessions[:1])
        self._tidy(name, before)
        replies = [*first, *replies]
        source = first[0].model_from
        return {
            "tag": tag,
            "rows_written": sum(reply.rows_written for reply in replies),
            "bytes": sum(reply.bytes_written for reply in replies),
            "seconds": time.perf_counter() - started,
            "marks": [self._mark_in(first[0]), *marks],
            **({"model_from": source} if source else {}),
        }

    def restore(self, tag: str | int | None = None) -> tuple[Any, Any]:
        """Goes back to a cut, on all shards or none.

        All clients' sessions end: those of others are refused from then on, this one goes on. A
        table that is younger than the cut stays, and is empty.

        Args:
            tag: its tag, or its id as checkpoints() lists it; None is the current one, or the
                newest where none is.

        Returns:
            (model, reader) as they were given to checkpoint(), each None if it was not.

        Raises:
            ConfigError: no such cut, or a shard lacks its part (no shard went back); a pipeline is
                open.
            CorruptionError: the checkpoint is damaged; no shard went back.
            RemoteError: a shard did not answer. If others went back already, no client can use the
                shards until restore() has been called again.
        """
        if self.num_open_pipelines:
            raise ConfigError(
                f"restore: {self.num_open_pipelines} open pipeline(s); leave the pipeline's `with` "
                "block first"
            )
        found = self._find(tag)
        state = self._state_of(found)
        lineage = uuid4().hex[:16]
        requests = [_restore_request(info, lineage) for info in (found.info, *found.parts)]
        self._ask_each("Restore", requests, pb.RestoreReply)
        for request in requests:
            request.prepare = False
        try:
            self._ask_each("Restore", requests, pb.RestoreReply)
        except HpsError as error:
            error.add_note("shards may be at different cuts now: call restore() again")
            raise
        for session in self._sessions:
            session.restart(lineage)
        self._describe()
        return state

    def checkpoint_state(self, tag: str | int | None = None) -> tuple[Any, Any]:
        """(model, reader) of a cut, without going back to it.

        Args:
            tag: its tag, or its id as checkpoints() lists it; None is the current one.

        Raises:
            ConfigError: no such cut, or None and no cut that is kept is current.
            CorruptionError: the checkpoint is damaged.
        """
        if tag is None:
            cuts = self._cuts(self._listed())
            if cuts and not any(found.info.current for found in cuts):
                raise _without_current(cuts)
            if not cuts:
                return None, None
        return self._state_of(self._find(tag))

    def checkpoints(self) -> list[dict[str, Any]]:
        """The cuts that are kept, oldest first: tag (or None), id, rows, bytes, created.

        Checkpoints that the shards take by themselves are no cuts; of a single shard the one that
        it takes at its end is listed, as `automatic`. The cut that the rows descend from is
        `current`; none is if that one is not kept any more, or the servers cannot tell.
        """
        return [found.described() for found in self._cuts(self._listed())]

    def delete_checkpoint(self, tag: str | int) -> list[str]:
        """Deletes a cut, named by its tag or its id.

        Returns:
            The living readers of it, in words; its files stay until they close.

        Raises:
            ConfigError: no such cut, or None.
        """
        if tag is None:
            raise ConfigError("delete_checkpoint(None): name a checkpoint by its tag or id")
        return self._delete(self._find(tag))

    def _mark_in(self, reply: pb.CheckpointReply) -> list[int] | None:
        mark = reply.sessions.get(str(self.config.client_id))
        return None if mark is None else [mark.incarnation, mark.sequence]

    def _listed(self) -> list[list[pb.CheckpointInfo]]:
        """The checkpoints of each shard; of shard 0's that is current which the rows descend from,
        also if the shard has taken one by itself since."""
        request = pb.ListCheckpointsRequest()
        replies = self._ask_all("ListCheckpoints", request, pb.ListCheckpointsReply)
        if descent := replies[0].descends_from:  # empty: an older server, which does not tell
            for info in replies[0].checkpoints:
                info.current = descent in (_name_of(info.group), text_of(info.id))
        return [list(reply.checkpoints) for reply in replies]

    def _cuts(self, listed: Sequence[Sequence[pb.CheckpointInfo]]) -> list[_Cut]:
        """The whole cuts among checkpoints, oldest first."""
        parts = [{info.group: info for info in infos if info.group} for infos in listed[1:]]
        found = []
        for info in listed[0]:
            if info.tag == AUTOMATIC:
                continue
            name = _name_of(info.group)
            held = [of_shard[name] for of_shard in parts if name and name in of_shard]
            if len(held) == len(parts):
                found.append(_Cut(info, name, held))
        return found

    def _find(self, tag: str | int | None) -> _Cut:
        cuts = self._cuts(self._listed())
        if tag is None and cuts:
            return next((found for found in cuts if found.info.current), cuts[-1])
        where = f"what all {len(self._sessions)} shard(s) hold"
        if tag is None:
            raise ConfigError(f"{where}: there is no checkpoint yet")
        return find_named(where, cuts, tag, lambda found: (found.tag, found.info.id))

    def _state_of(self, found: _Cut) -> tuple[Any, Any]:
        request = pb.CheckpointStateRequest(tag=text_of(found.info.id))
        replies = self._ask_all(
            "CheckpointState", request, pb.CheckpointStateReply, self._sessions[:1]
        )
        blobs = {}
        if replies[0].HasField("model"):
            blobs[cut.MODEL] = replies[0].model
        if replies[0].HasField("reader"):
            blobs[cut.READER] = replies[0].reader
        return cut.decode_model(blobs), cut.decode_json(blobs, cut.READER)

    def _delete(self, found: _Cut) -> list[str]:
        """On shard 0 first: without it the others' parts are no cut."""
        readers: list[str] = []
        for session, info in zip(self._sessions, (found.info, *found.parts), strict=True):
            request = pb.DeleteCheckpointRequest(tag=text_of(info.id))
            readers += self._delete_one(session, request)
        return readers

    def _delete_one(self, session: Session, request: pb.DeleteCheckpointRequest) -> list[str]:
        try:
            reply = self._ask_all("DeleteCheckpoint", request, pb.DeleteCheckpointReply, [session])[
                0
            ]
        except ConfigError:  # the reply to an attempt that deleted it was lost
            return []
        return list(reply.readers)

    def _tidy(self, name: str, before: set[str]) -> None:
        """Deletes cuts without a tag but the newest, and parts that no cut names any more."""
        listed = self._listed()
        cuts = self._cuts(listed)
        unnamed = [found for found in cuts if found.tag is None and found.name]
        for found in unnamed[:-_KEEP_LAST]:
            self._delete(found)
        named = {_name_of(info.group) for info in listed[0]}
        for session, infos in zip(self._sessions[1:], listed[1:], strict=True):
            own = next((info.created for info in infos if info.group == name), 0.0)
            for info in infos:
                is_part = part_name(info.tag) is not None and info.group not in named
                is_old = info.created < own - _LEFTOVER_SECONDS
                if is_part and (info.group in before or is_old):
                    self._delete_one(session, pb.DeleteCheckpointRequest(tag=text_of(info.id)))


def _without_current(cuts: Sequence[_Cut]) -> ConfigError:
    words = ", ".join(repr(text_of(found.tag or found.info.id)) for found in cuts[-_MOST_TOLD:])
    return ConfigError(
        "the rows on the servers descend from none of the checkpoints that are kept (the newest: "
        f"{words}): theirs was deleted, or an older hps took what the servers opened at. Name the "
        "one to take: 'hps evaluate --checkpoint NAME' measures its model on the rows as they are, "
        "'hps train --resume-from NAME' goes back to its rows and on from there"
    )


def _restore_request(info: pb.CheckpointInfo, lineage: str) -> pb.RestoreRequest:
    return pb.RestoreRequest(tag=text_of(info.id), group=info.group, lineage=lineage, prepare=True)


def _name_of(group: str) -> str:
    """The name of the cut that shard 0's group describes; empty for anything else."""
    try:
        value = parse_json(group, "group", max_bytes=2**16)
    except CorruptionError:  # another program's, which may be anything
        return ""
    return str(value.get("cut", "")) if isinstance(value, dict) else ""
