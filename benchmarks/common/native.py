"""Small native baselines: compiled for this very processor when they are needed, on huge pages; and
libraries over hps's own core.

Above it: pull, sparse_step, ssd_store. Below it: g++, ctypes, mmap.
"""

import ctypes
import functools
import mmap
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.common.huge_pages import HUGE_PAGE


@functools.cache  # two benchmarks of a run may have the same one
def compile_library(beside: str, name: str) -> ctypes.CDLL:
    """Builds the C++ file `name` in the folder of the file `beside`, and loads it."""
    source = Path(beside).with_name(name)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "baseline.so"
        command = ["g++", "-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-pthread"]
        subprocess.run([*command, "-o", str(library), str(source)], check=True)
        return ctypes.CDLL(str(library))


def core_library(beside: str, *names: str) -> ctypes.CDLL:
    """Links C++ files of the folder of `beside` with the core that hps._C is made of; loads it.

    What the files define takes the place of what the core has, if it is all that is asked of one of
    the core's files. Several such libraries may be loaded at once: none sees another's names.

    Raises:
        FileNotFoundError: the core is not there; hps was not built in this checkout.
    """
    root = Path(__file__).parents[2]
    core = root / "build" / f"cmake-{sysconfig.get_config_var('SOABI')}" / "libhps_core.a"
    if not core.exists():
        raise FileNotFoundError(f"{core.relative_to(root)} is not there; build hps in place first")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "core.so"
        objects = [library.with_name(f"{name}.o") for name in names]
        for name, compiled in zip(names, objects, strict=True):
            compiled.write_bytes(_compiled_beside_core(Path(beside).with_name(name)))
        command = ["g++", "-shared", "-pthread", "-Wl,--exclude-libs,ALL", "-o", str(library)]
        subprocess.run([*command, *map(str, objects), str(core)], check=True)
        return ctypes.CDLL(str(library))


@functools.cache  # several libraries may have it
def _compiled_beside_core(source: Path) -> bytes:
    """The object file of one C++ file that includes the core's headers."""
    root = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / "one.o"
        command = ["g++", "-std=c++20", "-O2", "-fPIC", "-pthread", f"-I{root / 'csrc'}"]
        command += ["-fvisibility=hidden", "-c", "-o", str(compiled), str(source)]
        subprocess.run(command, check=True)
        return compiled.read_bytes()


def aligned(num_bytes: int) -> np.ndarray:
    """Zeroed uint8 memory that starts on a huge page and asks for more of them."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=flags)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view = np.frombuffer(memory, dtype=np.uint8)
    shift = -view.ctypes.data % HUGE_PAGE
    return view[shift : shift + num_bytes]
