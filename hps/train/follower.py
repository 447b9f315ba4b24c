"""Follower: brings published versions to a model that scores, each between two requests.

Above it: model.py. Below it: published_rows.py, current.py, hps/publish. One thread looks for a
newer version, fetches and checks all of it, makes its dense part and an overlay of the rows that it
changes, and lets the next call read these: no call waits, and none that has begun changes. Once the
calls of the version before are over, the rows go into the store, piece by piece; then the overlay
goes.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Generic, Protocol, TypeVar

from hps.common.json_text import Json
from hps.contracts.joint import Overlays
from hps.errors import ConfigError
from hps.publish.destination import Destination, open_destination
from hps.publish.fetch import check_not_stopped, read_checked
from hps.publish.leases import drop_lease, take_lease
from hps.publish.model_files import decode_model_files
from hps.publish.version import (
    PublishedGraph,
    Version,
    chain_of,
    listed_versions,
    load_version,
    newest_version,
    versions_after,
)
from hps.publish.version_list import MOST, list_versions
from hps.train.current import Current
from hps.train.published_rows import PublishedRows, RowMemory

_MOST_WAIT_SECONDS = 60.0  # after looks that have failed


@dataclass(frozen=True)
class PublishedState:
    """What a version holds beside its rows, whole and checked.

    Args:
        model: what `decode_model_files` gives.
        graph: the ONNX graph as the version describes it; None: it has none.
        onnx, weights: the files of the graph and of its weights.
        where: the graph comes from.
    """

    model: Json
    graph: PublishedGraph | None = None
    onnx: bytes = b""
    weights: bytes = b""
    where: str = ""


class Served(Protocol):
    """What calls read of a version."""

    def lay_over(self, overlays: Overlays) -> None:
        """Rows that are read in place of the store's; from then on, or from the next call on."""


S = TypeVar("S", bound=Served)


class Prepare(Protocol[S]):
    """Makes what calls are to read."""

    def __call__(
        self,
        rows: PublishedRows,
        version: Version,
        state: PublishedState,
        before: S | None = None,
        spare: S | None = None,
    ) -> S:
        """Of a version.

        Args:
            rows: of it, or of the version before it, over which an overlay will be laid.
            before: what is read now, over the same rows; None: the rows are others.
            spare: what was read before that over the same rows, and may be used up.
        """


