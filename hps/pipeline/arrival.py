"""Arrival: a batch's tensors on their way to a CUDA device, from one stream to another.

Above it: the copy stage, which queues the copies on a stream of its own, and `hps.Pipeline`, whose
training loop works on another. Below it: torch.cuda. The loop's thread waits for no copy.
"""

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from hps.types import Batch


class Arrival:
    """Notes, on the current stream, that the copies of a batch have been queued there."""

    def __init__(self, batch: "Batch") -> None:
        self._batch = batch
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record()

    def receive(self) -> None:
        """Makes the current stream wait for the copies; the tensors are its own from then on."""
        stream = torch.cuda.current_stream(self._batch.labels.device)
        stream.wait_event(self._copied)
        for tensor in tensors_of(self._batch):
            # Else their memory could be given out again while this stream still reads it.
            tensor.record_stream(stream)


def tensors_of(batch: "Batch") -> Iterator[torch.Tensor]:
    """Every tensor that a batch holds."""
    yield batch.dense
    yield batch.labels
    yield from (values for values in (batch.weights, batch.groups) if values is not None)
    for ids in batch.features.values():
        holders = (ids,) if ids.bags is None else (ids, ids.bags)
        for holder in holders:
            values = (getattr(holder, field.name) for field in fields(holder))
            yield from (value for value in values if isinstance(value, torch.Tensor))
