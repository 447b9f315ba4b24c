"""What a server takes at most: sizes of one call, and of all calls in flight.

Above it: `hps serve`, the handlers. Below it: admission.py keeps the limits of what is in flight.
"""

from dataclasses import dataclass

from hps.common.byte_sizes import parse_bytes
from hps.common.field_checks import require_number, require_whole
from hps.config import MAX_DIM, MAX_TABLES
from hps.errors import ConfigError

_LEAST_MESSAGE, _MOST_MESSAGE = 2**16, 2**30


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Limits of one server; what exceeds them is refused with RESOURCE_EXHAUSTED.

    Memory for messages stays below `flight_bytes` + requests * 3 * message_bytes: gRPC assembles a
    message before it can be counted, and holds it up to three times while it does.

    Args:
        message_bytes: of one request and of one reply.
        keys: of one request.
        dim, tables: of tables that clients make.
        requests: calls in flight, of all clients.
        client_requests: of one client (one token, or one connection where there are none).
        flight_bytes: requests and replies in flight, of all clients.
        client_bytes: of one client.
        streams: push streams, of all clients; each holds a thread while it is open.
        connections: open at once; half of the process's descriptors if that is less. Beyond it new
            ones are closed.
        deadline_seconds: of a call that brings no deadline; also how long a request may take to
            arrive, and a push stream may be idle.

    Raises:
        ConfigError: a field outside its limits.

    >>> ServerLimits(message_bytes="8MiB").message_bytes
    8388608
    """

    message_bytes: int | str = "32MiB"
    keys: int = 2**20
    dim: int = MAX_DIM
    tables: int = MAX_TABLES
    requests: int = 64
    client_requests: int = 16
    flight_bytes: int | str = "512MiB"
    client_bytes: int | str = "256MiB"
    streams: int = 16
    connections: int = 1024
    deadline_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("message_bytes", "flight_bytes", "client_bytes"):
            object.__setattr__(self, name, parse_bytes(getattr(self, name), f"limit {name}"))
        require_whole("limit message_bytes", self.message_bytes, _LEAST_MESSAGE, _MOST_MESSAGE)
        require_whole("limit keys", self.keys, 1, 2**27)
        require_whole("limit dim", self.dim, 1, MAX_DIM)
        require_whole("limit tables", self.tables, 1, MAX_TABLES)
        require_whole("limit requests", self.requests, 1, 1024)
        require_whole("limit client_requests", self.client_requests, 1, 1024)
        require_whole("limit streams", self.streams, 0, 1024)
        require_whole("limit connections", self.connections, 1, 65536)
        require_number("limit deadline_seconds", self.deadline_seconds, above=0)
        for name in ("flight_bytes", "client_bytes"):
            if getattr(self, name) < 2 * int(self.message_bytes):
                raise ConfigError(
                    f"limit {name}={getattr(self, name)}: a request and a reply must fit, "
                    f"two times message_bytes={self.message_bytes}"
                )
