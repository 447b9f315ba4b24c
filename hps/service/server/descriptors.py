"""File descriptors: enough of them for connections and for the store's files, side by side.

Above it: `hps serve`, front.py. Below it: the system's limit of the process.
"""

import resource

_WANTED = 65536
_LEAST_CONNECTIONS = 16


def raise_descriptor_limit() -> None:
    """Takes as many descriptors as the system lets this process have; few systems do at first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def room_for_connections(wanted: int) -> int:
    """How many connections may be open: `wanted`, or half of the descriptors if that is less.

    The store opens files while it runs: without descriptors it could not take a checkpoint.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(soft // 2, _LEAST_CONNECTIONS))
