"""Modules over a server's rows, batches for them, and what their dense parts should give.

Above it: tests of versions with an ONNX graph. Below it: hps.
"""

from pathlib import Path

import torch
from torch import nn

import hps
from hps.publish.destination import open_destination
from hps.publish.version import PublishedGraph, Version, load_version

NUM_DENSE = 2
# Of probabilities in float32: onnxruntime sums in another order than torch. docs/publishing.md
# states it.
ROUNDING = 1e-6


def a_batch(seed: int, tables: dict[str, int], examples: int = 5, most: int = 3) -> hps.Batch:
    """Bags of 0 to `most` keys of 40; the first table's first feature has one key an example."""
    random = torch.Generator().manual_seed(seed)
    features = {}
    for number, (table, count) in enumerate(tables.items()):
        lengths = torch.randint(0, most + 1, (count * examples,), generator=random)
        if number == 0:
            lengths[:examples] = 1
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        keys = torch.randint(0, 40, (int(offsets[-1]),), generator=random)
        features[table] = hps.Ids(keys, offsets)
    dense = torch.randn(examples, NUM_DENSE, generator=random)
    return hps.Batch(features, dense, torch.zeros(examples))


def learn(server: hps.ParameterServer, module: nn.Module, seed: int) -> None:
    """Other rows, and other weights of the module."""
    random = torch.Generator().manual_seed(seed)
    keys = torch.arange(40)[torch.rand(40, generator=random) < 0.7]
    for name, table in server.tables.items():
        rows = torch.randn(len(keys), table.dim, generator=random)
        server.assign(name, keys, rows)
    with torch.no_grad():
        for parameter in module.parameters():
            change = torch.randn(parameter.shape, generator=random)
            parameter.add_(change.to(parameter.device), alpha=0.3)


def scores(module: nn.Module, batch: hps.Batch) -> torch.Tensor:
    """By torch, float32 [B]."""
    module.eval()
    with torch.no_grad():
        score = getattr(module, "score", module)
        return torch.sigmoid(score(batch).float())


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal probabilities but for rounding."""
    assert found.shape == expected.shape and found.dtype == torch.float32
    off = float((found - expected).abs().max())
    assert off <= ROUNDING, (off, found, expected)


def graph_of(place: Path, number: int) -> tuple[Version, PublishedGraph]:
    """A version, and its graph."""
    version = load_version(open_destination(place), number)
    assert version.model is not None and version.model.graph is not None
    return version, version.model.graph


class Mine(nn.Module):
    """A user's own module, of two look-ups, a layer of its own and no class of hps."""

    def __init__(self, server: hps.ParameterServer) -> None:
        super().__init__()
        features = {"user": "users", "ad": "ads", "shop": "ads"}
        self.rows = hps.SparseEmbeddings(server, features, {"ads": "mean"})
        self.bias = hps.SparseEmbedding(server, "users")
        self.norm = nn.BatchNorm1d(10 + NUM_DENSE)
        self.top = nn.Linear(10 + NUM_DENSE, 1)
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, batch: hps.Batch) -> torch.Tensor:
        """Logits [B]."""
        parts = self.rows.by_name(batch)
        inputs = torch.cat([parts["shop"], parts["user"], parts["ad"], batch.dense], dim=1)
        first = self.bias(batch).sum(dim=1)
        logits: torch.Tensor = self.top(self.norm(inputs)).reshape(len(batch))
        return logits * self.scale + first


TABLES = [
    hps.TableConfig(name="ads", dim=4, features=["shop", "ad"]),
    hps.TableConfig(name="users", dim=2, features=["user"]),
]
COUNTS = {"ads": 2, "users": 1}
