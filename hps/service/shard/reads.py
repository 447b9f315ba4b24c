"""Reads: the verbs of a shard that change nothing.

Above it: mutations.py, checkpoints.py, Shard. Below it: core.py. Reads go on while mutations are
worked off, and when log or store have failed. Each waits for nothing but the store's being opened
anew, and no longer than its `timeout`, in seconds: DeadlineError then.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from hps import _C
from hps.checkpoint.blobs import MODEL, READER
from hps.checkpoint.names import find_listed
from hps.common.arrays import AnyArray, HostArray, as_keys, on_host
from hps.common.json_text import Json
from hps.common.sharding import NUM_VIRTUAL
from hps.errors import ChangedError, DeadlineError, MismatchError
from hps.service.shard.core import LONG, ServedStore
from hps.ssd_store.promoted import Promotions
from hps.update_log import ServedCheckpoint
from hps.update_log.history import SERVICE, whole_name

_DIGEST_ATTEMPTS = 3  # beside mutations
_DIGEST_TURN_SECONDS = 1.0  # that mutations may wait for a digest


@dataclass(frozen=True)
class Standing:
    """Of a served store, for those who watch it.

    Args:
        period: that changes count in.
        checkpoint_times: when each checkpoint that is kept was taken, seconds since 1970.
        path: of its folder.
    """

    period: int
    checkpoint_times: tuple[float, ...]
    path: Path


class Reads:
    """Rows, figures, and what checkpoints hold; of one served store."""

    def __init__(self, store: ServedStore) -> None:
        self._store = store
        # (group, lineage) by the id of a checkpoint; replaced as a whole by any thread.
        self._groups: dict[int, tuple[str, str]] = {}

    def pull(
        self, table: str, keys: AnyArray, out: AnyArray | None = None, timeout: float = LONG
    ) -> AnyArray:
        """As ParameterServer.pull.

        Raises:
            MismatchError: the keys are those of another shard.
        """
        self._check_owner(keys)
        with self._store.reading(timeout) as server:
            return server.pull(table, keys, out)

    def contains(self, table: str, keys: AnyArray, timeout: float = LONG) -> AnyArray:
        """As ParameterServer.contains; errors as pull."""
        self._check_owner(keys)
        with self._store.reading(timeout) as server:
            return server.contains(table, keys)

    def statistics(self, table: str, keys: AnyArray, timeout: float = LONG) -> dict[str, AnyArray]:
        """As ParameterServer.statistics; errors as pull."""
        self._check_owner(keys)
        with self._store.reading(timeout) as server:
            return server.statistics(table, keys)

    def _check_owner(self, keys: AnyArray) -> None:
        """Clients that only read open no session: one that asks a server which was started over
        another shard's store has the keys of that other shard. The first one tells."""
        index, count = self._store.index, self._store.count
        if count == 1:
            return
        first = on_host(as_keys(keys))[:1]
        if not len(first):
            return
        owner = self._store.owners[_C.virtual_shards(first, NUM_VIRTUAL)[0]]
        if owner != index:
            raise MismatchError(
                f"key {int(first[0])} belongs to shard {owner} of {count}, this is shard "
                f"{index}: another shard's store was put under this address, or the servers "
                "are listed in another order; start each server over its own store"
            )

    def num_rows(self, table: str, timeout: float = LONG) -> int:
        """As ParameterServer.num_rows."""
        with self._store.reading(timeout) as server:
            return server.num_rows(table)

    def items(
        self,
        table: str,
        batch: int = 65536,
        state: bool = False,
        timeout: float = LONG,
        statistics: bool = False,
    ) -> Iterator[tuple[HostArray, ...]]:
        """As ParameterServer.items."""
        deadline = monotonic() + timeout
        with self._store.reading(timeout) as server:
            pieces = server.items(table, batch, state, statistics)
        while True:
            with self._store.reading(deadline - monotonic()) as now:
                if now is not server:
                    raise _changed(table)
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def digest(self, table: str, timeout: float = LONG) -> tuple[int, int]:
        """(low, high): two sums over the table's rows as they are at one moment.

        Mutations go on meanwhile. One that changes the table makes it begin again; after three
        beginnings they wait for it, for a second at most.

        Raises:
            ChangedError: the table is changed all the time, and too large for that second.
            DeadlineError: time is up.
        """
        deadline = monotonic() + timeout
        for _ in range(_DIGEST_ATTEMPTS):
            try:
                return self._sum_rows(table, deadline)
            except ChangedError:
                continue
        with self._store.gate.change(deadline):
            until = min(deadline, monotonic() + _DIGEST_TURN_SECONDS)
            try:
                return self._sum_rows(table, until)
            except DeadlineError as error:
                if until == deadline:
                    raise
                raise ChangedError(
                    f"table {table!r} was changed during each of {_DIGEST_ATTEMPTS} digests, and "
                    f"hashing it takes longer than the {_DIGEST_TURN_SECONDS:g} s for which "
                    f"changes may wait: stop the clients that write, or take a checkpoint and hash "
                    f"it ('hps stats DIR --digest --checkpoint TAG')"
                ) from error

    def _sum_rows(self, table: str, until: float) -> tuple[int, int]:
        low = high = 0
        with self._store.reading(until - monotonic()) as server:
            parts = server.digest_parts(table)
        while True:
            if monotonic() > until:
                raise DeadlineError(f"the deadline passed during a digest of table {table!r}")
            with self._store.reading(until - monotonic()) as now:
                if now is not server:
                    raise _changed(table)
                part = next(parts, None)
            if part is None:
                return low % 2**64, high % 2**64
            low, high = low + part[0], high + part[1]

    def stats(self, timeout: float = LONG) -> Json:
        """As ParameterServer.stats, with a part `service`."""
        with self._store.reading(timeout) as server:
            stats = server.stats()
        history = self._store.history
        log = history.log
        stats["service"] = {
            "sessions": len(history.sessions),
            "records": history.number,
            "records_replayed": history.num_replayed,
            "records_since_checkpoint": history.number - history.kept_number,
            "log_bytes": 0 if log is None else log.num_bytes,
            "waiting": self._store.gate.num_waiting,
            "checkpoints": self._store.checkpointer.taken,
            "checkpoint_failures": self._store.checkpointer.failures,
            "checkpoint_error": self._store.checkpointer.last_error,
            "failure": self._store.failure,
        }
        return stats

    def standing(self, timeout: float = LONG) -> Standing:
        """Where the store lies and how old it is; waits for no update, nor for a checkpoint."""
        with self._store.reading(timeout) as server:
            listed = server.parts.tables.store.checkpoints()
            times = tuple(float(one["created"]) for one in listed)
            return Standing(server.period, times, Path(server.config.path))

    def checkpoints(self, timeout: float = LONG) -> list[Json]:
        """As ParameterServer.checkpoints, each with its `group`; no dense side is read for it."""
        return self.checkpoints_and_descent(timeout)[0]

    def checkpoints_and_descent(self, timeout: float = LONG) -> tuple[list[Json], str]:
        """`checkpoints`, and the one that the rows descend from, as History.descent says it."""
        with self._store.reading(timeout) as server:
            listed = server.checkpoints()
            self._groups = {int(one["id"]): self._group(int(one["id"])) for one in listed}
            promoted = Promotions.load(server.parts.tables.store.held_folder()).kept
            for one in listed:
                one["group"], _ = self._groups[int(one["id"])]
                one["is_promoted"] = one["created"] in promoted
            return listed, server.parts.checkpoints.descent()

    def checkpoint_names(self, timeout: float = LONG) -> list[str]:
        """Of those over several shards that were taken in this history, the newest first."""
        listed = self.checkpoints(timeout)
        groups = [self._groups[int(one["id"])] for one in reversed(listed)]
        names = [whole_name(group) for group, lineage in groups if lineage == self._store.lineage]
        return [name for name in names if name]

    def checkpoint_named(
        self, tag: str | int | None, timeout: float = LONG
    ) -> tuple[int | None, str | None]:
        """(id, tag) of a checkpoint that is named by either; None is the current one."""
        with self._store.reading(timeout) as server:
            listed = server.checkpoints()
        found = find_listed("the store", listed, tag)
        if found is None:
            return None, None  # the current one was deleted
        return int(found["id"]), found["tag"]

    def _group(self, checkpoint: int) -> tuple[str, str]:
        """(group, lineage) of a checkpoint."""
        if checkpoint not in self._groups:
            served = ServedCheckpoint.of(
                self._store.server.checkpoint_blobs(checkpoint, (SERVICE,))
            )
            return ("", "") if served is None else (served.group, served.lineage)
        return self._groups[checkpoint]

    def checkpoint_state_bytes(self, tag: str | int | None = None, timeout: float = LONG) -> int:
        """How many bytes `checkpoint_state` would give; no dense side is read for it."""
        with self._store.reading(timeout) as server:
            lengths = server.checkpoint_blob_bytes(tag)
            group = _group_of(server.checkpoint_blobs(tag, (SERVICE,)))
        return lengths.get(MODEL, 0) + lengths.get(READER, 0) + len(group.encode())

    def checkpoint_state(
        self, tag: str | int | None = None, timeout: float = LONG
    ) -> tuple[bytes | None, bytes | None, str]:
        """(model, reader, group) as they were given to `checkpoint`."""
        with self._store.reading(timeout) as server:
            blobs = server.checkpoint_blobs(tag, (MODEL, READER, SERVICE))
        return blobs.get(MODEL), blobs.get(READER), _group_of(blobs)


def _group_of(blobs: dict[str, bytes]) -> str:
    served = ServedCheckpoint.of(blobs)
    return "" if served is None else served.group


def _changed(table: str) -> ChangedError:
    return ChangedError(f"table {table!r} was reopened while all of it was read; repeat the call")
