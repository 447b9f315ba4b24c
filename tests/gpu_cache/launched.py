"""LaunchedServer: a server over the CUDA cache's launcher; tensors of the host are its device's.

Above it: tests of servers and models over a device. Below it: host_device.py.
"""

from typing import Any

import pytest
import torch

import hps
from hps.common import arrays, bags
from hps.gpu_cache import make_gpu_caches
from hps.gpu_cache.device_cache import DeviceCache
from hps.gpu_cache.failures import Failures
from hps.parameter_server.opening import Tiers
from hps.tiers import batch_rows
from tests.gpu_cache.host_device import HostDevice


class EagerDevice(HostDevice):
    """A device whose work is done at once, so that torch's own work may follow it."""

    def _put(self, work: Any) -> None:
        super()._put(work)
        self.work_off(self.num_queued)


class LaunchedServer:
    """From when it is made, servers whose rows lie in DRAM cannot be used in the test.

    Args:
        config: of the server, with a gpu_cache.
        batch_bytes: of what batches work on.
    """

    def __init__(
        self, config: hps.Config, monkeypatch: pytest.MonkeyPatch, batch_bytes: int = 2**24
    ) -> None:
        self.device = EagerDevice()
        failures = Failures(self.device, batch_bytes)
        self.arena = failures.arena
        tiers = Tiers(
            make_gpu_caches=lambda config: make_gpu_caches(
                config, lambda options: DeviceCache(self.device, failures, options)
            )
        )
        self.server = hps.ParameterServer(config, _tiers=tiers)
        for module in (arrays, batch_rows, bags):
            monkeypatch.setattr(module, "HOST", "the host")
        assert arrays.is_on(torch.zeros(1), self.server.device)

    def launches(self, kernel: str) -> int:
        """How often a kernel was launched."""
        return [name for name, _ in self.device.launches].count(kernel)
