"""Connections: so many of HTTP at once, and none that does not ask.

Above it: rest.py. Below it: aiohttp's server, which has neither limit.
"""

import asyncio
import time

from aiohttp import web

FIRST_SECONDS = 10.0  # that a connection has to ask for the first time; before it, for TLS
_PERIOD_SECONDS = 1.0


class _TooMany(asyncio.Protocol):
    """A connection beyond the limit: closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class Connections:
    """Makes the protocol of each connection; in one loop.

    Args:
        most: connections at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._silent: dict[asyncio.BaseProtocol, float] = {}  # since when they have not asked
        self.server: web.Server | None = None

    def make(self) -> asyncio.Protocol:
        """What create_server calls for a new connection."""
        assert self.server is not None
        if len(self.server.connections) >= self._most:
            return _TooMany()
        made = self.server()
        self._silent[made] = time.monotonic()
        return made

    def has_asked(self, request: web.Request) -> None:
        """The head of a request has arrived: its connection stays until it is idle for long."""
        self._silent.pop(request.protocol, None)

    async def watch(self) -> None:
        """Closes those that do not ask, until it is cancelled."""
        while True:
            await asyncio.sleep(_PERIOD_SECONDS)
            now = time.monotonic()
            for connection, since in list(self._silent.items()):
                assert isinstance(connection, web.RequestHandler)
                # Without a transport it is within its handshake, or has gone.
                seconds = FIRST_SECONDS * (2 if connection.transport is None else 1)
                if since < now - seconds:
                    del self._silent[connection]
                    connection.force_close()
