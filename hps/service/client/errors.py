"""What a failed call means for the client: try again, refused for good, or something is missing.

Above it: the client's transport, session and rounds. Below it: hps.errors, the generated messages.
"""

from collections.abc import Callable
from enum import Enum
from typing import cast

import grpc

from hps.errors import (
    CapacityError,
    ConfigError,
    CorruptionError,
    HpsError,
    NonFiniteError,
    RemoteError,
    StoreError,
)
from hps.v1.parameter_server_pb2 import ErrorDetail

ERROR_METADATA = "hps-error-bin"
_TYPES: dict[int, type[HpsError]] = {
    ErrorDetail.CONFIG: ConfigError,
    ErrorDetail.CAPACITY: CapacityError,
    ErrorDetail.NON_FINITE: NonFiniteError,
    ErrorDetail.CORRUPTION: CorruptionError,
    ErrorDetail.STORE: StoreError,
}
# Refused before anything was done, also where a proxy and not the server says so.
_REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.DATA_LOSS,
)


class Verdict(Enum):
    """What is to become of the call."""

    OPEN = "open"  # whether it was done is not known, or it may yet be: try again
    REFUSED = "refused"  # not done, and would not be
    GAP = "gap"  # predecessors are missing
    FENCED = "fenced"  # the session has ended


# What is in gRPC's words, and what it means to the one that has started the client.
_HINTS = (
    ("Connection refused", "nothing listens there: check that hps serve is running, and the port"),
    (
        "WRONG_VERSION_NUMBER",
        "the server does not use TLS: leave TLS out, or serve with --tls-cert",
    ),
    (
        "certificate has expired",
        "the server's certificate has expired: renew its --tls-cert, and send the server SIGHUP",
    ),
    (
        "certificate is not yet valid",
        "the server's certificate is not valid yet: compare the clocks of both machines",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the server's certificate is not signed by the authority that the client trusts: compare "
        "--tls-ca (TlsConfig(ca=)) and the server's --tls-cert",
    ),
    (
        "Hostname Verification",
        "the certificate is of another name than the address: give that with --tls-name "
        "(TlsConfig(server_name=))",
    ),
    (
        "Failed to create security handshaker",
        "the files of --tls-ca, --tls-cert and --tls-key (TlsConfig) are not PEM files of a "
        "certificate and its key",
    ),
    ("errors resolving", "there is no host of that name"),
    ("DNS resolution failed", "there is no host of that name"),
    (
        "Failed parsing HTTP/2",
        "what listens there speaks no gRPC: check the port; of hps serve-model it is that of "
        "--listen, not of --http",
    ),
    ("Method not found", "no hps serve listens there, or an older one: check the port"),
    ("Deadline Exceeded", "it accepts connections and does not answer: check the port"),
)
_CLOSED = "Socket closed"
_CONNECTING = "failed to connect"
# Of a connection that was not made: the sides may differ in TLS, which no retry changes.
_OF_TLS = (
    "WRONG_VERSION_NUMBER",
    "CERTIFICATE_VERIFY_FAILED",
    "Hostname Verification",
    "Failed to create security handshaker",
    _CLOSED,
)
_CLOSED_HINTS = {
    False: "the server may want TLS (--tls, --tls-ca, TlsConfig), or is just being stopped",
    True: "the server may want a certificate of the client (--tls-cert, --tls-key)",
}


def hint_of(text: str, has_tls: bool) -> str:
    """What is probably wrong where gRPC says `text`; empty if that tells nothing more.

    >>> hint_of("ipv4:127.0.0.1:9: Failed to connect to remote host: Connection refused", False)
    'nothing listens there: check that hps serve is running, and the port'
    """
    for words, hint in _HINTS:
        if words in text:
            return hint
    return _CLOSED_HINTS[has_tls] if _CLOSED in text else ""


class Failure(Exception):
    """A call that did not return a reply.

    Args:
        code: the gRPC status.
        detail: the server's own words; None where it had none.
        text: gRPC's words.
        hint: what is probably wrong, for people; may be empty.
        is_hopeless: the two sides differ in TLS: no attempt will do better before that is changed.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        detail: ErrorDetail | None,
        text: str = "",
        hint: str = "",
        is_hopeless: bool = False,
    ) -> None:
        self.code = code
        self.is_hopeless = is_hopeless
        self.detail = detail
        self.hint = hint
        said = detail.message if detail is not None else text
        super().__init__(said or code.name)
        self.verdict = _verdict(code, detail)

    @classmethod
    def of(
        cls, error: grpc.RpcError, has_tls: bool, look: Callable[[], str] = lambda: ""
    ) -> "Failure":
        """From what grpc raises.

        Args:
            error: raised.
            has_tls: of the channel.
            look: finds out, where grpc could not connect for what may be TLS, in what the sides
                differ at this moment; empty if it does not show.
        """
        detail = None
        metadata = cast("tuple[tuple[str, str | bytes], ...]", error.trailing_metadata() or ())
        for name, value in metadata:
            if name == ERROR_METADATA and isinstance(value, bytes):
                detail = ErrorDetail.FromString(value)
        text = error.details() or ""
        if detail is not None:
            return cls(error.code(), detail, text)
        may_be_tls = _CONNECTING in text and any(words in text for words in _OF_TLS)
        difference = look() if may_be_tls else ""
        hint = difference or hint_of(text, has_tls)
        return cls(error.code(), None, text, hint, is_hopeless=bool(difference))

    def in_words(self) -> str:
        """What is known of it, the hint included."""
        return f"{self} - {self.hint}" if self.hint else str(self)

    @property
    def retry_after(self) -> float:
        """Seconds before which a retry is not worth it; 0 where nobody has said."""
        return 0.0 if self.detail is None else self.detail.retry_after_ms / 1000

    def typed(self, address: str, what: str = "shard") -> HpsError:
        """The error of hps.errors that it stands for; `what` is at the address."""
        kind = ErrorDetail.OTHER if self.detail is None else self.detail.kind
        error = error_of_kind(kind, f"{what} {address}: {self.code.name}: {self.in_words()}")
        error.__cause__ = self
        return error


def error_of_kind(kind: int, message: str) -> HpsError:
    """The error of hps.errors that a kind of ErrorDetail stands for."""
    return _TYPES.get(kind, RemoteError)(message)


def _verdict(code: grpc.StatusCode, detail: ErrorDetail | None) -> Verdict:
    if detail is None:
        return Verdict.REFUSED if code in _REFUSALS else Verdict.OPEN
    if detail.kind == ErrorDetail.GAP:
        return Verdict.GAP
    if detail.kind == ErrorDetail.FENCED:
        return Verdict.FENCED
    if detail.kind in (ErrorDetail.DRAINING, ErrorDetail.DEADLINE):
        return Verdict.OPEN
    # What the server could not do half way it may have applied: a store that failed for good, a
    # fault of the program. A full disk shows before anything is done.
    unclear = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
    if code in unclear:
        return Verdict.OPEN
    if detail.kind == ErrorDetail.STORE:
        return Verdict.REFUSED
    return Verdict.OPEN if detail.retry_after_ms else Verdict.REFUSED
