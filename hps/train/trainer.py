"""Trainer: a model, its two optimizers, one step after the other; all state in one mapping.

Above it: `hps.train.run`, which feeds it batches and writes checkpoints. Below it: `hps.models`,
`hps.RowOptimizer`, torch.
"""

import hashlib
import struct
from collections.abc import Mapping
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
    from hps.row_server import RowServer

FORMAT_VERSION = 2
# What a cosine schedule leaves of a learning rate: FTRL divides by it, so never nothing.
COSINE_FLOOR = 0.001
_MAX_COMING = 256  # losses that a device may still work on
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Totals:
    """Sums over all steps of a model's life, interruptions included.

    Losses are added as they come from a device; asking for their sum or digest waits for them.

    Args:
        examples: trained on.
        batches: trained on.
        loss_sum: of the examples' losses, in nats.
        loss_digest: hex SHA-256 chained over the float32 loss of each batch: equal digests, equal
            losses in every bit.
    """

    def __init__(
        self, examples: int = 0, batches: int = 0, loss_sum: float = 0.0, loss_digest: str = ""
    ) -> None:
        self.examples = examples
        self.batches = batches
        self._loss_sum = loss_sum
        self._loss_digest = loss_digest
        self._coming: list[tuple[torch.Tensor, int]] = []  # losses, and their examples

    def add(self, loss: torch.Tensor, num_examples: int) -> None:
        """Counts one batch, by its mean loss; waits for no device, but when many have gathered."""
        self.examples += num_examples
        self.batches += 1
        self._coming.append((loss, num_examples))
        if loss.device.type == "cpu" or len(self._coming) >= _MAX_COMING:
            self._settle()

    @property
    def loss_sum(self) -> float:
        self._settle()
        return self._loss_sum

    @property
    def loss_digest(self) -> str:
        self._settle()
        return self._loss_digest

    def to_dict(self) -> dict[str, Any]:
        """What makes it again."""
        names = ("examples", "batches", "loss_sum", "loss_digest")
        return {name: getattr(self, name) for name in names}

    def _settle(self) -> None:
        for tensor, num_examples in self._coming:
            loss = float(tensor)
            self._loss_sum += loss * num_examples
            chained = bytes.fromhex(self._loss_digest) + struct.pack("<f", loss)
            self._loss_digest = hashlib.sha256(chained).hexdigest()
        self._coming.clear()


