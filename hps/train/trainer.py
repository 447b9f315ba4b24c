"""Trainer: a model, its two optimizers, and one step after the other; all of its state in one mapping.

Above it: `hps.train.run`, which feeds it batches and writes checkpoints. Below it: `hps.models`,
`hps.RowOptimizer`, torch.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from hps.errors import ConfigError
from hps.models import ClickModel
from hps.row_optimizer import RowOptimizer
from hps.train.options import TrainOptions
from hps.train.recipe import ModelRecipe
from hps.types import Batch

if TYPE_CHECKING:
    from hps.parameter_server import ParameterServer

FORMAT_VERSION = 1
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(slots=True)
class Totals:
    """Sums over all steps of a model's life, interruptions included.

    Args:
        examples: trained on.
        batches: trained on.
        loss_sum: of the examples' losses, in nats.
        loss_digest: hex SHA-256 chained over the float32 loss of each batch: equal digests, equal
            losses in every bit.
    """

    examples: int = 0
    batches: int = 0
    loss_sum: float = 0.0
    loss_digest: str = ""

    def add(self, loss: float, num_examples: int) -> None:
        """Counts one batch."""
        self.examples += num_examples
        self.batches += 1
        self.loss_sum += loss * num_examples
        chained = bytes.fromhex(self.loss_digest) + struct.pack("<f", loss)
        self.loss_digest = hashlib.sha256(chained).hexdigest()


class Trainer:
    """Trains a model batch by batch; `state()` and `load_state()` take it to another process.

    Args:
        server: an open `hps.ParameterServer`.
        recipe: the model to make; its dense weights and dropout follow from `options.seed`.
        options: learning rates, scheduler, precision.
    """

    def __init__(
        self, server: "ParameterServer", recipe: ModelRecipe, options: TrainOptions
    ) -> None:
        torch.manual_seed(options.seed)
        self.recipe = recipe
        self.totals = Totals()
        self.model: ClickModel = recipe.build(server)
        self.row_optimizer = RowOptimizer(server)
        self.dense_optimizer = torch.optim.Adam(self.model.parameters(), lr=options.dense_lr)
        self._accumulate = options.accumulate
        self._dtype = _DTYPES.get(options.precision)
        self._scaler = torch.amp.GradScaler("cpu", enabled=options.precision == "float16")
        optimizers = (self.row_optimizer, self.dense_optimizer)
        self._schedulers = [
            scheduler
            for optimizer in optimizers
            if (scheduler := _make_scheduler(optimizer, options)) is not None
        ]

    def backward(self, batch: Batch) -> torch.Tensor:
        """Forward and backward of one batch; returns its logits [B], detached."""
        with torch.autocast("cpu", dtype=self._dtype, enabled=self._dtype is not None):
            logits = self.model(batch)
        loss = binary_cross_entropy_with_logits(logits.float(), batch.labels)
        share = loss / self._accumulate if self._accumulate > 1 else loss
        self._scaler.scale(share).backward()  # type: ignore[no-untyped-call]
        self.totals.add(float(loss.detach()), len(batch))
        return logits.detach()

    def step(self) -> None:
        """Applies the gradients gathered since the last step: rows, then the dense side."""
        self._scaler.step(self.row_optimizer)
        self._scaler.step(self.dense_optimizer)
        if self._scaler.is_enabled():
            self._scaler.update()
        self.dense_optimizer.zero_grad()
        for scheduler in self._schedulers:
            scheduler.step()

    def state(self) -> dict[str, Any]:
        """Everything besides the rows and the reader's position; torch.load(weights_only=True) reads it."""
        return {
            "format_version": FORMAT_VERSION,
            "recipe": self.recipe.to_dict(),
            "totals": asdict(self.totals),
            "model": self.model.state_dict(),
            "dense_optimizer": self.dense_optimizer.state_dict(),
            "row_optimizer": self.row_optimizer.state_dict(),
            "schedulers": [scheduler.state_dict() for scheduler in self._schedulers],
            "scaler": self._scaler.state_dict(),
            "random": torch.get_rng_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Takes up where `state()` was called.

        Raises:
            ConfigError: another model, scheduler or precision than this trainer's.
        """
        stored_recipe(state).check_same(self.recipe)
        if len(state["schedulers"]) != len(self._schedulers) or (
            bool(state["scaler"]) != self._scaler.is_enabled()
        ):
            raise ConfigError(
                "the checkpoint was written with another scheduler or precision; give the same flags"
            )
        self.totals = Totals(**state["totals"])
        self.model.load_state_dict(state["model"])
        self.dense_optimizer.load_state_dict(state["dense_optimizer"])
        self.row_optimizer.load_state_dict(state["row_optimizer"])
        for scheduler, scheduler_state in zip(self._schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(scheduler_state)
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["random"])


def stored_recipe(state: Mapping[str, Any]) -> ModelRecipe:
    """The recipe in a checkpoint's model.

    Raises:
        ConfigError: the mapping was not written by `Trainer.state`.
    """
    version = state.get("format_version")
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"the checkpoint's model has format_version={version!r}, this hps reads {FORMAT_VERSION}; "
            "it was stored by a user's own loop or another version"
        )
    return ModelRecipe.from_dict(state["recipe"])


def _make_scheduler(
    optimizer: torch.optim.Optimizer, options: TrainOptions
) -> torch.optim.lr_scheduler.LRScheduler | None:
    if options.scheduler == "warmup":
        return torch.optim.lr_scheduler.LinearLR(
            optimizer, start_factor=0.1, total_iters=options.scheduler_steps
        )
    if options.scheduler == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.scheduler_steps)
    return None
