"""Publisher: makes versions of checkpoints at a destination.

Above it: `hps.ParameterServer.publish`, `hps.RemoteParameterServer.publish`, `hps publish`, `hps
train --publish`. Below it: origin.py (where checkpoints are), version_writer.py (a version's
files), version.py, destination.py. A version is found by comparing rows: what compaction has moved,
or what an update has left as it was, is in no delta.
"""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Generic, Self

from hps.common.json_text import Json
from hps.errors import ConfigError, HpsError
from hps.publish.destination import Destination, TakenError, open_destination
from hps.publish.leases import oldest_leased
from hps.publish.options import PublishOptions
from hps.publish.origin import C, Origin, Published
from hps.publish.version import (
    BASE,
    DATA,
    DELTA,
    Version,
    chain_of,
    file_of,
    listed_versions,
    load_version,
    newest_version,
)
from hps.publish.version_writer import VersionWriter, source_of

# A base comes again when the deltas since the last one have more bytes than this share of it, or
# are so many.
_MOST_DELTAS = 0.5
_MOST_LINKS = 64


class Publisher(Generic[C]):
    """Publishes an origin's checkpoints to one destination, one after the other. A context manager.

    The checkpoint that was published last stays open, so that the next delta need not open it
    again; it, and the one before it, keep their files in the store: they have the promoted name
    `publisher.pin`.

    Args:
        origin: where the checkpoints are: `hps.publish.store_origin.StoreOrigin` of a store.
        place: the destination: a folder, or a URL that fsspec knows.
        options: what is published.

    Raises:
        ConfigError: the destination is of a kind that is not installed.
    """

    def __init__(
        self,
        origin: Origin[C],
        place: str | os.PathLike[str],
        options: PublishOptions | None = None,
    ) -> None:
        self._origin = origin
        self._destination = open_destination(place)
        self.options = options or PublishOptions()
        self._before: C | None = None
        self._pinned: float | None = None  # when that was created which has the name; None: unknown
        self._known: list[Version] = []  # the chain of the newest version
        self.pin = f"published-{hashlib.sha256(self._destination.shown.encode()).hexdigest()[:8]}"

    def publish(self, checkpoint: str | int | None = None) -> Json:
        """Makes a version of a checkpoint.

        Args:
            checkpoint: its tag, promoted name or id; None: the newest.

        Returns:
            `version`, `kind`, `rows` (of all tables in it), `changed` and `removed` (since the
            version before; None of a base that follows none), `bytes` (written), `lineage`,
            `checkpoint`, `period`, `why_base` (why it could not follow the version before; None
            where it does), `not_removed` (why older versions stay that should not; None) and
            `seconds`. Of a checkpoint that the newest version is of already,
            `kind` is None and nothing is written.

        Raises:
            ConfigError: no such checkpoint or table; kind="delta" where there can be none.
            StoreError: the destination cannot be written, or another publisher was faster: then
                nothing of this version is seen there. CorruptionError: store or destination is
                damaged. NonFiniteError: a weight that the type cannot hold.

        Cost: a base reads every row; a delta opens the index, and reads the rows whose keys are in
            files that one of the two checkpoints has alone, twice.
        """
        started = time.perf_counter()
        with ExitStack() as opened:
            # Rows whose score may have fallen are looked for in all of the checkpoint before.
            shares_index = self.options.min_score is None
            after = self._origin.open(checkpoint, self._before, shares_index=shares_index)
            opened.callback(after.close)
            made = self._publish(after)
            self._keep_open(after)
            opened.pop_all()
        return {**made, "seconds": time.perf_counter() - started}

    def close(self) -> None:
        """Lets the store go; nothing to do the second time."""
        before, self._before = self._before, None
        if before is not None:
            before.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _keep_open(self, source: C) -> None:
        self.close()
        self._before = source

    def _publish(self, after: C) -> Json:
        newest = newest_version(self._destination)
        if newest is not None and _is_of(newest, after, self.options):
            return _told(newest, None, None, 0) | {"kind": None}
        why_base, before = self._find_before(newest, after)
        if before is None and self.options.kind == DELTA:
            raise ConfigError(f"{self._destination.shown}: no delta can be published: {why_base}")
        number = 1 if newest is None else newest.number + 1
        work = VersionWriter(self._origin, self._destination, number, after, self.options)
        follows = newest if before is not None else None
        with ThreadPoolExecutor(1, "hps-pin") as beside:
            # First: newer checkpoints may come while it is written. They wait for the name, once
            # its turn has come; its way to the disk may go on beside the writing.
            is_safe = threading.Event()
            pinned = beside.submit(self._pin, before, after, is_safe.set)
            pinned.add_done_callback(lambda _: is_safe.set())
            is_safe.wait()
            if pinned.done() or not after.keeps_files:
                pinned.result()
            try:
                version = work.make(follows, before, self._wants_base(newest, before))
                pinned.result()
            except BaseException:
                work.drop()
                raise
        try:
            _commit(self._destination, version, work.names)
        except TakenError:  # after any other error it may have come to be
            work.drop()
            raise
        not_removed = None
        try:
            remove_old(self._destination, self.options.keep, self._known)
        except HpsError as error:  # it is published; the next one tries again
            not_removed = str(error)
        made = _told(version, *work.counts(), work.num_bytes)
        return {**made, "why_base": why_base or None, "not_removed": not_removed}

    def _pin(self, before: C | None, after: C, safe: Callable[[], object]) -> None:
        """What the newest version is of comes first, where an attempt that failed has taken the
        name from it: of those that had the name the last two are kept."""
        if before is not None and self._pinned != before.created:
            self._origin.pin(before, self.pin)
        self._pinned = None
        self._origin.pin(after, self.pin, safe)
        self._pinned = after.created

    def _find_before(self, newest: Version | None, after: C) -> tuple[str, C | None]:
        """(why there is none, or empty; the checkpoint of the newest version)."""
        if newest is None:
            return "nothing is published there yet", None
        if self.options.kind == BASE:
            return "a base was asked for", None
        source = newest.source
        if why := after.why_apart(newest.number, source):
            return why, None
        if source["options"] != self.options.described():
            return "the newest version was published with other options", None
        before = self._origin.find(source, after, self._before)
        if before is None:
            return f"checkpoint {source['checkpoint']!r}, published last, is gone", None
        if before is not self._before:
            self._keep_open(before)
        return "", before

    def _chain(self, newest: Version) -> list[Version]:
        """From its base to the newest version; of those that were read before nothing is asked."""
        if self._known and self._known[-1].sha256 == newest.sha256:
            return self._known
        before = newest.predecessor
        is_next = self._known and before and before["sha256"] == self._known[-1].sha256
        if is_next and newest.kind == DELTA:
            self._known = [*self._known, newest]
        else:
            self._known = chain_of(self._destination, newest.number)
        return self._known

    def _wants_base(self, newest: Version | None, before: C | None) -> bool:
        if newest is None or before is None:
            return True
        if self.options.kind == DELTA:
            return False
        chain = self._chain(newest)
        if len(chain) > _MOST_LINKS:
            return True
        sizes = [_changed_bytes(version) for version in chain[1:]]
        base = sum(file.bytes for table in chain[0].tables for file in table.base or ())
        return sum(sizes) > _MOST_DELTAS * base


