"""Ports of loopback that are a test's own, also while nobody listens on them.

Above it: tests that start servers on an address which others must know before, or which outlives a
process. Below it: a bound socket. A port that is found free, and let go, may be anybody's before
the server comes: another test that runs beside asks the system for any port.
"""

import socket


class HeldPort:
    """One port, held until it is closed.

    The socket does not listen, and allows others that say so to bind the port: gRPC and torch do.
    The system gives the port to nobody who asks for any.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number = int(self._socket.getsockname()[1])

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.number}"

    def close(self) -> None:
        """Lets it go."""
        self._socket.close()

    def __enter__(self) -> "HeldPort":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
