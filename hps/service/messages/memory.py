"""Memory for messages: kept by the process, not given back to the system after each.

Above it: `hps serve`, the client. Below it: glibc.
"""

import ctypes

import numpy as np

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc takes no more
_KEEP_BYTES = 256 * 2**20
_ARENAS = 1


def keep_message_memory() -> None:
    """Lets malloc keep what messages took, for the next ones.

    By default each message of megabytes is mapped and unmapped, and the heaps of threads come and
    go: the page faults cost more than gRPC's own work on a message. Without glibc nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
    mallopt(_M_ARENA_MAX, _ARENAS)


def expect_messages() -> None:
    """The same for a client, whose process is its user's: sets nothing, but lets glibc learn.

    It maps and unmaps the first large block, and takes from then on blocks of that size from its
    heap, of which it keeps twice as much. So it is shown one, which is never touched. A process
    that has set these limits keeps them.
    """
    np.empty(_LARGEST_MMAP_THRESHOLD - 2**20, np.uint8)
