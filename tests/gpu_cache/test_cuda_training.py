"""A server over three tiers with its rows on a GPU: embeddings, updates, keys and outputs there.

Above it: pytest -m gpu. Below it: hps.ParameterServer with gpu="cuda:0". The same bits as without a
gpu_cache, whatever device a batch lies on.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from tests.front import open_server
from tests.parameter_server.test_gpu_tier import random_batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]
OPTIMIZER = hps.RowWiseAdagrad(lr=0.1)
BUDGETS = {
    "none": None,
    "cpu": hps.GpuCacheConfig(bytes="300KiB", device="cpu"),
    "cuda": hps.GpuCacheConfig(bytes="4396KiB", batch_bytes="4MiB", device="cuda:0"),
}


def trained(folder: Path, where: str, batches: list[hps.Batch], pooling: Any) -> Any:
    """Outputs of every batch, and the table's digest, after training with given slopes."""
    server = open_server(folder / where, OPTIMIZER, gpu=BUDGETS[where], dim=6, dram="200KiB")
    with server:
        embedding = hps.SparseEmbedding(server, "ads", pooling=pooling)
        optimizer = hps.RowOptimizer(server)
        outputs = []
        for batch in batches:
            output = embedding(batch.to(server.device))
            assert output.device.type == ("cuda" if where == "cuda" else "cpu")
            slope = torch.linspace(-1, 1, output.numel()).view(output.shape).to(output.device)
            (output * slope).sum().backward()
            optimizer.step()
            outputs.append(output.detach().cpu().numpy().tobytes())
        if where != "none":
            assert server.stats()["gpu_cache"]["evictions"] > 0, "no row gave way"
        return outputs, server.digest("ads"), server.num_rows("ads")


@pytest.mark.parametrize(("pooling", "longest"), [("sum", 300), ("mean", 5), (None, 5)])
def test_training_on_a_gpu_has_the_bits_of_training_without_one(
    tmp_path: Path, pooling: Any, longest: int
) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    batches = [random_batch(seed, longest, weighted=pooling == "sum") for seed in range(12)]
    shifted = []
    for number, batch in enumerate(batches):  # other keys in each, so that rows give way
        ids = batch.features["ads"]
        keys = ids.keys_L + 700 * number
        shifted.append(hps.Batch({"ads": hps.Ids(keys, ids.offsets, ids.weights_L)},
                                 batch.dense, batch.labels))  # fmt: skip
    results = [trained(tmp_path, where, [*shifted, *shifted], pooling) for where in BUDGETS]
    assert results[0] == results[1], "the host build differs"
    assert results[0] == results[2], "the GPU differs"


def test_a_refused_gradient_on_a_gpu_is_told_by_a_later_verb(tmp_path: Path) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    with open_server(tmp_path, OPTIMIZER, gpu=BUDGETS["cuda"], dim=6) as server:
        keys = torch.arange(100, device="cuda:0")
        embedding = hps.SparseEmbedding(server, "ads", pooling=None)
        optimizer = hps.RowOptimizer(server)
        embedding(keys).sum().backward()
        optimizer.step()
        before = server.digest("ads")
        (embedding(keys) * float("nan")).sum().backward()
        optimizer.step()
        with pytest.raises(hps.NonFiniteError, match="'ads', key"):
            server.checkpoint("bad")
        assert server.digest("ads") == before
        rows = server.pull("ads", keys)
        assert rows.device.type == "cuda" and bool(rows.isfinite().all())
        host = server.pull("ads", np.arange(100, dtype=np.uint64))
        assert np.array_equal(rows.cpu().numpy(), host)
