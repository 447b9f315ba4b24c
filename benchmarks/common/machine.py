"""What a result was measured on: processor, memory, kernel, versions, commit. Never a host's name.

Above it: benchmarks/run.py. Below it: /proc, git.
"""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch",
    "numpy",
    "numba",
    "pyarrow",
    "fbgemm-gpu-cpu",
    "torchrec",
    "nanobind",
    "rocksdict",
    "lmdb",
    "grpcio",
    "deepctr-torch",
    "scikit-learn",
)
_L3 = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"


def machine() -> dict[str, Any]:
    """The machine in words that mean the same to everyone."""
    memory_kib = int(_field("/proc/meminfo", "MemTotal").split()[0])
    flags = set(_field("/proc/cpuinfo", "flags").split())
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "l3_cache": _L3.read_text().strip() if _L3.exists() else "unknown",
        "instruction_sets": [name for name in ("avx2", "avx512f", "avx512bw") if name in flags],
        "memory_gib": round(memory_kib / 2**20, 1),
        "kernel": platform.release(),
        "huge_pages": _THP.read_text().strip() if _THP.exists() else "unknown",
        "load_average": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Python's and the packages' versions; "absent" where one is not installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def commit() -> str:
    """The commit of the checkout, "+changes" behind it if files differ; "unknown" outside git."""
    root = Path(__file__).parents[2]
    command = ["git", "-C", str(root), "describe", "--always", "--dirty=+changes", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
