"""Calls to several shards at once: changes committed to all windows as one, reads, retries until
the deadline, and one error that names the shards done and open.

Above it: parameter_server.py. Below it: session.py.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

from hps import _C
from hps.errors import HpsError, RemoteError
from hps.service.client.errors import Failure, Verdict
from hps.service.client.session import Sent, Session, all_seconds
from hps.service.client.window import Change, Draft

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0  # seconds
_PATIENCE = 1.5  # seconds of failures, after which a caller that waits is told of them


class Pauses:
    """Waits between attempts: longer each time, a part of it by chance, never past the deadline.

    Args:
        until: the deadline.
        what: the call in words.
    """

    def __init__(self, until: float, what: str) -> None:
        self._until = until
        self._what = what
        self._next = _FIRST_PAUSE
        self._warns_from = time.monotonic() + _PATIENCE

    def wait(self, sessions: Iterable[Session]) -> bool:
        """Waits for the sake of these, whose last attempt failed; False at the deadline, and where
        no attempt will do better."""
        failing = [session for session in sessions if session.last_failure is not None]
        if any(_is_hopeless(session) for session in failing):
            return False
        asked = max((s.last_failure.retry_after for s in failing if s.last_failure), default=0.0)
        seconds = max(asked, self._next * random.uniform(0.5, 1.0))
        self._next = min(2 * self._next, _LONGEST_PAUSE)
        now = time.monotonic()
        left = self._until - now
        if left <= 0:
            return False
        if now >= self._warns_from:
            for session in failing:
                session.warn(self._what, left)
        time.sleep(min(seconds, left))
        return True


@dataclass(frozen=True)
class Request:
    """A call that may be made twice: it changes nothing, or the same again."""

    session: Session
    method: str
    message: bytes
    is_slow: bool = False  # may take all of the deadline: is not tried again before
    needs_session: bool = True  # comes after the changes that are open

    def seconds(self, until: float) -> float:
        """How long to wait for an answer."""
        if self.is_slow:
            return all_seconds(until)
        return self.session.attempt_seconds(until)


def open_sessions(sessions: Iterable[Session], until: float, what: str) -> None:
    """Makes sure that changes can be numbered, before any is.

    Raises:
        RemoteError: a shard does not answer, or refuses; nothing was done anywhere.
    """
    waiting = [session for session in sessions if not session.window.incarnation]
    pauses = Pauses(until, what)
    while waiting:
        failures = {session: session.open(until) for session in waiting}
        waiting = [session for session, failure in failures.items() if failure is not None]
        raise_ended(waiting)
        for session, failure in failures.items():
            if failure is not None and failure.verdict is Verdict.REFUSED:
                raise failure.typed(session.transport.address)
        if waiting and not pauses.wait(waiting):
            raise shards_open(what, (), waiting, "nothing was done on any shard")


@dataclass(frozen=True)
class Commit:
    """Changes that have their numbers and are on their way: they will be applied, now or later."""

    changes: dict[Session, list[Change]]
    pending: list[tuple[Session, Sent]]
    until: float
    what: str

    def wait(self) -> list[Change]:
        """Until it is known what became of each change.

        Raises:
            RemoteError: the deadline came first, or a restart has lost changes before these.
            HpsError: a shard refused its part.
        """
        try:
            for session, sent in self.pending:
                session.receive(sent)
        except BaseException:
            _break_off(self.changes)
            raise
        _settle(self.changes, self.until, self.what)
        return [change for part in self.changes.values() for change in part]


def commit(
    drafts: Sequence[tuple[Session, Draft]],
    until: float,
    what: str,
    applied: Callable[[], object] | None = None,
) -> Commit:
    """Gives changes their numbers, on all shards or none, and sends them.

    Args:
        applied: called with the commit, no interrupt in between if it is a builtin.

    Raises:
        RemoteError: a shard's session could not be opened, or its window stayed full, until the
            deadline; nothing was done.
    """
    by_session: dict[Session, list[Draft]] = {}
    for session, draft in sorted(drafts, key=lambda pair: pair[0].index):
        by_session.setdefault(session, []).append(draft)
    open_sessions(by_session, until, what)
    with ExitStack() as locks:
        _lock_with_room(by_session, until, what, locks)
        changes = {session: session.commit(part) for session, part in by_session.items()}
        appends: list[Callable[[], object]] = [
            partial(session.window.changes.append, change)
            for session, part in changes.items()
            for change in part
        ]
        # One native call over builtins: no interrupt comes between two of them.
        _C.call_all([*appends, *([applied] if applied else [])])
        committed = Commit(changes, [], until, what)
        try:
            for of_each in zip_longest(*changes.values()):  # the shards work beside each other
                for session, change in zip(changes, of_each, strict=True):
                    sent = None if change is None else session.send(change, until)
                    if sent is not None:
                        committed.pending.append((session, sent))
        except BaseException:
            _break_off(changes)
            raise
    return committed


def _break_off(sessions: Iterable[Session]) -> None:
    for session in sessions:
        session.break_off()


def _lock_with_room(
    by_session: dict[Session, list[Draft]], until: float, what: str, locks: ExitStack
) -> None:
    """Takes the locks of all sessions at a moment when each window has room."""
    needs = {
        session: sum(draft.num_bytes() for draft in part) for session, part in by_session.items()
    }
    while True:
        for session in by_session:
            locks.enter_context(session.lock)
        raise_ended(by_session)
        full = [session for session, size in needs.items() if not session.window.fits(size)]
        if not full:
            return
        locks.close()
        first = full[0]
        if first.is_broken:
            first.heal(until)
        with first.lock:
            if not first.window.fits(needs[first]):
                first.lock.wait(min(0.05, max(0.0, until - time.monotonic())))
        if time.monotonic() >= until:
            raise shards_open(
                what, (), full, "its window is full of changes that are not answered; nothing done"
            )


def _settle(changes: dict[Session, list[Change]], until: float, what: str) -> None:
    """What `Commit.wait` does after the first answers."""
    pauses = Pauses(until, what)
    while True:
        waiting = [
            session
            for session, part in changes.items()
            if not all(change.is_settled for change in part)
        ]
        if not waiting:
            break
        failures = [failure for session in waiting if (failure := session.heal(until))]
        is_refused = any(failure.verdict is Verdict.REFUSED for failure in failures)
        if is_refused or (failures and not pauses.wait(waiting)):
            done = [session for session in changes if session not in waiting]
            raise shards_open(what, done, waiting, _KEPT)
    losses = [loss for session in changes if (loss := session.take_loss()) is not None]
    if losses:
        raise losses[0]
    for session, part in changes.items():
        for change in part:
            if change.error is not None:
                others = [other for other in changes if other is not session]
                raise _noted(change.error, what, [s for s in others if _all_done(changes[s])])


_KEPT = (
    "what is open is kept and goes first with the next call: do not give it again; close() waits "
    "for it, too"
)


def _all_done(part: list[Change]) -> bool:
    return all(change.is_acknowledged for change in part)


def _noted(error: HpsError, what: str, done: list[Session]) -> HpsError:
    if done:
        error.add_note(f"{what}: done on shards {', '.join(map(str, done))}")
    return error


def raise_ended(sessions: Iterable[Session]) -> None:
    """Raises the RemoteError of the first whose session has ended; nobody need be asked for it."""
    for session in sessions:
        if session.ended is not None:
            raise session.ended


def shards_open(
    what: str, done: Iterable[Session], waiting: Sequence[Session], then: str
) -> RemoteError:
    """The one error of a call that did not reach all of its shards in time."""
    causes = [
        f"{session}: {session.last_failure.in_words() if session.last_failure else 'no answer'}"
        for session in sorted(waiting, key=lambda session: session.index)
    ]
    finished = ", ".join(map(str, sorted(done, key=lambda session: session.index))) or "none"
    is_refused = any(
        session.last_failure is not None and session.last_failure.verdict is Verdict.REFUSED
        for session in waiting
    )
    why = "refused" if is_refused else "deadline passed"
    if any(_is_hopeless(session) for session in waiting):
        why = "no connection, which a retry will not change"
    return RemoteError(f"{what}: {why}; shards done: {finished}; open: {'; '.join(causes)}; {then}")


def _is_hopeless(session: Session) -> bool:
    return session.last_failure is not None and session.last_failure.is_hopeless


def ask(
    requests: Sequence[Request],
    until: float,
    what: str,
    then: str = "the call changes nothing",
    seen: Callable[[int, bytes], None] | None = None,
) -> list[bytes]:
    """Makes calls that may be made twice, all at once, until each has its reply.

    A shard that has changes of this client open gets them first, so that a read sees them.

    Args:
        requests: the calls.
        until: the deadline.
        what: they are, in words.
        then: what to do after the deadline.
        seen: called with a request's number and its reply as soon as there is one; what it raises
            ends all.

    Raises:
        RemoteError: the deadline came first; names the shards done and open.
        HpsError: a shard refused.
    """
    replies: list[bytes | None] = [None] * len(requests)
    waiting = list(range(len(requests)))
    pauses = Pauses(until, what)
    while waiting:
        failures = _attempt(requests, waiting, replies, until)
        for i in waiting:
            reply = replies[i]
            if reply is not None:
                requests[i].session.last_failure = None
                if seen is not None:
                    seen(i, reply)
        for i, failure in failures.items():
            session = requests[i].session
            session.last_failure = failure
            if requests[i].needs_session:
                raise_ended([session])
            if failure.verdict not in (Verdict.OPEN, Verdict.GAP):
                raise failure.typed(session.transport.address)
        waiting = list(failures)
        left = [requests[i].session for i in waiting]
        if waiting and not pauses.wait(left):
            done = [r.session for i, r in enumerate(requests) if i not in waiting]
            raise shards_open(what, done, left, then)
    raise_lost(request.session for request in requests)
    return [reply for reply in replies if reply is not None]


def stream(
    session: Session, method: str, message: bytes, until: float, seconds: float
) -> Iterator[bytes]:
    """The replies of a shard to one request, as they come; after the changes that are open.

    Args:
        until: so long it is begun again, as long as there was no reply.
        seconds: what it may take once it has begun.

    Raises:
        RemoteError: no reply came until then, or the shard has gone in the middle.
        HpsError: it refused.
    """
    pauses = Pauses(until, method)
    has_begun = False
    while True:
        failure = session.heal(until) if session.must_heal else None
        if failure is None:
            try:
                for reply in session.transport.stream(method, message, seconds):
                    has_begun = True
                    yield reply
                return
            except Failure as found:
                failure = found
        session.break_off()
        session.last_failure = failure
        raise_ended([session])
        if has_begun or failure.verdict not in (Verdict.OPEN, Verdict.GAP):
            raise failure.typed(session.transport.address) from None
        if not pauses.wait([session]):
            raise shards_open(method, (), [session], "nothing was read")


def _attempt(
    requests: Sequence[Request], waiting: list[int], replies: list[bytes | None], until: float
) -> dict[int, Failure]:
    """One attempt at each call that waits; the failures by number."""
    failures: dict[int, Failure] = {}
    for i in waiting:
        session, is_needed = requests[i].session, requests[i].needs_session
        if is_needed and session.must_heal and (failure := session.heal(until)) is not None:
            failures[i] = failure
    ready = [i for i in waiting if i not in failures]
    if len(ready) == 1:  # its own thread waits for it: cheaper than a future
        request = requests[ready[0]]
        try:
            replies[ready[0]] = request.session.transport.call(
                request.method, request.message, request.seconds(until)
            )
        except Failure as failure:
            failures[ready[0]] = failure
        return failures
    started = []
    for i in ready:
        request = requests[i]
        seconds = request.seconds(until)
        pending = request.session.transport.start(request.method, request.message, seconds)
        started.append((i, pending))
    for i, pending in started:
        try:
            replies[i] = pending.reply()
        except Failure as failure:
            failures[i] = failure
    return failures


def raise_lost(sessions: Iterable[Session]) -> None:
    """Raises the RemoteError of the first that a restart has cost changes; told once."""
    for session in sessions:
        loss = session.take_loss()
        if loss is not None:
            raise loss
