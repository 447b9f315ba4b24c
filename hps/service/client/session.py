"""Session: a client's changes at one shard. Each gets its sequence number here, is sent in order,
and is sent again until it is answered.

Above it: rounds.py. Below it: window.py, which keeps the changes; a transport. `commit` chooses
the numbers. Changes that find everything well are sent in their order, a few under way at a time,
so that one client alone is not refused for the number of its calls; each answer starts the next,
whether anybody waits for it or not. After the first failure the session is broken: nothing more is
sent but by `heal`, which asks the shard how far it is and sends what it lacks, one by one. Sending
a change twice is harmless: the shard knows it.
"""

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import cast

import grpc

from hps.common.locks import assert_held, new_lock
from hps.errors import HpsError, RemoteError
from hps.service.client.errors import Failure, Verdict
from hps.service.client.transport import Pending, Transport
from hps.service.client.window import METHODS, Change, Draft, Window
from hps.v1 import parameter_server_pb2 as pb

_LEAST_ATTEMPT_SECONDS = 5.0
_ATTEMPTS_A_DEADLINE = 3  # of calls that get no answer at all
_NOTICE_SECONDS = 30.0  # between two warnings of one shard
MOST_UNDER_WAY = 8  # changes, where the shard allows as many
_LEAST_TURN_SECONDS = 1.0  # of a change that had to wait for its turn


def all_seconds(until: float) -> float:
    """How long to wait for an answer to what is not tried again before the deadline."""
    return max(0.001, until - time.monotonic())


@dataclass(slots=True, eq=False)
class Sent:
    """One sending of a change, now or when its turn comes.

    Args:
        change: what is sent; `heal` may send it again meanwhile.
        until: the deadline.
        opening: of the session, under which it was sent: an answer is worth no more than that.
        pending: its answer; None before its turn.
    """

    change: Change
    until: float
    opening: int = 0
    pending: Pending | None = None


