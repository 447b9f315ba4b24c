"""SparseEmbeddings: looks up and pools the features of many tables in one call, and collects their
gradient.

Above it: the user's model, `hps.models`. Below it: the server's `joint` verbs, rows that a Pipeline
has pinned together, or, where there are none, tables_look_up.py; `hps.nn.gradients`; while
torch.compile looks on, look_up_op.py.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import nn

from hps.common.arrays import as_labels
from hps.common.row_layout import Labels
from hps.contracts.joint import JointIds, JointRows, JointUpdate, KeysByTable, Places
from hps.errors import ConfigError
from hps.nn.embedding import SparseEmbedding
from hps.nn.embeddings_input import (
    check_beside,
    check_counts,
    check_names,
    chosen_of,
    counts_of,
    found_in,
    ids_of_features,
    keys_of_all,
    learns_weights,
    means_of,
    named_features,
    tables_of,
    want_gradients,
)
from hps.nn.feature_layout import FeatureLayout, Pooling, layout_of
from hps.nn.gradients import pending_of
from hps.nn.joint_look_up import (
    JointCall,
    ReadAndCollect,
    check_dtype,
    collect,
    new_anchor,
    read,
)
from hps.nn.look_up_op import KeptRows, look_up, register
from hps.nn.tables_look_up import look_up_tables
from hps.types import Batch, Ids

if TYPE_CHECKING:
    from torchrec import KeyedTensor

    from hps.contracts.training import RowServer

# What a table's module is called with: ids, offsets, weights, number of features.
_Call = tuple[Any, torch.Tensor | None, torch.Tensor | None, int]


# What is left of the number of tensors that the operator is given, divided by three.
_OF_ALL, _WITH_LABELS = 1, 2


class SparseEmbeddings(nn.Module):
    """Embeddings of the features of many tables, in one call and side by side.

    Tables may differ in dim, pooling and optimizer, and serve one feature or several. Otherwise as
    `hps.SparseEmbedding`, which is one table's: rows live in the server, backward collects, and any
    number of threads may call.

    Args:
        server: an open `hps.ParameterServer`, `hps.RemoteParameterServer` or, on every rank of a
            training, `hps.ClusterParameterServer`.
        features: name of each feature -> its table, in the order of the output's columns; or table
            -> number of its features. None: all of all tables, in their order. Of a table that
            lists its features some may be named: of a batch, which has all of them, those are
            read, looked up anew where a Pipeline has pinned all.
        pooling: "sum" or "mean" over the keys of a bag, or table -> one of them. An empty bag is
            zeros.
        dtype: of the output and of its gradient, torch.float32 or torch.bfloat16, whatever
            rows are. A bfloat16 output is the float32 one rounded to the nearest; a dense part in
            float32 takes it under torch.autocast.
        beside: table -> another one with rows for the same keys, whose columns come behind those of
            each feature of the first, pooled alike; of tables of which `features` gives a number. A
            batch need not have the other table.

    Weights of the keys come with what it is called with: `hps.Ids.weights_L` of a batch, or those
    of the KeyedJaggedTensor.

    Raises:
        ConfigError: an unknown table, feature, pooling or dtype.

    A backward through the output is a step of every table in it, also of one whose columns have
    no gradient but zero, as of a part that was detached; compiled, also where the loss leaves the
    whole output out. (For momentum a gradient of zero counts; give tables that are to rest to a
    module of their own.)

    Cost: where the rows lie in this process's DRAM, one native call a phase for all tables; each
    distinct row is read once, and no [L, D] is made. A copy of offsets and weights is kept until
    the step. With a gpu_cache on a device the same of batches of a Pipeline, if a table's features
    follow each other; else as a SparseEmbedding a table, and so of servers and on ranks, but what
    the tables ask for travels together.

    `torch.compile` takes a model with this module as one graph (fullgraph=True) where the rows lie
    in this process's DRAM, the module knows its features, and no bag weight requires a gradient;
    elsewhere the graph breaks at it.

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
        dtype: torch.dtype = torch.float32,
        beside: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        check_dtype(dtype, "SparseEmbeddings")
        self.dtype = dtype
        self._server = server
        beside = check_beside(server.tables, features, pooling, beside)
        self._ids_of = {other: table for table, other in beside.items()}
        self._means = means_of(server, pooling)
        self._means |= {other: self._means.get(table, False) for table, other in beside.items()}
        self._layout: FeatureLayout | None = None
        are_named = all(table.features is not None for table in server.tables.values())
        if features is not None or beside or are_named:
            named, numbered = named_features(server.tables, features, beside)
            self._layout = layout_of(server.tables, named, self._means, numbered)
        # A module a table, where all at once will not do; no submodules: there is nothing in them.
        self._by_table: dict[str, SparseEmbedding] = {}
        self._ordered: dict[tuple[str, ...], Places] = {}  # places, by the tables' order in a batch
        self._anchor = new_anchor(dtype)
        self._kept = KeptRows()
        self._counts = any(table.statistics for table in server.tables.values())
        self._is_joint = server.joint is not None
        self._number = register(self)  # by which the operator knows it

    def __deepcopy__(self, memo: dict[int, Any]) -> "SparseEmbeddings":
        """Another module over the same rows: a server is shared, never copied."""
        copy = type(self).__new__(type(self))
        memo[id(self)] = copy
        shared = ("_server", "_layout")
        for name, value in self.__dict__.items():
            copy.__dict__[name] = value if name in shared else deepcopy(value, memo)
        copy._number = register(copy)
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
    def server(self) -> "RowServer":
        """Whose rows it reads."""
        return self._server

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

    @property
    def layout(self) -> FeatureLayout | None:
        """The features and the columns of each; None before the first batch, if it has to tell."""
        return self._layout

    @property
    def ids_of(self) -> Mapping[str, str]:
        """Of a table that comes behind another one (`beside`) the other one."""
        return self._ids_of

    def extra_repr(self) -> str:
        layout = self._layout
        return (
            ""
            if layout is None
            else f"features={dict(zip(layout.names, layout.tables, strict=True))}"
        )

    def by_name(self, ids: Any) -> dict[str, torch.Tensor]:
        """As the call itself, a view [B, D] of each feature by its name, in their order.

        Raises:
            ConfigError: as the call; or nothing has told of the features yet, and a batch without
                examples cannot.
        """
        output = self._named(ids)
        parts = torch.split_with_sizes(output, self.widths, dim=1)
        return dict(zip(self.feature_names, parts, strict=True))

    def as_keyed_tensor(self, ids: Any) -> "KeyedTensor":
        """As the call itself, a torchrec KeyedTensor of the features, in their order.

        Raises:
            ConfigError: as by_name; or torchrec is not installed.
        """
        try:
            from torchrec import KeyedTensor
        except ImportError as error:
            raise ConfigError(
                f"SparseEmbeddings.as_keyed_tensor: {error}; install torchrec, or take by_name"
            ) from None
        output = self._named(ids)
        return KeyedTensor(list(self.feature_names), list(self.widths), output)

    def _named(self, ids: Any) -> torch.Tensor:
        output: torch.Tensor = self(ids)
        if self._layout is None:
            raise ConfigError(
                "SparseEmbeddings: the names of the features are not known, and a batch without "
                "examples does not tell them; pass features= when the module is made"
            )
        return output

    def forward(self, ids: Any) -> torch.Tensor:
        """Reads the embeddings; in training mode with gradients on, backward will collect theirs.

        Args:
            ids: an `hps.Batch`, or a torchrec KeyedJaggedTensor with the module's features in their
                order.

        Returns:
            float32 (or `dtype`) [B, sum of the features' dims]; new memory.

        Raises:
            ConfigError: a table or feature is missing, unknown or at another place; wrong dtypes,
                shapes or offsets; a weight that is NaN or infinite.
        """
        if self._ids_of and isinstance(ids, Batch):
            ids = ids.with_ids_of(self._ids_of)
        if torch.compiler.is_compiling():
            if self._layout is not None and self._is_joint and not learns_weights(ids):
                return self._look_up_compiled(self._layout, ids)
            output: torch.Tensor = self._look_up_uncompiled(ids)
            return output
        return self._look_up(ids)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _look_up_uncompiled(self, ids: Any) -> torch.Tensor:
        return self._look_up(ids)

    def _look_up(self, ids: Any) -> torch.Tensor:
        if isinstance(ids, Batch):
            layout = self._layout or self._told_layout(counts_of(self._server, ids))
            output = self._look_up_batch(layout, ids)
            if layout is not self._layout and len(ids):
                self._layout = layout  # what this batch has told, which was right
            return output
        if hasattr(ids, "values") and hasattr(ids, "weights_or_none"):  # a KeyedJaggedTensor
            return self._look_up_tensor(ids)
        raise ConfigError(
            f"SparseEmbeddings: got {type(ids).__name__}; pass an hps.Batch or a KeyedJaggedTensor"
        )

    # What is looked up.

    def _look_up_batch(self, layout: FeatureLayout, batch: Batch) -> torch.Tensor:
        found, has_weights = found_in(batch, layout.places.tables)
        # Most have no weights, of which no question is asked.
        is_learning = has_weights and any(want_gradients(ids.weights_L) for ids in found)
        is_joint = self._is_joint and not is_learning and not layout.chosen
        if is_joint and batch.rows is None:
            ids = KeysByTable(found, len(batch))
            try:
                return self._read(layout.places, ids, None, batch)
            except ConfigError:
                check_counts(layout, found, len(batch))  # which has more to say of it
                raise
        check_counts(layout, found, len(batch))
        if layout.chosen:
            return self._look_up_chosen(layout, found, batch, is_learning)
        rows = None if is_learning else self._joint_rows(layout.places, batch)
        if rows is not None and rows.are_of(batch.features, len(batch)):
            if (places := self._places_in(rows, layout.places)) is not None:
                return self._read(places, None, rows, batch)
        elif rows is not None and not rows.is_released:  # its tensors were changed since
            batch = replace(batch, rows=None)
        # Also what is pinned, but not together.
        return self._look_up_tables(layout, [(batch, None, None, 1)] * len(found), is_learning)

    def _look_up_chosen(
        self, layout: FeatureLayout, found: list[Ids], batch: Batch, is_learning: bool
    ) -> torch.Tensor:
        """Of a batch that has more features than are read."""
        own = chosen_of(layout, found, len(batch))
        if self._is_joint and not is_learning:
            return self._read(layout.places, KeysByTable(own, len(batch)), None, batch)
        read = replace(batch, features=dict(zip(layout.places.tables, own, strict=True)), rows=None)
        return self._look_up_tables(layout, [(read, None, None, 1)] * len(own), is_learning)

    def _look_up_tensor(self, tensor: Any) -> torch.Tensor:
        """Of a KeyedJaggedTensor."""
        names, num_examples = list(tensor.keys()), int(tensor.stride())
        layout = self._layout or self._told_layout(tables_of(self._server, names))
        check_names(layout, names)
        keys, offsets, weights = tensor.values(), tensor.offsets(), tensor.weights_or_none()
        arrays = keys_of_all(layout, (keys, offsets, weights), num_examples)
        if self._is_joint and not want_gradients(weights):
            output = self._read(layout.places, arrays, None, None)
            self._layout = layout
            return output

        calls: list[_Call] = []
        for features in layout.places.features:
            ids = ids_of_features(keys, offsets, weights, features, num_examples)
            calls.append((*ids, len(features)))
        output = self._look_up_tables(layout, calls, want_gradients(weights))
        self._layout = layout
        return output

    def _look_up_compiled(self, layout: FeatureLayout, ids: Any) -> torch.Tensor:
        """What torch.compile sees: tensors and numbers alone."""
        nothing = self._anchor.new_empty(0)
        if isinstance(ids, Batch):
            found = [ids.features[table] for table in layout.places.tables]
            tensors = [own.keys_L for own in found] + [own.offsets for own in found]
            tensors += [nothing if own.weights_L is None else own.weights_L for own in found]
            num_examples = ids.labels.shape[0]
        else:
            check_names(layout, list(ids.keys()))
            own = ids.weights_or_none()
            # The last one says that the others are those of all tables.
            tensors = [ids.values(), ids.offsets(), nothing if own is None else own, nothing]
            num_examples = ids.stride()
        collects = self.training and torch.is_grad_enabled()
        if collects and self._counts and isinstance(ids, Batch):
            tensors += [ids.labels, nothing]
        args = (tensors, self._number, num_examples, layout.places.width, collects)
        output: torch.Tensor = look_up(self._anchor, *args)[0]
        return output

    # What look_up_op.py asks, while the compiled code runs.

    @property
    def kept(self) -> KeptRows:
        """As Reader has it."""
        return self._kept

    def read_tensors(
        self, tensors: Sequence[torch.Tensor], num_examples: int
    ) -> tuple[torch.Tensor, JointRows]:
        """As Reader has it: of what `_look_up_compiled` has passed on."""
        layout, joint, server = self._layout, self._server.joint, self._server
        assert layout is not None and joint is not None
        num_tables, kind = divmod(len(tensors), 3)
        _clicks_among(tensors)  # which raises what is wrong with them
        if kind == _OF_ALL:
            keys, offsets, weights, _ = tensors
            of_all = (keys, offsets, weights if len(weights) else None)
            ids = keys_of_all(layout, of_all, num_examples)
            return read(server, layout.places, ids, None, self.dtype)
        found = [
            Ids(keys, offsets, weights if len(weights) else None)
            for keys, offsets, weights in zip(
                tensors[:num_tables],
                tensors[num_tables : 2 * num_tables],
                tensors[2 * num_tables : 3 * num_tables],
                strict=True,
            )
        ]
        check_counts(layout, found, num_examples)
        if layout.chosen:
            own = KeysByTable(chosen_of(layout, found, num_examples), num_examples)
            return read(server, layout.places, own, None, self.dtype)
        features = dict(zip(layout.places.tables, found, strict=True))
        rows = joint.pinned(features, num_examples)
        if rows is not None:
            try:
                return read(server, self._ordered_as(layout.places, rows), None, rows, self.dtype)
            except ConfigError:
                if not rows.is_released:  # by another thread, in between
                    raise
        by_table = KeysByTable(found, num_examples)
        return read(server, layout.places, by_table, None, self.dtype)

    def collect(
        self, order: int, rows: JointRows, grad: torch.Tensor, tensors: Sequence[torch.Tensor]
    ) -> None:
        """As Reader has it."""
        assert self._layout is not None
        places, clicks = self._ordered_as(self._layout.places, rows), _clicks_among(tensors)
        collect(self._server, order, JointUpdate(rows, places, grad, clicks=clicks), is_own=True)

    def next_order(self) -> int:
        """As Reader has it."""
        return pending_of(self._server).next_order()

    def _ordered_as(self, places: Places, rows: JointRows) -> Places:
        """The places, the tables in the order of `rows`."""
        if rows.tables == places.tables:
            return places
        if self._layout is None or places is not self._layout.places:  # not sure yet
            return places.ordered(rows.tables)
        if rows.tables not in self._ordered:
            self._ordered[rows.tables] = places.ordered(rows.tables)
        return self._ordered[rows.tables]

    def _joint_rows(self, places: Places, batch: Batch) -> JointRows | None:
        """What pins the rows of a batch together, if anything does."""
        first = None if not batch.rows else batch.rows.get(places.tables[0])
        if first is None or first.joint is None or not self._server.holds(first):
            return None
        return cast("JointRows", first.joint)

    def _places_in(self, rows: JointRows, places: Places) -> Places | None:
        """The places as rows that are pinned together are read to them, if they can be."""
        if self._is_joint:
            is_all = set(rows.tables) == set(places.tables)
            return self._ordered_as(places, rows) if is_all else None
        # On a device some of the tables will do, in any order.
        is_possible = places.first_columns is not None and set(rows.tables) >= set(places.tables)
        return places if is_possible else None

    def _told_layout(self, features: Mapping[str, str]) -> FeatureLayout:
        """What the first batch tells of tables whose features have no names; kept once that batch
        is known to be right."""
        return layout_of(self._server.tables, features, self._means, set(features.values()))

    # How.

    def _read(
        self, places: Places, ids: JointIds | None, rows: JointRows | None, batch: Batch | None
    ) -> torch.Tensor:
        if self.training and torch.is_grad_enabled():
            clicks = None
            if self._counts and batch is not None:
                clicks = _clicks_of(batch.labels)
            output: torch.Tensor = ReadAndCollect.apply(  # type: ignore[no-untyped-call]
                self._anchor, self._server, JointCall(places, ids, rows, clicks)
            )
            return output
        return read(self._server, places, ids, rows, self.dtype)[0]

    def _look_up_tables(
        self, layout: FeatureLayout, calls: Sequence[_Call], is_learning: bool
    ) -> torch.Tensor:
        """By a module a table, then side by side in the order of the features.

        Args:
            calls: arguments of each table's module.
            is_learning: a weight is to get a gradient.
        """
        places = layout.places
        modules = [self._module_of(places, table) for table in range(len(places.tables))]
        outputs: Sequence[torch.Tensor]
        if is_learning:  # which is done one by one
            outputs = [
                module(*call[:3], num_features=call[3])
                for module, call in zip(modules, calls, strict=True)
            ]
        else:
            parts = [
                (module, module.look_up_of(*call))
                for module, call in zip(modules, calls, strict=True)
            ]
            collects = self.training and torch.is_grad_enabled()
            outputs = look_up_tables(self._server, parts, collects)
        of_features: dict[int, torch.Tensor] = {}
        for output, dim, features in zip(outputs, places.dims, places.features, strict=True):
            widths = [dim] * len(features)
            # Of a batch without examples a module cannot tell the number of features.
            by_table = output.reshape(len(output), sum(widths))
            of_features |= zip(
                features, torch.split_with_sizes(by_table, widths, dim=1), strict=True
            )
        joined = torch.cat([of_features[place] for place in range(len(of_features))], dim=1)
        return joined.to(self.dtype)

    def _module_of(self, places: Places, table: int) -> SparseEmbedding:
        name = places.tables[table]
        if name not in self._by_table:
            pooling: Pooling = "mean" if places.are_means[table] else "sum"
            self._by_table[name] = SparseEmbedding(self._server, name, pooling)
        return self._by_table[name].train(self.training)


def _clicks_of(labels: torch.Tensor) -> Labels:
    """uint8 [B] of a batch's labels; ConfigError if one is neither 0 nor 1."""
    return as_labels(labels, len(labels), "SparseEmbeddings: Batch.labels")


def _clicks_among(tensors: Sequence[torch.Tensor]) -> Labels | None:
    """Of what the operator was given, if labels are among it."""
    return _clicks_of(tensors[-2]) if len(tensors) % 3 == _WITH_LABELS else None
