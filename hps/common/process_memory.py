"""Memory that the process has freed: kept for what it takes next, not given back to the system.

Above it: `hps serve`, `hps train`. Below it: glibc.
"""

import ctypes

LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc takes no more
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEEP_BYTES = 256 * 2**20


def keep_freed_memory(arenas: int | None = None) -> None:
    """Lets malloc keep up to 256 MiB of what was freed, in blocks of up to 32 MiB.

    By default each block of megabytes, a message's or a tensor's of a training step, is mapped and
    unmapped: its page faults cost more than much of the work on it. Without glibc nothing happens.

    Args:
        arenas: heaps of the process, at most; None for glibc's own number, one a thread or more.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
    mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
    if arenas is not None:
        mallopt(_M_ARENA_MAX, arenas)
