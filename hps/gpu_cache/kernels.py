"""The GPU kernels as Python sees them: their argument structs, their text, their machine code.

Above it: cuda_device.py. Below it: hps._C, which holds the text of csrc/gpu_cache and describes the
structs that it was compiled with, and NVRTC, which compiles the text for the device at hand. The
code is compiled without contraction and without flushing denormals, else rows would differ from
the host's in their last bits; CuPy's own way of compiling flushes them, so it is not taken.
"""

import hashlib
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np

from hps import _C
from hps.common.arrays import HostArray
from hps.errors import ConfigError

OPTIONS = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "-std=c++17")
# Of NVRTC alone: host functions that are in the same headers are compiled, never called.
NVRTC_OPTIONS = (*OPTIONS, "--device-as-default-execution-space")
# NVRTC does not know offsetof; this is what the front end of both compilers makes of it.
_OFFSET = "__INTADDR__(&(static_cast<hps::{struct}*>(nullptr))->{name})"


class KernelArgs:
    """The argument struct of each kernel as a numpy type, and how many lanes work on an item.

    A kernel over the items of several tables is given Tables, and by it a struct of each table.

    The offsets are those of the C++ compiler that built hps._C; `source` makes the device's
    compiler check that it has the same.
    """

    def __init__(self) -> None:
        structs, kernels = _C.gpu_kernels()
        self._structs = structs
        self._dtypes: dict[str, np.dtype[np.void]] = {}
        self.lanes: dict[str, int] = {name: lanes for name, (_, lanes, _) in kernels.items()}
        self._arguments = {name: struct for name, (struct, _, _) in kernels.items()}
        self._of_tables = {name: struct for name, (_, _, struct) in kernels.items()}

    def dtype(self, struct: str) -> np.dtype[np.void]:
        """The numpy type of a C++ struct, fields at the compiler's offsets."""
        if struct not in self._dtypes:
            size, fields = self._structs[struct]
            self._dtypes[struct] = np.dtype(
                {
                    "names": [name for name, _, _ in fields],
                    "formats": [
                        self.dtype(kind) if kind in self._structs else kind for _, kind, _ in fields
                    ],
                    "offsets": [offset for _, _, offset in fields],
                    "itemsize": size,
                }
            )
        return self._dtypes[struct]

    def struct_of(self, kernel: str) -> str:
        """The name of the struct that a kernel is given."""
        return self._arguments[kernel]

    def table_struct_of(self, kernel: str) -> str:
        """The name of the struct of each table, of a kernel that is given Tables."""
        return self._of_tables[kernel]

    def new(self, kernel: str) -> HostArray:
        """A zeroed argument struct of a kernel: an array of one, which is passed by value."""
        return np.zeros(1, self.dtype(self.struct_of(kernel)))

    def source(self) -> str:
        """The text of all kernels; the end of it holds the structs against this description."""
        checks = []
        for struct, (size, fields) in self._structs.items():
            checks.append(f"static_assert(sizeof(hps::{struct}) == {size});")
            checks += [
                f"static_assert({_OFFSET.format(struct=struct, name=name)} == {offset});"
                for name, _, offset in fields
            ]
        return "\n".join([_C.gpu_kernel_source(), *checks, ""])


def compile_kernels(nvrtc: ModuleType, source: str, architecture: str) -> bytes:
    """Machine code of all kernels.

    Args:
        nvrtc: CuPy's door to NVRTC; needs no driver.
        source: from KernelArgs.source.
        architecture: of the device, e.g. "sm_90".

    Raises:
        ConfigError: NVRTC does not know the architecture; names both.
    """
    supported = nvrtc.getSupportedArchs()
    if int(architecture.removeprefix("sm_")) not in supported:
        version = ".".join(str(number) for number in nvrtc.getVersion())
        raise ConfigError(
            f"NVRTC {version} cannot compile for {architecture}, only for {sorted(supported)}; "
            "install the CuPy and the nvidia-cuda-nvrtc of a CUDA release that knows this device"
        )
    program = nvrtc.createProgram(source, "kernels.cu", (), ())
    try:
        nvrtc.compileProgram(program, (f"--gpu-architecture={architecture}", *NVRTC_OPTIONS))
        return bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise AssertionError(
            f"the GPU kernels do not compile for {architecture}:\n{log}"
        ) from error
    finally:
        nvrtc.destroyProgram(program)


def cached_kernels(nvrtc: ModuleType, source: str, architecture: str, folder: Path) -> Path:
    """A file with the machine code, compiled unless an earlier run has left it in `folder`.

    Its name is made from all that the code depends on: text, options, device, NVRTC's version.
    Cost: about a second where it is compiled, else a read.
    """
    key = repr((source, NVRTC_OPTIONS, architecture, nvrtc.getVersion()))
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()}.cubin"
    if path.exists():
        return path
    code = compile_kernels(nvrtc, source, architecture)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Two processes may compile at once: each writes its own file, the last name wins.
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".part", delete=False) as file:
            file.write(code)
        Path(file.name).replace(path)
    except OSError:
        with tempfile.NamedTemporaryFile(suffix=".cubin", delete=False) as file:
            file.write(code)
        path = Path(file.name)
    return path
