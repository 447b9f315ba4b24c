"""Blobs of a checkpoint on their way from rank to rank: the dense model, a reader's position.

Above it: cluster/folder/checkpoints.py, cluster/folder/reshard.py. Below it: the control channel.
They travel in pieces: whatever their size, and however many ranks there are, a rank holds a few MiB
beside what it gives and gets.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO

import numpy as np
import torch
from numpy.typing import NDArray

from hps.cluster.world.world import Channel

_ROUND_BYTES = 2**23  # that a rank sends in a round, to all ranks together


def send_blobs(control: Channel, outgoing: Sequence[Mapping[str, bytes]]) -> dict[str, bytes]:
    """Sends each rank its blobs; every rank calls it, most of them with nothing to send.

    Args:
        control: a channel on the host.
        outgoing: for each rank its blobs by name.

    Returns:
        What came for this rank, of all ranks together; what it had for itself are the same objects.

    Cost: the bytes travel once for each rank that they are for. Memory: 8 MiB to send, as much to
    receive, and what comes.
    """
    rank, size = control.rank, control.size
    others = [{} if to == rank else blobs for to, blobs in enumerate(outgoing)]
    lengths = [{name: len(blob) for name, blob in blobs.items()} for blobs in others]
    told = control.gather(lengths)
    coming = [of_rank[rank] for of_rank in told]
    most = max(sum(of_one.values()) for of_rank in told for of_one in of_rank)
    piece = max(1, _ROUND_BYTES // size)
    received = [BytesIO() for _ in range(size)]
    for first in range(0, most, piece):
        parts = [_piece(blobs, first, first + piece) for blobs in others]
        counts = [min(piece, max(0, sum(of_rank.values()) - first)) for of_rank in coming]
        rows = torch.from_numpy(np.concatenate(parts))
        came = control.exchange(rows, [len(part) for part in parts], counts).numpy()
        for file, part in zip(received, np.split(came, np.cumsum(counts)[:-1]), strict=True):
            file.write(part.data)
    blobs = dict(outgoing[rank])
    for file, of_rank in zip(received, coming, strict=True):
        file.seek(0)
        blobs.update({name: file.read(length) for name, length in of_rank.items()})
        file.close()
    return blobs


def share_blobs(control: Channel, blobs: Mapping[str, bytes] | None) -> dict[str, bytes]:
    """Sends blobs to all ranks; the rank that has them gives them, the others None."""
    return send_blobs(control, [blobs or {}] * control.size)


def _piece(blobs: Mapping[str, bytes], first: int, end: int) -> NDArray[np.uint8]:
    """Bytes first to end of blobs that stand one behind the other; fewer where they end."""
    parts: list[NDArray[np.uint8]] = [np.empty(0, np.uint8)]
    for blob in blobs.values():
        parts.append(np.frombuffer(blob, np.uint8)[max(0, first) : max(0, end)])
        first, end = first - len(blob), end - len(blob)
    return np.concatenate(parts)
