"""SparseEmbeddings: looks up and pools the features of many tables in one call, and collects their
gradient.

Above it: the user's model, `hps.models`. Below it: the server's `joint` verbs, or, where it has
none, a SparseEmbedding a table; `hps.nn.gradients`.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from hps.common.arrays import HOST, as_contiguous, as_keys
from hps.config import TableConfig
from hps.contracts.joint import JointIds, JointRows, JointUpdate, KeysByTable, KeysOfAll, Places
from hps.errors import ConfigError
from hps.nn.embedding import SparseEmbedding
from hps.nn.feature_layout import FeatureLayout, Pooling, layout_of, numbered_features
from hps.nn.gradients import OF_SEVERAL, pending_of
from hps.types import Batch, Ids

if TYPE_CHECKING:
    from hps.contracts.training import RowServer


class SparseEmbeddings(nn.Module):
    """Embeddings of the features of many tables, in one call and side by side.

    Tables may differ in dim, pooling and optimizer, and serve one feature or several. Otherwise as
    `hps.SparseEmbedding`, which is one table's: rows live in the server, backward collects, and any
    number of threads may call.

    Args:
        server: an open `hps.ParameterServer`, `hps.RemoteParameterServer` or, on every rank of a
            training, `hps.ClusterParameterServer`.
        features: name of each feature -> its table, in the order of the output's columns; or table
            -> number of its features. All features of a table must be named. None: all of all
            tables, in their order.
        pooling: "sum" or "mean" over the keys of a bag, or table -> one of them. An empty bag is
            zeros.

    Raises:
        ConfigError: an unknown table, feature or pooling.

    Cost: where the rows lie in this process's DRAM, one native call a phase for all tables; each
    distinct row is read once, and no [L, D] is made. A copy of offsets and weights is kept until
    the step. With a gpu_cache, of servers and on ranks, as a SparseEmbedding a table.

    >>> import hps, tempfile, torch
    >>> tables = [hps.TableConfig(name="ads", dim=4), hps.TableConfig(name="users", dim=2)]
    >>> ads = hps.Ids(torch.tensor([7, 8, 7]), offsets=torch.tensor([0, 2, 3]))  # two examples
    >>> users = hps.Ids(torch.tensor([1, 2]), offsets=torch.tensor([0, 1, 2]))
    >>> batch = hps.Batch({"ads": ads, "users": users}, torch.zeros(2, 0), torch.ones(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with hps.ParameterServer(hps.Config(path=folder, tables=tables)) as server:
    ...         embeddings = hps.SparseEmbeddings(server, {"user": "users", "ad": "ads"})
    ...         embeddings(batch).shape, embeddings.by_name(batch)["ad"].shape
    (torch.Size([2, 6]), torch.Size([2, 4]))
    """

    def __init__(
        self,
        server: "RowServer",
        features: Mapping[str, str] | Mapping[str, int] | None = None,
        pooling: Pooling | Mapping[str, Pooling] = "sum",
    ) -> None:
        super().__init__()
        self._server = server
        self._means = _means_of(server, pooling)
        self._layout: FeatureLayout | None = None
        if features is not None or all(
            table.features is not None for table in server.tables.values()
        ):
            named, numbered = _named_features(server.tables, features)
            self._layout = layout_of(server.tables, named, self._means, numbered)
        # A module a table, where all at once will not do; no submodules: there is nothing in them.
        self._by_table: tuple[SparseEmbedding, ...] | None = None
        self._ordered: dict[tuple[str, ...], Places] = {}  # places, by the tables' order in a batch
        # Something that requires a gradient, so that autograd calls backward; none reaches it.
        self._anchor = torch.empty(0, requires_grad=True)

    def __deepcopy__(self, memo: dict[int, Any]) -> "SparseEmbeddings":
        """Another module over the same rows: a server is shared, never copied."""
        copy = type(self).__new__(type(self))
        memo[id(self)] = copy
        shared = ("_server", "_layout", "_ordered")
        for name, value in self.__dict__.items():
            copy.__dict__[name] = value if name in shared else deepcopy(value, memo)
        return copy

    def __copy__(self) -> "SparseEmbeddings":
        return deepcopy(self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "SparseEmbeddings cannot be pickled: its rows lie in a server that is open in this "
            "process alone. Save model.state_dict(), open the server where you load it, and build "
            "the module there"
        )

    @property
    def device(self) -> str:
        """Where the output lies, as torch names it."""
        return self._server.device

    @property
    def feature_names(self) -> tuple[str, ...]:
        """In the order of the output's columns; none before the first batch, if it has to tell."""
        return () if self._layout is None else self._layout.names

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each feature, in that order."""
        return () if self._layout is None else self._layout.widths

    def extra_repr(self) -> str:
        layout = self._layout
        return (
            ""
            if layout is None
            else f"features={dict(zip(layout.names, layout.tables, strict=True))}"
        )

    def by_name(self, ids: Any) -> dict[str, torch.Tensor]:
        """As the call itself, a view [B, D] of each feature by its name, in their order."""
        output = self(ids)
        return dict(zip(self.feature_names, output.split(self.widths, dim=1), strict=True))

    def forward(self, ids: Any) -> torch.Tensor:
        """Reads the embeddings; in training mode with gradients on, backward will collect theirs.

        Args:
            ids: an `hps.Batch`, or a torchrec KeyedJaggedTensor with the module's features in their
                order.

        Returns:
            float32 [B, sum of the features' dims]; new memory.

        Raises:
            ConfigError: a table or feature is missing, unknown or at another place; wrong dtypes,
                shapes or offsets; a weight that is NaN or infinite.
        """
        if isinstance(ids, Batch):
            return self._look_up_batch(self._layout or self._told_layout(_counts_of(ids)), ids)
        if hasattr(ids, "values") and hasattr(ids, "weights_or_none"):  # a KeyedJaggedTensor
            return self._look_up_tensor(ids)
        raise ConfigError(
            f"SparseEmbeddings: got {type(ids).__name__}; pass an hps.Batch or a KeyedJaggedTensor"
        )

    # What is looked up.

    def _look_up_batch(self, layout: FeatureLayout, batch: Batch) -> torch.Tensor:
        found = [_ids_of(batch, table) for table in layout.places.tables]
        _check_counts(layout, found, len(batch))
        if len(batch):
            self._layout = layout  # also what this batch has told
        weights = [ids.weights_L for ids in found]
        if self._server.joint is None or any(_want_gradients(one) for one in weights):
            return self._look_up_tables(layout, lambda module, _: module(batch))
        places, rows = self._pinned(layout.places, batch)
        if rows is not None:
            return self._read(places, None, rows)
        if batch.rows is not None:  # pinned, but not together
            return self._look_up_tables(layout, lambda module, _: module(batch))
        return self._read(layout.places, KeysByTable.of(found, len(batch)), None)

    def _look_up_tensor(self, tensor: Any) -> torch.Tensor:
        """Of a KeyedJaggedTensor."""
        names, num_examples = list(tensor.keys()), int(tensor.stride())
        layout = self._layout or self._told_layout(_tables_of(self._server, names))
        if names != list(layout.names):
            raise ConfigError(_other_features(names, layout.names))
        keys, offsets, weights = tensor.values(), tensor.offsets(), tensor.weights_or_none()
        if len(offsets) != len(names) * num_examples + 1:
            raise ConfigError(
                f"SparseEmbeddings: {len(offsets)} offsets of {len(names)} features and "
                f"{num_examples} examples; {len(names) * num_examples + 1} are needed"
            )
        self._layout = layout
        if self._server.joint is not None and not _want_gradients(weights):
            features = [list(own) for own in layout.by_table]
            arrays = KeysOfAll(
                as_keys(keys),
                as_contiguous(offsets, "offsets"),
                None if weights is None else as_contiguous(weights, "weights"),
                features,
                num_examples,
            )
            return self._read(layout.places, arrays, None)

        def look_up(module: SparseEmbedding, table: int) -> torch.Tensor:
            ids = _ids_of_features(keys, offsets, weights, layout.by_table[table], num_examples)
            num_features = len(layout.by_table[table])
            found: torch.Tensor = module(*ids, num_features=num_features)
            return found

        return self._look_up_tables(layout, look_up)

    def _pinned(self, places: Places, batch: Batch) -> tuple[Places, JointRows | None]:
        """The rows of all tables, where they were pinned together, and places in their order."""
        first = None if not batch.rows else batch.rows.get(places.tables[0])
        if first is None or first.joint is None or not self._server.holds(first):
            return places, None
        rows = cast("JointRows", first.joint)
        if rows.is_released or set(rows.tables) != set(places.tables):
            return places, None
        if rows.tables not in self._ordered:
            self._ordered[rows.tables] = places.ordered(rows.tables)
        return self._ordered[rows.tables], rows

    def _told_layout(self, features: Mapping[str, str]) -> FeatureLayout:
        """What the first batch tells of tables whose features have no names; kept once that batch
        is known to be right."""
        return layout_of(self._server.tables, features, self._means, set(features.values()))

    # How.

    def _read(self, places: Places, ids: JointIds | None, rows: JointRows | None) -> torch.Tensor:
        if self.training and torch.is_grad_enabled():
            output: torch.Tensor = _ReadAndCollect.apply(  # type: ignore[no-untyped-call]
                self._anchor, self._server, places, ids, rows
            )
            return output
        return _read(self._server, places, ids, rows)[0]

    def _look_up_tables(
        self, layout: FeatureLayout, look_up: Callable[[SparseEmbedding, int], torch.Tensor]
    ) -> torch.Tensor:
        """A table after the other, then side by side in the order of the features."""
        places = layout.places
        if self._by_table is None:
            self._by_table = tuple(
                SparseEmbedding(self._server, table, "mean" if is_mean else "sum")
                for table, is_mean in zip(places.tables, places.are_means, strict=True)
            )
        of_features: dict[int, torch.Tensor] = {}
        for table, module in enumerate(self._by_table):
            module.train(self.training)
            features, output = layout.by_table[table], look_up(module, table)
            widths = [places.dims[table]] * len(features)
            # Of a batch without examples a module cannot tell the number of features.
            output = output.reshape(len(output), sum(widths))
            parts = torch.split_with_sizes(output, widths, dim=1)
            of_features |= zip(features, parts, strict=True)
        return torch.cat([of_features[place] for place in range(len(of_features))], dim=1)


class _ReadAndCollect(torch.autograd.Function):
    """Forward reads and pools; backward leaves the gradient with the server."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        server: "RowServer",
        places: Places,
        ids: JointIds | None,
        rows: JointRows | None,
    ) -> torch.Tensor:
        ctx.pending = pending_of(server)
        ctx.order = ctx.pending.next_order()
        ctx.places = places
        output, ctx.rows = _read(server, places, ids, rows)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, None, None, None, None]:
        pending = ctx.pending
        owned = pending.new_grads(OF_SEVERAL, len(grad), ctx.places.width, HOST)
        if len(grad):
            pending.copy_by_bag(grad.contiguous(), owned)
        pending.add_joint(ctx.order, JointUpdate(ctx.rows, ctx.places, owned))
        return None, None, None, None, None


def _read(
    server: "RowServer", places: Places, ids: JointIds | None, rows: JointRows | None
) -> tuple[torch.Tensor, JointRows]:
    """The bags of pinned rows, or of ids; float32 [B, width], and the rows."""
    if rows is not None:
        output = torch.empty(rows.num_examples, places.width)
        rows.pool(places, output)
        return output, rows
    assert ids is not None and server.joint is not None
    output = torch.empty(ids.num_examples, places.width)
    return output, server.joint.look_up(ids, places, output)


# What a batch holds.


def _ids_of(batch: Batch, table: str) -> Ids:
    if table not in batch.features:
        raise ConfigError(
            f"SparseEmbeddings: the batch lacks table {table!r}; it holds {sorted(batch.features)}"
        )
    return batch.features[table]


def _counts_of(batch: Batch) -> dict[str, str]:
    """Names of the features that a batch seems to have, with their tables."""
    return {
        name: table
        for table, ids in batch.features.items()
        for name in numbered_features(table, max(1, (len(ids.offsets) - 1) // max(1, len(batch))))
    }


def _check_counts(layout: FeatureLayout, found: list[Ids], num_examples: int) -> None:
    for table, features, ids in zip(layout.places.tables, layout.by_table, found, strict=True):
        num_bags = len(ids.offsets) - 1
        if num_bags != len(features) * num_examples:
            raise ConfigError(
                f"SparseEmbeddings: the batch has {num_bags} bags of table {table!r}; "
                f"{len(features)} features of {num_examples} examples have "
                f"{len(features) * num_examples}"
            )


def _tables_of(server: "RowServer", names: list[str]) -> dict[str, str]:
    """Features by name, where one table has all of them."""
    if len(server.tables) > 1:
        raise ConfigError(
            "SparseEmbeddings: which features are which table's is not known; pass features="
            "{feature: table}, or list them in TableConfig.features"
        )
    return dict.fromkeys(names, next(iter(server.tables)))


def _other_features(found: list[str], wanted: tuple[str, ...]) -> str:
    missing = [name for name in wanted if name not in found]
    unknown = [name for name in found if name not in wanted]
    told = "SparseEmbeddings: the KeyedJaggedTensor "
    if missing:
        return f"{told}lacks features {missing}; it holds {found}"
    if unknown:
        return f"{told}has features {unknown}, which the module has not: it has {list(wanted)}"
    order = [found.index(name) for name in wanted]
    return (
        f"{told}has its features in another order, {found}, than the module, {list(wanted)}; pass "
        f"tensor.permute({order})"
    )


def _ids_of_features(
    keys: torch.Tensor,
    offsets: torch.Tensor,
    weights: torch.Tensor | None,
    features: tuple[int, ...],
    num_examples: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Keys, offsets and weights of some of the features, one after the other."""
    bags = [slice(one * num_examples, (one + 1) * num_examples) for one in features]
    bounds = [(int(offsets[one.start]), int(offsets[one.stop])) for one in bags]
    lengths = torch.cat([offsets.diff()[one] for one in bags]).to(torch.int64)
    own = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    pieces = [keys[first:end] for first, end in bounds]
    if weights is None:
        return torch.cat(pieces), own, None
    return torch.cat(pieces), own, torch.cat([weights[first:end] for first, end in bounds])


def _want_gradients(weights: torch.Tensor | None) -> bool:
    return weights is not None and weights.requires_grad and torch.is_grad_enabled()


# What a module is made from.


def _means_of(server: "RowServer", pooling: Pooling | Mapping[str, Pooling]) -> dict[str, bool]:
    by_table = pooling if isinstance(pooling, Mapping) else dict.fromkeys(server.tables, pooling)
    for table, how in by_table.items():
        if table not in server.tables or how not in ("sum", "mean"):
            raise ConfigError(
                f"SparseEmbeddings: pooling {how!r} of table {table!r}; give 'sum' or 'mean' to "
                f"some of {sorted(server.tables)}"
            )
    return {table: by_table.get(table) == "mean" for table in server.tables}


def _named_features(
    tables: Mapping[str, TableConfig], features: Mapping[str, str] | Mapping[str, int] | None
) -> tuple[dict[str, str], set[str]]:
    """Feature -> table, and the tables whose features are numbered."""
    if features is None:
        return {
            name: table.name for table in tables.values() for name in table.features or ()
        }, set()
    named: dict[str, str] = {}
    numbered: set[str] = set()
    for name, value in features.items():
        if isinstance(value, str):
            named[name] = value
        elif isinstance(value, int) and value >= 1:
            named |= dict.fromkeys(numbered_features(name, value), name)
            numbered.add(name)
        else:
            raise ConfigError(
                f"SparseEmbeddings: features[{name!r}]={value!r}; give the name of its table, or "
                "of a table the number of its features"
            )
    return named, numbered
