"""A Lightning Trainer over hps: its loop, its checkpoints; rows step before the dense part.

Run it: python examples/lightning_loop.py, with `pip install lightning` beside hps. It trains, stops
in the middle, goes on from Lightning's checkpoint, and shows that the model is that of a run that
was not stopped. Above it: nobody. Below it: lightning, the public names of hps.

What to know:

- Lightning's automatic optimisation has one optimizer, that of the dense part. The rows step in the
  hook before it, so that a refused step (hps.NonFiniteError) leaves both as they were.
- `accumulate_grad_batches=k` needs `hps.Pipeline(accumulate=k)`.
- What is trained on has a length: of a loader without one Lightning asks for a batch too many.
- A checkpoint of the rows is taken while Lightning makes its own, and its tag is in Lightning's
  file. Rows come first: a run that dies between the two goes on from the file before, whose rows
  are kept.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

import hps
from hps.generate import GeneratorConfig
from hps.generate.log import LogWriter
from hps.reader import ReaderConfig, open_reader

BATCH_SIZE, BATCHES, BATCHES_A_STEP = 256, 40, 2
TABLES = [hps.TableConfig(name="ads", dim=8, optimizer=hps.Adagrad(lr=0.05))]


class Batches:
    """A log's batches with their rows, for `Trainer.fit`, which saves and restores its position."""

    def __init__(self, log: Path, server: hps.ParameterServer) -> None:
        config = ReaderConfig(format="criteo", batch_size=BATCH_SIZE)
        self.reader = open_reader(log, tables=TABLES, config=config)
        self._pipeline: hps.Pipeline | None = None
        self._server = server

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[hps.Batch]:
        with hps.Pipeline(
            self.reader, self._server, 2, accumulate=BATCHES_A_STEP
        ) as self._pipeline:
            yield from self._pipeline

    def state_dict(self) -> dict[str, Any]:
        """The position after the last step, whatever was read ahead."""
        return self.reader.state_dict() if self._pipeline is None else self._pipeline.state_dict()

    def load_state_dict(self, position: dict[str, Any]) -> None:
        self.reader.load_state_dict(position)


class Clicks(lightning.LightningModule):
    """A tower over the pooled rows of a batch and its dense columns."""

    def __init__(self, server: hps.ParameterServer, num_features: int, num_dense: int) -> None:
        super().__init__()
        self.embedding = hps.SparseEmbedding(server, "ads")
        width = num_features * self.embedding.dim + num_dense
        self.tower = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 1))
        self.row_optimizer = hps.RowOptimizer(server)
        self.losses: list[float] = []

    def forward(self, batch: hps.Batch) -> torch.Tensor:
        return self.tower(torch.cat([self.embedding(batch), batch.dense], dim=1)).squeeze(1)

    def training_step(self, batch: hps.Batch, number: int) -> torch.Tensor:
        loss = nn.functional.binary_cross_entropy_with_logits(self(batch), batch.labels)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.tower.parameters(), lr=0.01)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.row_optimizer.step()


class RowCheckpoint(lightning.Callback):
    """Has the rows of each of Lightning's checkpoints in the server, and goes back to them."""

    def __init__(self, server: hps.ParameterServer) -> None:
        self._server = server

    def on_save_checkpoint(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, checkpoint: dict
    ) -> None:
        tag = f"step-{trainer.global_step}"
        self._server.checkpoint(tag=tag)
        checkpoint["rows"] = {"tag": tag, "rates": module.row_optimizer.state_dict()}

    def on_load_checkpoint(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, checkpoint: dict
    ) -> None:
        self._server.restore(checkpoint["rows"]["tag"])
        module.row_optimizer.load_state_dict(checkpoint["rows"]["rates"])


def fit(folder: Path, log: Path, steps: int = -1, resume: bool = False) -> tuple[Any, str]:
    """Trains in a folder, up to so many steps or to the end of the log.

    Returns:
        The module, and the digest of its rows.
    """
    config = hps.Config(path=folder / "rows", tables=TABLES, dram=hps.DramCacheConfig(bytes="4MiB"))
    with hps.ParameterServer(config) as server:
        batches = Batches(log, server)
        torch.manual_seed(0)
        module = Clicks(server, len(batches.reader.features["ads"]), batches.reader.num_dense)
        saves = ModelCheckpoint(folder, "{step}", every_n_train_steps=5, save_top_k=-1)
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=1,
            max_steps=steps,
            accumulate_grad_batches=BATCHES_A_STEP,
            callbacks=[saves, RowCheckpoint(server)],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, batches, ckpt_path=folder / "step=10.ckpt" if resume else None)
        return module, server.digest("ads")


def write_log(log: Path) -> None:
    """The made-up log of the example."""
    examples = BATCHES * BATCH_SIZE
    LogWriter(GeneratorConfig(examples=examples, keys=5_000, features=6), "criteo", 1).write(log)


def main() -> None:
    """Trains once as a whole and once in two parts, and compares."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "log.tsv"
        write_log(log)
        whole, digest = fit(folder / "whole", log)
        fit(folder / "parts", log, steps=13)
        resumed, digest_of_resumed = fit(folder / "parts", log, resume=True)
    first, last = sum(whole.losses[:10]) / 10, sum(whole.losses[-10:]) / 10
    print(f"loss {first:.3f} at first, {last:.3f} at last")
    print("rows", "equal" if digest == digest_of_resumed else "different", end=", ")
    towers = zip(whole.tower.parameters(), resumed.tower.parameters(), strict=True)
    print("dense part", "equal" if all(torch.equal(*pair) for pair in towers) else "different")


if __name__ == "__main__":
    main()
