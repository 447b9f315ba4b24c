"""Servers for tests: in this process over any shard, or `hps serve` as a process of its own.

Above it: the tests of the server. Below it: hps.service.server.server, hps.cli.serve.
"""

import io
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from hps.service.messages.status import DETAIL_KEY
from hps.service.server.log_lines import LogLines
from hps.service.server.publish_handlers import SERVICE_NAME as PUBLISHING
from hps.service.server.server import SERVICE_NAME, Server, ServerOptions
from hps.v1 import parameter_server_pb2 as pb
from hps.v1 import publishing_pb2

ROOT = Path(__file__).resolve().parent.parent.parent
REPLIES = {
    method.name: getattr(pb, method.output_type.name)
    for method in pb.DESCRIPTOR.services_by_name["ParameterServer"].methods
}
OF_PUBLISHING = {
    method.name: getattr(publishing_pb2, method.output_type.name)
    for method in publishing_pb2.DESCRIPTOR.services_by_name["Publishing"].methods
}
REPLIES |= OF_PUBLISHING
_LONGEST_START_SECONDS = 60.0


class Channel:
    """A client that speaks generated messages, or any bytes."""

    def __init__(self, address: str, credentials: Any = None, **options: Any) -> None:
        if credentials is None:
            self.channel = grpc.insecure_channel(address, list(options.items()))
        else:
            self.channel = grpc.secure_channel(address, credentials, list(options.items()))

    def call(self, method: str, request: Any, *, token: str | None = None, **how: Any) -> Any:
        """One call; a message's reply is a message, bytes' is bytes."""
        how.setdefault("timeout", 20.0)
        return self.method(method, request)(self._bytes(request), metadata=_header(token), **how)

    def start(self, method: str, request: Any, *, token: str | None = None, **how: Any) -> Any:
        """The future of one call."""
        how.setdefault("timeout", 20.0)
        return self.method(method, request).future(
            self._bytes(request), metadata=_header(token), **how
        )

    def method(self, method: str, request: Any) -> Any:
        is_bytes = isinstance(request, bytes)
        service = PUBLISHING if method in OF_PUBLISHING else SERVICE_NAME
        name = method if method.startswith("/") else f"/{service}/{method}"
        return self.channel.unary_unary(
            name, response_deserializer=None if is_bytes else REPLIES[method].FromString
        )

    def stream(self, method: str, requests: Any, token: str | None = None, **how: Any) -> Any:
        """A call with a stream of requests, or one request, and a stream of replies."""
        how.setdefault("timeout", 20.0)
        kind = self.channel.stream_stream
        if isinstance(requests, bytes) or hasattr(requests, "SerializeToString"):
            kind, requests = self.channel.unary_stream, self._bytes(requests)
        else:
            requests = (self._bytes(request) for request in requests)
        return kind(f"/{SERVICE_NAME}/{method}", response_deserializer=REPLIES[method].FromString)(
            requests, metadata=_header(token), **how
        )

    def refusal(self, method: str, request: Any, **how: Any) -> "Refused":
        """How a call is refused."""
        try:
            self.call(method, request, **how)
        except grpc.RpcError as error:
            return Refused.of(error)
        raise AssertionError(f"{method} was not refused")

    def close(self) -> None:
        self.channel.close()

    @staticmethod
    def _bytes(request: Any) -> bytes:
        return request if isinstance(request, bytes) else request.SerializeToString()


@dataclass
class Refused:
    """The status of a refused call, and its detail."""

    code: str
    text: str
    detail: pb.ErrorDetail

    @classmethod
    def of(cls, error: Any) -> "Refused":
        trailing = dict(error.trailing_metadata() or ())
        detail = pb.ErrorDetail.FromString(trailing.get(DETAIL_KEY, b""))
        return cls(error.code().name, error.details(), detail)

    @property
    def kind(self) -> str:
        return pb.ErrorDetail.Kind.Name(self.detail.kind)


def _header(token: str | None) -> Any:
    return None if token is None else [("authorization", f"Bearer {token}")]


@dataclass
class Local:
    """A server in this process, a channel to it, and the lines that it logs."""

    server: Server
    channel: Channel
    lines: io.StringIO

    def log(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.lines.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]


@contextmanager
def serving(shard: Any, **options: Any) -> Iterator[Local]:
    """A server in this process, stopped with the block."""
    lines = io.StringIO()
    options.setdefault("listen", "127.0.0.1:0")
    options.setdefault("drain_seconds", 5.0)
    server = Server(shard, ServerOptions(**options), LogLines(lines, calls=True))
    channel = Channel(server.address)
    try:
        yield Local(server, channel, lines)
    finally:
        channel.close()
        server.stop()


@dataclass
class Process:
    """`hps serve` as a process."""

    popen: Any
    address: str
    stderr: Path

    def peak_bytes(self) -> int:
        """The most memory that the process has had so far."""
        lines = Path(f"/proc/{self.popen.pid}/status").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024

    def cpu_seconds(self) -> float:
        """Of all its threads so far."""
        fields = Path(f"/proc/{self.popen.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signals it and waits; returns its exit status."""
        self.popen.send_signal(number)
        return int(self.popen.wait(120))

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stderr.read_text().splitlines()]


@contextmanager
def process(store: Path, *flags: str, listen: str = "127.0.0.1:0") -> Iterator[Process]:
    """`hps serve` over a store, killed at the end of the block if it still runs."""
    command = [sys.executable, "-m", "hps", "serve", "--store", str(store), "--listen", listen]
    stderr = store.parent / f"{store.name}.stderr"
    with open(stderr, "w") as errors:
        popen = subprocess.Popen(
            [*command, "--dram", "16MiB", "--threads", "2", *flags],
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=ROOT,
        )
    try:
        line = _first_line(popen, stderr)
        yield Process(popen, line.removeprefix("listening on ").strip(), stderr)
    finally:
        popen.kill()
        popen.wait()
        assert popen.stdout is not None
        popen.stdout.close()


def _first_line(popen: Any, stderr: Path) -> str:
    ready, _, _ = select.select([popen.stdout], [], [], _LONGEST_START_SECONDS)
    line = popen.stdout.readline().decode() if ready else ""
    if not line.startswith("listening on "):
        popen.kill()
        raise AssertionError(f"hps serve did not start: {line!r} {stderr.read_text()[-2000:]}")
    return str(line)
