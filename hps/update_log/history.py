"""History: the mutations that a served store holds: its newest checkpoint, and the log after it.

Above it: parameter_server/opening.py and parameter_server/checkpoints.py, which carry it through
openings, checkpoints and restores; hps/service/shard/mutations.py, which appends to the log. Below
it: epoch.py, sessions.py, log.py, checkpoint/dense_mark.py.

Whatever moment a process dies at, the next opening finds one of the states that it passed through:

    opening     the newest checkpoint says up to which record (number, epoch) it has the rows and
                marks; the records after it are applied again
    checkpoint  rows, marks and number are saved together; the log's files go after it, and a
                record that they still have is passed over
    restore     HISTORY names the next epoch and the checkpoint to go back to; then the store goes
                back. An opening that finds the one without the other goes back first. The records
                of an older epoch are leftovers from then on, and its sessions have ended. HISTORY
                names the tables, too: none goes with a restore
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hps.checkpoint.blobs import LAST
from hps.checkpoint.dense_mark import DENSE, DenseMark
from hps.checkpoint.names import AUTOMATIC, find_listed, text_of
from hps.common.json_text import JsonView, parse_json
from hps.contracts.tiers import RowTier
from hps.errors import CorruptionError, StoreError
from hps.update_log.epoch import NAME, Epoch
from hps.update_log.log import FOLDER, OpenLog, UpdateLog
from hps.update_log.sessions import Sessions

SERVICE = "service.json"  # among a checkpoint's extras
PIECE_BYTES = 2**26  # of the log, read at once
FIRST_LINEAGE = "0"  # of every store that was never restored, or its shards would not agree


@dataclass(frozen=True)
class ServedCheckpoint:
    """What a checkpoint says of the service: its epoch, its log number, its sessions."""

    epoch: int
    number: int
    lineage: str
    group: str
    index: int
    count: int
    sessions: Sessions
    base: str | None = None  # `History.descent` then; None: a part of a whole, or an older hps's

    @property
    def whole_name(self) -> str:
        """Of the checkpoint over several shards that it is a part of; empty if of none."""
        return whole_name(self.group)

    @classmethod
    def of(cls, extras: Mapping[str, bytes]) -> "ServedCheckpoint | None":
        """From a checkpoint's extras; None if it holds no mutation of a service.

        Raises:
            CorruptionError: it cannot be read.
        """
        if SERVICE not in extras:
            return None
        try:
            value = parse_json(extras[SERVICE], f"the checkpoint's {SERVICE}")
            names = ("epoch", "number", "lineage", "group", "index", "count")
            known = {name: value[name] for name in names}
            return cls(**known, sessions=Sessions.from_json(value), base=value.get("base"))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptionError(
                f"the checkpoint's {SERVICE} cannot be read: {error!r}"
            ) from error


def whole_name(group: str) -> str:
    """The name in a part's group of the checkpoint over all shards.

    Shard 0's group describes that checkpoint; the others' is its name.
    """
    if not group.startswith("{"):
        return group
    try:
        value = json.loads(group)
    except (ValueError, RecursionError):
        return ""
    return str(value.get("cut", "")) if isinstance(value, dict) else ""


class History:
    """Of one store that is open for writing.

    Args:
        store: as RowTier.
        epoch: as HISTORY has it.
        served: what the current checkpoint says of the service.
    """

    def __init__(self, store: RowTier, epoch: Epoch, served: ServedCheckpoint | None) -> None:
        self._store = store
        self.path: Path = store.path
        self.epoch = epoch
        self.log: UpdateLog | None = None
        self.num_replayed = 0
        self._is_written = True  # HISTORY says what `epoch` says
        self._take(served)

    def _take(self, served: ServedCheckpoint | None) -> None:
        """The rows are those of a checkpoint."""
        if served is not None and (served.index, served.count) != (
            self.epoch.index,
            self.epoch.count,
        ):
            raise CorruptionError(
                f"{self.path / FOLDER / NAME}: it is of shard {self.epoch.index} of "
                f"{self.epoch.count}, the checkpoint beside it of shard {served.index} of "
                f"{served.count}: the folder {FOLDER!r} was put into another shard's store; put "
                "each back"
            )
        served = served or ServedCheckpoint(0, 0, FIRST_LINEAGE, "", 0, 1, Sessions())
        if served.epoch > self.epoch.number:
            raise CorruptionError(
                f"{self.path / FOLDER / NAME}: it is at epoch {self.epoch.number}, the checkpoint "
                f"at {served.epoch}; it was taken from an older copy of the store"
            )
        # Of the last record whose mutation the rows hold, and of that in the newest checkpoint.
        self.number = served.number if served.epoch == self.epoch.number else 0
        self.kept_number = self.number
        self.sessions = served.sessions
        fence = max(self.sessions.fence, self.epoch.fence)
        self.sessions.fence = fence
        self.sessions.incarnations = max(self.sessions.incarnations, fence)

    @classmethod
    def begin(
        cls, store: RowTier, index: int | None, count: int | None, served: ServedCheckpoint | None
    ) -> "History":
        """Of a store that has none yet.

        Args:
            store: as RowTier.
            index: of the shard; None is 0.
            count: of shards; None is 1.
            served: what the current checkpoint says of a service, which goes on then.

        Raises:
            StoreError: the system refused.
        """
        if served is None:
            served = ServedCheckpoint(1, 0, FIRST_LINEAGE, "", index or 0, count or 1, Sessions())
        epoch = Epoch(
            store=secrets.randbits(63),
            number=served.epoch,
            lineage=served.lineage,
            fence=served.sessions.fence,
            index=served.index,
            count=served.count,
        )
        epoch.save(store.path, store.held_folder())
        return cls(store, epoch, served)

    @classmethod
    def find(cls, store: RowTier) -> "History | None":
        """Of a store that was opened; None if it was never served.

        A restore that a crash cut short is brought to its end.

        Raises:
            CorruptionError: HISTORY or the checkpoint is damaged. StoreError: the system refused.
        """
        epoch = Epoch.load(store.held_folder(), store.path)
        if epoch is None:
            return None
        served = ServedCheckpoint.of(store.extras(None))
        if epoch.restoring is not None:
            if served is None or served.epoch != epoch.number:
                store.restore(epoch.restoring)
                served = ServedCheckpoint.of(store.extras(None))
            epoch = replace(epoch, restoring=None)
            epoch.save(store.path, store.held_folder())
        return cls(store, epoch, served)

    # The log.

    def open_log(self, open_log: OpenLog) -> UpdateLog:
        """Opens the epoch's log; what it holds beyond the newest checkpoint is to be read.

        Raises:
            CorruptionError: it is damaged. StoreError: the system refused.
        """
        self.ensure_written()
        self._store.held_folder()
        folder = str(self.path / FOLDER)
        log = open_log(folder, self.epoch.store, self.epoch.number, self.kept_number)
        try:
            self._store.held_folder()  # the log is by path, and of this store
        except BaseException:
            log.close()
            raise
        self.log = log
        return log

    def open_log_again(self, open_log: OpenLog) -> None:
        """As open_log, where the rows hold all of it.

        Raises:
            CorruptionError: the log does not end with the last record that the rows hold.
        """
        log = self.open_log(open_log)
        last = self.kept_number
        while records := log.read(PIECE_BYTES):
            last = records[-1][0]
        if last != self.number:
            raise CorruptionError(
                f"{self.path / FOLDER}: the log ends with record {last}, and record {self.number} "
                f"was the last"
            )

    def close_log(self) -> None:
        """Closes the log; what was appended is durable."""
        log, self.log = self.log, None
        if log is not None:
            log.close()

    # Checkpoints.

    def extras(self, group: str) -> dict[str, bytes]:
        """What a checkpoint of the rows as they are now says of the service.

        Raises:
            StoreError: HISTORY is behind, and could not be written.
        """
        self.ensure_written()
        value = {
            "epoch": self.epoch.number,
            "number": self.number,
            "lineage": self.epoch.lineage,
            "group": group,
            "index": self.epoch.index,
            "count": self.epoch.count,
            **({} if whole_name(group) else {"base": self.descent()}),
            **self.sessions.to_json(),
        }
        return {SERVICE: json.dumps(value).encode()}

    def descent(self) -> str:
        """The client's checkpoint that the rows descend from: its name, or its id as id:3; or "".

        What the service takes by itself does not count, but for `last` of a single shard. It says
        which one it follows, since that need not be the newest: a restore may have come before.
        """
        blobs = self._store.extras(None, (SERVICE, DENSE))
        served = ServedCheckpoint.of(blobs)
        if served is not None and served.whole_name:
            return served.whole_name
        current = find_listed("the store", self._store.checkpoints())
        own = (AUTOMATIC, LAST) if self.epoch.count > 1 else (AUTOMATIC,)
        if current is not None and current["tag"] not in own:
            return text_of(int(current["id"]))
        if served is not None and served.base is not None:
            return served.base
        return DenseMark.of(blobs).whole  # of an older hps: the one that had the model, if any

    def note_checkpoint(self, number: int) -> None:
        """A durable checkpoint holds the rows as they were with this record."""
        self.kept_number = max(self.kept_number, number)
        self.sessions.settle(number)

    # Restores.

    def begin_restore(
        self, checkpoint: int | None, lineage: str | None, tables: Sequence[JsonView]
    ) -> None:
        """From now on every opening goes back to a checkpoint, unless `withdraw` is called.

        Args:
            checkpoint: its id; None is the current one.
            lineage: names the new history; None makes a name up.
            tables: descriptions of all tables; those that the checkpoint lacks are empty then.

        Raises:
            StoreError: the system refused; nothing has changed.
        """
        if self.log is not None:
            raise AssertionError("the log of the epoch that ends is open")
        old = self.epoch
        self.epoch = replace(
            old,
            number=old.number + 1,
            lineage=lineage or secrets.token_hex(8),
            fence=self.sessions.incarnations,
            restoring=checkpoint,
            tables=tables,
        )
        try:
            self._write()
        except BaseException:
            self.withdraw(old)
            raise

    def withdraw(self, old: Epoch) -> None:
        """The store did not go back. If HISTORY cannot be written, nothing else is until it is."""
        self.epoch = old
        self._is_written = False
        try:
            self._write()
        except StoreError:
            return

    def follow_restore(self, extras: Mapping[str, bytes]) -> None:
        """The store has gone back to a checkpoint with these extras; may be repeated."""
        self._take(ServedCheckpoint.of(extras))
        self.epoch = replace(self.epoch, restoring=None)
        self._is_written = False

    def ensure_written(self) -> None:
        """HISTORY says what is so.

        Raises:
            StoreError: the system refused.
        """
        if not self._is_written:
            self._write()

    def _write(self) -> None:
        self._is_written = False
        self.epoch.save(self.path, self._store.held_folder())
        self._is_written = True
