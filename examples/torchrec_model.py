"""A small DLRM over hps. examples/torchrec_before.py is the same model in TorchRec, line by line.

Run it: python examples/torchrec_model.py. It needs no torchrec.
Above it: nobody. Below it: the public names of hps. docs/from_torchrec.md
shows what changes.
"""

import argparse
import tempfile
from collections.abc import Iterator

import torch
from torch import nn

import hps

NUM_EXAMPLES, NUM_DENSE, DIM = 256, 4, 8
NUM_USERS, NUM_ADS = 500, 100
FEATURES = ["user", "shown", "history"]


class DLRM(nn.Module):
    """Products of all pairs of vectors: those of three features, and that of the dense columns."""

    def __init__(self, embeddings: hps.SparseEmbeddings) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.bottom = nn.Sequential(nn.Linear(NUM_DENSE, 16), nn.ReLU(), nn.Linear(16, DIM))
        self.top = nn.Sequential(nn.Linear(DIM + 6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, batch: hps.Batch) -> torch.Tensor:
        rows = self.embeddings.by_name(batch)
        numbers = self.bottom(batch.dense)
        vectors = torch.stack([numbers, *(rows[name] for name in FEATURES)], dim=1)
        first, second = torch.triu_indices(4, 4, offset=1)
        pairs = (vectors @ vectors.mT)[:, first, second]
        return self.top(torch.cat([numbers, pairs], dim=1)).squeeze(1)


def batches(num_batches: int) -> Iterator[hps.Batch]:
    """Made-up clicks: most are on even ads."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(num_batches):
        users = torch.randint(NUM_USERS, (NUM_EXAMPLES,), generator=generator)
        shown = torch.randint(NUM_ADS, (NUM_EXAMPLES,), generator=generator)
        clicked_before = torch.randint(0, 6, (NUM_EXAMPLES,), generator=generator)
        history = torch.randint(NUM_ADS, (int(clicked_before.sum()),), generator=generator)
        dense = torch.randn(NUM_EXAMPLES, NUM_DENSE, generator=generator)
        chance = torch.where(shown % 2 == 0, 0.6, 0.1)
        clicks = (torch.rand(NUM_EXAMPLES, generator=generator) < chance).float()
        one = torch.ones_like(users)
        values = {"users": users, "ads": torch.cat([shown, history])}
        lengths = {"users": one, "ads": torch.cat([one, clicked_before])}
        sparse = {name: hps.Ids(values[name], offsets_of(lengths[name])) for name in values}
        yield hps.Batch(sparse, dense, clicks)


def offsets_of(lengths: torch.Tensor) -> torch.Tensor:
    """Where each bag begins, and the last one ends: 0 and the sums of the lengths."""
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def tables() -> list[hps.TableConfig]:
    """Two tables; that of ads serves two features."""
    adagrad = hps.Adagrad(lr=0.1)
    users = hps.TableConfig(name="users", dim=DIM, optimizer=adagrad, features=["user"])
    ads = hps.TableConfig(name="ads", dim=DIM, optimizer=adagrad, features=["shown", "history"])
    return [users, ads]


def make_embeddings(server: hps.ParameterServer) -> hps.SparseEmbeddings:
    """Look-ups of three features in two tables."""
    return hps.SparseEmbeddings(server, {"user": "users", "shown": "ads", "history": "ads"})


def train(model: DLRM, num_batches: int) -> list[float]:
    """The loop; returns the losses."""
    server = model.embeddings.server
    row_optimizer = hps.RowOptimizer(server)
    dense_optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    with hps.Pipeline(batches(num_batches), server, depth=2) as prepared:
        for batch in prepared:
            logits = model(batch)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
            loss.backward()
            row_optimizer.step()
            dense_optimizer.step()
            dense_optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def main() -> None:
    """Trains, and prints the losses of the first and the last batches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=400)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        config = hps.Config(path=folder, tables=tables(), dram=hps.DramCacheConfig(bytes="4MiB"))
        with hps.ParameterServer(config) as server:
            model = DLRM(make_embeddings(server))
            losses = train(model, arguments.batches)
    print(f"loss {sum(losses[:20]) / 20:.3f} at first, {sum(losses[-20:]) / 20:.3f} at last")


if __name__ == "__main__":
    main()