class Trainer:
    """Trains a model batch by batch; `state()` and `load_state()` take it to another process.

    Args:
        server: an open `hps.ParameterServer` or `hps.RemoteParameterServer`.
        recipe: the model to make; its dense weights and dropout follow from `options.seed`.
        options: learning rates, scheduler, precision.
    """

    def __init__(self, server: "RowServer", recipe: ModelRecipe, options: TrainOptions) -> None:
        torch.manual_seed(options.seed)
        self.recipe = recipe
        self.totals = Totals()
        self.device = server.device
        self.model: ClickModel = recipe.build(server).to(self.device)
        self.row_optimizer = RowOptimizer(server)
        self.dense_optimizer = torch.optim.Adam(self.model.parameters(), lr=options.dense_rate())
        self._options = options
        self._accumulate = options.accumulate
        self._dtype = _DTYPES.get(options.precision)
        self._device_type = torch.device(self.device).type
        self._scaler = torch.amp.GradScaler(
            self._device_type, enabled=options.precision == "float16"
        )
        optimizers = (self.row_optimizer, self.dense_optimizer)
        self._schedulers = [
            scheduler
            for optimizer in optimizers
            if (scheduler := _make_scheduler(optimizer, options)) is not None
        ]

    def backward(self, batch: Batch) -> torch.Tensor:
        """Forward and backward of one batch; returns its logits [B], detached, on the device."""
        batch = batch.to(self.device)
        with torch.autocast(self._device_type, dtype=self._dtype, enabled=self._dtype is not None):
            logits: torch.Tensor = self.model(batch)
        loss = binary_cross_entropy_with_logits(logits.float(), batch.labels)
        share = loss / self._accumulate if self._accumulate > 1 else loss
        self._scaler.scale(share).backward()  # type: ignore[no-untyped-call]
        self.totals.add(loss.detach(), len(batch))
        return logits.detach()

    def step(self) -> None:
        """Applies the gradients gathered since the last step: rows, then the dense side."""
        self._scaler.step(self.row_optimizer)
        self._scaler.step(self.dense_optimizer)
        if self._scaler.is_enabled():
            self._scaler.update()
        self.dense_optimizer.zero_grad()
        for scheduler in self._schedulers:
            # Past its span a cosine would climb back up.
            if scheduler.last_epoch < self._options.scheduler_steps:
                scheduler.step()

    def state(self) -> dict[str, Any]:
        """All but rows and reader's position, as torch.load(weights_only=True) can read it."""
        return {
            "format_version": FORMAT_VERSION,
            "recipe": self.recipe.to_dict(),
            "settings": self._settings(),
            "totals": self.totals.to_dict(),
            "model": self.model.state_dict(),
            "dense_optimizer": self.dense_optimizer.state_dict(),
            "row_optimizer": self.row_optimizer.state_dict(),
            "schedulers": [scheduler.state_dict() for scheduler in self._schedulers],
            "scaler": self._scaler.state_dict(),
            "random": torch.get_rng_state(),
            "device_random": self._device_random(),
        }

    def load_state(self, state: Mapping[str, Any]) -> list[str]:
        """Takes up where `state()` was called.

        Returns:
            What goes on otherwise than it was stored, a line each: learning rates that were given.

        Raises:
            ConfigError: another model, scheduler, precision or accumulate than this trainer's, or
                another learning rate while a scheduler runs; nothing has changed.
        """
        stored_recipe(state).check_same(self.recipe)
        self._check_settings(state["settings"])
        self.totals = Totals(**state["totals"])
        self.model.load_state_dict(state["model"])
        self.dense_optimizer.load_state_dict(state["dense_optimizer"])
        self.row_optimizer.load_state_dict(state["row_optimizer"])
        for scheduler, scheduler_state in zip(self._schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(scheduler_state)
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["random"])
        if self._device_type == "cuda" and state.get("device_random") is not None:
            torch.cuda.set_rng_state(state["device_random"], self.device)
        return self._take_given_rates()

    def _device_random(self) -> torch.Tensor | None:
        """State of the device's own generator, which draws dropout there; None on the host."""
        if self._device_type != "cuda":
            return None
        state: torch.Tensor = torch.cuda.get_rng_state(self.device)
        return state

    def _settings(self) -> dict[str, Any]:
        """The options that a resumed run must agree with, and the rates that the run started at."""
        options = self._options
        return {
            "scheduler": options.scheduler,
            "scheduler_steps": options.scheduler_steps,
            "precision": options.precision,
            "accumulate": options.accumulate,
            "lr": options.row_rate(),
            "dense_lr": options.dense_rate(),
        }

    def _check_settings(self, stored: Mapping[str, Any]) -> None:
        asked = self._settings()
        must_agree = ["scheduler", "scheduler_steps", "precision", "accumulate"]
        if self._options.scheduler != "constant":
            # The schedule goes on from the rates it began with.
            must_agree += [
                name for name in ("lr", "dense_lr") if getattr(self._options, name) is not None
            ]
        for name in must_agree:
            if stored.get(name) != asked[name]:
                raise ConfigError(
                    f"the checkpoint was written with {name}={stored.get(name)!r}, this run asks "
                    f"for {asked[name]!r}; give the same flags to resume it"
                )

    def _take_given_rates(self) -> list[str]:
        """Sets the rates that were given; without a scheduler, which has its own course."""
        changes: list[str] = []
        if self._options.scheduler != "constant":
            return changes
        for name, optimizer in (("lr", self.row_optimizer), ("dense_lr", self.dense_optimizer)):
            given = getattr(self._options, name)
            for group in optimizer.param_groups:
                if given is not None and group["lr"] != given:
                    changes.append(f"{name} {group['lr']:g} of the checkpoint is now {given:g}")
                    group["lr"] = given
        return changes


def stored_recipe(state: Mapping[str, Any]) -> ModelRecipe:
    """The recipe in a checkpoint's model.

    Raises:
        ConfigError: the mapping was not written by `Trainer.state`.
    """
    version = state.get("format_version")
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"the checkpoint's model has format_version={version!r}, this hps reads "
            f"{FORMAT_VERSION}; it was stored by a user's own loop or another version"
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
        return torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer,
            T_max=options.scheduler_steps,
            eta_min=COSINE_FLOOR * float(optimizer.param_groups[0]["lr"]),
        )
    return None
