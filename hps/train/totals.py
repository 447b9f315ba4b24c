"""Totals: examples, batches and losses of a model's life, over all ranks.

Above it: `Trainer`, which adds each batch, and checkpoints, which keep them. Below it:
`TrainingRanks`.
"""

import hashlib
import struct

import torch

from hps.common.json_text import Json
from hps.train.ranks import TrainingRanks
from hps.types import Batch

_MAX_COMING = 256  # losses that a device may still work on, or that other ranks do not know yet


class Totals:
    """Sums over all steps of a model's life, interruptions included.

    Losses are added as they come from a device and from other ranks; asking for their sum or digest
    waits for them, and every rank must ask.

    Args:
        examples: trained on, by all ranks.
        batches: trained on; a batch of all ranks is one.
        loss_sum: of the examples' losses, in nats, each times its weight where there are weights.
        loss_digest: hex SHA-256 chained over the float32 loss of each batch: equal digests, equal
            losses in every bit.
        ranks: whose losses are summed up.
        weight_sum: of the examples' weights, 1 each where there are none; None takes that of
            `examples`, as models have it that were stored before there were weights.
    """

    def __init__(
        self,
        examples: int = 0,
        batches: int = 0,
        loss_sum: float = 0.0,
        loss_digest: str = "",
        ranks: TrainingRanks | None = None,
        weight_sum: float | None = None,
    ) -> None:
        self.weight_sum = float(examples) if weight_sum is None else weight_sum
        self.examples = examples
        self.batches = batches
        self._loss_sum = loss_sum
        self._loss_digest = loss_digest
        self._ranks = ranks or TrainingRanks()
        # A loss, what it counts, what those of all ranks count together.
        self._coming: list[tuple[torch.Tensor, float, float]] = []

    def add(self, loss: torch.Tensor, batch: Batch) -> None:
        """Counts one batch; waits for no device and no other rank, but when many have gathered.

        Args:
            loss: mean of the examples that are here; of a batch with weights this rank's share of
                the mean of all of it.
            batch: of which it is.
        """
        self.examples += batch.global_size
        self.weight_sum += batch.global_weight
        self.batches += 1
        own, whole = (
            (len(batch), batch.global_size)
            if batch.weights is None
            else (batch.global_weight, batch.global_weight)
        )
        self._coming.append((loss, own, whole))
        is_known = self._ranks.size == 1 and loss.device.type == "cpu"
        if is_known or len(self._coming) >= _MAX_COMING:
            self._settle()

    @property
    def loss_sum(self) -> float:
        self._settle()
        return self._loss_sum

    @property
    def loss_digest(self) -> str:
        self._settle()
        return self._loss_digest

    def to_dict(self) -> Json:
        """What makes it again."""
        names = ("examples", "batches", "loss_sum", "loss_digest", "weight_sum")
        return {name: getattr(self, name) for name in names}

    def _settle(self) -> None:
        if not self._coming:
            return
        own = [[float(loss), count] for loss, count, _ in self._coming]
        of_ranks = self._ranks.gather(own)
        for idx, (_, _, whole) in enumerate(self._coming):
            total = 0.0
            for losses in of_ranks:
                total += losses[idx][0] * losses[idx][1]
            self._loss_sum += total
            mean = total / whole if whole else 0.0
            chained = bytes.fromhex(self._loss_digest) + struct.pack("<f", mean)
            self._loss_digest = hashlib.sha256(chained).hexdigest()
        self._coming.clear()
