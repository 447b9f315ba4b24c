"""An S3 server in this process: moto's, with a gate before it that a test can have misbehave.

Above it: test_s3.py. Below it: moto, werkzeug, boto3.
"""

import logging
import threading
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

import pytest

_WHY = "S3's server for tests is not installed: pip install -r constraints.txt"
s3fs = pytest.importorskip("s3fs", reason=_WHY)
boto3 = pytest.importorskip("boto3", reason=_WHY)
moto_server = pytest.importorskip("moto.server", reason=_WHY)
serving = pytest.importorskip("werkzeug.serving", reason=_WHY)

KEY, SECRET = "AKIAHPSTESTS", "not-a-secret"
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


@dataclass(frozen=True)
class Request:
    """What a client asks.

    Args:
        verb: GET, HEAD, ...
        path: `/bucket/key`, as it was before it was quoted for a URL.
        query: the parameters, unquoted.
        range: of bytes, as the header has it; empty without one.
    """

    verb: str
    path: str
    query: str
    range: str

    @property
    def is_read(self) -> bool:
        """It asks for bytes of an object."""
        return self.verb == "GET" and self.range != ""


@dataclass(frozen=True)
class Refused:
    """In the place of moto's answer: this one."""

    status: str = "403 Forbidden"
    body: bytes = DENIED


@dataclass(frozen=True)
class Cut:
    """Half of moto's answer, then the connection ends."""


class S3Server:
    """Listens on a port of its own until `close`.

    Attributes:
        endpoint: its URL.
        client: boto3's, for what a test puts there; it passes the gate, too.
        gate: asked of every request; None lets it through.
        requests: so far, oldest first.
    """

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._moto = moto_server.DomainDispatcherApplication(moto_server.create_backend_app)
        self._server = serving.make_server("127.0.0.1", 0, self._answer, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.port}"
        self.gate: Callable[[Request], Refused | Cut | None] = lambda request: None
        self.requests: list[Request] = []
        self.client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )

    def close(self) -> None:
        self.client.close()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def knows_nobody(self, is_so: bool) -> None:
        """From now on moto checks who asks, and there is no user; or it lets all in again."""
        count = b"0" if is_so else b"inf"
        request = urllib.request.Request(
            f"{self.endpoint}/moto-api/reset-auth", count, {"Content-Type": "text/plain"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.read()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        request = Request(
            environ["REQUEST_METHOD"],
            environ["PATH_INFO"].encode("latin-1").decode(),
            unquote_plus(environ.get("QUERY_STRING", "")),
            environ.get("HTTP_RANGE", ""),
        )
        self.requests.append(request)
        said = self.gate(request)
        if isinstance(said, Refused):
            length = [("Content-Length", str(len(said.body))), ("Content-Type", "application/xml")]
            start_response(said.status, length)
            return [said.body if request.verb != "HEAD" else b""]
        answer: Iterable[bytes] = self._moto(environ, start_response)
        if isinstance(said, Cut):
            whole = b"".join(answer)
            return [whole[: len(whole) // 2]]
        return answer
