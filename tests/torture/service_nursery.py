"""The process that server processes are forked from: real `hps serve`, started in a moment.

Above it: service_shards.py, which starts it as `python -m tests.torture.service_nursery`. Below it:
hps.cli.main. Importing Python's packages takes longer than most servers live here, so that is done
once. Each line on standard input is an Order; the answer is a line with the server's pid, or with
the wait status of the server that is reaped. A planted bug is put into the forked process before
the server begins: no line of hps knows of it.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import hps.cli.serve
import hps.service.server.server  # noqa: F401 - what `hps serve` imports when it begins
from hps import _C
from hps.cli.main import main as hps_main
from tests.torture.service_planted import PLANTED

LOG_FILE_BYTES = 1 << 17  # instead of 64 MiB: many files, and a full disk that the log notices


@dataclass(frozen=True)
class Order:
    """Start a server, or reap one that has been killed.

    arguments: of `hps`.
    output: file for what it prints, errors included.
    plant: name of a planted bug of service_planted.py, or "".
    environment: variables to set.
    reap: pid to wait for instead.
    """

    arguments: list[str] = field(default_factory=list)
    output: str = ""
    plant: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    reap: int = 0

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self)) + "\n"


class SmallLogFiles:
    """The native log, with small files; stands in the place of hps._C.UpdateLog."""

    native = _C.UpdateLog

    @classmethod
    def open(cls, *place: Any) -> Any:
        """As UpdateLog.open."""
        return cls.native.open(*place, file_bytes=LOG_FILE_BYTES)


def take_streams(order: Order) -> None:
    """In a forked process: its own output, no input, and the order's environment."""
    output = os.open(order.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(order.environment)


def serve(order: Order) -> int:
    """A server's whole life; its exit code."""
    take_streams(order)
    _C.UpdateLog = SmallLogFiles  # type: ignore[misc,assignment]
    if order.plant:
        PLANTED[order.plant].put_in()
    return hps_main(order.arguments)


def obey(live: Callable[[Order], int]) -> None:
    """Obeys orders until the input ends, however that came; no process outlives it.

    Args:
        live: the whole life of a forked process; its exit code.
    """
    servers: set[int] = set()
    for line in sys.stdin:
        order = Order(**json.loads(line))
        if order.reap:
            print(os.waitpid(order.reap, 0)[1], flush=True)
            servers.discard(order.reap)
            continue
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = live(order)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        servers.add(pid)
        print(pid, flush=True)
    for pid in servers:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    obey(serve)
