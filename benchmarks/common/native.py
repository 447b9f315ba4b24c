"""Small native baselines: compiled for this very processor when they are needed, on huge pages.

Above it: pull, sparse_step. Below it: g++, ctypes, mmap.
"""

import ctypes
import mmap
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.common.huge_pages import HUGE_PAGE


def compile_library(beside: str, name: str) -> ctypes.CDLL:
    """Builds the C++ file `name` in the folder of the file `beside`, and loads it."""
    source = Path(beside).with_name(name)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "baseline.so"
        command = ["g++", "-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-pthread"]
        subprocess.run([*command, "-o", str(library), str(source)], check=True)
        return ctypes.CDLL(str(library))


def aligned(num_bytes: int) -> np.ndarray:
    """Zeroed uint8 memory that starts on a huge page and asks for more of them."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=flags)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view = np.frombuffer(memory, dtype=np.uint8)
    shift = -view.ctypes.data % HUGE_PAGE
    return view[shift : shift + num_bytes]
