"""CudaDevice without a GPU: how it launches, and how compiled kernels are kept, over fakes.

Above it: pytest. Below it: hps/gpu_cache/cuda_device.py, kernels.py.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.gpu_cache.cuda_device import CudaDevice
from hps.gpu_cache.kernels import NVRTC_OPTIONS, KernelArgs, cached_kernels, compile_kernels


class FakeNvrtc:
    """NVRTC as CuPy offers it; its machine code says what it was made from."""

    NVRTCError = RuntimeError

    def __init__(self, *, fails: bool = False, version: tuple[int, int] = (13, 0)) -> None:
        self.fails, self.version = fails, version
        self.compiled: list[tuple[str, ...]] = []
        self.num_open = 0

    def getVersion(self) -> tuple[int, int]:
        return self.version

    def getSupportedArchs(self) -> list[int]:
        return [80, 90]

    def createProgram(self, source: str, *_: Any) -> str:
        self.num_open += 1
        return source

    def compileProgram(self, program: str, options: tuple[str, ...]) -> None:
        self.compiled.append(options)
        if self.fails:
            raise RuntimeError

    def getCUBIN(self, program: str) -> bytes:
        return program.encode() + self.compiled[-1][0].encode()

    def getProgramLog(self, program: str) -> str:
        return "line 7: no"

    def destroyProgram(self, program: str) -> None:
        self.num_open -= 1


def test_kernels_are_compiled_once_for_each_text_device_and_compiler(tmp_path: Path) -> None:
    nvrtc, folder = FakeNvrtc(), tmp_path / "not" / "there"
    path = cached_kernels(nvrtc, "text", "sm_90", folder)
    assert path.parent == folder and path.read_bytes() == b"text--gpu-architecture=sm_90"
    assert nvrtc.compiled == [("--gpu-architecture=sm_90", *NVRTC_OPTIONS)]
    assert cached_kernels(nvrtc, "text", "sm_90", folder) == path and len(nvrtc.compiled) == 1
    others = {
        path,
        cached_kernels(nvrtc, "text", "sm_80", folder),
        cached_kernels(nvrtc, "texts", "sm_90", folder),
        cached_kernels(FakeNvrtc(version=(13, 1)), "text", "sm_90", folder),
    }
    assert len(others) == 4 and sorted(folder.iterdir()) == sorted(others), "parts were left"
    assert nvrtc.num_open == 0


def test_kernels_that_cannot_be_kept_are_used_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    path = cached_kernels(FakeNvrtc(), "text", "sm_90", tmp_path / "file" / "kernels")
    assert path.read_bytes().startswith(b"text") and path.suffix == ".cubin"
    path.unlink()


def test_a_device_that_the_compiler_does_not_know_is_a_config_error() -> None:
    with pytest.raises(hps.ConfigError, match=r"NVRTC 13.0 cannot compile for sm_100.*\[80, 90\]"):
        compile_kernels(FakeNvrtc(), "text", "sm_100")


def test_kernels_that_do_not_compile_show_the_compilers_log() -> None:
    nvrtc = FakeNvrtc(fails=True)
    with pytest.raises(AssertionError, match="sm_90:\nline 7: no"):
        compile_kernels(nvrtc, "text", "sm_90")
    assert nvrtc.num_open == 0


def test_a_launch_has_its_lanes_an_item_and_no_more_blocks_than_are_resident(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Any] = []

    def launched(grid: Any, block: Any, arguments: Any, stream: Any) -> None:
        calls.append((grid, block, arguments, stream))

    device = CudaDevice.__new__(CudaDevice)
    device.args = KernelArgs()
    device._max_blocks = 100
    device._functions = dict.fromkeys(device.args.lanes, launched)
    device._cupy = SimpleNamespace(cuda=SimpleNamespace(ExternalStream=lambda ptr: ("at", ptr)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77))
    args = device.args.new("FindSlot")
    assert device.args.lanes["FindSlot"] == 4 and device.args.lanes["Pin"] == 1
    for kernel, count in (("FindSlot", 65), ("Pin", 256), ("Pin", 0), ("Pin", 10**9)):
        device.launch(kernel, args, count)
    assert [call[0] for call in calls] == [(2,), (1,), (100,)]
    for (_, block, arguments, stream), count in zip(calls, (65, 256, 10**9), strict=True):
        assert block == (256,) and stream == ("at", 77)
        # By value: CuPy takes an array of one, and a number as wide as the kernel's parameter.
        assert arguments[0] is args and len(args) == 1
        assert isinstance(arguments[1], np.int64) and arguments[1] == count


def test_the_folder_of_compiled_kernels_is_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert hps.config.kernel_cache_folder() == tmp_path / "hps" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert hps.config.kernel_cache_folder() == tmp_path / "home" / ".cache" / "hps" / "kernels"
