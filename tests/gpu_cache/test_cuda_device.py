"""CudaDevice without a GPU: how it launches, and how compiled kernels are kept, over fakes.

Above it: pytest. Below it: hps/gpu_cache/cuda_device.py, kernels.py.
"""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hps
from hps.gpu_cache.cuda_device import CudaDevice
from hps.gpu_cache.kernels import NVRTC_OPTIONS, KernelArgs, cached_kernels, compile_kernels
from tests.gpu_cache.called_driver import CalledDriver


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
    device = CudaDevice.__new__(CudaDevice)
    device.args = KernelArgs()
    device.torch_device = torch.device("cuda", 0)
    device._threads = threading.local()
    driver = CalledDriver(device.args, lambda *call: calls.append(call), lambda *_: None)
    device.launcher = driver.launcher(most_blocks=100)
    asked: list[Any] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", asked.append)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77))
    args = device.args.new("Gather")
    args["out"] = 12345
    assert device.args.lanes["Gather"] == 4 and device.args.lanes["Erase"] == 1
    erased = device.args.new("Erase")
    for kernel, own, count in (
        ("Gather", args, 65), ("Erase", erased, 256), ("Erase", erased, 0), ("Erase", erased, 10**9)
    ):  # fmt: skip
        device.launch(kernel, own, count)
    assert [(name, count, where) for name, _, count, where in calls] == [
        ("Gather", 65, (2, 256, 77)),
        ("Erase", 256, (1, 256, 77)),
        ("Erase", 10**9, (100, 256, 77)),
    ]
    assert calls[0][1] == args.tobytes() and driver.error is None
    assert asked == [device.torch_device], "a thread has a context of the driver's, once"
    with pytest.raises(ValueError, match="args of another size"):
        device.launch("Erase", args, 1)


def test_what_the_driver_refuses_is_an_error_with_its_number() -> None:
    args = KernelArgs()

    def refuse(*_: Any) -> None:
        raise RuntimeError

    driver = CalledDriver(args, refuse, refuse)
    launcher = driver.launcher()
    with pytest.raises(RuntimeError, match="driver refuses a kernel: CUDA error 999"):
        launcher.launch("Gather", args.new("Gather").tobytes(), 1, 0)
    assert launcher.num_launches == 0
    with pytest.raises(ValueError, match="no kernel 'Gathers'"):
        launcher.launch("Gathers", b"", 1, 0)


def test_the_folder_of_compiled_kernels_is_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert hps.config.kernel_cache_folder() == tmp_path / "hps" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert hps.config.kernel_cache_folder() == tmp_path / "home" / ".cache" / "hps" / "kernels"
