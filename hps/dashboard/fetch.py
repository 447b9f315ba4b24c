"""Fetcher: one GET of a target, within a deadline and a number of bytes.

Above it: sources.py, by way of watched.py. Below it: http.client. It sends nothing but GET, follows
no redirect, and asks no proxy.
"""

import http.client
import io
import socket
import ssl
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

from hps.errors import ConfigError, DataError, DeadlineError, StoreError

MOST_BYTES = 2**23  # of an answer
_PIECE = 2**16


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """What a target is shown.

    Args:
        token: sent to it; None: none.
        ca: PEM of the authorities of its certificate; None: those of the system.
        cert, key: PEM of the client's own certificate; None: none.
    """

    token: str | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """For connections to targets with TLS.

        Raises:
            ConfigError: a file cannot be used.
        """
        try:
            context = ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
        except OSError as error:
            raise ConfigError(f"--watch-ca {self.ca}: {error}") from error
        if self.cert is not None and self.key is not None:
            try:
                context.load_cert_chain(self.cert, self.key, password=lambda: b"")
            except OSError as error:
                named = f"--watch-cert {self.cert}, --watch-key {self.key}"
                raise ConfigError(f"{named}: {error}") from error
        return context


class Fetcher:
    """Asks one address.

    Args:
        host, port: of it.
        context: of TLS; None: in the clear.
        token: that is sent; None: none.
        seconds: that an answer may take, from the connection to its last byte.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        context: ssl.SSLContext | None = None,
        token: str | None = None,
        seconds: float = 3.0,
    ) -> None:
        self._host, self._port = host, port
        self._context = context
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._seconds = seconds

    def get(self, path: str) -> bytes:
        """The body of an answer 200.

        Raises:
            DataError: another answer, or one that is too long; says which.
            DeadlineError: it took too long.
            StoreError: nobody answers there.
        """
        end = time.monotonic() + self._seconds
        try:
            return self._get(path, end)
        except TimeoutError as error:
            raise DeadlineError(f"no answer within {self._seconds:g} s") from error
        except ssl.SSLError as error:
            raise DataError(f"TLS: {error.reason or error}") from error
        except OSError as error:
            raise StoreError(error.errno or 0, error.strerror or str(error)) from error
        except http.client.HTTPException as error:
            raise DataError(f"it does not speak HTTP: {type(error).__name__} {error}") from error

    def _get(self, path: str, end: float) -> bytes:
        connection: http.client.HTTPConnection
        if self._context is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._seconds)
        else:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._seconds, context=self._context
            )

        # The head and a refusal, too: a byte now and then is to hold no thread beyond the deadline.
        def respond(sock: socket.socket, *args: Any, **options: Any) -> http.client.HTTPResponse:
            return http.client.HTTPResponse(
                cast("socket.socket", _InTime(sock, end)), *args, **options
            )

        # http.client only calls it.
        connection.response_class = cast("type[http.client.HTTPResponse]", respond)
        try:
            connection.request("GET", path, headers={**self._headers, "Accept": "text/plain"})
            answer = connection.getresponse()
            if answer.status != HTTPStatus.OK:
                said = answer.read(200).decode("utf-8", "replace").strip()
                raise DataError(f"status {answer.status}: {said}" if said else f"{answer.status}")
            return self._body(answer)
        finally:
            connection.close()

    @staticmethod
    def _body(answer: http.client.HTTPResponse) -> bytes:
        parts: list[bytes] = []
        total = 0
        while part := answer.read1(_PIECE):
            parts.append(part)
            total += len(part)
            if total > MOST_BYTES:
                raise DataError(f"the answer is longer than {MOST_BYTES:,} bytes")
        return b"".join(parts)


class _InTime(io.RawIOBase):
    """What a socket receives until a moment, of time.monotonic(); TimeoutError after it."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._sock = sock
        self._end = end
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket open for as long

    def makefile(self, mode: str) -> io.BufferedReader:
        """As of a socket, for http.client."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """It is read from alone."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """As RawIOBase."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        """Closes what was made of the socket."""
        self._raw.close()
        super().close()
