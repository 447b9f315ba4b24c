"""ShardPublishing: writes the files of a shard's rows into versions that a client makes.

Above it: Shard, whose docstrings say what its verbs promise. Below it: hps/publish (table_files.py,
source.py), core.py. It reads checkpoints, from the store's folder, and takes neither the turn nor a
lock of the server: changes go on beside it. Each writing has a thread, which ends when it is done,
when it is dropped, and when nobody asks for it any more.
"""

import errno
import hashlib
import json
import re
import secrets
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from time import monotonic

from hps.config import TableConfig
from hps.errors import CapacityError, ConfigError, MismatchError, StoreError
from hps.publish.destination import Destination, open_destination
from hps.publish.options import PublishOptions
from hps.publish.source import Source
from hps.publish.table_files import TableFiles, VersionFolder, write_tables
from hps.publish.version import file_of, is_data_folder, number_of
from hps.service.shard.core import ServedStore
from hps.ssd_store.store import SsdStore

MAX_AT_ONCE = 2  # writings of a shard
ABANDONED_SECONDS = 60.0  # after which a writing ends that nobody has asked for
_MOST_ENDED = 16  # writings whose end is remembered
_MOST_KEPT = 2  # places whose checkpoint that was published last stays open
_KEPT_SECONDS = 600.0  # for which it does
_OWN_FILE = r"(?:rows|changed|removed)-.+-s{index}-[0-9a-f]{{6}}-\d+\.arrow"
_ATTEMPTS = 3  # to open a checkpoint whose id a compaction changes meanwhile


@dataclass(frozen=True, kw_only=True)
class PartOrder:
    """What is to be written.

    Args:
        place: the destination.
        folder: of the version's data there; names the writing.
        created: of the checkpoint.
        before: of the checkpoint since which changes are written; None: none are.
        is_base: all rows are written.
        options: what of the rows.

    Raises:
        ConfigError: the folder is not that of a version, or nothing would be written.
    """

    place: str
    folder: str
    created: float
    before: float | None
    is_base: bool
    options: PublishOptions = field(default_factory=PublishOptions)

    def __post_init__(self) -> None:
        if not is_data_folder(self.folder):
            raise ConfigError(
                f"publish: folder={self.folder[:80]!r} must be as data/00000007-1f2e3d4c"
            )
        if self.before is None and not self.is_base:
            raise ConfigError("publish: give is_base, or before, since which rows have changed")


@dataclass(frozen=True, kw_only=True)
class PartDescription:
    """What a shard's part of a checkpoint is.

    Args:
        store: names the shard's store.
        lineage: of its rows: another one after each return to an older checkpoint.
        period, seed: of the checkpoint, and of new rows.
        can_follow: changes can be told from an older one.
        tables: in their order.
        rules: SHA-256 of the tables as far as they are served, and of the rules of their rows.
    """

    store: str
    lineage: str
    period: int
    seed: int
    can_follow: bool
    tables: list[TableConfig]
    rules: str


