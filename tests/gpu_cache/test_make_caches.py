"""How gpu_caches are made: shares of the budget, and errors that name what is missing.

Above it: pytest. Below it: hps/gpu_cache/cache.py, cuda_device.py.
"""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps import _C
from hps.dram_cache import make_dram_caches
from hps.gpu_cache import make_gpu_caches
from hps.gpu_cache.cuda_device import CudaDevice
from hps.gpu_cache.device_cache import DeviceCache
from hps.gpu_cache.failures import Failures
from tests.gpu_cache.host_device import HostDevice


def two_tables(gpu: hps.GpuCacheConfig) -> hps.Config:
    ads = hps.TableConfig(name="ads", dim=8, features=["C1"], share=3)
    users = hps.TableConfig(name="users", dim=8, optimizer=hps.Adam(), features=["C2"])
    return hps.Config(path="unused", tables=[ads, users], gpu=gpu, seed=5, threads=1)


def test_tables_share_the_budget_and_one_flag_of_a_device() -> None:
    config = two_tables(hps.GpuCacheConfig(bytes=400_000, device="cpu"))
    native = make_gpu_caches(config)
    assert [type(cache) for cache in native.values()] == [_C.GpuCache, _C.GpuCache]
    device = HostDevice()
    failures = Failures(device)
    launched = make_gpu_caches(config, lambda options: DeviceCache(device, failures, options))
    for name, budget in (("ads", 300_000), ("users", 100_000)):
        assert 0.7 * budget < native[name].memory_bytes <= budget
        for what in ("memory_bytes", "capacity_rows", "row_bytes", "dim", "state_floats"):
            assert getattr(native[name], what) == getattr(launched[name], what)
        # Only what works in a device's own time tells of a culprit later.
        assert native[name].failed_key is None and make_dram_caches(config)[name].failed_key is None
        assert launched[name].failed_key(True) is None
    # The same initial rows as in dram_cache.
    dram = make_dram_caches(hps.Config(path="unused", tables=config.tables, seed=config.seed))
    keys = np.arange(9, dtype=np.uint64)
    for name in native:
        outs = [np.zeros((9, 8), np.float32) for _ in range(3)]
        for cache, out in zip((native[name], launched[name], dram[name]), outs, strict=True):
            cache.initial_weights(keys, out)
        assert np.array_equal(outs[0], outs[1]) and np.array_equal(outs[0], outs[2])


def test_a_budget_that_is_too_small_names_the_table_and_the_numbers() -> None:
    config = two_tables(hps.GpuCacheConfig(bytes=60_000, device="cpu"))
    with pytest.raises(hps.ConfigError, match=r"(?s)'users' on cpu.*15000 .*least.*60000.*1 of 4"):
        make_gpu_caches(config)


def test_a_device_without_the_memory_says_how_much_was_asked_and_is_free() -> None:
    config = two_tables(hps.GpuCacheConfig(bytes=400_000, device="cuda:0"))
    device = HostDevice()
    failures = Failures(device)
    device.budget = 1000
    with pytest.raises(
        hps.ConfigError, match=r"'ads' on cuda:0: \d+ bytes were requested.*1000 are"
    ):
        make_gpu_caches(config, lambda options: DeviceCache(device, failures, options))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_error_says_what_is_missing() -> None:
    config = two_tables(hps.GpuCacheConfig(bytes="1MiB", device="cuda:0"))
    with pytest.raises(hps.ConfigError, match=r"'cuda:0'.*(CuPy|NVRTC|driver|without CUDA)"):
        make_gpu_caches(config)


class FakeCuda:
    """What CudaDevice asks torch.cuda before it touches anything."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, built: bool = True) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
        # An empty module stands for an installed CuPy.
        monkeypatch.setitem(sys.modules, "cupy", type(sys)("cupy"))


def test_every_missing_piece_has_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch, count=2)
    with pytest.raises(hps.ConfigError, match=r"no such device.*has 2, cuda:0 to cuda:1"):
        CudaDevice("cuda:2")
    FakeCuda(monkeypatch, count=0)
    with pytest.raises(hps.ConfigError, match="sees no driver or no device"):
        CudaDevice("cuda:0")
    FakeCuda(monkeypatch, count=0, built=False)
    with pytest.raises(hps.ConfigError, match=r"built without CUDA.*device='cpu'"):
        CudaDevice("cuda")
    FakeCuda(monkeypatch, count=1)
    monkeypatch.setitem(sys.modules, "cupy_backends", None)
    with pytest.raises(hps.ConfigError, match=r"needs NVRTC.*pip install 'hps-ctr\[cuda\]'"):
        CudaDevice("cuda:0")
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(hps.ConfigError, match=r"needs CuPy.*pip install 'hps-ctr\[cuda\]'"):
        CudaDevice("cuda:0")


@pytest.mark.parametrize("device", ["cuda:", "cuda:1000", "gpu", "cuda:-1", "", 0])
def test_a_device_that_is_no_device_is_refused(device: Any) -> None:
    with pytest.raises(hps.ConfigError, match="must be 'cuda', 'cuda:N' or 'cpu'"):
        hps.GpuCacheConfig(bytes="1GiB", device=device)


def test_hps_and_its_host_build_need_neither_cupy_nor_torch() -> None:
    script = """
import sys
sys.modules["cupy"] = sys.modules["torch"] = None
import hps
from hps.dram_cache import make_dram_caches
from hps.gpu_cache import make_gpu_caches
def config(device):
    gpu = hps.GpuCacheConfig(bytes="1MiB", device=device)
    return hps.Config(path="unused", tables=[hps.TableConfig(name="ads", dim=8)], gpu=gpu)
print(make_gpu_caches(config("cpu"))["ads"].capacity_rows)
try:
    make_gpu_caches(config("cuda:0"))
except hps.ConfigError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert int(done.stdout.splitlines()[0]) > 0
    assert "needs torch" in done.stdout
