"""Products of the dense part whose gradients take fewer or faster operations than torch's own.

Above it: `MLP`, `DLRM`. Below it: torch, and oneDNN behind it. What is compiled, exported or
scored keeps torch's operations, and so does what this file does not name.
Source: docs/decisions/0034-where-a-step-goes.md, "The dense part's products".
"""

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

# oneDNN makes code for each shape that it meets: for batches of a training, not for requests.
MIN_EXAMPLES = 256
MIN_OUTPUTS = 16


class TrainedLinear(nn.Linear):
    """torch's layer, whose products in training are oneDNN's where that is faster.

    torch's own go to MKL, which on processors of other makers leaves AVX-512 alone. Products are
    rounded otherwise, as they are on another machine; what is stored is a layer of torch.

    >>> TrainedLinear(3, 2)(torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[B, width] to [B, outputs]."""
        if self.training and _is_plain_training(input) and _is_for_onednn(input, self.weight):
            product: torch.Tensor = _Product.apply(  # type: ignore[no-untyped-call]
                input, self.weight, self.bias
            )
            return product
        return super().forward(input)


def pair_dots(vectors: torch.Tensor, pairs: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The dot products of pairs of an example's vectors, each pair of two at most once.

    Args:
        vectors: [B, n, dim].
        pairs: int64 [P], the pair (i, j) as i * n + j.
        places: int64 [n * n], as `places_of` makes them of the pairs.

    Returns:
        [B, P].

    >>> vectors, pairs = torch.tensor([[[1.0], [2.0], [3.0]]]), torch.tensor([1, 5])
    >>> pair_dots(vectors, pairs, places_of(pairs, 3))
    tensor([[2., 6.]])
    """
    if vectors.requires_grad and _is_plain_training(vectors):
        dots: torch.Tensor = _PairDots.apply(  # type: ignore[no-untyped-call]
            vectors, pairs, places
        )
        return dots
    return _pair_dots(vectors, pairs)


def places_of(pairs: torch.Tensor, num_vectors: int) -> torch.Tensor:
    """Of each place of [n, n] the pair that it belongs to, from both sides; of others P.

    >>> places_of(torch.tensor([1, 5]), 3).view(3, 3).tolist()
    [[2, 0, 2], [0, 2, 1], [2, 1, 2]]
    """
    places = torch.full((num_vectors, num_vectors), len(pairs))
    first, second = pairs // num_vectors, pairs % num_vectors
    places[first, second] = places[second, first] = torch.arange(len(pairs))
    return places.flatten()


def _is_plain_training(values: torch.Tensor) -> bool:
    """Eager, with gradients, in the values' own type: else torch's operations are to be seen."""
    return (
        torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled(values.device.type)
    )


def _is_for_onednn(values: torch.Tensor, weight: torch.Tensor) -> bool:
    return (
        values.device.type == weight.device.type == "cpu"
        and values.dtype == weight.dtype == torch.float32
        and values.dim() == 2
        and len(values) >= MIN_EXAMPLES
        and len(weight) >= MIN_OUTPUTS
        and values.shape[1] > 0
        and has_onednn()
    )


def has_onednn() -> bool:
    """True where oneDNN is part of torch and has more of the processor than MKL may have."""
    onednn: Any = torch.backends.mkldnn
    return (
        bool(onednn.is_available() and onednn.enabled)
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _times(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """left [B, K] times the transpose of right [N, K], plus bias [N]."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return product


class _Product(torch.autograd.Function):
    """input [B, K], weight [N, K], bias [N] or None to [B, N]."""

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(input, weight)
        return _times(input, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            _times(grad, weight.t(), None) if needs_input else None,
            _times(grad.t(), input.t(), None) if needs_weight else None,
            grad.sum(0) if needs_bias else None,
        )


def _pair_dots(vectors: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    return torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, pairs)


class _PairDots(torch.autograd.Function):
    """The gradient is one product with the pairs' gradients from both sides; torch's own is two,
    their sum, and [B, n * n] of zeros to which the pairs' are added."""

    @staticmethod
    def forward(
        ctx: Any, vectors: torch.Tensor, pairs: torch.Tensor, places: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(vectors, places)
        return _pair_dots(vectors, pairs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        vectors, places = ctx.saved_tensors
        num_vectors = vectors.shape[1]
        padded = nn.functional.pad(grad, (0, 1))  # what is no pair has a gradient of 0
        both_sides = padded.index_select(1, places).view(-1, num_vectors, num_vectors)
        return torch.bmm(both_sides, vectors), None, None
