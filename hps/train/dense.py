"""The dense side of several ranks: DistributedDataParallel with averages in the order of the ranks,
and a GradScaler that all ranks agree with.

Above it: `Trainer`. Below it: torch, the channel that rows travel in.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hps.train.ranks import Ranks

if TYPE_CHECKING:
    from hps.cluster.world import Channel


class DenseAverages:
    """Averages the dense gradients over the ranks while backward makes them.

    Each parameter's gradients are added up in rank order, whatever bucket they travel in: torch's
    own sums depend on where a bucket begins, so that a resumed run would have other bits.

    Args:
        model: the same on every rank; its parameters are made those of rank 0.
        channel: of the compute stage.
    """

    def __init__(self, model: nn.Module, channel: "Channel") -> None:
        self._channel = channel
        self._error: Exception | None = None
        self.model = DistributedDataParallel(
            model, broadcast_buffers=False, gradient_as_bucket_view=True
        )
        self.model.register_comm_hook(None, self._average)

    def raise_failed(self) -> None:
        """To be called after backward, which would tell of any failure as a RuntimeError."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _average(
        self, _: object, bucket: torch.distributed.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        values = bucket.buffer()
        try:
            values = average_in_rank_order(self._channel, values)
        except Exception as error:
            self._error = error
        on_device = [values.device] if values.device.type == "cuda" else None
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=on_device)
        future.set_result(values)
        return future


def average_in_rank_order(channel: "Channel", values: torch.Tensor) -> torch.Tensor:
    """The mean over the ranks of a tensor [n] that each has, summed from rank 0 on.

    Every rank sums up a share of it and sends that to all. Every rank calls it.

    Returns:
        [n], the same bits on every rank.

    Cost: sends 2 (size - 1) / size of the tensor, as a ring does.
    """
    size = channel.size
    share = -(-len(values) // size)
    counts = [share] * size
    padded = values.new_zeros(share * size)
    padded[: len(values)] = values
    first, *others = channel.exchange(padded, counts, counts).view(size, share)
    total = first.clone()
    for other in others:
        total += other
    total /= size
    return channel.exchange(total.repeat(size), counts, counts)[: len(values)]


class AgreedGradScaler(torch.amp.GradScaler):
    """A GradScaler that skips a step of the rows on all ranks if one rank's would overflow.

    Each rank sees the gradients of its own examples' rows alone; those of the dense side are
    averages, the same everywhere. Without this the ranks' scales would part.

    Args:
        device: type of the device that computes.
        enabled: else it does nothing.
        ranks: that agree.
    """

    def __init__(self, device: str, enabled: bool, ranks: Ranks) -> None:
        super().__init__(device, enabled=enabled)
        self._ranks = ranks

    def _check_inf_per_device(self, optimizer: torch.optim.Optimizer) -> dict[Any, torch.Tensor]:
        # torch asks here for optimizers that skip by themselves, as RowOptimizer does.
        found: dict[Any, torch.Tensor]
        found = super()._check_inf_per_device(optimizer)  # type: ignore[no-untyped-call]
        if self._ranks.size > 1:
            is_bad = any(bool(value) for value in found.values())
            if self._ranks.any(is_bad) and not is_bad:
                scale = self._get_scale_async()
                assert scale is not None
                found[scale.device] = torch.ones((), device=scale.device)
        return found