class PartWriting:
    """One writing, in a thread of its own.

    Args:
        order: what is written.
        write: does it, and is given this.

    Attributes:
        rows: looked at so far.
        files: once it is done.
        error: why it could not be done; `trace` where that is a fault of the program.
    """

    def __init__(
        self, order: PartOrder, write: Callable[["PartWriting"], list[TableFiles]]
    ) -> None:
        self.order = order
        self.rows = 0
        self.files: list[TableFiles] | None = None
        self.error: Exception | None = None
        self.trace = ""
        self.asked_at = monotonic()
        self.folder: VersionFolder | None = None
        self._write = write
        self._is_dropped = threading.Event()
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hps-publish-part", daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """True once nothing is written any more."""
        return self._has_ended.is_set()

    @property
    def num_bytes(self) -> int:
        """Written so far."""
        return 0 if self.folder is None else self.folder.num_bytes

    def wait(self, seconds: float) -> bool:
        """Waits so long for its end; whether it has come."""
        return self._has_ended.wait(max(0.0, seconds))

    def drop(self) -> None:
        """It is to end, without its files."""
        self._is_dropped.set()

    def join(self) -> None:
        """Waits for its thread."""
        self._thread.join()

    def told(self, rows: int) -> None:
        """So many rows more were looked at; raises StoreError if it is to end."""
        self.rows += rows
        if self._is_dropped.is_set():
            raise StoreError(errno.ECANCELED, "publishing was given up")
        if monotonic() - self.asked_at > ABANDONED_SECONDS:
            raise StoreError(
                errno.ECANCELED,
                f"nobody has asked for {self.order.folder} for {ABANDONED_SECONDS:.0f} s",
            )

    def _run(self) -> None:
        try:
            files = self._write(self)
            self.told(0)
            self.files = files
        except Exception as error:  # it is told to who asks
            self.error = error
            self.trace = "".join(traceback.format_exception(error))
            self.remove_files()
        finally:
            self._has_ended.set()

    def remove_files(self) -> None:
        """Takes what was written away, as far as the destination lets it."""
        folder = self.folder
        for name in () if folder is None else folder.names:
            with suppress(StoreError):  # nobody sees them; the next publisher tries again
                assert folder is not None
                folder.destination.remove(name)


class ShardPublishing:
    """The writings of one served store. Thread-safe."""

    def __init__(self, store: ServedStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        # All guarded by the lock: writings by place and folder; by place what was published last.
        self._writings: OrderedDict[tuple[str, str], PartWriting] = OrderedDict()
        self._kept: OrderedDict[str, Source] = OrderedDict()
        self._timer: threading.Timer | None = None
        self._is_closed = False

    def describe(self, created: float, timeout: float) -> PartDescription:
        """As Shard.describe_part."""
        with self._open(created, None, timeout, rows=False) as source:
            told = json.dumps(source.described(), sort_keys=True)
            return PartDescription(
                store=source.identity,
                lineage=source.lineage,
                period=source.period,
                seed=source.seed,
                can_follow=source.can_follow,
                tables=list(source.tables.values()),
                rules=hashlib.sha256(told.encode()).hexdigest(),
            )

    def write(self, order: PartOrder, wait: float) -> PartWriting:
        """As Shard.write_part."""
        key = order.place, order.folder
        with self._lock:
            writing = self._writings.get(key)
            if writing is None:
                writing = self._writings[key] = self._begin(order)
            elif writing.order != order:
                raise ConfigError(
                    f"publish: {order.folder} is being written with another checkpoint or other "
                    "options; name a folder for each version"
                )
            writing.asked_at = monotonic()
        writing.wait(wait)
        writing.asked_at = monotonic()
        return writing

    def drop(self, place: str, folder: str, wait: float) -> None:
        """As Shard.drop_part."""
        with self._lock:
            writing = self._writings.get((place, folder))
        if writing is None:
            return
        writing.drop()
        if not writing.wait(wait):
            return
        if writing.files is not None:  # it was done before
            writing.remove_files()
        with self._lock:
            self._writings.pop((place, folder), None)

    def give_up(self) -> None:
        """All writings are to end; no new ones begin."""
        with self._lock:
            self._is_closed = True
            for writing in self._writings.values():
                writing.drop()

    def close(self) -> None:
        """Waits for the end of all writings, then lets go of what is open."""
        self.give_up()
        for writing in list(self._writings.values()):
            writing.join()
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
        self._let_go(0)

    def _begin(self, order: PartOrder) -> PartWriting:
        self._store.check_open()
        if self._is_closed:
            raise StoreError("the server is stopping")
        running = [one for one in self._writings.values() if not one.has_ended]
        if len(running) >= MAX_AT_ONCE:
            told = ", ".join(f"{one.order.folder} at {one.order.place}" for one in running)
            raise CapacityError(
                f"publish: {len(running)} versions are being written here, the most at once: "
                f"{told}; try again once one is done"
            )
        ended = [key for key, one in self._writings.items() if one.has_ended]
        for key in ended[:-_MOST_ENDED]:
            del self._writings[key]
        return PartWriting(order, self._write)

    def _write(self, writing: PartWriting) -> list[TableFiles]:
        order, index = writing.order, self._store.index
        destination = open_destination(order.place)
        self._remove_leftovers(destination, order.folder)
        suffix = f"-s{index}-{secrets.token_hex(3)}"
        writing.folder = VersionFolder(destination, order.folder, suffix, writing.told)
        with ExitStack() as opened:
            kept = self._take_kept(order.place)
            if kept is not None:
                opened.callback(kept.close)
            before = None
            if order.before is not None:
                is_kept = kept is not None and kept.created == order.before
                before = kept if is_kept else self._open(order.before, kept)
                assert before is not None
                opened.callback(before.close)
            after = self._open(order.created, before or kept)
            opened.callback(after.close)
            writing.told(0)
            files = write_tables(
                writing.folder, after, before, order.options, is_base=order.is_base
            )
            writing.folder.settle()
            if after.can_follow:
                opened.pop_all()
                for other in (kept, before):
                    if other is not None:
                        other.close()
                self._keep(order.place, after)
            return files

    def _remove_leftovers(self, destination: Destination, folder: str) -> None:
        """Of this shard's process before, which was killed while it wrote there; not of a version
        that is visible."""
        own = re.compile(_OWN_FILE.format(index=self._store.index))
        leftovers = [name for name in destination.folders(folder) if own.fullmatch(name)]
        if not leftovers:
            return
        number = number_of(folder)
        with suppress(FileNotFoundError):
            destination.read(file_of(number))
            raise ConfigError(f"publish: version {number} is published already at {folder}")
        for name in leftovers:
            destination.remove(f"{folder}/{name}")

    def _open(
        self,
        created: float,
        beside: Source | None,
        timeout: float = ABANDONED_SECONDS,
        *,
        rows: bool = True,
    ) -> Source:
        """The checkpoint that was created then."""
        for attempt in range(_ATTEMPTS):
            with self._store.reading(timeout) as server:
                store, path = server.parts.tables.store, server.config.path
                found = [int(one["id"]) for one in store.checkpoints() if one["created"] == created]
                own = store.identity if isinstance(store, SsdStore) else None
            if not found:
                break
            try:
                source = Source.open(path, found[0], beside, rows=rows)
            except ConfigError:  # a compaction has given it another id since
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            try:
                store.held_folder()  # else a copy of the store may have been opened
            except BaseException:
                source.close()
                raise
            if own is not None and source.identity != f"{own:016x}":
                source.close()
                raise MismatchError(
                    f"publish: another store lies at {path} than the one that is served from there"
                )
            if source.created == created:
                return source
            source.close()
        raise ConfigError(
            f"publish: the checkpoint of shard {self._store.index} that was created at {created!r} "
            "is not kept any more; publish again"
        )

    # What was published last stays open, for the next delta.

    def _take_kept(self, place: str) -> Source | None:
        with self._lock:
            return self._kept.pop(place, None)

    def _keep(self, place: str, source: Source) -> None:
        with self._lock:
            other = self._kept.pop(place, None)
            self._kept[place] = source
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(_KEPT_SECONDS, self._let_go, (0,))
            self._timer.daemon = True
            self._timer.start()
        if other is not None:
            other.close()
        self._let_go(_MOST_KEPT)

    def _let_go(self, most: int) -> None:
        """Closes all but so many, the oldest first."""
        while True:
            with self._lock:
                if len(self._kept) <= most:
                    return
                _, source = self._kept.popitem(last=False)
            source.close()
