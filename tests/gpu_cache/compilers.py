"""Compiles the GPU kernels without a GPU, by NVRTC or nvcc, and reads what the assembler reports.

Above it: test_kernel_compile.py, kernel_resources.py. Below it: the package nvidia-cuda-nvrtc
through ctypes, or nvcc on the PATH. CuPy cannot do this: it wants a driver before it compiles.
"""

import ctypes
import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hps.gpu_cache.kernels import NVRTC_OPTIONS, OPTIONS

_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass(frozen=True)
class Resources:
    """What one kernel takes of a multiprocessor, by thread."""

    registers: int
    stack_bytes: int
    spill_bytes: int


@dataclass(frozen=True)
class Compiled:
    """The code of all kernels for one architecture, and the assembler's report."""

    cubin: bytes
    ptx: str
    resources: dict[str, Resources]


class CompileError(Exception):
    """The compiler refused; the message is its log."""


def read_report(log: str) -> dict[str, Resources]:
    """Resources by kernel, of a log that the assembler's option -v has written."""
    report: dict[str, Resources] = {}
    name, stack, spills = "", 0, 0
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            name, stack, spills = match[1], 0, 0
        elif match := _MEMORY.search(line):
            stack, spills = int(match[1]), int(match[2]) + int(match[3])
        elif (match := _REGISTERS.search(line)) and name:
            report[name] = Resources(int(match[1]), stack, spills)
            name = ""
    return report


class Nvrtc:
    """NVRTC of the package nvidia-cuda-nvrtc."""

    name = "nvrtc"
    options = NVRTC_OPTIONS

    def __init__(self, folder: Path) -> None:
        # The first library is found by the second only if its names are known to all.
        for pattern, mode in (("libnvrtc-builtins.so.*", ctypes.RTLD_GLOBAL), ("libnvrtc.so.*", 0)):
            library = ctypes.CDLL(str(next(iter(sorted(folder.glob(pattern))))), mode=mode)
        self._library = library

    def compile(self, source: str, architecture: str) -> Compiled:
        """Machine code for "sm_90" and the like; no include path is given."""
        library, program = self._library, ctypes.c_void_p()
        all_options = [f"--gpu-architecture={architecture}", "--ptxas-options=-v", *self.options]
        words = [option.encode() for option in all_options]
        status = library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None
        )
        assert status == 0, f"nvrtcCreateProgram: {status}"
        try:
            status = library.nvrtcCompileProgram(
                program, len(words), (ctypes.c_char_p * len(words))(*words)
            )
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode()
            if status != 0:
                raise CompileError(log)
            ptx = self._read(program, "PTX").rstrip(b"\0").decode()
            return Compiled(self._read(program, "CUBIN"), ptx, read_report(log))
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        assert getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
        buffer = ctypes.create_string_buffer(size.value)
        assert getattr(self._library, f"nvrtcGet{what}")(program, buffer) == 0
        return buffer.raw


class Nvcc:
    """nvcc of a CUDA toolkit."""

    name = "nvcc"
    options = OPTIONS

    def __init__(self, program: str) -> None:
        self._program = program

    def compile(self, source: str, architecture: str) -> Compiled:
        """As Nvrtc.compile."""
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder) / "kernels.cu"
            text.write_text(source)
            # --keep leaves the PTX beside the machine code.
            command = [self._program, "-cubin", f"-arch={architecture}", "-Xptxas", "-v", "--keep"]
            done = subprocess.run(
                [*command, *self.options, text.name],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
            log = done.stdout + done.stderr
            if done.returncode != 0:
                raise CompileError(log)
            ptx = text.with_suffix(".ptx").read_text()
            return Compiled(text.with_suffix(".cubin").read_bytes(), ptx, read_report(log))


def find_nvrtc() -> Nvrtc | None:
    """NVRTC if its package is installed."""
    package = importlib.util.find_spec("nvidia")
    for place in package.submodule_search_locations or () if package else ():
        for library in sorted(Path(place).glob("*/lib/libnvrtc.so.*")):
            return Nvrtc(library.parent)
    return None


def find_nvcc() -> Nvcc | None:
    """nvcc if it is on the PATH."""
    program = shutil.which("nvcc")
    return None if program is None else Nvcc(program)


def find_compilers() -> list[Any]:
    """Every compiler at hand, NVRTC first."""
    return [compiler for compiler in (find_nvrtc(), find_nvcc()) if compiler is not None]
