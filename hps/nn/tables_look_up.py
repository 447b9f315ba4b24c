"""A look-up of several tables where there is no native batch over them: from servers, between ranks
and, with a gpu_cache on a device, of rows that were not pinned together. The server is asked for
all tables at once.

Above it: `hps.nn.embeddings`. Below it: the server's `pull_tables`, `hps.nn.embedding`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from hps.contracts.reads import PooledRead
from hps.nn.embedding import Lookup, SparseEmbedding
from hps.nn.gradients import pending_of
from hps.nn.joint_look_up import new_anchor, new_output

if TYPE_CHECKING:
    from hps.contracts.training import RowServer

Part = tuple[SparseEmbedding, Lookup]


def look_up_tables(
    server: "RowServer", parts: Sequence[Part], collects: bool
) -> tuple[torch.Tensor, ...]:
    """The bags of each part, float32 [B, F * D].

    Args:
        server: of all of them.
        parts: modules, each of a table of its own, and what they are to look up; no weight that
            requires a gradient.
        collects: a backward leaves the gradients with the server.
    """
    if not collects:
        with torch.no_grad():
            return _read(server, parts)
    keys = [lookup.keys for _, lookup in parts]
    outputs: tuple[torch.Tensor, ...] = _ReadTables.apply(  # type: ignore[no-untyped-call]
        new_anchor(torch.float32), server, parts, *keys
    )
    return outputs


def _read(server: "RowServer", parts: Sequence[Part]) -> tuple[torch.Tensor, ...]:
    reads = []
    for module, lookup in parts:
        assert lookup.pooling is not None
        width = lookup.num_features * module.dim
        output = new_output(lookup.num_examples, width, torch.float32, server.device)
        reads.append(PooledRead(module.table, lookup.keys, lookup.pooling, output, lookup.rows))
    server.pull_tables(reads)
    return tuple(read.out for read in reads)


class _ReadTables(torch.autograd.Function):
    """Forward reads and pools; backward leaves the bags' gradients with the server."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        server: "RowServer",
        parts: Sequence[Part],
        *keys: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.server, ctx.parts = server, parts
        ctx.order = pending_of(server).next_order()
        ctx.save_for_backward(*keys)  # torch notices what was overwritten in between
        return _read(server, parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, ...]:
        keys = ctx.saved_tensors
        with pending_of(ctx.server).lock:  # a step in another thread takes all tables or none
            for (module, lookup), own, grad in zip(ctx.parts, keys, grads, strict=True):
                module.collect(ctx.order, own, lookup, grad.contiguous())
        return (None,) * (3 + len(keys))
