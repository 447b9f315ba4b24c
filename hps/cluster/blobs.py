"""Blobs of a checkpoint on their way from rank to rank: the dense model, a reader's position.

Above it: cuts.py, reshard.py. Below it: the control channel.
"""

import json
from collections.abc import Mapping, Sequence

import torch

from hps.cluster.world import Channel


def send_blobs(control: Channel, outgoing: Sequence[Mapping[str, bytes]]) -> dict[str, bytes]:
    """Sends each rank its blobs; every rank calls it, most of them with nothing to send.

    Args:
        control: a channel on the host.
        outgoing: for each rank its blobs by name.

    Returns:
        What came for this rank, of all ranks together.

    Cost: the bytes travel once for each rank that they are for.
    """
    packed = [_pack(blobs) for blobs in outgoing]
    blobs: dict[str, bytes] = {}
    for part in control.all_to_all(packed):
        blobs.update(_unpack(part.numpy().tobytes()))
    return blobs


def share_blobs(control: Channel, blobs: Mapping[str, bytes] | None) -> dict[str, bytes]:
    """Sends blobs to all ranks; the rank that has them gives them, the others None."""
    return send_blobs(control, [blobs or {}] * control.size)


def _pack(blobs: Mapping[str, bytes]) -> torch.Tensor:
    """uint8 [n]: a line of JSON with names and lengths, then the bytes; empty for no blobs."""
    if not blobs:
        return torch.empty(0, dtype=torch.uint8)
    head = json.dumps({name: len(blob) for name, blob in blobs.items()}).encode() + b"\n"
    return torch.frombuffer(bytearray(b"".join([head, *blobs.values()])), dtype=torch.uint8)


def _unpack(data: bytes) -> dict[str, bytes]:
    if not data:
        return {}
    head, _, body = data.partition(b"\n")
    blobs, first = {}, 0
    for name, length in json.loads(head).items():
        blobs[name] = body[first : first + length]
        first += length
    return blobs
