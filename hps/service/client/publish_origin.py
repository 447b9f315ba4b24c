"""ServiceOrigin: the servers of a service as what versions are published of.

Above it: publishing.py, through hps/publish/publisher.py, which decides and makes the version
visible. Below it: checkpoints.py, names.py, the calls of hps.v1.Publishing. A checkpoint over all
shards is one moment of them; each shard writes the files of its own rows, all of them into the
folder of one version, and this client what is left: the dense part, and the file that makes the
version visible.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self, TypeVar

import grpc
from google.protobuf.message import Message

from hps.checkpoint.blobs import ModelState, table_from_json
from hps.common.json_text import Json, JsonView, parse_json
from hps.config import TableConfig
from hps.errors import ConfigError, CorruptionError, RemoteError, StoreError
from hps.publish.options import PublishOptions
from hps.publish.table_files import TableFiles, VersionFolder
from hps.service.client.checkpoints import RemoteParts, ShardsCheckpoint
from hps.service.client.connections import SLOW, Connections
from hps.service.client.errors import Failure, error_of_kind
from hps.service.client.names import RemoteNames
from hps.service.client.session import Session
from hps.v1 import publishing_pb2 as parts_pb

_WAIT_MS = 2000  # of one look at how far the shards are
_DROP_SECONDS = 5.0
_MOST_FILES_BYTES = 64 << 20

R = TypeVar("R", bound=Message)


@dataclass
class ServiceCheckpoint:
    """A checkpoint over all shards; keeps hps.publish.origin.Published.

    Args:
        whole: the checkpoint.
        parts: what each shard says of its part; none of one that is only followed.
        load_model: its dense side.
    """

    whole: ShardsCheckpoint
    parts: Sequence[parts_pb.DescribePartReply] = ()
    load_model: Callable[[], ModelState | None] = lambda: None
    tables: dict[str, TableConfig] = field(default_factory=dict)

    @property
    def created(self) -> float:
        """As Published; of shard 0's part."""
        return float(self.whole.info.created)

    @property
    def name(self) -> str:
        """As Published."""
        return self.whole.name_now

    @property
    def period(self) -> int:
        """As Published; the lowest, where an advance_period had not reached all shards."""
        return min(int(part.period) for part in self.parts)

    @property
    def seed(self) -> int:
        """As Published."""
        return int(self.parts[0].seed)

    @property
    def model(self) -> Json | None:
        """As Published; asked for now."""
        found = self.load_model()
        return None if found is None else dict(found)

    @property
    def keeps_files(self) -> bool:
        """As Published: shards open it when they write."""
        return False

    def keeps_model(self, before: Self) -> bool:
        """As Published: of the older one the model was let go."""
        return False

    def source(self) -> Json:
        """As Published."""
        stores = [part.store for part in self.parts]
        lineages = [part.lineage for part in self.parts]
        return {
            "store": f"shards-{_digest(stores)}",
            "lineage": _digest(lineages),
            "checkpoint": self.name,
            "created": self.created,
            "shards": [
                {
                    "store": part.store,
                    "lineage": part.lineage,
                    "created": info.created,
                    "rules": part.rules,
                }
                for part, info in zip(self.parts, self.whole.parts, strict=True)
            ],
        }

    def why_apart(self, number: int, source: JsonView) -> str:
        """As Published; says which shard."""
        own, others = self.source()["shards"], source.get("shards", ())
        if not all(part.can_follow for part in self.parts):
            return "a store of engine 'rocksdb' cannot tell what has changed"
        if len(own) != len(others):
            return f"version {number} is of another store"
        for index, (one, other) in enumerate(zip(own, others, strict=True)):
            if one["store"] != other["store"]:
                return f"version {number} is of another store than shard {index}'s"
            if one["lineage"] != other["lineage"]:
                return f"shard {index} went back to an older checkpoint since the newest version"
            if one["rules"] != other["rules"]:
                return "tables, or their rules, are others than those of the newest version"
        if self.created < source["created"]:
            return f"version {number} is of a newer checkpoint"
        return ""

    def close(self) -> None:
        """Nothing is open here: the shards let go by themselves."""


