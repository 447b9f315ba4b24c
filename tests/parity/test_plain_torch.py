"""A whole run against the same model over torch.nn.EmbeddingBag and torch's optimizers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import hps
from hps.models import DeepFM
from hps.reader.config import ReaderConfig
from hps.reader.open import open_reader
from tests.front import open_server
from tests.logs import NUM_DENSE, NUM_FEATURES, write_criteo


class PlainEmbedding(torch.nn.Module):
    """nn.EmbeddingBag over the same initial rows, by dense ids of the keys."""

    def __init__(self, known_keys: torch.Tensor, rows: torch.Tensor) -> None:
        super().__init__()
        self.known_keys = known_keys  # sorted
        self.bag = torch.nn.EmbeddingBag.from_pretrained(
            rows, freeze=False, mode="sum", include_last_offset=True, sparse=True
        )

    def forward(self, batch: hps.Batch) -> torch.Tensor:
        ids = batch.features["ads"]
        pooled = self.bag(torch.searchsorted(self.known_keys, ids.keys_L), ids.offsets)
        dim = pooled.shape[1]
        return pooled.view(NUM_FEATURES, len(batch), dim).transpose(0, 1).reshape(len(batch), -1)


def train(model: torch.nn.Module, batches: list[hps.Batch], optimizers: list[Any]) -> list[float]:
    losses = []
    for batch in batches:
        loss = binary_cross_entropy_with_logits(model(batch), batch.labels)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("gpu", [None, hps.GpuCacheConfig(bytes="1MiB", device="cpu")])
@pytest.mark.filterwarnings("ignore:Sparse invariant")
@pytest.mark.parametrize(
    ("row_kind", "plain_kind"), [(hps.SGD, torch.optim.SGD), (hps.Adagrad, torch.optim.Adagrad)]
)
def test_whole_run_ends_where_plain_torch_ends(
    tmp_path: Path, row_kind: type, plain_kind: type, gpu: hps.GpuCacheConfig | None
) -> None:
    torch.set_num_threads(1)
    log = write_criteo(tmp_path / "log.txt", 4000)
    tables = [hps.TableConfig(name="ads", dim=9)]
    reader = open_reader(
        [log], tables=tables, config=ReaderConfig(format="criteo", batch_size=128, epochs=2)
    )
    batches = list(reader)
    keys = torch.from_numpy(np.unique(torch.cat([b.features["ads"].keys_L for b in batches])))
    with open_server(tmp_path, row_kind(lr=0.1), dim=9, gpu=gpu) as server:
        initial = torch.as_tensor(server.pull("ads", keys)).clone()
        models = []
        for _ in range(2):
            torch.manual_seed(0)
            models.append(DeepFM(server, {"ads": NUM_FEATURES}, NUM_DENSE, hidden=(16,)))
        ours, plain = models
        plain.embeddings = PlainEmbedding(keys, initial.clone())  # type: ignore[assignment]
        plain_rows = list(plain.embeddings.parameters())
        plain_dense = [p for p in plain.parameters() if all(p is not row for row in plain_rows)]
        our_optimizers = [hps.RowOptimizer(server), torch.optim.Adam(ours.parameters(), lr=0.01)]
        plain_optimizers = [
            plain_kind(plain_rows, lr=0.1),
            torch.optim.Adam(plain_dense, lr=0.01),
        ]
        our_losses = train(ours, batches, our_optimizers)
        plain_losses = train(plain, batches, plain_optimizers)
        trained = torch.as_tensor(server.pull("ads", keys)).clone()
    assert float((trained - initial).abs().max()) > 0.05
    assert our_losses[0] == pytest.approx(plain_losses[0], abs=1e-6)
    half = len(our_losses) // 2
    assert np.mean(our_losses[half:]) == pytest.approx(np.mean(plain_losses[half:]), abs=1e-4)
    assert our_losses[-1] == pytest.approx(plain_losses[-1], abs=1e-4)
