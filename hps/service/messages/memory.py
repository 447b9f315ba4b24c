"""Memory for the messages of a client, whose process is its user's.

Above it: the client. Below it: glibc. `hps serve` has `hps.common.process_memory`.
"""

import numpy as np

from hps.common.process_memory import LARGEST_MMAP_THRESHOLD


def expect_messages() -> None:
    """Lets malloc keep what messages took, for the next ones: sets nothing, but lets glibc learn.

    It maps and unmaps the first large block, and takes from then on blocks of that size from its
    heap, of which it keeps twice as much. So it is shown one, which is never touched. A process
    that has set these limits keeps them.
    """
    np.empty(LARGEST_MMAP_THRESHOLD - 2**20, np.uint8)
