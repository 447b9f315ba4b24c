"""The look-up of SparseEmbeddings as a registered operator of torch, so that torch.compile takes a
model with one in it as one graph.

Above it: `hps.nn.embeddings`, while it is compiled. Below it: the server's `joint` verbs.

An operator knows tensors and numbers alone. So the module goes by a number, and the rows that a
pipeline has pinned by the tensors of the keys that it was handed. What a forward found is kept for
its backward by the forward's own number, of the last forwards alone: a backward that comes later
looks its keys up again. Backward's gradient of the anchor is empty, but the graph's caller asks for
it, so that no compiler drops the call.
"""

import itertools
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch

from hps.contracts.joint import JointRows

_MAX_KEPT = 16  # forwards whose backward may still come


class KeptRows:
    """What a module's forwards found, by their numbers, for their backwards."""

    def __init__(self) -> None:
        self._rows: OrderedDict[int, JointRows] = OrderedDict()
        self._lock = threading.Lock()  # guards it

    def __len__(self) -> int:
        return len(self._rows)

    def __deepcopy__(self, memo: dict[int, Any]) -> "KeptRows":
        return KeptRows()

    def put(self, order: int, rows: JointRows) -> None:
        """Keeps a forward's, in place of the oldest."""
        with self._lock:
            self._rows[order] = rows
            while len(self._rows) > _MAX_KEPT:
                self._rows.popitem(last=False)

    def take(self, order: int) -> JointRows | None:
        """A forward's, if they are here; for its backward alone."""
        with self._lock:
            return self._rows.pop(order, None)


class Reader(Protocol):
    """What the operator asks of the module."""

    def read_tensors(
        self, tensors: Sequence[torch.Tensor], num_examples: int
    ) -> tuple[torch.Tensor, JointRows]:
        """The output, [B, width], and the rows that it found."""

    def collect(
        self, order: int, rows: JointRows, grad: torch.Tensor, tensors: Sequence[torch.Tensor]
    ) -> None:
        """Leaves a gradient, which is nobody else's, with the server."""

    @property
    def kept(self) -> KeptRows:
        """Of its forwards."""

    def next_order(self) -> int:
        """The place of a forward that starts now among all forwards of the server."""


_readers: WeakValueDictionary[int, Reader] = WeakValueDictionary()
_numbers = itertools.count(1)


def register(reader: Reader) -> int:
    """The number by which the operator knows a module, for as long as that lives."""
    number = next(_numbers)
    _readers[number] = reader
    return number


@torch.library.custom_op("hps::look_up", mutates_args=())
def look_up(
    anchor: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    reader: int,
    num_examples: int,
    width: int,
    collects: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The embeddings of features, [B, width], and the forward's number, int64 [].

    Args:
        anchor: what autograd follows, of the output's dtype.
        tensors: what the module has passed of its keys, offsets and weights.
        reader: number of the module.
        num_examples: B.
        collects: a backward may come.
    """
    module = _readers[reader]
    output, rows = module.read_tensors(tensors, num_examples)
    order = 0
    if collects:
        order = module.next_order()
        module.kept.put(order, rows)
    return output, torch.tensor(order, device="cpu")


@look_up.register_fake
def _(
    anchor: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    reader: int,
    num_examples: int,
    width: int,
    collects: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    return anchor.new_empty(num_examples, width), anchor.new_empty((), dtype=torch.int64)


@torch.library.custom_op("hps::collect", mutates_args=())
def collect(
    grad: torch.Tensor,
    order: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    reader: int,
) -> torch.Tensor:
    """Leaves the gradient of a forward with its server; returns that of the anchor, zeros."""
    module, number = _readers[reader], int(order)
    rows = module.kept.take(number)
    if rows is None:
        _, rows = module.read_tensors(tensors, len(grad))
    own = grad.detach().clone(memory_format=torch.contiguous_format)
    module.collect(number, rows, own, tensors)
    return grad.new_zeros(1)


@collect.register_fake
def _(
    grad: torch.Tensor,
    order: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    reader: int,
) -> torch.Tensor:
    return grad.new_zeros(1)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    _, tensors, ctx.reader, *_ = inputs
    ctx.save_for_backward(output[1], *tensors)


def _backward(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> tuple[Any, ...]:
    order, *tensors = ctx.saved_tensors
    of_anchor = collect(grad, order, tensors, ctx.reader)
    return of_anchor, [None] * len(tensors), None, None, None, None


look_up.register_autograd(_backward, setup_context=_remember)
