"""Trainer: a model, its two optimizers, one step after the other; all state in one mapping.

Above it: loop.py, which feeds it batches, step_checkpoints.py. Below it: `hps.models`,
`hps.RowOptimizer`, torch.
"""

import warnings
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from hps.common.json_text import Json, JsonView
from hps.errors import ConfigError
from hps.models import MODELS, ClickModel
from hps.nn.grad_scaler import ClusterGradScaler
from hps.nn.row_optimizer import RowOptimizer
from hps.train.changed_model import ChangedModel
from hps.train.dense import DenseAverages
from hps.train.evaluations import Evaluations
from hps.train.lineage import MOST_ANCESTORS
from hps.train.options import TrainOptions
from hps.train.progressive import Progressive, without_file
from hps.train.ranks import TrainingRanks
from hps.train.recipe import ModelRecipe
from hps.train.shape_rules import check_decay
from hps.train.stored_options import plain_options
from hps.train.totals import Totals
from hps.types import Batch

if TYPE_CHECKING:
    from hps.contracts.training import RowServer

FORMAT_VERSION = 2
# What a cosine schedule leaves of a learning rate: FTRL divides by it, so never nothing.
COSINE_FLOOR = 0.001
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Trainer:
    """Trains a model batch by batch; `state()` and `load_state()` take it to another process.

    Of several ranks each trains on its part of every batch: all call the same verbs at the same
    batches. Losses are scaled so that what arrives at a parameter is the mean over the whole batch,
    by its weights where it has any.

    Args:
        server: an open `hps.ParameterServer`, `hps.RemoteParameterServer` or, where there are
            ranks, `hps.ClusterParameterServer`.
        recipe: the model to make; its dense weights and dropout follow from `options.seed`.
        options: learning rates, scheduler, precision.
        ranks: that train together.
    """

    def __init__(
        self,
        server: "RowServer",
        recipe: ModelRecipe,
        options: TrainOptions,
        ranks: TrainingRanks | None = None,
    ) -> None:
        torch.manual_seed(options.run_seed())
        self._ranks = ranks or TrainingRanks()
        self.recipe = recipe
        self.totals = Totals(ranks=self._ranks)
        self.lineage: list[Json] = []  # checkpoints it descends from, oldest first
        self.evaluations = Evaluations()
        self.period_file: int | None = None  # as `Periods` has it
        self.begun_files: list[list[str | int]] = []  # of DATA of before, as `Periods` has it
        self.progressive: Progressive | None = None  # once somebody wants it
        self._progressive_before: Json | None = None  # of runs before, where nobody wants it now
        # What a user's own class does in training alone is not known.
        drops = recipe.dropout > 0 or recipe.embedding_dropout > 0
        self._is_other_in_eval = drops or recipe.kind not in MODELS
        self.batch_to_measure = recipe.batch_to_measure(server)
        self.device = server.device
        self.model: ClickModel = recipe.build(server).to(self.device)
        self._dense: DenseAverages | None = None
        if self._ranks.world is not None and self._ranks.size > 1:
            self._dense = DenseAverages(self.model, self._ranks.world.rows)
        self._forward = self._compiled(server) if options.compile else self._eager()
        if self._ranks.rank > 0:
            torch.manual_seed(self._ranks.seed(options.run_seed(), 0))
        self.row_optimizer = RowOptimizer(server)
        # Without decay it is Adam, to the bit.
        self.dense_optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=options.dense_rate(), weight_decay=options.dense_decay()
        )
        self._options = options
        self._accumulate = options.accumulate
        self._rates_of_before: Json = {}  # of the run that this one goes on with, if not given
        self._has_gradients = False
        self._dtype = _DTYPES.get(options.precision)
        self._device_type = torch.device(self.device).type
        self._scaler = ClusterGradScaler(
            server, self._device_type, enabled=options.precision == "float16"
        )
        optimizers = (self.row_optimizer, self.dense_optimizer)
        self._schedulers = [
            scheduler
            for optimizer in optimizers
            if (scheduler := _make_scheduler(optimizer, options)) is not None
        ]

    def _eager(self) -> nn.Module:
        return self.model if self._dense is None else self._dense.model

    def _compiled(self, server: "RowServer") -> Callable[[Batch], torch.Tensor]:
        if self._dense is not None:
            raise ConfigError(
                "compile (--compile) goes with one process; with several ranks leave it out"
            )
        # With sizes as unknowns the code, and so the bits, depend on no batch that came before.
        is_whole = server.joint is not None
        return torch.compile(self.model, fullgraph=is_whole, dynamic=True)

    def backward(self, batch: Batch) -> torch.Tensor:
        """Forward and backward of one batch; returns its logits [B], detached, on the device."""
        batch = batch.to(self.device)
        is_scored = self.progressive is not None and Progressive.is_due(batch)
        scores = self._score(batch) if is_scored and self._is_other_in_eval else None
        if batch.weights is not None and not batch.global_weight:
            logits = self._weightless(batch)
        else:
            logits = self._forward_and_backward(batch)
        if is_scored and self.progressive is not None:
            self.progressive.add(batch, logits if scores is None else scores)
        return logits

    def _forward_and_backward(self, batch: Batch) -> torch.Tensor:
        """Of a batch that has weight; adds its gradients."""
        with torch.autocast(self._device_type, dtype=self._dtype, enabled=self._dtype is not None):
            logits: torch.Tensor = self._forward(batch)
        if logits.shape != batch.labels.shape:
            raise ConfigError(
                f"model {self.recipe.kind}: forward returned {list(logits.shape)} of "
                f"{len(batch)} examples; one logit for each is needed, {list(batch.labels.shape)}"
            )
        loss = self._mean_loss(logits, batch)
        share = loss / self._accumulate if self._accumulate > 1 else loss
        if self._dense is not None:
            # Gradients are averaged over the ranks: this makes it the mean over the whole batch.
            # (With weights the loss is this rank's share of that already.)
            own, whole = (len(batch), batch.global_size) if batch.weights is None else (1, 1)
            share = share * (own * self._ranks.size / whole)
        self._scaler.scale(share).backward()  # type: ignore[no-untyped-call]
        if self._dense is not None:
            self._dense.raise_failed()
        self._has_gradients = True
        self.totals.add(loss.detach(), batch)
        return logits.detach()

    def _score(self, batch: Batch) -> torch.Tensor:
        """Logits [B] without dropout, whose generator it leaves as it is."""
        self.model.eval()
        enabled = self._dtype is not None
        with torch.no_grad(), torch.autocast(self._device_type, dtype=self._dtype, enabled=enabled):
            logits: torch.Tensor = self.model(batch)
        self.model.train()
        return logits

    def _weightless(self, batch: Batch) -> torch.Tensor:
        """A batch whose weights are all 0: a loss of 0, no gradient, no row that is created."""
        with (
            torch.no_grad(),
            torch.autocast(self._device_type, dtype=self._dtype, enabled=self._dtype is not None),
        ):
            logits: torch.Tensor = self.model(batch)
        self.totals.add(logits.new_zeros((), dtype=torch.float32), batch)
        return logits

    def _mean_loss(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Over the examples here; 0 with a graph where the rank has none of the batch. With weights
        the sum of weighted losses here over the sum of all ranks' weights."""
        if len(batch) == 0:
            return logits.float().sum()
        if batch.weights is None:
            return binary_cross_entropy_with_logits(logits.float(), batch.labels)
        shares = (batch.weights.double() / batch.global_weight).float()  # that no sum overflows
        return binary_cross_entropy_with_logits(
            logits.float(), batch.labels, shares, reduction="sum"
        )

    def step(self) -> None:
        """Applies the gradients gathered since the last step: rows, then the dense side. Does
        nothing where all batches since then have been without weight."""
        if not self._has_gradients:
            return
        self._has_gradients = False
        self._scaler.step(self.row_optimizer)
        self._scaler.step(self.dense_optimizer)
        if self._scaler.is_enabled():
            self._scaler.update()
        self.dense_optimizer.zero_grad()
        for scheduler in self._schedulers:
            # Past its span a cosine would climb back up.
            if scheduler.last_epoch < self._options.scheduler_steps:
                with _without_advice(self._scaler.is_enabled()):
                    scheduler.step()

    def state(self) -> Json:
        """All but rows and reader's position, as torch.load(weights_only=True) can read it.

        Every rank calls it; what differs between them is gathered.
        """
        random, *others = [
            {name: _tensor_of(text) for name, text in of_rank.items()}
            for of_rank in self._ranks.gather(self._random())
        ]
        return {
            "format_version": FORMAT_VERSION,
            "recipe": self.recipe.to_dict(),
            "settings": self._settings(),
            "options": plain_options(self._options),
            "totals": self.totals.to_dict(),
            **self.evaluations.to_dict(),
            "lineage": self.lineage[-MOST_ANCESTORS:],
            "period_file": self.period_file,
            "begun_files": self.begun_files,
            "progressive": (
                self._progressive_before
                if self.progressive is None
                else self.progressive.state_dict()
            ),
            "model": self.model.state_dict(),
            "dense_optimizer": self.dense_optimizer.state_dict(),
            "row_optimizer": self.row_optimizer.state_dict(),
            "schedulers": [scheduler.state_dict() for scheduler in self._schedulers],
            "scaler": self._scaler.state_dict(),
            **random,
            "other_ranks": others,
        }

    def check_state(self, state: JsonView) -> None:
        """Refuses what `load_state` cannot take up; changes nothing.

        Raises:
            ConfigError: another model, scheduler, precision or accumulate than this trainer's,
                another learning rate while a scheduler runs, a weight decay that does not go with
                the rate, or weights of another class.
        """
        self._dense_part(state)

    def _dense_part(self, state: JsonView) -> tuple[Json, Json, list[str]]:
        """Weights and state of the optimizer, with `change_features` those of this model's inputs;
        and what changes, a line each. Refuses as `check_state` does."""
        stored = stored_recipe(state)
        changes_features = self._options.change_features
        stored.check_same(self.recipe, changes_features=changes_features)
        self._check_settings(state["settings"])
        self._check_decays(state)
        weights, optimizer = state["model"], state["dense_optimizer"]
        lines: list[str] = []
        if changes_features:
            changed = ChangedModel(stored, self.recipe, self.model)
            lines = changed.lines
            if not changed.is_same:
                optimizer = changed.optimizer(optimizer, weights)
                weights = changed.weights(weights)
        self.recipe.check_weights(self.model, weights)
        return weights, optimizer, lines

    def load_state(self, state: JsonView) -> list[str]:
        """Takes up where `state()` was called.

        Returns:
            What goes on otherwise than it was stored, a line each: features that are new or gone,
            learning rates and weight decays that were given.

        Raises:
            ConfigError: as `check_state`; nothing has changed.
        """
        weights, optimizer, lines = self._dense_part(state)
        self.totals = Totals(**state["totals"], ranks=self._ranks)
        self.evaluations = Evaluations.from_dict(state)
        self.lineage = list(state.get("lineage", ()))  # checkpoints of earlier versions lack it
        self.period_file = state.get("period_file")
        self.begun_files = [list(file) for file in state.get("begun_files", ())]
        progressive = state.get("progressive")
        if self.progressive is not None and progressive is not None:
            self.progressive.load_state_dict(progressive, is_new_data=self._options.new_data)
        elif progressive is not None:
            self._progressive_before = without_file(progressive)
        self.model.load_state_dict(weights)
        self.dense_optimizer.load_state_dict(optimizer)
        self.row_optimizer.load_state_dict(state["row_optimizer"])
        for scheduler, scheduler_state in zip(self._schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(scheduler_state)
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(state["scaler"])
        self._take_random([state, *state.get("other_ranks", ())])
        return [
            *lines,
            *self._other_batches(state),
            *self._take_given_rates(),
            *self._take_given_decays(state),
        ]

    def _other_batches(self, state: JsonView) -> list[str]:
        """Says that batches are of another size than they were: free, but seldom meant."""
        before = stored_recipe(state).reader.get("batch_size")
        now = self.recipe.reader["batch_size"]
        if before in (None, now):
            return []
        return [f"batches of {before:,} examples (--batch-size) are now of {now:,}"]

    def _random(self) -> dict[str, str | None]:
        """States of the host's generator and of the device's own, which draw dropout there; as
        text, which can be gathered. None where the host is the device."""
        on_device = None
        if self._device_type == "cuda":
            on_device = _text_of(torch.cuda.get_rng_state(self.device))
        return {"random": _text_of(torch.get_rng_state()), "device_random": on_device}

    def _take_random(self, of_ranks: list[JsonView]) -> None:
        """Goes on with the rank's own generators; another number of ranks draws anew."""
        if len(of_ranks) != self._ranks.size:
            torch.manual_seed(self._ranks.seed(self._options.run_seed(), self.totals.batches))
            return
        own = of_ranks[self._ranks.rank]
        torch.set_rng_state(own["random"])
        if self._device_type == "cuda" and own.get("device_random") is not None:
            torch.cuda.set_rng_state(own["device_random"], self.device)

    def _settings(self) -> Json:
        """The options that a resumed run must agree with, and the rates that the run started at."""
        options = self._options
        return {
            "scheduler": options.scheduler,
            "scheduler_steps": options.scheduler_steps,
            "precision": options.precision,
            "accumulate": options.accumulate,
            "lr": options.row_rate(),
            "dense_lr": options.dense_rate(),
            "weight_decay": options.row_decay(),
            **self._rates_of_before,
        }

    def _check_settings(self, stored: JsonView) -> None:
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
        self._rates_of_before = {
            name: stored[name]
            for name in ("lr", "dense_lr")
            if getattr(self._options, name) is None and name in stored
        }

    def _check_decays(self, state: JsonView) -> None:
        """Of rates and decays as they will be, each given or stored."""
        options = self._options
        for part, optimizer in (("", "row_optimizer"), ("dense_", "dense_optimizer")):
            group = state[optimizer]["param_groups"][0]
            rate, decay = getattr(options, f"{part}lr"), getattr(options, f"{part}weight_decay")
            rate = group["lr"] if rate is None else rate
            decay = group.get("weight_decay", 0.0) if decay is None else decay
            check_decay(part, decay, group.get("initial_lr", rate))

    def _take_given_rates(self) -> list[str]:
        """Sets the rates that were given; without a scheduler, which has its own course."""
        changes: list[str] = []
        if self._options.scheduler != "constant":
            return changes
        for name, optimizer in (("lr", self.row_optimizer), ("dense_lr", self.dense_optimizer)):
            given = getattr(self._options, name)
            for group in optimizer.param_groups:
                if given is not None and group["lr"] != given:
                    line = f"{name} {group['lr']:g} of the checkpoint is now {given:g}"
                    if line not in changes:  # of several tables alike
                        changes.append(line)
                    group["lr"] = given
        return changes

    def _take_given_decays(self, state: JsonView) -> list[str]:
        """Sets the dense part's weight decay, if one was given. That of the rows is their table's,
        which was opened with it."""
        options, changes = self._options, []
        groups = self.dense_optimizer.param_groups
        decays = {
            "weight_decay": (state["settings"].get("weight_decay", 0.0), options.row_decay()),
            "dense_weight_decay": (groups[0]["weight_decay"], options.dense_weight_decay),
        }
        for name, (before, now) in decays.items():
            if now is not None and now != before:
                changes.append(f"{name} {before:g} of the checkpoint is now {now:g}")
        for group in groups:
            if options.dense_weight_decay is not None:
                group["weight_decay"] = options.dense_weight_decay
        return changes


def _text_of(state: torch.Tensor) -> str:
    return b64encode(state.cpu().numpy().tobytes()).decode()


def _tensor_of(text: str | None) -> torch.Tensor | None:
    return None if text is None else torch.frombuffer(bytearray(b64decode(text)), dtype=torch.uint8)


def stored_recipe(state: JsonView) -> ModelRecipe:
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


@contextmanager
def _without_advice(may_skip: bool) -> Iterator[None]:
    """torch warns of a scheduler's step before the optimizer's where the scaler has skipped the
    first one, as it may: its first scale is a guess."""
    if not may_skip:
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
        yield


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
