"""GPUs, and what hps asks them through: the driver, CuPy, NVRTC, NCCL.

Above it: `hps.doctor.examine`. Below it: /proc/driver/nvidia, the packages cupy and torch, which
are imported only where there is a driver.
"""

import re
from importlib.util import find_spec
from pathlib import Path

from hps.common.kernel_files import read_text
from hps.doctor.finding import NOTE, OK, PROBLEM, Figures, Finding
from hps.doctor.versions import version_of

_DRIVER = "proc/driver/nvidia/version"
_CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
_HOW = "pip install 'hps-ctr[cuda]'"


def find_device(root: Path = Path("/")) -> list[Finding]:
    """Whether GpuCacheConfig(device="cuda:N") and ranks over NCCL can work here."""
    driver = _driver(root)
    if driver is None:
        use = (
            "none is needed: rows are in DRAM and on SSD; --gpu with --device cpu runs its kernels"
        )
        return [Finding("device", "GPU", "none", use, OK, {"driver": None, "gpus": 0})]
    cupy, nvrtc = version_of(*_CUPY), version_of("nvidia-cuda-nvrtc")
    findings = [_gpus(driver, has_cupy=cupy is not None)]
    findings.append(_package("CuPy", cupy, "it launches hps's kernels, compiled at first use"))
    findings.append(_package("NVRTC", nvrtc, "it compiles hps's kernels for the GPU at hand"))
    return [*findings, _nccl()]


def _driver(root: Path) -> str | None:
    """The driver's version, as the kernel tells it."""
    text = read_text(root / _DRIVER)
    match = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text or "")
    return match[1] if match else None


def _gpus(driver: str, *, has_cupy: bool) -> Finding:
    if not has_cupy:
        use = f"hps cannot use it without CuPy and NVRTC: {_HOW}"
        figures: Figures = {"driver": driver, "gpus": None}
        return Finding("device", "GPU", f"driver {driver}", use, NOTE, figures)
    import cupy

    try:
        runtime = cupy.cuda.runtime
        names = []
        for number in range(runtime.getDeviceCount()):
            about = runtime.getDeviceProperties(number)
            size = about["totalGlobalMem"] / 2**30
            capability = f"sm_{about['major']}{about['minor']}"
            names.append(f"{about['name'].decode()}, {size:.0f} GiB, {capability}")
    except (runtime.CUDARuntimeError, OSError) as error:
        use = f"CUDA refuses it, so --gpu does not work: {error}"
        return Finding("device", "GPU", f"driver {driver}", use, PROBLEM, {"driver": driver})
    if not names:
        use = "the driver shows none to this process; look at CUDA_VISIBLE_DEVICES"
        return Finding(
            "device", "GPU", f"driver {driver}", use, NOTE, {"driver": driver, "gpus": 0}
        )
    use = (
        "working rows lie in its memory with --gpu BYTES; without that flag it is not used for rows"
    )
    figures = {"driver": driver, "gpus": len(names)}
    return Finding("device", "GPU", f"{'; '.join(names)}; driver {driver}", use, OK, figures)


def _package(name: str, version: str | None, use: str) -> Finding:
    figures: Figures = {"version": version}
    if version is None:
        return Finding("device", name, "none", f"{use}: {_HOW}", NOTE, figures)
    return Finding("device", name, version, use, OK, figures)


def _nccl() -> Finding:
    version, has_nccl = version_of(*_NCCL), False
    if find_spec("torch") is not None:
        import torch

        has_nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
        if has_nccl and version is None:
            numbers = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
            version = ".".join(map(str, numbers))
    if has_nccl:
        use = "ranks with --gpu exchange keys, rows and gradients by it"
        return Finding("device", "NCCL", version or "there", use, OK, {"version": version})
    use = "ranks with --gpu need a build of torch with CUDA; ranks without exchange by gloo"
    return Finding("device", "NCCL", "none", use, NOTE, {"version": None})
