"""Two processes that share one GPU train to the bits of two that have none.

Above it: pytest; its GPU part, pytest -m gpu. Below it: shared_gpu.py, torchrun. What that cannot
show is in docs/decisions/0042-ranks-on-devices.md: no message goes over NCCL.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cluster.rank_nursery import ROOT
from tests.ports import HeldPort


def outcome(folder: Path, device: str, wire: str) -> Any:
    """Digests and losses of both ranks."""
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    with HeldPort() as port:
        command += ["--master-port", str(port.number), "-m", "tests.cluster.shared_gpu"]
        done = subprocess.run(
            [*command, str(folder), device, wire],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def test_two_processes_train_to_one_table(tmp_path: Path) -> None:
    """Of the host build: what the test on a GPU compares with."""
    (first, losses), (second, others) = outcome(tmp_path / "cpu", "cpu", "float32")
    assert first == second and len(losses) == len(others) == 8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_two_processes_on_one_gpu_have_the_bits_of_two_without(tmp_path: Path, wire: str) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    on_gpu = outcome(tmp_path / "gpu", "cuda:0", wire)
    on_host = outcome(tmp_path / "cpu", "cpu", wire)
    assert [digests for digests, _ in on_gpu] == [digests for digests, _ in on_host]
