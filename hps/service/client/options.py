"""What a client of the service is told: where the shards are, who it is, how much it may hold.

Above it: parameter_server.py, the command line. Below it: hps.config. Frozen, keyword-only,
checked.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict
from uuid import uuid4

from hps.common.byte_sizes import parse_bytes
from hps.common.field_checks import require_flag, require_number
from hps.common.wire_format import Wire
from hps.errors import ConfigError
from hps.service.messages.addresses import is_loopback

ACKS = ("memory", "logged", "durable")  # by their number in proto/hps/v1
_TOKEN = re.compile(r"[!-~]{1,4096}")  # what a header of HTTP takes
_CLIENT_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """How a client knows its servers, and they the client.

    Args:
        ca: PEM file of the authority that signed the servers' certificates; None takes those that
            the system trusts.
        cert, key: PEM files of the client's own certificate and key, for servers that ask for one.
        server_name: the name in the servers' certificates, if it is not that of the address.

    Raises:
        ConfigError: a certificate without its key, or the contrary.

    >>> TlsConfig(ca="ca.pem").server_name is None
    True
    """

    ca: str | os.PathLike[str] | None = None
    cert: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ConfigError(
                "TlsConfig: cert and key are the two files of one identity; give both"
            )

    def read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """(ca, key, cert) as grpc takes them.

        Raises:
            ConfigError: a file cannot be read.
        """
        return _contents(self.ca), _contents(self.key), _contents(self.cert)


class ClientFields(TypedDict, total=False):
    """The keywords of `hps.RemoteParameterServer`; ClientConfig says what they mean."""

    token: str | None
    tls: TlsConfig | None
    deadline: float
    wire: str
    push_wire: str | None
    window: int | str
    allow_insecure: bool


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """A client of one service, over one or several shards.

    Args:
        addresses: "host:port" of each shard, in the order of their indices.
        client_id: names the client to the servers, which count its changes by it. Of two clients of
            one name the older one is refused. None makes up a name that no other has.
        token: bearer token; goes with every call.
        tls: None talks without TLS.
        deadline: seconds for a call, all its retries included.
        wire: how rows travel to the client: "float32", "float16", "bfloat16" or "int8" (a scale a
            row); see hps/common/wire.py for what is lost.
        push_wire: how gradients travel; None: as `wire`.
        window: bytes of changes kept for each shard until its log has them.
        allow_insecure: send the token without TLS beyond this machine, where all who are on the way
            can read it.

    Raises:
        ConfigError: a field outside its limits; a token that would travel in the clear.
    """

    addresses: Sequence[str]
    client_id: str | None = None
    token: str | None = field(default=None, repr=False)
    tls: TlsConfig | None = None
    deadline: float = 60.0
    wire: str = "float32"
    push_wire: str | None = None
    window: int | str = "256MiB"
    allow_insecure: bool = False

    def __post_init__(self) -> None:
        addresses: object = self.addresses
        if isinstance(addresses, str) or not isinstance(addresses, Sequence) or not addresses:
            raise ConfigError(f"addresses={addresses!r} must be a list of 'host:port', one a shard")
        object.__setattr__(self, "addresses", tuple(self.addresses))
        for address in self.addresses:
            if "://" in str(address):
                raise ConfigError(
                    f"address {address!r}: this is a URL; give 'host:port' of gRPC, which a server "
                    "says behind 'listening on', not that of its HTTP"
                )
            host, colon, port = str(address).rpartition(":")
            if not (host and colon and port.isascii() and port.isdecimal()):
                raise ConfigError(f"address {address!r} must be 'host:port'")
            if not 0 < int(port) < 2**16:
                raise ConfigError(f"address {address!r}: the port must be from 1 to 65535")
        if len(set(self.addresses)) != len(self.addresses):
            raise ConfigError(f"addresses={list(self.addresses)} names a shard twice")
        if self.client_id is None:
            object.__setattr__(self, "client_id", f"client-{uuid4().hex}")
        if _CLIENT_ID.fullmatch(str(self.client_id)) is None:
            raise ConfigError(
                f"client_id={self.client_id!r}: needs 1-64 letters, digits, '_', '.', '-'"
            )
        if self.tls is not None and not isinstance(self.tls, TlsConfig):
            raise ConfigError(f"tls={self.tls!r} must be an hps.TlsConfig")
        require_number("deadline", self.deadline, above=0)
        _ = self.pull_format, self.push_format
        object.__setattr__(self, "window", parse_bytes(self.window, "window"))
        require_flag("allow_insecure", self.allow_insecure)
        token: object = self.token
        if token is not None and (not isinstance(token, str) or not _TOKEN.fullmatch(token)):
            raise ConfigError("token: it must be 1 to 4096 visible ASCII characters, no spaces")
        if self.token is not None and self.tls is None and not self.allow_insecure:
            self._check_token_stays_here()

    def _check_token_stays_here(self) -> None:
        for address in self.addresses:
            if not is_loopback(str(address).rpartition(":")[0]):
                raise ConfigError(
                    f"address {address!r}: without TLS others can read the token; "
                    f"give tls= (--tls, --tls-ca), or allow_insecure=True (--allow-insecure) if "
                    f"the network is trusted"
                )

    @property
    def pull_format(self) -> Wire:
        """Of rows."""
        return Wire.named(self.wire)

    @property
    def push_format(self) -> Wire:
        """Of gradients."""
        return Wire.named(self.wire if self.push_wire is None else self.push_wire)


def parse_addresses(text: str) -> list[str]:
    """The shards of "host:port,host:port", as the command line takes them.

    >>> parse_addresses("a:1, b:2")
    ['a:1', 'b:2']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def ack_number(ack: str) -> int:
    """The level's number in the protocol.

    Raises:
        ConfigError: no level has that name.

    >>> ack_number("logged")
    1
    """
    if ack not in ACKS:
        raise ConfigError(f"ack={ack!r} must be one of {ACKS}")
    return ACKS.index(ack)


def number_of(value: int) -> Any:
    """An enum's number, as the generated messages take it."""
    return int(value)


def _contents(path: str | os.PathLike[str] | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"TlsConfig: {os.fspath(path)!r} cannot be read: {reason}") from error
