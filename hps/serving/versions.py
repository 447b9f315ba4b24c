"""Versions: which versions a served model can go to, and the way there, by a call of an operator.

Above it: version_handlers.py, rest_routes.py. Below it: `hps.Model`, which reads a version beside
the one that scores. A change outlives the call that asked for it: its rows may take longer to come
than anyone waits for a reply.
"""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError

from hps.common.json_text import Json
from hps.errors import ConfigError, StoreError
from hps.service.messages.status import Code, Refusal, late, not_found
from hps.service.server.log_lines import LogLines
from hps.serving.refusals import invalid
from hps.train.model import Model
from hps.v1.parameter_server_pb2 import ErrorDetail

LISTED, MOST_LISTED = 100, 1000


class Versions:
    """The versions of one model; thread-safe.

    Args:
        model: that scores; stays open.
        log: where a change is told.
    """

    def __init__(self, model: Model, log: LogLines) -> None:
        self._model = model
        self._log = log
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "hps-version")
        self._changing: int | None = None  # None: no change is under way; 0: back to following
        self._change_error = ""

    def state(self, limit: int = 0) -> Json:
        """What is served, and what is kept.

        Args:
            limit: most versions that are described, the newest ones; 0: 100.

        Returns:
            `served`, `newest`, `following`, `changed_at`, `error`, `changing`, `change_error`,
            `kept` and `versions`, as GetVersionsReply of model_server.proto has them; what is None
            there is absent.

        Raises:
            Refusal: the model is of a store, or the limit is none. StoreError: the versions cannot
                be listed.
        """
        self._check_published()
        if not 0 <= limit <= MOST_LISTED:
            raise invalid(f"limit={limit}: it is at most {MOST_LISTED} versions")
        return self._told(*self._model.versions(limit or LISTED))

    def _after_change(self) -> Json:
        """As `state`; with an error and no list where the versions cannot be listed now: what was
        asked for has been done."""
        try:
            return self.state()
        except StoreError as error:
            return {**self._told(0, []), "error": f"the versions cannot be listed now: {error}"}

    def _told(self, kept: int, listed: list[Json]) -> Json:
        now = self._model.following()
        return {
            "served": now["version"],
            "newest": max([now["newest"], *(one["version"] for one in listed)]),
            "following": now["is_following"],
            "changed_at": now["changed_at"],
            "error": now["error"] or "",
            "changing": self._changing or 0,
            "change_error": self._change_error,
            "kept": kept,
            "versions": listed,
        }

    def go_to(self, number: int, deadline: float) -> Json:
        """Goes to a version that is kept, and follows no more.

        Args:
            number: of it.
            deadline: monotonic; it waits no longer for the version to be served.

        Returns:
            What `state` does; `error` says so where the versions cannot be listed afterwards.

        Raises:
            Refusal: the model is of a store, the version is not kept, another change is under way,
                or it is late; then the change goes on.
            HpsError: the version cannot be taken; the one before it goes on.
        """
        self._check_published()
        if not 0 < number < 2**63:
            raise invalid(f"version={number}: a version is numbered from 1 on")
        self._check_kept(number)
        self._change(number, deadline)
        return self._after_change()

    def follow(self, deadline: float) -> Json:
        """Takes newer versions over from now on; as `go_to`."""
        self._check_published()
        self._change(0, deadline)
        return self._after_change()

    def close(self) -> None:
        """Begins no change any more. One that is under way ends with the model."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _check_published(self) -> None:
        if not self._model.has_versions:
            raise Refusal(
                Code.FAILED_PRECONDITION,
                ErrorDetail.CONFIG,
                "this server's model is read from a store, and follows no versions; those of "
                "`hps serve-model URL`, a place that `hps publish` writes to, can be changed",
            )

    def _check_kept(self, number: int) -> None:
        try:
            self._model.check_kept(number)
        except ConfigError as error:  # its file's other faults have their own types
            raise not_found(str(error)) from None

    def _change(self, number: int, deadline: float) -> None:
        """Does it in the one thread of changes, and waits for it."""
        with self._lock:
            if self._changing is not None:
                under_way = f"to version {self._changing}" if self._changing else "to following"
                raise Refusal(
                    Code.ABORTED,
                    ErrorDetail.OTHER,
                    f"a change {under_way} is under way; wait for its end, which the versions tell "
                    "as 'changing'",
                )
            self._changing = number
        change: Future[None]
        try:
            change = self._thread.submit(self._run, number)
        except RuntimeError:
            with self._lock:
                self._changing = None
            raise Refusal(
                Code.UNAVAILABLE, ErrorDetail.DRAINING, "the server is stopping; its version stays"
            ) from None
        try:
            change.result(max(0.0, deadline - time.monotonic()))
        except LateError:
            if change.done():  # it came to its end at the last moment
                return change.result()  # or it has met a timeout itself
            what = f"version {number} was not served" if number else "the versions not followed"
            raise late(
                f"{what} before the deadline; the change goes on, and the versions tell as "
                "'changing' and 'change_error' what becomes of it"
            ) from None

    def _run(self, number: int) -> None:
        before, error_text = self._model.version, ""
        try:
            if number:
                self._model.roll_back(number)
            else:
                self._model.follow()
        except BaseException as error:
            error_text = f"{type(error).__name__}: {error}"
            self._log.error("version", asked=number, served=before, message=error_text)
            raise
        else:
            served = self._model.version
            self._log.info("version", asked=number or "follow", before=before, served=served)
        finally:
            with self._lock:
                self._changing, self._change_error = None, error_text