class ServiceOrigin:
    """The servers of a service as what versions are published of; keeps
    hps.publish.origin.Origin.

    Args:
        connections: to the shards.
        place: the destination, as the shards are told it.
        checkpoints: over all shards.
        names: of them.
        told: called now and then while the shards write, with the rows and bytes so far.
    """

    def __init__(
        self,
        connections: Connections,
        place: str,
        checkpoints: RemoteParts,
        names: RemoteNames,
        told: Callable[[int, int], object] = lambda rows, num_bytes: None,
    ) -> None:
        self._connections = connections
        self._place = place
        self._checkpoints = checkpoints
        self._names = names
        self._told = told

    def check(self) -> None:
        """Makes sure that all shards may write to the place.

        Raises:
            ConfigError: one may not, or is served by an older hps. RemoteError: one does not
                answer, or the token lacks the right `admin`.
        """
        count = len(self._connections.sessions)
        self._ask("DescribePart", [self._to_describe(None)] * count, parts_pb.DescribePartReply)

    def open(
        self,
        checkpoint: str | int | None,
        beside: ServiceCheckpoint | None,
        *,
        shares_index: bool = False,
    ) -> ServiceCheckpoint:
        """As Origin; None: the one that the rows descend from, or the newest. Servers have the
        indexes."""
        if checkpoint is None and not self._checkpoints.kept():
            self.check()  # says so before anything is done for it
            raise ConfigError(
                f"{self._connections.where}: there is no checkpoint of all shards yet, and "
                "versions are published from checkpoints; take one ('hps client checkpoint')"
            )
        whole = self._checkpoints.find(checkpoint)
        requests = [self._to_describe(info.created) for info in whole.parts]
        parts = self._ask("DescribePart", requests, parts_pb.DescribePartReply)
        tables = [_tables_of(part) for part in parts]
        for session, part, own in zip(self._connections.sessions, parts, tables, strict=True):
            if sorted(own) != sorted(tables[0]):
                raise ConfigError(
                    f"publish: checkpoint {whole.name_now!r} has tables {sorted(own)} on shard "
                    f"{session}, and {sorted(tables[0])} on shard 0: create_table was cut short; "
                    "call it again, and take another checkpoint"
                )
            if part.seed != parts[0].seed:
                raise ConfigError(
                    f"publish: shard {session} begins new rows with seed {part.seed}, and shard 0 "
                    f"with {parts[0].seed}; a version has one seed"
                )
        return ServiceCheckpoint(
            whole, parts, lambda: self._checkpoints.state_of(whole)[0], tables[0]
        )

    def find(
        self,
        source: JsonView,
        after: ServiceCheckpoint,
        known: ServiceCheckpoint | None = None,
    ) -> ServiceCheckpoint | None:
        """As Origin; None also where a shard lacks its part."""
        created = float(source["created"])
        whole = self._kept(created)
        if whole is not None and known is not None and known.created == created:
            return known
        return None if whole is None else ServiceCheckpoint(whole)

    def pin(
        self, checkpoint: ServiceCheckpoint, name: str, safe: Callable[[], object] = lambda: None
    ) -> None:
        """As Origin: by a promoted name, which keeps the parts on all shards."""
        whole = self._kept(checkpoint.created)
        if whole is None:
            raise ConfigError(
                f"publish: checkpoint {checkpoint.name!r} was deleted meanwhile; publish again"
            )
        self._names.promote(int(whole.info.id), name)

    def _kept(self, created: float) -> ShardsCheckpoint | None:
        """The checkpoint of which shard 0's part was created then, if all shards have theirs."""
        kept = self._checkpoints.kept()
        return next((whole for whole in kept if whole.info.created == created), None)

    def write(
        self,
        folder: VersionFolder,
        options: PublishOptions,
        after: ServiceCheckpoint,
        before: ServiceCheckpoint | None,
        *,
        is_base: bool,
    ) -> list[TableFiles]:
        """As Origin: by all shards at once.

        Raises:
            RemoteError: a shard does not answer within the deadline, or no shard gets on within
                ten. HpsError: a shard cannot write. Nothing is left where a shard can be reached.
        """
        requests = [
            parts_pb.PublishPartRequest(
                place=self._place,
                folder=folder.name,
                created=info.created,
                before=None if before is None else before.whole.parts[index].created,
                is_base=is_base,
                dtype=options.dtype,
                tables=None
                if options.tables is None
                else parts_pb.TableNames(names=list(options.tables)),
                min_score=options.min_score,
                wait_ms=_WAIT_MS,
            )
            for index, info in enumerate(after.whole.parts)
        ]
        try:
            replies = self._written(requests)
            found = [
                _files_of(reply, session)
                for reply, session in zip(replies, self._connections.sessions, strict=True)
            ]
            self._check_seen(folder, found)
        except BaseException:
            self._drop(folder.name)
            raise
        folder.num_bytes += sum(int(reply.bytes) for reply in replies)
        return [_joined(name, found) for name in after.tables if name in found[0]]

    def _written(
        self, requests: Sequence[parts_pb.PublishPartRequest]
    ) -> list[parts_pb.PublishPartReply]:
        """The last replies of all shards; asks again until each has ended."""
        sessions = self._connections.sessions
        replies = [parts_pb.PublishPartReply() for _ in sessions]
        patience = SLOW * self._connections.config.deadline
        moved_at, seen = time.monotonic(), (0, 0)
        while waiting := [i for i, reply in enumerate(replies) if not reply.has_ended]:
            answers = self._ask(
                "PublishPart",
                [requests[i] for i in waiting],
                parts_pb.PublishPartReply,
                [sessions[i] for i in waiting],
            )
            for i, answer in zip(waiting, answers, strict=True):
                replies[i] = answer
                if answer.HasField("error"):
                    raise error_of_kind(
                        answer.error.kind, f"shard {sessions[i]}: {answer.error.message}"
                    )
            now = (sum(one.rows for one in replies), sum(one.bytes for one in replies))
            if now != seen:
                moved_at, seen = time.monotonic(), now
                self._told(*now)
            elif time.monotonic() - moved_at > patience:
                open_ = ", ".join(str(sessions[i]) for i in waiting)
                raise RemoteError(
                    f"publish: shards {open_} have not got on for {patience:.0f} s, after "
                    f"{now[0]:,} rows; look at their logs, and whether they reach {self._place}"
                )
        return replies

    def _check_seen(self, folder: VersionFolder, found: Sequence[Mapping[str, TableFiles]]) -> None:
        """What the shards have written is seen from here: else they write to other disks."""
        seen = set(folder.destination.folders(folder.name))
        for session, tables in zip(self._connections.sessions, found, strict=True):
            for file in (one for table in tables.values() for one in table.files):
                if file.name.rpartition("/")[2] not in seen:
                    raise StoreError(
                        2,
                        f"publish: shard {session} has written {file.name}, which is not at "
                        f"{folder.destination.shown} as seen from here; give a place that all "
                        "servers and this client share",
                    )

    def _drop(self, folder: str) -> None:
        """Once, past the sessions: what a call has to tell of them is for one that is waited for.
        A shard that is not reached ends its writing by itself."""
        request = parts_pb.DropPartRequest(place=self._place, folder=folder).SerializeToString()
        started = [
            session.transport.start("DropPart", request, _DROP_SECONDS)
            for session in self._connections.sessions
        ]
        for pending in started:
            with suppress(Failure):
                pending.reply()

    def _to_describe(self, created: float | None) -> parts_pb.DescribePartRequest:
        return parts_pb.DescribePartRequest(place=self._place, created=created)

    def _ask(
        self,
        method: str,
        requests: Sequence[Message],
        reply: type[R],
        sessions: Sequence[Session] | None = None,
    ) -> list[R]:
        try:
            return self._connections.ask_each(method, requests, reply, sessions)
        except RemoteError as error:
            cause = error.__cause__
            if isinstance(cause, Failure) and cause.code is grpc.StatusCode.UNIMPLEMENTED:
                raise ConfigError(
                    f"{error}: it is served by an older hps, which publishes nothing for clients; "
                    "start it with a newer one"
                ) from error
            raise


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def _tables_of(part: parts_pb.DescribePartReply) -> dict[str, TableConfig]:
    listed = parse_json(part.tables, "tables of a shard", max_bytes=_MOST_FILES_BYTES)
    return {str(one["name"]): table_from_json(one) for one in listed}


def _files_of(reply: parts_pb.PublishPartReply, session: Session) -> dict[str, TableFiles]:
    """By table what a shard has written."""
    where = f"shard {session}: files of a version"
    try:
        listed = parse_json(reply.files, where, max_bytes=_MOST_FILES_BYTES)
        return {one.table: one for one in map(TableFiles.from_json, listed)}
    except (KeyError, TypeError) as error:
        raise CorruptionError(f"{where}: are told in another form: {error}") from error


def _joined(name: str, found: Sequence[Mapping[str, TableFiles]]) -> TableFiles:
    """Of one table the files of all shards."""
    first, *others = (tables[name] for tables in found)
    for one in others:
        first = first.with_others(one)
    return first
