"""The device's kernels on emulated warps, from Python; and the stand-in device that launches them.

Above it: sectors.py, test_simt_grid.py. Below it: tests/native/grid, which is built here with g++
when its text has changed. Several groups work in each warp, and several warps at once, as on a GPU.
"""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from tests.gpu_cache.host_device import HostDevice

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / "tests" / "native" / "grid"
_FLAGS = [
    "-std=c++20",
    "-O2",
    "-fPIC",
    "-ffp-contract=off",
    "-U_FORTIFY_SOURCE",
    f"-I{_ROOT / 'csrc'}",
    f"-I{_FOLDER}",
]
# What the kernels' text alone is compiled with: a call at every access of memory.
_NOTED = ["-fsanitize=thread", "-fno-tree-vectorize", "-Wno-psabi"]
WARP_BY_WARP, SEEDED, STARVING = range(3)
# What grid_run counts, in its order; of a warp's instructions, in sectors of 32 bytes.
COUNTS = (
    "sectors_read", "sectors_written", "sectors_atomic",
    "reads", "writes", "atomics",
    "distinct_read", "distinct_written", "distinct_atomic",
    "divergent",
    "memory_read", "memory_written",
)  # fmt: skip
_WARPS = 4


def find_compiler() -> str | None:
    """g++, if there is one."""
    return shutil.which("g++")


class Grid:
    """The kernels over a few warps."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(_library()))
        self.of_arrays: Counter[tuple[str, str, str]] = Counter()  # kernel, array, what

    def run(
        self,
        kernel: str,
        args: bytes,
        count: int,
        order: int,
        seed: int,
        arrays: Mapping[str, int] = MappingProxyType({}),
    ) -> Counter[str]:
        """One launch over items [0, count); its counts. `arrays`: name -> address, for of_arrays.

        Raises:
            AssertionError: lanes parted, or wait for what is not run.
        """
        counts = (ctypes.c_int64 * len(COUNTS))()
        error = ctypes.create_string_buffer(200)
        names = sorted(arrays, key=lambda name: arrays[name])
        firsts = (ctypes.c_uint64 * len(names))(*[arrays[name] for name in names])
        found = (ctypes.c_int64 * (2 * len(names)))()
        status = self._library.grid_run(
            kernel.encode(), args, ctypes.c_int64(len(args)), ctypes.c_int64(count), _WARPS,
            order, ctypes.c_uint64(seed), counts, firsts, ctypes.c_int64(len(names)), found,
            error,
        )  # fmt: skip
        assert status == 0, error.value.decode()
        for name, sectors, memory in zip(names, found[::2], found[1::2], strict=True):
            self.of_arrays[kernel, name, "sectors"] += sectors
            self.of_arrays[kernel, name, "memory"] += memory
        return Counter(dict(zip(COUNTS, counts, strict=True)))

    def empty_cache(self, num_sectors: int) -> None:
        """Counts memory_read and memory_written of a second-level cache of that size from now on;
        0: of none."""
        self._library.grid_empty_cache(ctypes.c_int64(num_sectors))

    def flush_cache(self) -> int:
        """Sectors that the cache still has to write; it is empty then."""
        counts = (ctypes.c_int64 * 2)()
        self._library.grid_flush_cache(counts)
        return counts[1]


def _library() -> Path:
    """The kernels as a shared library, built unless it was."""
    compiler = find_compiler()
    assert compiler is not None, "no g++"
    sources = [*_FOLDER.iterdir(), *sorted((_ROOT / "csrc").glob("*/*.h"))]
    text = b"".join(path.read_bytes() for path in sorted(sources))
    key = hashlib.sha256(text + repr((_FLAGS, _NOTED)).encode()).hexdigest()[:16]
    target = _ROOT / "build" / "grid" / f"{key}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            objects = []
            for name, more in (("kernels", _NOTED), ("grid", []), ("hooks", [])):
                objects.append(f"{folder}/{name}.o")
                source = str(_FOLDER / f"{name}.cc")
                _call([compiler, *_FLAGS, *more, "-c", source, "-o", objects[-1]])
            made = f"{folder}/grid.so"
            _call([compiler, "-shared", *objects, "-Wl,-z,defs", "-o", made])
            Path(made).replace(target)
    return target


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class GridDevice(HostDevice):
    """A HostDevice whose kernels run on a grid of warps.

    Args:
        order: in which lanes are chosen.
        seed: of the first launch.
    """

    def __init__(self, grid: Grid, order: int, seed: int = 0) -> None:
        super().__init__()
        self.counts: dict[str, Counter[str]] = {}  # by kernel
        self._grid, self._order, self._seed = grid, order, seed

    def launch(self, kernel: str, args: NDArray[Any], count: int) -> None:
        assert count >= 0 and args.dtype == self.args.dtype(self.args.struct_of(kernel))
        self.launches.append((kernel, count))
        words = args.tobytes()
        self._seed += 1
        seed = self._seed

        def work() -> None:
            arrays = self.arrays_of(kernel, args)
            found = self._grid.run(kernel, words, count, self._order, seed, arrays)
            self.counts.setdefault(kernel, Counter()).update(found)

        self._put(work)

    def arrays_of(self, kernel: str, args: NDArray[Any]) -> dict[str, int]:
        """The addresses of the arrays that a launch is counted by; none here."""
        return {}
