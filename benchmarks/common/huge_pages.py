"""Huge pages: how many this process lies on, and asking for them for a peer's table.

Above it: pull, sparse_step. Below it: madvise, /proc.
"""

import ctypes
import mmap
from pathlib import Path

import torch

HUGE_PAGE = 2 << 20


def huge_page_bytes() -> int:
    """Bytes of this process that lie on huge pages now."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("AnonHugePages:"):
            return int(line.split()[1]) << 10
    return 0


def advise(tensor: torch.Tensor) -> None:
    """Asks for huge pages under a tensor that has not been written yet.

    Raises:
        OSError: the kernel refused.
    """
    start = -(-tensor.data_ptr() // HUGE_PAGE) * HUGE_PAGE
    length = tensor.data_ptr() + tensor.nbytes - start
    if length < HUGE_PAGE:
        return
    library = ctypes.CDLL(None, use_errno=True)
    pages = (ctypes.c_void_p(start), ctypes.c_size_t(length), ctypes.c_int(mmap.MADV_HUGEPAGE))
    if library.madvise(*pages) != 0:
        raise OSError(ctypes.get_errno(), "madvise(MADV_HUGEPAGE)")
