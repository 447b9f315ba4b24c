"""How errors travel: each as one gRPC status and an ErrorDetail, and what a handler raises itself.

Above it: service/server/calls.py, which ends a call with a Refusal. Below it: hps.errors, the
proto's ErrorDetail.
"""

import errno

import grpc

from hps.common.full_disk import advise
from hps.errors import (
    CapacityError,
    ChangedError,
    ConfigError,
    CorruptionError,
    FencedError,
    GapError,
    HpsError,
    MismatchError,
    NonFiniteError,
    StoreError,
)
from hps.v1.parameter_server_pb2 import ErrorDetail

DETAIL_KEY = "hps-error-bin"
RETRY_MS = 50  # what was refused for want of room usually finds it after this time
FULL_DISK_RETRY_MS = 1000
_FULL_DISK = "free space on the server's disk; the same request may then be sent again"
_MAX_MESSAGE_BYTES = 2000  # gRPC's clients take 8 KiB of metadata
# Instead of a text with the name of a table that the caller may not see.
VEILED = "the store or its log has failed; the server's log, or a token for all tables, says why"
Code = grpc.StatusCode


class Refusal(Exception):
    """Ends a call with a status other than OK.

    Args:
        code: the status.
        kind: an ErrorDetail.Kind.
        message: what, where, the value seen, the limit, what to do.
        mark: of GAP.
        retry_ms: after how many milliseconds a retry is worth it; 0 says nothing.
    """

    def __init__(
        self, code: Code, kind: ErrorDetail.Kind, message: str, *, mark: int = 0, retry_ms: int = 0
    ) -> None:
        super().__init__(message)
        self.code = code
        clipped = message.encode(errors="replace")[:_MAX_MESSAGE_BYTES].decode(errors="ignore")
        self.detail = ErrorDetail(
            kind=kind,
            message=clipped,
            mark=mark,
            retry_after_ms=retry_ms,
        )


def overloaded(message: str) -> Refusal:
    """Too much in flight: a retry helps."""
    return Refusal(Code.RESOURCE_EXHAUSTED, ErrorDetail.OVERLOADED, message, retry_ms=RETRY_MS)


def too_large(message: str) -> Refusal:
    """Beyond a limit: a retry does not help."""
    return Refusal(Code.RESOURCE_EXHAUSTED, ErrorDetail.CAPACITY, message)


def not_found(message: str) -> Refusal:
    """A table or checkpoint that is not there."""
    return Refusal(Code.NOT_FOUND, ErrorDetail.CONFIG, message)


def mismatch(message: str) -> Refusal:
    """The caller takes the shard for something else."""
    return Refusal(Code.FAILED_PRECONDITION, ErrorDetail.MISMATCH, message)


def late(message: str) -> Refusal:
    """The deadline has passed."""
    return Refusal(Code.DEADLINE_EXCEEDED, ErrorDetail.DEADLINE, message)


def draining() -> Refusal:
    """The server is about to stop."""
    message = "the server is stopping; try again on this address or another"
    return Refusal(Code.UNAVAILABLE, ErrorDetail.DRAINING, message, retry_ms=RETRY_MS)


# The first that fits counts.
_STATUS_OF = (
    (FencedError, Code.ABORTED, ErrorDetail.FENCED),
    (MismatchError, Code.FAILED_PRECONDITION, ErrorDetail.MISMATCH),
    (ChangedError, Code.ABORTED, ErrorDetail.CONFIG),
    (ConfigError, Code.INVALID_ARGUMENT, ErrorDetail.CONFIG),
    (CapacityError, Code.RESOURCE_EXHAUSTED, ErrorDetail.CAPACITY),
    (NonFiniteError, Code.INVALID_ARGUMENT, ErrorDetail.NON_FINITE),
    (CorruptionError, Code.DATA_LOSS, ErrorDetail.CORRUPTION),
    (TimeoutError, Code.DEADLINE_EXCEEDED, ErrorDetail.DEADLINE),
    (HpsError, Code.UNKNOWN, ErrorDetail.OTHER),
    (MemoryError, Code.RESOURCE_EXHAUSTED, ErrorDetail.CAPACITY),
)


def refusal_of(error: BaseException) -> Refusal | None:
    """The status of an error that was raised on purpose; None for a fault of the program."""
    if isinstance(error, Refusal):
        return error
    message = "; ".join((str(error), *getattr(error, "__notes__", ())))
    if isinstance(error, GapError):
        return Refusal(Code.OUT_OF_RANGE, ErrorDetail.GAP, message, mark=error.mark)
    if isinstance(error, StoreError):
        message = advise(message, _FULL_DISK)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            code, retry_ms = Code.RESOURCE_EXHAUSTED, FULL_DISK_RETRY_MS
        else:
            code, retry_ms = Code.UNAVAILABLE, 0
        return Refusal(code, ErrorDetail.STORE, message, retry_ms=retry_ms)
    for kind, code, number in _STATUS_OF:
        if isinstance(error, kind):
            return Refusal(code, number, message)
    return None
