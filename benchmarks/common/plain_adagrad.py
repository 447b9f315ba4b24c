"""Row-wise Adagrad over a sparse gradient in plain operations of torch: torch.optim has none.

Above it: many_tables, pooled_step. Below it: torch.
"""

import torch


def step_rows(
    weights: torch.nn.Parameter, accumulators: torch.Tensor, learning_rate: float, eps: float
) -> None:
    """Updates in place the rows that have a gradient.

    Args:
        weights: float32 [rows, dim], with a sparse gradient.
        accumulators: float32 [rows], the optimizer's state.
        learning_rate: of the optimizer.
        eps: of the optimizer.
    """
    assert weights.grad is not None
    gradient = weights.grad.coalesce()
    unique, sums = gradient.indices()[0], gradient.values()
    squares = torch.linalg.vecdot(sums, sums) / sums.shape[1]
    new = accumulators.index_select(0, unique) + squares
    accumulators.index_copy_(0, unique, new)
    scale = new.sqrt_().add_(eps).reciprocal_().mul_(-learning_rate)
    weights.detach().index_add_(0, unique, sums.mul_(scale.unsqueeze(1)))
