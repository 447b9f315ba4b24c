"""Follower: brings published versions to a model that scores, each between two requests.

Above it: model.py. Below it: published_rows.py, gate.py, hps/publish. One thread looks for a newer
version, fetches and checks all of it, and then changes rows and dense part while no request is
under way.
"""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from hps.common.json_text import Json
from hps.config import GpuCacheConfig
from hps.errors import ConfigError, HpsError, StoreError
from hps.publish.destination import Destination, open_destination
from hps.publish.fetch import read_checked
from hps.publish.model_files import decode_model_files
from hps.publish.version import (
    Version,
    listed_versions,
    load_version,
    newest_version,
    versions_after,
)
from hps.train.gate import Gate
from hps.train.published_rows import PublishedRows

# Takes over rows and dense part of a version: (rows, what `decode_model_files` gives).
Adopt = Callable[[PublishedRows, Json], None]


class Follower:
    """The versions of one destination, as one model follows them.

    Args:
        place: the destination, a folder or a URL.
        cache: a folder for local copies of rows; None: one that goes with this process.
        dram: memory for rows.
        gpu: of a GPU tier over them.
        poll_seconds: between two looks at the destination.
    """

    def __init__(
        self,
        place: str | Path,
        cache: str | Path | None,
        dram: int | str,
        gpu: GpuCacheConfig | None,
        poll_seconds: float,
    ) -> None:
        if not poll_seconds > 0:
            raise ConfigError(f"Model.load: poll_seconds={poll_seconds} must be above 0")
        self.destination: Destination = open_destination(place)
        self.gate = Gate()
        self._dram, self._gpu = dram, gpu
        self._poll_seconds = poll_seconds
        self._held = ExitStack()
        if cache is None:
            folder = self._held.enter_context(TemporaryDirectory(prefix="hps-served-"))
            self._cache = Path(folder)
        else:
            self._cache = Path(cache).absolute()
            self._cache.mkdir(parents=True, exist_ok=True)
        self._rows: PublishedRows | None = None
        self._adopt: Adopt | None = None
        self._thread: threading.Thread | None = None
        self._turn = threading.Lock()  # of who changes versions
        self._stopped = threading.Event()
        self._error: str | None = None
        self._is_broken = False
        self._newest = 0
        self._changed_at = 0.0

    def load(self, number: int | None, adopt: Adopt) -> None:
        """Reads a version, and hands it over.

        Args:
            number: of it; None: the newest.
            adopt: takes it over, while no request is under way; and each that comes after it.

        Raises:
            ConfigError: no such version, or one without a model. CorruptionError, StoreError: it is
                damaged, or cannot be read.
        """
        self._adopt = adopt
        try:
            with self._turn:
                self._go_anew(number)
        except BaseException:
            self._held.close()
            raise

    @property
    def version(self) -> Version:
        """The one whose rows are read now."""
        assert self._rows is not None, "before load"
        return self._rows.version

    def start(self) -> None:
        """Follows from now on, in a thread."""
        if self._thread is None or not self._thread.is_alive():
            self._stopped.clear()
            self._thread = threading.Thread(target=self._follow, name="hps-follow", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Follows no more; waits for a change that is under way."""
        self._stopped.set()
        thread = self._thread
        if thread is not None:
            thread.join()
        self._thread = None

    def go_to(self, number: int) -> None:
        """Changes to a version that is kept, also an older one, and follows no more.

        Raises:
            ConfigError: it is not kept. CorruptionError, StoreError: as `load`; the version stays.
        """
        version = load_version(self.destination, number)
        self.stop()
        with self._turn:
            if version.number != self.version.number or self._is_broken:
                self._go_anew(number)
        self._error = None

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

    def check_whole(self) -> None:
        """Raises StoreError while rows are of no version, after a change that was cut off."""
        if self._is_broken:
            raise StoreError(5, f"the model's rows could not be changed: {self._error}")

    def look(self) -> bool:
        """Looks for a newer version and takes it over; whether there was one.

        Raises:
            HpsError: it is damaged, or cannot be read; the version before it stays.
        """
        with self._turn:
            numbers = listed_versions(self.destination)
            if not numbers:
                raise ConfigError(f"{self.destination.shown}: nothing is published here any more")
            self._newest = numbers[-1]
            if numbers[-1] == self.version.number and not self._is_broken:
                return False
            newest = newest_version(self.destination)
            if newest is None:
                return False
            own = self.version
            path = None if self._is_broken else versions_after(self.destination, own, newest)
            if path is None:
                self._go_anew(newest.number)
            else:
                for version in path:
                    self._go_on(version)
            return True

    def close(self) -> None:
        """Stops, saves the local copy, and lets it go."""
        self.stop()
        with self._turn:
            rows, self._rows = self._rows, None
            if rows is not None:
                rows.close()
            self._held.close()

    def _follow(self) -> None:
        while not self._stopped.wait(self._poll_seconds):
            try:
                self.look()
                self._error = None
            except HpsError as error:
                self._error = f"{type(error).__name__}: {error}"

    def _go_on(self, version: Version) -> None:
        """To the next version, change by change."""
        rows, adopt = self._rows, self._adopt
        assert rows is not None and adopt is not None, "before load"
        state = self._model_of(version)
        with rows.changes(self.destination, version) as changes, self.gate.writing():
            self._is_broken = True
            rows.apply(version, changes)
            adopt(rows, state)
            self._is_broken = False
            self._changed_at = time.time()
        rows.save_if_due()

    def _go_anew(self, number: int | None) -> None:
        """To any version, read from its base beside the one that is served."""
        adopt, before = self._adopt, self._rows
        assert adopt is not None, "before load"
        is_anew = before is not None
        rows = PublishedRows.open(
            self.destination, number, self._cache, self._dram, self._gpu, anew=is_anew
        )
        try:
            state = self._model_of(rows.version)
            with self.gate.writing():
                adopt(rows, state)
                self._rows = rows
                self._is_broken = False
                self._newest = max(self._newest, rows.version.number)
                self._changed_at = time.time()
        except BaseException:
            rows.drop() if is_anew else rows.close()
            raise
        if before is not None:
            before.drop()

    def _model_of(self, version: Version) -> Json:
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
        return decode_model_files(about, weights, model.tensors, where)
