"""FloatExchange: rows or gradients of several tables, to and from every rank, one message a rank.

Above it: cluster_rows.py, gradient_exchange.py. Below it: the world's rows channel, the formats of
hps/common/wire.py. float32 stays where it lies; the narrower formats are made on the host.
"""

from itertools import pairwise

import numpy as np
import torch

from hps.cluster.world.world import Channel, Counts
from hps.common.wire import Wire, decode, encode


class FloatExchange:
    """Blocks of rows between the ranks, in one format.

    Args:
        channel: for rows and gradients.
        wire: how their floats travel.
    """

    def __init__(self, channel: Channel, wire: Wire) -> None:
        self._channel = channel
        self.wire = wire

    def swap(
        self, blocks: list[torch.Tensor], outgoing: Counts, incoming: Counts
    ) -> list[torch.Tensor]:
        """Sends each rank its rows of every block; returns what came.

        Args:
            blocks: of each table float32 [n, D], contiguous, rank after rank.
            outgoing: int64 [ranks, tables], rows for each rank.
            incoming: int64 [ranks, tables], rows to come from each.

        Returns:
            Of each table float32 [m, D] where its block lies, rank after rank.

        Raises:
            NonFiniteError: int8 cannot carry a row that is not finite.
        """
        device = blocks[0].device
        if self.wire is Wire.FLOAT32 and len(blocks) == 1:
            rows = self._exchange(blocks[0], outgoing[:, 0], incoming[:, 0])
            return [rows.to(device)]
        dims = [block.shape[1] for block in blocks]
        pieces = [self._pieces(block, outgoing[:, i]) for i, block in enumerate(blocks)]
        order = [of_table[rank] for rank in range(self._channel.size) for of_table in pieces]
        lengths = self._lengths(incoming, dims)
        sizes = self._lengths(outgoing, dims).sum(axis=1)
        received = self._exchange(torch.cat(order), sizes, lengths.sum(axis=1))
        parts = torch.split(received, lengths.reshape(-1).tolist())
        return [
            self._joined(parts[i :: len(dims)], incoming[:, i], dim).to(device)
            for i, dim in enumerate(dims)
        ]

    def _exchange(self, values: torch.Tensor, sizes: Counts, incoming: Counts) -> torch.Tensor:
        channel = self._channel
        return channel.exchange(values.to(channel.device), sizes.tolist(), incoming.tolist())

    def _pieces(self, block: torch.Tensor, counts: Counts) -> list[torch.Tensor]:
        """Each rank's rows as they travel, one-dimensional."""
        parts = torch.split(block, counts.tolist())
        if self.wire is Wire.FLOAT32:
            return [part.reshape(-1) for part in parts]
        return [torch.from_numpy(encode(part.cpu().numpy(), self.wire)) for part in parts]

    def _lengths(self, counts: Counts, dims: list[int]) -> Counts:
        """Of counts [ranks, tables] of rows, the elements that they take."""
        if self.wire is Wire.FLOAT32:
            widths = np.array(dims)
        else:
            widths = np.array([self.wire.num_bytes(1, dim) for dim in dims])
        lengths: Counts = counts * widths
        return lengths

    def _joined(self, parts: tuple[torch.Tensor, ...], counts: Counts, dim: int) -> torch.Tensor:
        """One table's rows of what came from each rank."""
        if self.wire is Wire.FLOAT32:
            return torch.cat(parts).view(-1, dim)
        rows = [
            decode(part.cpu().numpy(), int(count), dim, self.wire)
            for part, count in zip(parts, counts, strict=True)
        ]
        return torch.from_numpy(np.concatenate(rows))


def starts_of(counts: list[int]) -> list[tuple[int, int]]:
    """(first, end) of runs that stand one after the other.

    >>> starts_of([2, 0, 3])
    [(0, 2), (2, 2), (2, 5)]
    """
    ends = np.cumsum([0, *counts]).tolist()
    return list(pairwise(ends))
