"""A server with TLS under connections that come, say nothing or nonsense, and go; it is renewed.

Above it: test_server_tls.py, as a process of its own: what this is about ends the process. Below
it: a server over a shard of dicts, sockets.

    python -m tests.service.server.tls_storm FOLDER SECONDS
"""

import random
import socket
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from hps.service.server.limits import ServerLimits
from tests.service.client.fake_shard import FakeShard
from tests.service.server.test_server_access import credentials, server_files
from tests.service.server.test_server_calls import pull
from tests.service.serving import Channel, serving

_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300)


def storm(folder: Path, seconds: float) -> int:
    """How many connections there were; the server answers at the end."""
    drawn = random.Random(1)
    count = 0
    ends_at = time.monotonic() + seconds
    limits = ServerLimits(connections=100)
    with serving(FakeShard(), tls=server_files(folder), limits=limits) as local:
        host, _, port = local.server.address.rpartition(":")
        while time.monotonic() < ends_at:
            if drawn.random() < 0.1:
                local.server.reload()
            with ExitStack() as stack, suppress(OSError):  # those beyond the limit
                for _ in range(30):
                    one = stack.enter_context(socket.create_connection((host, int(port)), 10))
                    count += 1
                    say = drawn.randrange(4)
                    if say == 0:
                        one.send(_HELLO[: drawn.randrange(len(_HELLO))])
                    elif say == 1:
                        one.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                    elif say == 2:
                        one.close()
                time.sleep(drawn.random() * 0.05)
        channel = Channel(local.server.address, credentials(folder))
        # Until the server has closed enough of the others.
        assert channel.call("Pull", pull([1]), timeout=60, wait_for_ready=True).dim == 4
        channel.close()
    return count


if __name__ == "__main__":
    print(storm(Path(sys.argv[1]), float(sys.argv[2])))
