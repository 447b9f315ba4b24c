"""SparseEmbedding: looks up and pools a table's embeddings, and collects their gradient.

Above it: the user's model, `hps.models`. Below it: `hps.ParameterServer` (which pools rows in its
native core), `hps.nn.gradients` (where backward leaves its result for `hps.RowOptimizer`).
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

import numpy as np
import torch
from torch import nn
from torch.autograd.function import once_differentiable

from hps.common.arrays import HOST, as_labels, as_numpy
from hps.common.bags import (
    BagPooling,
    Bags,
    clicks_of_bags,
    make_bags,
    own_copy,
    refuse_infinite_weights,
)
from hps.contracts.joint import JointIds, JointRows, KeysByTable, Places
from hps.errors import ConfigError
from hps.nn.embeddings_input import want_gradients
from hps.nn.gradients import ForwardGradient, pending_of
from hps.nn.joint_look_up import (
    JointCall,
    ReadAndCollect,
    check_dtype,
    new_anchor,
    new_output,
    read,
)
from hps.types import Batch, Ids

if TYPE_CHECKING:
    from hps.common.row_layout import Labels
    from hps.contracts.training import RowServer
    from hps.types import PinnedRows

Pooling = Literal["sum", "mean"]
_PIECE = 4096  # occurrences whose weights' gradients are computed at a time
_SMALL = 4096  # keys of a call that is Python's work rather than memory's


@dataclass(slots=True)
class _Call:
    """What a call was given.

    Args:
        num_examples: B.
        num_features: the F that holds where B = 0; else it follows from the offsets.
        bags: the offsets, if they were checked before.
        batch: that holds it all, and its rows of the table, if they are pinned.
    """

    keys: torch.Tensor
    offsets: torch.Tensor | None
    weights: torch.Tensor | None
    num_examples: int
    num_features: int
    bags: Bags | None = None
    batch: Batch | None = None
    rows: "PinnedRows | None" = None

    def clicks(self, where: str) -> "Labels | None":
        """uint8 [B] of the examples; None of what is no batch.

        Raises:
            ConfigError: a label is neither 0 nor 1.
        """
        if self.batch is None:
            return None
        return as_labels(self.batch.labels, self.num_examples, f"{where}: Batch.labels")


@dataclass(slots=True)
class Lookup:
    """One call, its arguments checked: keys int64 [L], and how they form F features of B bags."""

    keys: torch.Tensor
    pooling: BagPooling | None
    num_features: int
    num_examples: int
    rows: "PinnedRows | None" = None
    weights: torch.Tensor | None = None  # the caller's, which may require a gradient
    clicks: "Labels | None" = None  # uint8 [L] of the occurrences, of a batch in training

    @property
    def is_plain(self) -> bool:
        """A row an occurrence, in their order: what is read need not be pooled."""
        pooling = self.pooling
        if pooling is None:
            return True
        return pooling.bags.are_single and pooling.weights is None and self.num_features == 1


class SparseEmbedding(nn.Module):
    """Embeddings of one table, of any number of features, in one call.

    Owns no nn.Parameter: rows live in the server, so optimizers and DistributedDataParallel leave
    it alone. Rows have no gradient until `hps.RowOptimizer.step()`; backward only collects.

    Any number of threads may call one module, in eval and in training mode: a call keeps its state
    to itself. A step applies each backward that had ended when it began, and none by half. (On a
    `hps.ClusterParameterServer` calls belong to the thread of the training loop.)

    Args:
        server: an open `hps.ParameterServer`, `hps.RemoteParameterServer` or, on every rank of a
            training, `hps.ClusterParameterServer`.
        table: name of one of its tables.
        pooling: "sum" or "mean" over the keys of a bag, or None for one embedding a key. An empty
            bag is zeros; mean divides by the number of keys.
        include_last_offset: offsets end with the number of keys, as in TorchRec and `hps.Ids`.
            False takes torch.nn.EmbeddingBag's default, offsets of the bags' starts only.
        dtype: of the output and of its gradient, torch.float32 or torch.bfloat16, whatever
            rows are. A bfloat16 output is the float32 one rounded to the nearest.

    With a gpu_cache the output lies on its device (`server.device`), whatever holds keys and
    offsets; those of a batch that a Pipeline yields are there already.

    Raises:
        ConfigError: unknown table, pooling or dtype.

    Cost: one read of the distinct rows, one addition an occurrence; no [L, D] is made but of a
    look-up without pooling. Weights that require a gradient have the distinct rows read a second
    time (on a cluster by all ranks, so by each or by none) and kept until backward.

    >>> import hps, tempfile, torch
    >>> tables = [hps.TableConfig(name="ads", dim=4)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with hps.ParameterServer(hps.Config(path=folder, tables=tables)) as server:
    ...         embedding = hps.SparseEmbedding(server, "ads", pooling="sum")
    ...         embedding(torch.tensor([7, 8, 7]), offsets=torch.tensor([0, 2, 3])).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        server: "RowServer",
        table: str,
        pooling: Pooling | None = "sum",
        *,
        include_last_offset: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        check_dtype(dtype, f"SparseEmbedding({table!r})")
        if table not in server.tables:
            raise ConfigError(
                f"SparseEmbedding: no table {table!r}; the server has {sorted(server.tables)}"
            )
        if pooling not in ("sum", "mean", None):
            raise ConfigError(f"SparseEmbedding: pooling={pooling!r}; use 'sum', 'mean' or None")
        self.table = table
        self.pooling = pooling
        self.dim = server.tables[table].dim
        self.include_last_offset = include_last_offset
        self.dtype = dtype
        self._server = server
        self._counts = server.tables[table].statistics
        self._places: dict[int, Places] = {}  # of so many features
        self._anchor = new_anchor(dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> "SparseEmbedding":
        """Another module over the same rows: a server is shared, never copied."""
        copy = type(self).__new__(type(self))
        memo[id(self)] = copy
        for name, value in self.__dict__.items():
            is_shared = name in ("_server", "_places")
            copy.__dict__[name] = value if is_shared else deepcopy(value, memo)
        return copy

    def __copy__(self) -> "SparseEmbedding":
        return deepcopy(self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"SparseEmbedding({self.table!r}) cannot be pickled: its rows lie in a server that is "
            "open in this process alone. Save model.state_dict(), open the server where you load "
            "it, and build the module there"
        )

    @property
    def server(self) -> "RowServer":
        """Whose rows it reads."""
        return self._server

    @property
    def device(self) -> str:
        """Where the output lies, as torch names it."""
        return self._server.device

    @property
    def counts(self) -> bool:
        """True if the table has statistics: then labels of batches must be 0 or 1."""
        return self._counts

    def extra_repr(self) -> str:
        return f"table={self.table!r}, dim={self.dim}, pooling={self.pooling!r}"

    def forward(
        self,
        ids: Any,
        offsets: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
        *,
        num_features: int = 1,
    ) -> torch.Tensor:
        """Reads the embeddings; in training mode with gradients on, backward will collect theirs.

        Args:
            ids: an `hps.Batch`, a torchrec KeyedJaggedTensor, or keys: int64 or uint64 [L],
                feature-major with offsets, or [B, n] for B bags of n keys.
            offsets: int64 [F*B + 1], for bare keys only.
            weights: float32 [L], finite, for bare keys only; multiplies each occurrence's embedding
                in pooling. A gradient flows into it if it requires one. What becomes of its values
                after this call does not count.
            num_features: F of bare keys.

        Returns:
            float32 (or `dtype`) [B, F*dim], or [L, dim] unpooled; new memory.

        Raises:
            ConfigError: wrong dtype, shape or offsets; a weight (on the host) that is NaN or
                infinite.
        """
        call = self._parse(ids, offsets, weights, num_features)
        collects = self.training and torch.is_grad_enabled()
        if self._is_joint(call, collects):
            try:
                found = self._look_up_jointly(call, collects)
            except ConfigError:
                self._lookup(call, collects)  # has more to say of what is wrong with a call
                raise
            if found is not None:
                return found
        lookup = self._lookup(call, collects)
        if collects:
            output: torch.Tensor = _ReadAndCollect.apply(  # type: ignore[no-untyped-call]
                self._anchor, lookup.keys, lookup.weights, self, lookup
            )
            return output.to(self.dtype)
        with torch.no_grad():
            return self._read(lookup).to(self.dtype)

    def _is_joint(self, call: _Call, collects: bool) -> bool:
        """True if a joint look-up of this one table is to be tried: where it must be, or is faster,
        as of a step's only forward, which then neither pins its rows nor copies its gradient."""
        if self.dtype != torch.float32:
            return True
        if collects:
            return call.keys.numel() > 0 and pending_of(self._server).expects_one_forward
        return call.keys.numel() <= _SMALL

    def _look_up_jointly(self, call: _Call, collects: bool) -> torch.Tensor | None:
        """As a joint look-up of this one table, whose outputs may be narrow and which checks its
        offsets on the way; None where that cannot be."""
        offsets, num_examples, rows = call.offsets, call.num_examples, call.rows
        if self.pooling is None or offsets is None or self._server.joint is None:
            return None
        num_bags = offsets.numel() - 1
        num_features = num_bags // num_examples if num_examples else call.num_features
        if num_bags != num_features * num_examples or want_gradients(call.weights):
            return None
        ids: JointIds | None = None
        pinned: JointRows | None = None
        if rows is None:
            own = Ids(call.keys, offsets, call.weights)
            ids = KeysByTable([own], num_examples)
        else:
            pinned = cast("JointRows | None", rows.joint)
            if pinned is None or call.batch is None or pinned.tables != (self.table,):
                return None
            if not pinned.are_of(call.batch.features, num_examples):
                return None
        places = self._places_of(num_features)
        if not collects:
            return read(self._server, places, ids, pinned, self.dtype)[0]
        clicks = call.clicks(f"SparseEmbedding({self.table!r})") if self._counts else None
        output: torch.Tensor = ReadAndCollect.apply(  # type: ignore[no-untyped-call]
            self._anchor, self._server, JointCall(places, ids, pinned, clicks)
        )
        return output

    def _places_of(self, num_features: int) -> Places:
        if num_features not in self._places:
            columns, features = range(0, num_features * self.dim, self.dim), range(num_features)
            self._places[num_features] = Places.of(
                [self.table], [self.dim], [self.pooling == "mean"], [columns], [features]
            )
        return self._places[num_features]

    def _parse(
        self,
        ids: Any,
        offsets: torch.Tensor | None,
        weights: torch.Tensor | None,
        num_features: int,
    ) -> _Call:
        where = f"SparseEmbedding({self.table!r})"
        is_bare = isinstance(ids, torch.Tensor | np.ndarray)
        if not is_bare and (offsets is not None or weights is not None):
            raise ConfigError(f"{where}: offsets and weights go with bare keys only")
        if isinstance(ids, Batch):
            if self.table not in ids.features:
                raise ConfigError(f"{where}: the batch holds only {sorted(ids.features)}")
            found = ids.features[self.table]
            rows = (ids.rows or {}).get(self.table)
            if rows is not None and not self._server.holds(rows):
                rows = None  # pinned by the pipeline of another server: these are looked up here
            given = (found.keys_L, found.offsets, found.weights_L)
            return _Call(*given, len(ids), self._declared_features(), found.known_bags, ids, rows)
        if is_bare:
            keys = torch.from_numpy(ids) if isinstance(ids, np.ndarray) else ids
            if keys.dim() == 2 and offsets is None:
                offsets = torch.arange(keys.shape[0] + 1) * keys.shape[1]
                keys = keys.reshape(-1)
                weights = weights if weights is None else weights.reshape(-1)
            elif offsets is not None and not self.include_last_offset:
                offsets = torch.cat([offsets, offsets.new_tensor([len(keys)])])
            num_bags = len(keys) if offsets is None else len(offsets) - 1
            if num_features < 1 or num_bags % num_features:
                raise ConfigError(
                    f"{where}: {num_bags} bags cannot be those of num_features={num_features}"
                )
            return _Call(keys, offsets, weights, num_bags // num_features, num_features)
        if hasattr(ids, "values") and hasattr(ids, "weights_or_none"):  # a KeyedJaggedTensor
            given = (ids.values(), ids.offsets(), ids.weights_or_none())
            return _Call(*given, int(ids.stride()), len(ids.keys()))
        raise ConfigError(
            f"{where}: got {type(ids).__name__}; pass an hps.Batch, a KeyedJaggedTensor or keys"
        )

    def _lookup(self, call: _Call, collects: bool) -> Lookup:
        """Checks. Offsets and weights go to the server's device; keys only need to be there for a
        pull."""
        keys, weights, rows = call.keys, call.weights, call.rows
        num_examples, num_features = call.num_examples, call.num_features
        where = f"SparseEmbedding({self.table!r})"
        if keys.dtype not in (torch.int64, torch.uint64) or keys.dim() != 1:
            raise ConfigError(
                f"{where}: keys are {keys.dtype} of shape {tuple(keys.shape)}; int64 or uint64 [L] "
                "is needed"
            )
        keys = keys.contiguous().view(torch.int64)
        device = self._server.device
        if weights is not None:
            self._check_weights(weights, len(keys))
            weights = weights.to(device, non_blocking=True)
        clicks = call.clicks(where) if collects and self._counts else None
        if self.pooling is None:
            if clicks is not None and call.offsets is not None:
                clicks = clicks_of_bags(clicks, as_numpy(call.offsets, "offsets"))
            return Lookup(keys, None, 1, len(keys), rows, clicks=clicks)
        if call.offsets is None:
            raise ConfigError(f"{where}: pooling={self.pooling!r} needs offsets beside the keys")
        bags = (call.bags or make_bags(call.offsets, len(keys), where)).to(device)
        num_bags = len(bags.lengths)
        if num_bags and (num_examples == 0 or num_bags % num_examples):
            raise ConfigError(
                f"{where}: {num_bags} bags are not a multiple of the batch's "
                f"{num_examples} examples"
            )
        if num_examples:
            num_features = num_bags // num_examples
        # The step reads the weights again: what the caller does to his in between must not count.
        kept = None if weights is None else own_copy(weights)
        pooling = BagPooling(bags, kept, self.pooling == "mean")
        if clicks is not None:
            clicks = clicks_of_bags(clicks, bags.offsets.numpy())
        return Lookup(keys, pooling, num_features, num_examples, rows, weights, clicks)

    def _declared_features(self) -> int:
        """F of a batch without examples, whose offsets cannot tell."""
        features = self._server.tables[self.table].features
        return 1 if features is None else len(features)

    def _check_weights(self, weights: torch.Tensor, num_occurrences: int) -> None:
        where = f"SparseEmbedding({self.table!r})"
        if self.pooling is None:
            raise ConfigError(f"{where}: weights act in pooling; without it multiply the output")
        if weights.dtype != torch.float32 or tuple(weights.shape) != (num_occurrences,):
            raise ConfigError(
                f"{where}: weights are {weights.dtype} of shape {tuple(weights.shape)}; float32 "
                f"[{num_occurrences}] is needed"
            )
        if weights.device.type != HOST:  # which would have to be waited for
            return
        refuse_infinite_weights(weights.detach().numpy(), where)

    def _read(self, lookup: Lookup) -> torch.Tensor:
        pooling, rows, device = lookup.pooling, lookup.rows, self._server.device
        num_examples, width = lookup.num_examples, lookup.num_features * self.dim
        if pooling is None or lookup.is_plain:
            output = new_output(len(lookup.keys), self.dim, torch.float32, device)
            if rows is not None:
                rows.gather(output)
            else:
                self._server.pull(self.table, lookup.keys, out=output)
            return output
        output = new_output(num_examples, width, torch.float32, device)
        if rows is not None:
            rows.pool(pooling, output)
        else:
            self._server.pull_pooled(self.table, lookup.keys, pooling, output)
        return output

    def look_up_of(
        self,
        ids: Any,
        offsets: torch.Tensor | None,
        weights: torch.Tensor | None,
        num_features: int,
    ) -> Lookup:
        """What a call would look up; raises as the call."""
        collects = self.training and torch.is_grad_enabled()
        return self._lookup(self._parse(ids, offsets, weights, num_features), collects)

    def collect(self, order: int, keys: torch.Tensor, lookup: Lookup, grad: torch.Tensor) -> None:
        """Leaves the gradient of a look-up, [B, F * D], with the server.

        Args:
            order: the place of its forward among all forwards of the server.
        """
        pending, pooling = pending_of(self._server), lookup.pooling
        num_features, num_examples = lookup.num_features, lookup.num_examples
        num_bags = num_features * num_examples
        grads = pending.new_grads(self.table, num_bags, self.dim, self._server.device)
        if num_bags:
            pending.copy_by_bag(grad.view(num_examples, num_features * self.dim), grads)
        if pooling is not None and pooling.bags.are_single and pooling.weights is None:
            pooling = None  # a bag's gradient is its occurrence's
        # Through a graph that was kept, backward may come after the step has released the rows.
        rows = None if lookup.rows is None or lookup.rows.is_released else lookup.rows
        pending.add(self.table, order, ForwardGradient(keys, grads, rows, pooling, lookup.clicks))


class _ReadAndCollect(torch.autograd.Function):
    """Forward reads and pools; backward leaves the bags' gradients with the server."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        keys: torch.Tensor,
        weights: torch.Tensor | None,
        module: SparseEmbedding,
        lookup: Lookup,
    ) -> torch.Tensor:
        ctx.module, ctx.lookup = module, lookup
        ctx.order = pending_of(module._server).next_order()
        kept: tuple[torch.Tensor, ...] = (keys,)  # torch notices what was overwritten in between
        if ctx.needs_input_grad[2]:
            kept += _distinct_rows(module._server, module.table, module.dim, keys)
        ctx.save_for_backward(*kept)
        return module._read(lookup)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: torch.Tensor
    ) -> tuple[None, None, torch.Tensor | None, None, None]:
        keys, *others = ctx.saved_tensors
        grad, of_weights = grad.contiguous(), None
        if ctx.needs_input_grad[2]:
            rows, places = others
            of_weights = _weight_gradients(ctx.lookup, rows, places, grad)
        ctx.module.collect(ctx.order, keys, ctx.lookup, grad)
        return None, None, of_weights, None, None


def _distinct_rows(
    server: "RowServer", table: str, dim: int, keys: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of the distinct keys, float32 [N, dim], and each occurrence's place in them [L]."""
    unique, places = torch.unique(keys, return_inverse=True)
    rows = new_output(len(unique), dim, torch.float32, server.device)
    server.pull(table, unique, out=rows)
    return rows, places.to(server.device)


def _weight_gradients(
    lookup: Lookup, rows: torch.Tensor, places: torch.Tensor, grad: torch.Tensor
) -> torch.Tensor:
    """Of each occurrence its row times its bag's gradient, summed over the columns: float32 [L]."""
    pooling = lookup.pooling
    assert pooling is not None
    bags, dim = pooling.bags, rows.shape[1]
    by_bag = grad.view(lookup.num_examples, lookup.num_features, dim).transpose(0, 1)
    grads = by_bag.reshape(-1, dim)
    if pooling.is_mean:
        grads = bags.divided(grads)
    bag_of = bags.of_occurrences(len(places))
    found = torch.empty(len(places), dtype=torch.float32, device=grads.device)
    for first in range(0, len(places), _PIECE):
        piece = slice(first, first + _PIECE)
        torch.sum(rows[places[piece]] * grads[bag_of[piece]], 1, out=found[piece])
    return found
