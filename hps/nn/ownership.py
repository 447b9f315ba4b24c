"""Whether a gradient that backward is handed is nobody else's, so that it need not be copied.

Above it: `hps.nn.embeddings`. Below it: torch. A gradient may be shared: with a hook that keeps it,
with another branch of the graph, with who called backward. torch's own leaves keep what they are
handed if no one else refers to it, and copy it otherwise; this is the same rule from Python.
What the references of a gradient are that nobody keeps is not written down anywhere, and other
versions may have others; so they are counted once, where nobody keeps one. Whose memory it is
cannot be seen: what a user's backward returns over memory of its own must stay as it is until the
step, as for torch's leaves.
"""

import sys
from functools import lru_cache
from typing import Any

import torch
from torch.autograd.function import once_differentiable

# Python's references, torch's, those of its storage; of a view also those of what it views.
References = tuple[int, int, int, int, int]
# None where a version of torch has them not.
_use_count: Any = getattr(torch.Tensor, "_use_count", None)
_storage_use_count: Any = getattr(torch._C, "_storage_Use_Count", None)


def is_unshared(grad: torch.Tensor, references: References) -> bool:
    """True if nobody but the backward that got `grad` refers to it, and it is all of its memory,
    value by value.

    Args:
        references: as that backward counted them itself, at first.
    """
    if not grad.is_contiguous() or grad.is_neg() or references not in _unshared():
        return False
    return grad._base is None or grad._base.numel() == grad.numel()


def count_references(grad: torch.Tensor) -> References:
    """To be called by backward itself, in a statement of its own: a call between the two, or an
    argument beside it, would be a reference more."""
    base = grad._base
    if _use_count is None or _storage_use_count is None:
        return (-1, -1, -1, -1, -1)  # which is never what was counted
    of_base = (0, 0) if base is None else (sys.getrefcount(base), _use_count(base))
    of_storage = _storage_use_count(grad.untyped_storage()._cdata)
    return (sys.getrefcount(grad), _use_count(grad), of_storage, *of_base)


class _Probe(torch.autograd.Function):
    """A look-up of ones, whose backward counts."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, found: list[References]) -> torch.Tensor:
        ctx.found = found
        return torch.ones(2, 4, device="cpu")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, None]:
        references = count_references(grad)
        ctx.found.append(references)
        return None, None


def prepare() -> None:
    """Counts what is compared with, unless that was done; not from within a backward."""
    _unshared()


@lru_cache(maxsize=1)
def _unshared() -> frozenset[References]:
    """The references of gradients that nobody keeps: plain ones, and views."""
    found: list[References] = []
    tracer = sys.gettrace()  # a debugger keeps what it sees
    sys.settrace(None)
    try:
        _probe(found)
    finally:
        sys.settrace(tracer)
    return frozenset(one for one in found if min(one) >= 0)


def _probe(found: list[References]) -> None:
    with torch.inference_mode(False), torch.enable_grad():
        anchor = torch.empty(0, device="cpu", requires_grad=True)
        factors = torch.ones(2, 4, device="cpu")
        for is_view in (False, True):
            output: torch.Tensor = _Probe.apply(anchor, found)  # type: ignore[no-untyped-call]
            pooled = output.view(2, 2, 2) if is_view else output
            total = (pooled * factors.view(pooled.shape)).sum()
            total.backward()  # type: ignore[no-untyped-call]