class Session:
    """One client at one shard. Thread-safe.

    Args:
        shard_map: what the client believes of this shard.
        transport: to the shard.
        client_id, window: as in ClientConfig.
        deadline: seconds of a call, retries included.
    """

    def __init__(
        self,
        shard_map: pb.ShardMap,
        transport: Transport,
        client_id: str,
        window: int,
        deadline: float,
    ) -> None:
        self.index = shard_map.index
        self.transport = transport
        self.lineage = ""
        self._held = new_lock()
        # Guards the window, `is_broken`, `ended` and the counts below: they change with it held.
        self.lock = threading.Condition(cast("threading._RLock", self._held))
        self.window = Window(client_id, window, self._held)
        self.is_broken = False
        self.last_failure: Failure | None = None  # the newest, of whichever thread
        self.ended: HpsError | None = None  # why no change is taken any more
        self.most_under_way = MOST_UNDER_WAY  # changes that are sent and not answered
        self._under_way: deque[Sent] = deque()
        self._turns: deque[Sent] = deque()  # those that wait for an answer to one of them
        self._is_starting = False
        self._shard_map = shard_map
        self._client_id = client_id
        self._deadline = deadline
        self._healing = threading.Lock()  # held by the one thread that heals; asked for first
        self._is_new_wanted = True  # the next opening begins an incarnation
        self._opening = 0  # counts openings: what was answered before one may have been lost since
        self._loss: RemoteError | None = None
        self._next_notice = 0.0  # monotonic: no warning before it

    def __str__(self) -> str:
        return f"{self.index} ({self.transport.address})"

    def attempt_seconds(self, until: float) -> float:
        """How long to wait for an answer before trying again."""
        share = max(_LEAST_ATTEMPT_SECONDS, self._deadline / _ATTEMPTS_A_DEADLINE)
        return min(share, all_seconds(until))

    def _change_seconds(self, change: Change, until: float) -> float:
        is_slow = METHODS[change.method].is_slow
        return all_seconds(until) if is_slow else self.attempt_seconds(until)

    def warn(self, what: str, seconds_left: float) -> None:
        """Says, to the log of this process, that and why a call is being tried again."""
        now, failure = time.monotonic(), self.last_failure
        if failure is None or now < self._next_notice:
            return
        self._next_notice = now + _NOTICE_SECONDS
        logging.getLogger(__name__).warning(
            "hps: %s: shard %s: %s; it is tried again for %.0f s more",
            what,
            self,
            failure.in_words(),
            seconds_left,
        )

    @property
    def must_heal(self) -> bool:
        """True if changes were numbered and not all are answered."""
        return self.is_broken and self.window.incarnation > 0

    def open(self, until: float) -> Failure | None:
        """Makes sure that changes can be numbered; returns what prevents it."""
        with self.lock:
            if self.window.incarnation:
                return None
            self.is_broken = True
        return self.heal(until)

    def commit(self, drafts: list[Draft]) -> list[Change]:
        """The drafts as the next changes; the caller appends them, with the lock held."""
        assert_held(self._held)
        first = self.window.last + 1
        return [self.window.number(draft, first + i) for i, draft in enumerate(drafts)]

    def send(self, change: Change, until: float) -> Sent | None:
        """Sends a change of the window, with the lock held; None if it must wait for `heal`."""
        assert_held(self._held)
        if self.is_broken:
            return None
        sent = Sent(change, until)
        self._turns.append(sent)
        self._start_next()
        return sent

    def receive(self, sent: Sent) -> None:
        """Waits for the answer to a change that was sent; who is interrupted calls `break_off`."""
        with self.lock:
            while sent.pending is None and not (self.is_broken or sent.change.is_settled):
                left = sent.until - time.monotonic()
                if left <= 0:
                    self.is_broken = True
                else:
                    self.lock.wait(left)
            pending = sent.pending
        if pending is None:  # `heal` sends it, or has
            return
        try:
            reply = pending.reply()
        except Failure as failure:
            self._reject(sent.change, failure)
        else:
            self._accept(sent.change, reply, sent.opening)

    def _start_next(self) -> None:
        """Sends the changes whose turn it is, in their order."""
        assert_held(self._held)
        if self._is_starting:  # an answer was there at once
            return
        self._is_starting = True
        try:
            while self._turns and len(self._under_way) < self.most_under_way and not self.is_broken:
                sent, change = self._turns[0], self._turns[0].change
                change.attempts += 1
                sent.opening = self._opening
                seconds = max(_LEAST_TURN_SECONDS, self._change_seconds(change, sent.until))
                sent.pending = self.transport.start(change.method, change.message, seconds)
                self._under_way.append(self._turns.popleft())
                sent.pending.then(partial(self._answered, sent))
        finally:
            self._is_starting = False

    def _answered(self, sent: Sent, is_good: bool) -> None:
        """An answer has come, to whoever waits for it; in any thread."""
        with self.lock:
            if sent not in self._under_way:
                return  # it was healed meanwhile
            self._under_way.remove(sent)
            if not is_good and self._turns:
                self.is_broken = True  # those that wait cannot be applied before it
            try:
                self._start_next()
            except BaseException:
                self.is_broken = True  # a channel that was closed, say: `heal` sends them
                raise
            finally:
                self.lock.notify_all()

    def _forget_sent(self) -> None:
        """All that was sent is answered, or will not be."""
        assert_held(self._held)
        self._under_way.clear()
        self._turns.clear()

    def break_off(self) -> None:
        """What is under way counts as unanswered."""
        with self.lock:
            self.is_broken = True
            self.lock.notify_all()

    def heal(self, until: float) -> Failure | None:
        """One attempt at bringing the shard to where the window is; returns what prevents it.

        Nothing to do for a session that is not broken. Of several threads one does it.
        """
        if not self._healing.acquire(timeout=max(0.0, until - time.monotonic())):
            return self.last_failure or Failure(grpc.StatusCode.DEADLINE_EXCEEDED, None)
        try:
            if not self.is_broken or self.ended is not None:
                return None
            self._reopen(until)
            self._resend(until)
        except Failure as failure:
            self.last_failure = failure
            if failure.verdict is Verdict.FENCED:
                self._end(failure)
            return failure
        finally:
            self._healing.release()
        return None

    def safe_up_to(self, level: int, until: float) -> int:
        """Asks the shard for the highest change that is as safe as `level`; 0 if it is silent."""
        self.break_off()
        if self.heal(until) is not None:
            return 0
        with self.lock:
            marks = self.window.marks
            return int((marks.applied, marks.logged, marks.durable)[level])

    def take_loss(self) -> RemoteError | None:
        """What a restart has lost beyond the window; told once."""
        loss, self._loss = self._loss, None
        return loss

    def restart(self, lineage: str) -> None:
        """The shard went back to a checkpoint: what was on its way belongs to the past."""
        with self.lock:
            self.window.clear(RemoteError(f"shard {self}: a restore came before the answer"))
            self.window.incarnation = 0
            self._opening += 1
            self._is_new_wanted = True
            self._forget_sent()
            self.is_broken = False
            self.ended = None
            self.lineage = lineage
            self.lock.notify_all()

    def _reopen(self, until: float) -> None:
        """Opens the session, or asks how far it is; raises Failure."""
        with self.lock:
            base = self.window.base  # before asking: what leaves later is not missed by an answer
        reply = self._call_open(until)
        if not self._is_new_wanted and reply.marks.applied < base:
            with self.lock:
                self._note_loss(reply.marks.applied + 1, base)
                self._is_new_wanted = True
            reply = self._call_open(until)
        with self.lock:
            self._opening += 1
            if self._is_new_wanted:
                self.window.renumber(reply.incarnation, reply.marks)
                self._is_new_wanted = False
            else:
                self.window.start_from(reply.marks)

    def _call_open(self, until: float) -> pb.OpenSessionReply:
        request = pb.OpenSessionRequest(
            client_id=self._client_id, shard_map=self._shard_map, lineage=self.lineage
        )
        if not self._is_new_wanted:
            request.incarnation = self.window.incarnation
        seconds = self.attempt_seconds(until)
        reply = self.transport.call("OpenSession", request.SerializeToString(), seconds)
        answer: pb.OpenSessionReply = pb.OpenSessionReply.FromString(reply)
        return answer

    def _resend(self, until: float) -> None:
        """Sends what the shard lacks, in order; raises Failure."""
        sent = 0
        while True:
            with self.lock:
                change = self.window.next_to_send(sent)
                if change is None:
                    self._forget_sent()
                    self.is_broken = False
                    self.last_failure = None
                    self.lock.notify_all()
                    return
                change.attempts += 1
                opening = self._opening
            seconds = self._change_seconds(change, until)
            try:
                reply = self.transport.call(change.method, change.message, seconds)
            except Failure as failure:
                if failure.verdict is not Verdict.REFUSED:
                    raise
                self._refuse(change, failure)
            else:
                self._accept(change, reply, opening)
                sent = change.sequence

    def _accept(self, change: Change, reply: bytes, opening: int) -> None:
        incoming = METHODS[change.method].reply.split(reply)
        with self.lock:
            if change.error is not None:
                return
            if incoming.head.is_repeat and change.attempts == 1:
                self._check_number(change)
            if change.reply is None or not incoming.head.is_repeat:
                change.reply = incoming  # a repeat may tell less
            if opening != self._opening:
                return  # a server that was started again since may lack it: `heal` sends it again
            change.is_acknowledged = True
            self.window.take_in(incoming.head.marks)
            self.lock.notify_all()

    def _check_number(self, change: Change) -> None:
        """A change that was sent once is no repeat; but a crash may bring back what was refused."""
        assert_held(self._held)
        if change.sequence == self.window.freed:
            change.error = RemoteError(
                f"shard {self}: {change.what} was not applied: number {change.sequence} went to "
                "a change that had been refused before, and was applied after all; repeat the call"
            )
            change.is_acknowledged = True  # the shard wants nothing more under this number

    def _reject(self, change: Change, failure: Failure) -> None:
        with self.lock:
            self.last_failure = failure
            if failure.verdict is Verdict.FENCED:
                self._end(failure)
            elif change.is_settled:
                pass  # another thread has sent it again meanwhile
            elif failure.verdict is not Verdict.REFUSED:
                self.is_broken = True
            else:
                before = len(self.window.changes)
                self._refuse(change, failure)
                self.is_broken |= len(self.window.changes) == before
            self.lock.notify_all()

    def _refuse(self, change: Change, failure: Failure) -> None:
        """It will not be applied: its number becomes nothing, or is used again."""
        with self.lock:
            error = failure.typed(self.transport.address)
            if change.method == "Skip":
                self.window.withdraw_unsent(error)
                raise failure
            change.error = error
            self.window.give_up(change)

    def _end(self, failure: Failure) -> None:
        with self.lock:
            self.ended = RemoteError(
                f"shard {self}: the session of client {self._client_id!r} has ended: {failure}; "
                "another process goes by that client_id, or the shards were restored: make a new "
                "RemoteParameterServer"
            )
            self.window.clear(self.ended)
            self._forget_sent()
            self.is_broken = False
            self.lock.notify_all()

    def _note_loss(self, first: int, last: int) -> None:
        assert_held(self._held)
        logged = min(last, self.window.marks.logged)  # as the shard has told before the restart
        reasons = []
        if logged >= first:
            reasons.append(
                f"{first} to {logged} had been logged, which a loss of power may undo, or a store "
                "that is put back from a copy: push with ack='durable' against the one"
            )
        if logged < last:
            reasons.append(
                f"{max(first, logged + 1)} to {last} were acknowledged in memory, and a restart "
                "has lost them beyond what the client's window holds: push with ack='logged', or "
                "give a larger window"
            )
        self._loss = RemoteError(
            f"shard {self}: changes {first} to {last} of client {self._client_id!r}, incarnation "
            f"{self.window.incarnation}, are lost: {'; '.join(reasons)}. The client goes on in a "
            "new incarnation; go back to a checkpoint to have them again"
        )
