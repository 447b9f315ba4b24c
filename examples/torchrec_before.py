"""A small DLRM in TorchRec. examples/torchrec_model.py is the same model over hps, line by line.

Run it: python examples/torchrec_before.py, with torchrec and fbgemm-gpu-cpu
(benchmarks/requirements-peers.txt). Above it: nobody. Below it: torchrec. docs/from_torchrec.md
shows what changes.
"""

import argparse
from collections.abc import Iterator

import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

NUM_EXAMPLES, NUM_DENSE, DIM = 256, 4, 8
NUM_USERS, NUM_ADS = 500, 100
FEATURES = ["user", "shown", "history"]


class DLRM(nn.Module):
    """Products of all pairs of vectors: those of three features, and that of the dense columns."""

    def __init__(self, embeddings: EmbeddingBagCollection) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.bottom = nn.Sequential(nn.Linear(NUM_DENSE, 16), nn.ReLU(), nn.Linear(16, DIM))
        self.top = nn.Sequential(nn.Linear(DIM + 6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, sparse: KeyedJaggedTensor, dense: torch.Tensor) -> torch.Tensor:
        rows = self.embeddings(sparse)
        numbers = self.bottom(dense)
        vectors = torch.stack([numbers, *(rows[name] for name in FEATURES)], dim=1)
        first, second = torch.triu_indices(4, 4, offset=1)
        pairs = (vectors @ vectors.mT)[:, first, second]
        return self.top(torch.cat([numbers, pairs], dim=1)).squeeze(1)


def batches(num_batches: int) -> Iterator[tuple[KeyedJaggedTensor, torch.Tensor, torch.Tensor]]:
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
        values = torch.cat([users, shown, history])
        lengths = torch.cat([one, one, clicked_before])
        sparse = KeyedJaggedTensor(keys=FEATURES, values=values, lengths=lengths)
        yield sparse, dense, clicks


def make_embeddings() -> EmbeddingBagCollection:
    """Two tables; that of ads serves two features."""
    users = EmbeddingBagConfig(
        name="users", embedding_dim=DIM, num_embeddings=NUM_USERS, feature_names=["user"]
    )
    ads = EmbeddingBagConfig(
        name="ads", embedding_dim=DIM, num_embeddings=NUM_ADS, feature_names=["shown", "history"]
    )
    embeddings = EmbeddingBagCollection(tables=[users, ads])
    apply_optimizer_in_backward(torch.optim.Adagrad, embeddings.parameters(), {"lr": 0.1})
    return embeddings


def train(model: DLRM, num_batches: int) -> list[float]:
    """The loop; returns the losses."""
    dense_parameters = [*model.bottom.parameters(), *model.top.parameters()]
    dense_optimizer = torch.optim.Adam(dense_parameters, lr=0.01)
    losses = []
    for sparse, dense, clicks in batches(num_batches):
        logits = model(sparse, dense)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, clicks)
        loss.backward()
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
    model = DLRM(make_embeddings())
    losses = train(model, arguments.batches)
    print(f"loss {sum(losses[:20]) / 20:.3f} at first, {sum(losses[-20:]) / 20:.3f} at last")


if __name__ == "__main__":
    main()
