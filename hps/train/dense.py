"""The dense side of several ranks: DistributedDataParallel, its averages in the order of the ranks.

Above it: `Trainer`. Below it: torch, the channel that rows travel in.
"""

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hps.errors import ClusterError

if TYPE_CHECKING:
    from hps.cluster.world.world import Channel


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
        try:
            self.model = DistributedDataParallel(
                model, forward_sync_buffers=False, gradient_as_bucket_view=True
            )
        except RuntimeError as error:
            raise ClusterError(
                f"rank {channel.rank}: another rank is gone while the dense weights were compared; "
                f"look at the other ranks' errors ({error})"
            ) from error
        self.model.register_comm_hook(None, self._average)

    def raise_failed(self) -> None:
        """To be called after backward, which would tell of any failure as a RuntimeError."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _average(
        self,
        _: object,
        bucket: torch.distributed.GradBucket,  # type: ignore[name-defined]
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