def remove_old(destination: Destination, keep: int, known: Sequence[Version] = ()) -> list[int]:
    """Removes versions beyond the newest `keep`, but for those that they follow, and those that a
    reader is at; and data of versions that never came to be.

    Args:
        known: a base and what follows it, which need not be read again.

    Returns:
        The numbers of those that went.
    """
    numbers = listed_versions(destination)
    kept = numbers[-keep:]
    if not kept:
        return []
    leased = oldest_leased(destination)
    oldest = min([kept[0]] if leased is None else [kept[0], max(leased, numbers[0])])
    is_known = any(version.number == oldest for version in known)
    first = known[0].number if is_known else chain_of(destination, oldest)[0].number
    gone = [number for number in numbers if number < first]
    for number in gone:
        folder = load_version(destination, number).folder
        destination.remove(file_of(number))  # first, so that nobody finds half of it
        destination.remove(folder)
    _remove_strays(destination, [number for number in numbers if number >= first])
    return gone


def _remove_strays(destination: Destination, kept: list[int]) -> None:
    """Data of versions that never came to be: their publisher died, or was refused."""
    folders = destination.folders(DATA)
    if len(folders) <= len(kept):
        return
    own = {load_version(destination, number).folder for number in kept}
    for name in folders:
        number = name.split("-")[0]
        folder = f"{DATA}/{name}"
        # The newest one's number may be another's who is still at it, and is about to be refused.
        if folder not in own and number.isdigit() and int(number) < kept[-1]:
            destination.remove(folder)


def _commit(destination: Destination, version: Version, names: Sequence[str]) -> None:
    name, data = file_of(version.number), version.to_bytes()
    try:
        destination.create(name, data, names)
    except TakenError:
        if destination.read(name) == data:  # our own, of which the answer was lost
            return
        raise TakenError(
            17,
            f"{destination.shown}: another publisher has made version {version.number} meanwhile; "
            "one destination has one publisher: stop the other one, then publish again",
        ) from None


def _is_of(version: Version, after: Published, options: PublishOptions) -> bool:
    """Whether publishing this again would make the same, its graph included."""
    if options.kind == BASE or version.source != source_of(after, options):
        return False
    if options.graph is None or version.model is None or after.model is None:
        return True
    graph = version.model.graph
    return graph is not None and graph.mark == options.graph.mark(after.model)


def _changed_bytes(version: Version) -> int:
    parts = [part for one in version.tables for part in (one.changed, one.removed)]
    return sum(file.bytes for part in parts for file in part or ())


def _told(version: Version, changed: int | None, removed: int | None, num_bytes: int) -> Json:
    return {
        "version": version.number,
        "kind": version.kind,
        "rows": version.num_rows,
        "changed": changed,
        "removed": removed,
        "bytes": num_bytes,
        "lineage": version.lineage,
        "checkpoint": version.source["checkpoint"],
        "period": version.period,
    }
