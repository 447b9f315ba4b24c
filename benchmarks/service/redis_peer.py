"""Redis as a peer: MGET for a pull, MSET of new values for a push, which has no optimizer step.

Above it: service_bench.py. Below it: redis-server (Debian's package) and a socket. Requests and
replies of keys and values of one size are written and read as arrays, which costs this client less
than any Redis client's parser would.
"""

import os
import shutil
import socket
import sys
import time

import numpy as np
from numpy.typing import NDArray

from benchmarks.service.contender import Blocking, Setting, peer_command
from benchmarks.service.workload import LOAD_KEYS, Keys, Rows, Workload

NAME = "Redis"
PROGRAM = "redis-server"
PIECES = (1000, 10_000, 100_000)  # keys a command, all commands of a request sent at once
IN_FLIGHT = 4
KEY_BYTES = 8
_OK = b"+OK\r\n"
_ACKS = {"memory": ("no", "no"), "logged": ("yes", "everysec"), "durable": ("yes", "always")}
_TIMEOUT = 120.0
_START_SECONDS = 20.0


def absent() -> str:
    """Why it cannot take part; "" if it can."""
    if shutil.which(PROGRAM) is None:
        return f"no {PROGRAM}; `apt-get install redis-server` installs it"
    return ""


def _bulk(size: int) -> bytes:
    return b"$%d\r\n" % size


def _column(template: bytes, values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """uint8 [N, ...]: `template`, the row of `values`, and the end of a line, N times."""
    num_rows, width = values.shape
    column = np.empty((num_rows, len(template) + width + 2), np.uint8)
    column[:, : len(template)] = np.frombuffer(template, np.uint8)
    column[:, len(template) : -2] = values
    column[:, -2:] = np.frombuffer(b"\r\n", np.uint8)
    return column


class Connection:
    """One socket; a request's commands are pipelined."""

    def __init__(self, address: str, row_bytes: int, piece: int) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), _TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._row_bytes = row_bytes
        self.piece = piece

    def _pieces(self, num_keys: int) -> list[slice]:
        return [slice(at, min(at + self.piece, num_keys)) for at in range(0, num_keys, self.piece)]

    def command(self, *words: str) -> bytes:
        """One command whose reply is a line or a short bulk; the reply."""
        encoded = [word.encode() for word in words]
        head = b"*%d\r\n" % len(encoded)
        parts = [_bulk(len(word)) + word + b"\r\n" for word in encoded]
        self._socket.sendall(head + b"".join(parts))
        return self._socket.recv(1 << 16)

    def pull(self, keys: Keys) -> Rows:
        """float32 [N, dim]."""
        names = _column(_bulk(KEY_BYTES), keys.view(np.uint8).reshape(-1, KEY_BYTES))
        pieces = self._pieces(len(keys))
        head = b"*%d\r\n$4\r\nMGET\r\n"
        request = [head % (1 + len(names[piece])) + names[piece].tobytes() for piece in pieces]
        self._socket.sendall(b"".join(request))
        template = _bulk(self._row_bytes)
        width = len(template) + self._row_bytes + 2
        rows = np.empty((len(keys), self._row_bytes), np.uint8)
        for piece in pieces:
            num_keys = len(names[piece])
            answer = self._receive(b"*%d\r\n" % num_keys, num_keys * width)
            rows[piece] = answer.reshape(num_keys, width)[:, len(template) : -2]
        return rows.view(np.float32)

    def push(self, keys: Keys, rows: Rows) -> None:
        """Sets the values; they are as many bytes as gradients would be."""
        names = _column(_bulk(KEY_BYTES), keys.view(np.uint8).reshape(-1, KEY_BYTES))
        values = _column(_bulk(self._row_bytes), rows.view(np.uint8).reshape(len(keys), -1))
        pairs = np.hstack([names, values])
        pieces = self._pieces(len(keys))
        head = b"*%d\r\n$4\r\nMSET\r\n"
        request = [head % (1 + 2 * len(pairs[piece])) + pairs[piece].tobytes() for piece in pieces]
        self._socket.sendall(b"".join(request))
        for _ in pieces:
            self._receive(_OK, 0)

    def _receive(self, head: bytes, num_bytes: int) -> NDArray[np.uint8]:
        answer = np.empty(len(head) + num_bytes, np.uint8)
        view = memoryview(answer)
        filled = 0
        while filled < len(view):
            received = self._socket.recv_into(view[filled:])
            if received == 0:
                raise ConnectionError("Redis closed the connection")
            filled += received
        if answer[: len(head)].tobytes() != head:
            raise ValueError(f"Redis answered {answer[:80].tobytes()!r} instead of {head!r}")
        return answer[len(head) :]

    def close(self) -> None:
        self._socket.close()


class RedisClient(Blocking):
    """Four connections, as many as requests are in flight."""

    def __init__(self, address: str, workload: Workload) -> None:
        self._connections = [
            Connection(address, workload.row_bytes, PIECES[-1]) for _ in range(IN_FLIGHT)
        ]
        super().__init__(self._connections, workload)

    def load(self) -> None:
        """Stores the rows, and finds the fastest way to cut a request into commands."""
        workload = self.batches.workload
        keys = workload.all_keys
        for start in range(0, len(keys), LOAD_KEYS):
            piece = keys[start : start + LOAD_KEYS]
            self._connections[0].push(piece, workload.values(piece))
        seconds = {}
        for size in PIECES:
            self._connections[0].piece = size
            self._connections[0].pull(self.batches.keys(0))
            started = time.perf_counter()
            self._connections[0].pull(self.batches.keys(0))
            seconds[size] = time.perf_counter() - started
        for connection in self._connections:
            connection.piece = min(seconds, key=lambda size: seconds[size])

    def prepare(self, ack: str) -> None:
        """Sets Redis's own log: none, synced each second, or synced before each reply."""
        log, sync = _ACKS[ack]
        admin = self._connections[0]
        assert admin.command("CONFIG", "SET", "appendonly", log) == _OK
        assert admin.command("CONFIG", "SET", "appendfsync", sync) == _OK
        busy = (b"aof_rewrite_in_progress:1", b"aof_rewrite_scheduled:1")
        while any(state in admin.command("INFO", "persistence") for state in busy):
            time.sleep(0.02)


def connect(addresses: list[str], workload: Workload, number: int) -> RedisClient:
    """A client."""
    return RedisClient(addresses[0], workload)


def command(setting: Setting, shard: int) -> list[str]:
    """Starts a server."""
    return peer_command("redis_peer", setting)


def serve(workload: Workload, folder: str) -> None:
    """Becomes redis-server, once a child is there to say when it is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if os.fork() == 0:
        _announce(port)
        os._exit(0)
    words = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
    words += ["--logfile", "redis.log", "--client-output-buffer-limit", "normal 0 0 0"]
    os.execvp(PROGRAM, [PROGRAM, *words])


def _announce(port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.02)
            continue
        print(f"listening on 127.0.0.1:{port}", flush=True)
        return
    print("redis-server did not open its port", file=sys.stderr)