class Follower(Generic[S]):
    """The versions of one destination, as one model follows them.

    Args:
        place: the destination, a folder or a URL.
        cache: a folder for local copies of rows; None: one that goes with this process.
        memory: for rows.
        poll_seconds: between two looks at the destination.
    """

    def __init__(
        self,
        place: str | Path,
        cache: str | Path | None,
        memory: RowMemory,
        poll_seconds: float,
    ) -> None:
        if not poll_seconds > 0:
            raise ConfigError(f"Model.load: poll_seconds={poll_seconds} must be above 0")
        self.destination: Destination = open_destination(place)
        self._memory = memory
        self._poll_seconds = poll_seconds
        self._held = ExitStack()
        if cache is None:
            folder = self._held.enter_context(TemporaryDirectory(prefix="hps-served-"))
            self._cache = Path(folder)
        else:
            self._cache = Path(cache).absolute()
            self._cache.mkdir(parents=True, exist_ok=True)
        self._rows: PublishedRows | None = None
        self._prepare: Prepare[S] | None = None
        self._current: Current[S] | None = None
        self._spare: S | None = None
        self._thread: threading.Thread | None = None
        self._steering = threading.RLock()  # of who says which versions are taken
        self._turn = threading.Lock()  # of who changes versions
        self._stopped = threading.Event()
        self._error: str | None = None
        self._is_torn = False  # the store's rows are of no version
        self._version: Version | None = None
        self._is_closed = False
        self._newest = 0
        self._changed_at = 0.0
        self._num_failed = 0  # looks, one after the other
        self._not_before = 0.0
        self._graph: tuple[str, bytes] | None = None  # the graph that was read last, by sha256

    def load(self, number: int | None, prepare: Prepare[S]) -> Current[S]:
        """Reads a version.

        Args:
            number: of it; None: the newest.
            prepare: for it, and for each that comes after it.

        Returns:
            What calls read, now and later.

        Raises:
            ConfigError: no such version, or one without a model. CorruptionError, StoreError: it is
                damaged, or cannot be read.
        """
        self._prepare = prepare
        try:
            with self._turn:
                self._go_anew(number)
        except BaseException:
            self._held.close()
            raise
        assert self._current is not None, "_go_anew has made it"
        return self._current

    @property
    def version(self) -> Version:
        """The one that is read now."""
        assert self._version is not None, "before load"
        return self._version

    def start(self) -> None:
        """Follows from now on, in a thread."""
        with self._steering:
            if self._thread is None or not self._thread.is_alive():
                self._go_ahead()
                self._num_failed = 0
                self._thread = threading.Thread(target=self._follow, name="hps-follow", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Follows no more; a change that is being put in place is waited for, and one that is being
        fetched is given up."""
        with self._steering:
            self._stopped.set()
            self._join()
            self._go_ahead()

    def _go_ahead(self) -> None:
        """Lets versions be read again, unless `close` has been called meanwhile."""
        self._stopped.clear()
        if self._is_closed:
            self._stopped.set()

    def _join(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def go_to(self, number: int) -> None:
        """Changes to a version that is kept, also an older one, and follows no more. It is read
        beside the one that is served, which scores meanwhile; `close` ends the reading.

        Raises:
            ConfigError: it is not kept. CorruptionError, StoreError: as `load`; the version stays.
        """
        with self._steering:
            version = load_version(self.destination, number)
            was_following = self._thread is not None
            self.stop()
            try:
                with self._turn:
                    check_not_stopped(self._stopped, self.destination.shown)
                    if version.sha256 != self.version.sha256 or self._is_torn:
                        self._go_anew(number)
            except BaseException:
                if was_following and not self._is_closed:
                    self.start()
                raise
            self._error = None

    def versions(self, most: int = MOST) -> tuple[int, list[Json]]:
        """What is kept where the model is published, as `list_versions` has it."""
        return list_versions(self.destination, most)

    def state(self) -> Json:
        """`version`, `created` (when it was made, seconds since 1970), `newest` (seen at the
        destination), `lineage`, `is_following`, `changed_at` (when it was taken over) and `error`
        (what the last look met; None: nothing)."""
        thread = self._thread
        return {
            "version": self.version.number,
            "created": self.version.created,
            "newest": max(self._newest, self.version.number),
            "lineage": self.version.lineage,
            "is_following": thread is not None and thread.is_alive(),
            "changed_at": self._changed_at,
            "error": self._error,
        }

    def look(self) -> bool:
        """Looks for a newer version and takes it over; whether there was one.

        Raises:
            HpsError: it is damaged, or cannot be read; the version before it stays.
        """
        with self._turn:
            newest = newest_version(self.destination)
            if newest is None:
                raise ConfigError(f"{self.destination.shown}: nothing is published here any more")
            own, self._newest = self.version, newest.number
            if newest.sha256 == own.sha256 and not self._is_torn:
                return False
            path = None if self._is_torn else versions_after(self.destination, own, newest)
            if path is None:
                self._go_anew(newest.number)
                return True
            lease = take_lease(self.destination, own.number)
            try:
                self._go_on(path)
            finally:
                drop_lease(self.destination, lease)
            return True

    def close(self) -> None:
        """Stops, saves the local copy, and lets it go."""
        self._is_closed = True  # and whoever reads a version gives that up
        self._stopped.set()
        with self._steering:
            self._join()
        with self._turn:
            rows, self._rows = self._rows, None
            if rows is not None:
                rows.close()
            self._held.close()

    def _follow(self) -> None:
        while not self._stopped.wait(self._poll_seconds):
            try:
                if not self._is_put_off():
                    self.look()
                    self._error, self._num_failed = None, 0
            except Exception as error:  # whatever it is, the version that is had goes on
                self._error = f"{type(error).__name__}: {error}"
                self._put_off()

    def _put_off(self) -> None:
        """The newest version is tried again later, the later the more often that has failed."""
        longest = max(self._poll_seconds, _MOST_WAIT_SECONDS)
        wait = min(self._poll_seconds * 2 ** min(self._num_failed, 20), longest)
        self._num_failed += 1
        self._not_before = time.monotonic() + wait

    def _is_put_off(self) -> bool:
        """Whether a version that was refused is still the newest, and is not due again."""
        if not self._num_failed or time.monotonic() >= self._not_before:
            return False
        numbers = listed_versions(self.destination)
        if not numbers or numbers[-1] == self._newest:
            return True
        self._num_failed = 0
        return False

    def _go_on(self, path: Sequence[Version]) -> None:
        """To the last of several versions, by the changes of each; in one step, so that what is
        wrong with the model of one between them is no matter."""
        rows, prepare, current, newest = self._rows, self._prepare, self._current, path[-1]
        assert rows is not None and prepare is not None and current is not None, "before load"
        state = self._model_of(newest)
        with ExitStack() as read:
            changes = [
                read.enter_context(rows.changes(self.destination, version, self._stopped))
                for version in path
            ]
        before, spare, self._spare = current.value, self._spare, None
        after = prepare(rows, newest, state, before, spare)
        after.lay_over(rows.overlays(changes))
        self._is_torn = True
        self._become(current, after, newest)
        if not current.wait_unread(self._is_over):
            return
        for version, change in zip(path, changes, strict=True):
            rows.apply(version, change, is_read=True)
        self._is_torn = False
        after.lay_over({})
        self._spare = before
        rows.save_if_due()

    def _is_over(self) -> bool:
        return self._is_closed

    def _become(self, current: Current[S], after: S, version: Version) -> None:
        """Calls that begin from now on are of that version."""
        current.replace(after)
        self._version = version
        self._changed_at = time.time()

    def _go_anew(self, number: int | None) -> None:
        """To any version, read from its base beside the one that is served."""
        prepare, before = self._prepare, self._rows
        assert prepare is not None, "before load"
        self._model_of(chain_of(self.destination, number)[-1])  # before all rows are read
        is_anew = before is not None
        rows = PublishedRows.open(
            self.destination,
            number,
            self._cache,
            self._memory,
            anew=is_anew,
            stopped=self._stopped,
        )
        try:
            after = prepare(rows, rows.version, self._model_of(rows.version))
        except BaseException:
            rows.drop() if is_anew else rows.close()
            raise
        if self._current is None:
            self._current = Current(after)
        self._rows, self._spare = rows, None
        self._become(self._current, after, rows.version)
        self._is_torn = False
        self._newest = max(self._newest, rows.version.number)
        self._current.wait_unread(self._is_over)
        if before is not None:
            before.drop()

    def _model_of(self, version: Version) -> PublishedState:
        model = version.model
        if model is None:
            raise ConfigError(
                f"{self.destination.shown}: version {version.number} holds rows alone, and no "
                "model that scores; publish a checkpoint of `hps train`, or one with model="
            )
        about, weights = (
            read_checked(self.destination, one) for one in (model.about, model.weights)
        )
        where = f"{self.destination.shown}/{model.about.name}"
        state = decode_model_files(about, weights, model.tensors, where)
        if model.graph is None:
            return PublishedState(state)
        where = f"{self.destination.shown}/{model.graph.file.name}"
        return PublishedState(state, model.graph, self._read_graph(model.graph), weights, where)

    def _read_graph(self, graph: PublishedGraph) -> bytes:
        """Its file, which most versions share with the one before."""
        if self._graph is None or self._graph[0] != graph.file.sha256:
            self._graph = graph.file.sha256, read_checked(self.destination, graph.file)
        return self._graph[1]
