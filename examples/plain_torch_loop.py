"""A user's own torch model in a plain training loop; only its embeddings live in the server.

Batches are read and their rows fetched by the pipeline's threads while the loop computes; a step
gathers the gradients of two batches, in half precision, under a GradScaler. Run it: python
examples/plain_torch_loop.py. It trains for a few seconds, saves a checkpoint, goes back to it, and
shows that the model is the same. Above it: nobody. Below it: the public names of hps.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import hps

NUM_EXAMPLES, NUM_USERS, NUM_ADS = 512, 20_000, 2_000
BATCHES_A_STEP = 2


class TwoTower(nn.Module):
    """Scores a user's history of clicked ads, averaged, against one ad: a model of no library."""

    def __init__(self, server: hps.ParameterServer) -> None:
        super().__init__()
        # Table "ads" serves two features: the shown ad, and the bag of ads clicked before.
        features = {"user": "users", "shown": "ads", "history": "ads"}
        self.embeddings = hps.SparseEmbeddings(server, features, pooling={"ads": "mean"})
        self.tower = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, batch: hps.Batch) -> torch.Tensor:
        rows = self.embeddings(batch)
        users, shown, history = torch.split_with_sizes(rows, self.embeddings.widths, dim=1)
        user = self.tower(torch.cat([users, history], dim=1))
        return (user * shown).sum(dim=1)


def batches(num_batches: int, seed: int) -> Iterator[hps.Batch]:
    """Made-up clicks: a user likes the ads of its own parity."""
    generator = torch.Generator().manual_seed(seed)

    def draw(limit: int, *shape: int) -> torch.Tensor:
        return (torch.rand(shape, generator=generator) ** 3 * limit).long()

    for number in range(num_batches):
        users, shown = draw(NUM_USERS, NUM_EXAMPLES), draw(NUM_ADS, NUM_EXAMPLES)
        lengths = torch.randint(0, 6, (NUM_EXAMPLES,), generator=generator)
        history = 2 * draw(NUM_ADS // 2, int(lengths.sum()))
        history += (users % 2).repeat_interleave(lengths)
        is_liked = (users + shown) % 2 == 0
        is_click = torch.rand(NUM_EXAMPLES, generator=generator) < torch.where(is_liked, 0.8, 0.1)
        ad_lengths = torch.cat([torch.ones(NUM_EXAMPLES, dtype=torch.int64), lengths])
        ad_offsets = torch.cat([torch.zeros(1, dtype=torch.int64), ad_lengths.cumsum(0)])
        yield hps.Batch(
            features={
                "users": hps.Ids(keys_L=users, offsets=torch.arange(NUM_EXAMPLES + 1)),
                "ads": hps.Ids(keys_L=torch.cat([shown, history]), offsets=ad_offsets),
            },
            dense=torch.zeros(NUM_EXAMPLES, 0),
            labels=is_click.float(),
            position={"batch": number + 1},
        )


def test_logloss(model: nn.Module, criterion: nn.Module) -> float:
    """Logloss on examples that training never sees; eval mode creates no row."""
    model.eval()
    with torch.no_grad():
        losses = [float(criterion(model(batch), batch.labels)) for batch in batches(20, seed=1)]
    model.train()
    return sum(losses) / len(losses)


def train(
    model: nn.Module,
    server: hps.ParameterServer,
    num_batches: int,
    depth: int,
) -> dict[str, object]:
    """The loop; returns the position after the last step."""
    criterion = nn.BCEWithLogitsLoss()
    row_optimizer = hps.RowOptimizer(server)
    dense_optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(row_optimizer, step_size=100, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    log = batches(num_batches, seed=0)
    with hps.Pipeline(log, server, depth, accumulate=BATCHES_A_STEP) as prepared:
        for number, batch in enumerate(prepared, 1):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = criterion(model(batch), batch.labels) / BATCHES_A_STEP
            scaler.scale(loss).backward()
            if number % BATCHES_A_STEP == 0:
                scaler.step(row_optimizer)  # rows first: a refused step leaves the dense side alone
                scaler.step(dense_optimizer)
                scaler.update()
                dense_optimizer.zero_grad()
                scheduler.step()
        return prepared.state_dict()


def run(folder: Path, num_batches: int, depth: int = 2) -> tuple[float, float, float]:
    """Trains; returns the test logloss before, after, and after going back to the checkpoint."""
    config = hps.Config(
        path=folder,
        tables=[
            hps.TableConfig(name="users", dim=16, optimizer=hps.Adam(lr=0.01), features=["user"]),
            hps.TableConfig(
                name="ads", dim=8, optimizer=hps.Adagrad(lr=0.1), features=["shown", "history"]
            ),
        ],
        dram=hps.DramCacheConfig(bytes="4MiB"),
    )
    torch.manual_seed(0)
    with hps.ParameterServer(config) as server:
        model, criterion = TwoTower(server), nn.BCEWithLogitsLoss()
        before = test_logloss(model, criterion)
        position = train(model, server, num_batches, depth)
        after = test_logloss(model, criterion)
        server.checkpoint(tag="trained", model={"model": model.state_dict()}, reader=position)

        keys = torch.arange(1000)
        server.push("users", keys, torch.ones(len(keys), 16))  # spoils some rows
        state, position = server.restore("trained")
        model.load_state_dict(state["model"])
        return before, after, test_logloss(model, criterion)


def main() -> None:
    """Trains in a temporary folder and prints three losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=600)
    parser.add_argument("--depth", type=int, default=2, help="batches prepared ahead; 0: none")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        before, after, restored = run(Path(folder), arguments.batches, arguments.depth)
    print(f"test logloss: {before:.4f} before, {after:.4f} after, {restored:.4f} restored")


if __name__ == "__main__":
    main()
