"""Who is let in, and how much at a time: tokens, requests and bytes in flight, the drain.

Above it: calls.py. Below it: auth.py, limits.py.
"""

import threading
import time

from hps.service.messages.status import Code, Refusal, draining, overloaded
from hps.service.server.auth import Caller, TokenFile, anyone
from hps.service.server.limits import ServerLimits
from hps.v1.parameter_server_pb2 import ErrorDetail


class Admission:
    """The place of one call among those in flight, given back when both have let go of it: the
    handler, and the call itself, whose reply may still lie unread. Thread-safe.
    """

    def __init__(self, admissions: "Admissions", client: str) -> None:
        self._admissions = admissions
        self._client = client
        self._num_bytes = 0
        self._num_holders = 2

    def take(self, num_bytes: int) -> None:
        """Counts bytes that the call holds from now on.

        Raises:
            Refusal: beyond the limit of the client or of the server.
        """
        self._admissions.take(self._client, num_bytes)
        self._num_bytes += num_bytes

    def let_go(self) -> None:
        """One of the two holders has let go."""
        self._admissions.let_go(self)

    def leave(self) -> tuple[str, int] | None:
        """(client, bytes) when the last holder leaves, else None; with the lock of those held."""
        self._num_holders -= 1
        return (self._client, self._num_bytes) if self._num_holders == 0 else None


class Admissions:
    """Checks and counts every call; thread-safe.

    Args:
        limits: of the server.
        tokens: None lets everyone in.
    """

    def __init__(self, limits: ServerLimits, tokens: TokenFile | None) -> None:
        self._limits = limits
        self._tokens = tokens
        self._changed = threading.Condition()
        self._requests: dict[str, int] = {}  # of those clients that have some
        self._bytes: dict[str, int] = {}
        self._num_requests = 0
        self._num_bytes = 0
        self._num_streams = 0
        self._is_draining = False

    def identify(self, header: str | None, peer: str) -> Caller:
        """The caller by its `authorization` header, or without tokens by its connection.

        Raises:
            Refusal: no token, an unknown or an expired one.
        """
        if self._tokens is None:
            return anyone(peer)
        caller = self._tokens.find(header)
        if caller is None:
            said = "no token" if header is None else "an unknown token"
            raise _unauthenticated(f"{said}; send the metadata 'authorization: Bearer TOKEN'")
        check_expiry(caller)
        return caller

    def enter(self, client: str) -> Admission:
        """Lets a call in.

        Raises:
            Refusal: the server is stopping, or too much is in flight.
        """
        limits = self._limits
        with self._changed:
            if self._is_draining:
                raise draining()
            if self._num_requests >= limits.requests:
                raise overloaded(f"{self._num_requests} calls are in flight, the most there may be")
            count = self._requests.get(client, 0)
            if count >= limits.client_requests:
                raise overloaded(
                    f"{client} has {count} calls in flight; {limits.client_requests} at most"
                )
            self._requests[client] = count + 1
            self._num_requests += 1
        return Admission(self, client)

    def take(self, client: str, num_bytes: int) -> None:
        """See Admission.take."""
        limits = self._limits
        with self._changed:
            held = self._bytes.get(client, 0)
            for who, total, limit in (
                (client, held, int(limits.client_bytes)),
                ("the server", self._num_bytes, int(limits.flight_bytes)),
            ):
                if total + num_bytes > limit:
                    raise overloaded(
                        f"{who} has {total} bytes in flight; {num_bytes} more would exceed {limit}"
                    )
            self._bytes[client] = held + num_bytes
            self._num_bytes += num_bytes

    def let_go(self, admission: Admission) -> None:
        """See Admission.let_go."""
        with self._changed:
            left = admission.leave()
            if left is None:
                return
            client, num_bytes = left
            self._num_requests -= 1
            self._num_bytes -= num_bytes
            for counts, count in ((self._requests, 1), (self._bytes, num_bytes)):
                rest = counts.get(client, 0) - count
                if rest > 0:
                    counts[client] = rest
                else:
                    counts.pop(client, None)
            self._changed.notify_all()

    def open_stream(self) -> None:
        """Counts a push stream; see close_stream.

        Raises:
            Refusal: there are as many as there may be.
        """
        with self._changed:
            if self._num_streams >= self._limits.streams:
                raise overloaded(
                    f"{self._num_streams} push streams are open, the most there may be"
                )
            self._num_streams += 1

    def close_stream(self) -> None:
        """The end of one stream that open_stream counted."""
        with self._changed:
            self._num_streams -= 1

    def drain(self) -> None:
        """From now on nobody is let in."""
        with self._changed:
            self._is_draining = True

    def is_draining(self) -> bool:
        """True once drain was called."""
        return self._is_draining

    def wait_empty(self, seconds: float) -> bool:
        """True as soon as no call is in flight; False when that takes longer."""
        until = time.monotonic() + seconds
        with self._changed:
            while self._num_requests:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def in_flight(self) -> dict[str, int]:
        """Counts for the metrics: requests, bytes, streams, clients."""
        with self._changed:
            return {
                "requests": self._num_requests,
                "bytes": self._num_bytes,
                "streams": self._num_streams,
                "clients": len(self._requests),
            }


def check_expiry(caller: Caller) -> None:
    """Raises a Refusal if the caller's token has ended."""
    if caller.is_expired():
        raise _unauthenticated(f"the token of {caller.name!r} has expired; ask for a new one")


def _unauthenticated(message: str) -> Refusal:
    return Refusal(Code.UNAUTHENTICATED, ErrorDetail.AUTHENTICATION, message)
