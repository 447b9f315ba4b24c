"""A joint look-up as autograd sees it: forward reads, backward leaves the gradient with the server.

Above it: `hps.nn.embedding` and `hps.nn.embeddings`. Below it: the server's `joint` verbs,
`hps.nn.gradients`. Outputs, and with them their gradients, are float32 or bfloat16; rows, sums and
optimizers are float32. So a bfloat16 output is the float32 one, rounded, and its gradient counts
for what it is.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from hps.common.arrays import HOST
from hps.contracts.joint import JointIds, JointRows, JointUpdate, Places
from hps.errors import ConfigError
from hps.nn.gradients import OF_SEVERAL, PendingGradients, pending_of
from hps.nn.ownership import count_references, is_unshared, prepare

if TYPE_CHECKING:
    from hps.common.row_layout import Labels
    from hps.contracts.training import RowServer

DTYPES = (torch.float32, torch.bfloat16)
_SMALL_COPY = 1 << 14  # torch copies so many floats, and more, with one thread


def check_dtype(dtype: torch.dtype, where: str) -> None:
    """ConfigError unless outputs may have it."""
    if dtype not in DTYPES:
        raise ConfigError(f"{where}: dtype={dtype}; use torch.float32 or torch.bfloat16")


def new_anchor(dtype: torch.dtype) -> torch.Tensor:
    """Something that requires a gradient, so that autograd calls backward. Its gradient is zeros;
    it is not empty, for a compiler drops sums of nothing, and the backwards that they are of."""
    return torch.zeros(1, dtype=dtype, device=HOST, requires_grad=True)


def new_output(num_rows: int, width: int, dtype: torch.dtype, device: str = HOST) -> torch.Tensor:
    """Uninitialised memory.

    Raises:
        ConfigError: places in it would not fit into 32 bits.
    """
    if num_rows * width >> 32:
        raise ConfigError(
            f"an output of {num_rows} rows of {width} values; fewer than 2^32 values are needed: "
            "give smaller batches"
        )
    return torch.empty(num_rows, width, dtype=dtype, device=device)


@dataclass(slots=True)
class JointCall:
    """What one forward looks up.

    Args:
        places: of the features in the output.
        ids: the keys; None where rows are given.
        rows: pinned, of those keys.
        clicks: uint8 [B] of the examples, or None.
    """

    places: Places
    ids: JointIds | None
    rows: JointRows | None
    clicks: "Labels | None" = None


class ReadAndCollect(torch.autograd.Function):
    """Forward reads and pools into an output of the anchor's dtype; backward leaves the gradient
    with the server."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        server: "RowServer",
        call: JointCall,
    ) -> torch.Tensor:
        prepare()
        ctx.server, ctx.places, ctx.clicks = server, call.places, call.clicks
        ctx.order = pending_of(server).next_order()
        output, ctx.rows = read(server, call.places, call.ids, call.rows, anchor.dtype)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, None, None]:
        references = count_references(grad)
        is_own = is_unshared(grad, references)
        update = JointUpdate(ctx.rows, ctx.places, grad.detach(), clicks=ctx.clicks)
        collect(ctx.server, ctx.order, update, is_own)
        return None, None, None


def collect(server: "RowServer", order: int, update: JointUpdate, is_own: bool = False) -> None:
    """Leaves a gradient with the server, a copy unless it is nobody else's."""
    pending, grad = pending_of(server), update.grads
    if not is_own:
        update.grads = _copied(pending, grad.contiguous().resolve_neg())
        update.is_copy = True
    pending.add_joint(order, update)


def _copied(pending: PendingGradients, grad: torch.Tensor) -> torch.Tensor:
    """A copy in memory that may serve again; two bfloat16 count as a float32 for that."""
    is_narrow = grad.dtype == torch.bfloat16
    if is_narrow and (grad.shape[1] % 2 or grad.storage_offset() % 2):
        return grad.float()
    words = grad.view(torch.float32) if is_narrow else grad
    copy = pending.new_grads(OF_SEVERAL, len(words), words.shape[1], str(words.device))
    if words.numel() <= _SMALL_COPY:
        copy.copy_(words)
    else:
        pending.copy_by_bag(words, copy)
    return copy.view(grad.dtype) if is_narrow else copy


def read(
    server: "RowServer",
    places: Places,
    ids: JointIds | None,
    rows: JointRows | None,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, JointRows]:
    """The bags of pinned rows, or of ids; [B, width], and the rows."""
    if rows is not None:
        output = new_output(rows.num_examples, places.width, dtype, server.device)
        rows.pool(places, output)
        return output, rows
    joint = server.joint
    assert ids is not None and joint is not None
    output = new_output(ids.num_examples, places.width, dtype)
    return output, joint.look_up(ids, places, output)
