"""What the click models share: looking up the features, checking dense columns, the MLP, the sum
over pairs.

Above it: the models, users' own too. Below it: `hps.SparseEmbeddings`, pooling.py.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from hps.common.model_names import first_order_table
from hps.errors import ConfigError
from hps.models.fields import Axes, Fields
from hps.models.pooling import BagMeans, pooling_of
from hps.models.seams import seams_of_bags, seams_of_sequences
from hps.models.sequences import ApartRows, SequenceRows, check_sequences
from hps.models.training_ops import TrainedLinear
from hps.nn.dense_export import export_sized, module_mark
from hps.nn.embeddings import SparseEmbeddings
from hps.nn.graph_seams import Names, Seam, input_name, name_at
from hps.publish.graph import DenseGraph
from hps.types import Batch

if TYPE_CHECKING:
    from hps.contracts.training import RowServer


DEFAULT_HIDDEN = (256, 128)


class ClickModel(nn.Module):
    """A model of the probability of a click, from the features of a batch to logits.

    The weights of dense layers come from torch's global generator: equal `torch.manual_seed`, equal
    model. A model with a first-order term keeps that weight in the last column of each row. Or in
    rows of two levels, where the server has a table `hps.models.first_order_table("ads")`, of dim
    1, for each table "ads": it holds the weights of the same keys, and rows of "ads" are vectors
    alone; `embed` and `embed_side_by_side` give the same of both.

    A class says of itself: `has_first_order`, that there is such a term; `has_vectors`, that a row
    holds an embedding of `dim` floats; `has_deep_part`, that `hidden` and `dropout` apply;
    `takes_any_dims`, that the tables' embeddings may be of different widths, as it puts them side
    by side. Such a class takes `width` and `embed_side_by_side`; `dim` is 0 where tables differ.
    `takes_sequences`, that it looks at the keys of sequences one by one (`embed_apart`), which come
    as `sequences`.

    Args:
        server: an open `hps.ParameterServer` or `hps.RemoteParameterServer`.
        features: table name -> number of the table's features in a batch. The tables' dims must
            agree, unless the class takes any.
        num_dense: dense columns of a batch; may be 0.
        hidden: widths of the deep part's layers; None: 256 and 128, or none without a deep part.
        dropout: share of the deep part's activations dropped in training.
        sequences: of a class that takes them, and for it alone: place of each sequence among the
            features -> place of its target; the tables in which they are have one dim.

    `embedding_dropout`, 0 unless it is set, is the share of the elements of pooled embeddings, the
    first-order weight among them, that `embed` drops in training; it scales the others up by
    1 / (1 - share), and draws from torch's global generator of the device.

    `negative_rate` is the share of the examples with label 0 that the model is trained on; the
    recipe of `hps train` sets it. `forward` gives the logits of such a log, `score` those of a log
    with all of them.

    Raises:
        ConfigError: no feature, unknown table, unequal dims, a size outside its limits, or one that
            does not apply to the class.
    """

    kind: ClassVar[str] = ""
    has_first_order: ClassVar[bool] = False
    has_vectors: ClassVar[bool] = True
    has_deep_part: ClassVar[bool] = True
    takes_any_dims: ClassVar[bool] = False
    takes_sequences: ClassVar[bool] = False

    def __init__(
        self,
        server: "RowServer",
        features: Mapping[str, int],
        num_dense: int,
        hidden: Sequence[int] | None = None,
        dropout: float = 0.0,
        sequences: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.negative_rate = 1.0
        self.embedding_dropout = 0.0
        name = type(self).__name__
        if hidden is None:
            hidden = DEFAULT_HIDDEN if self.has_deep_part else ()
        if not features or any(count < 1 for count in features.values()):
            raise ConfigError(
                f"{name}: features={dict(features)}: at least one feature a table is needed"
            )
        if num_dense < 0 or any(width < 1 for width in hidden):
            raise ConfigError(
                f"{name}: num_dense={num_dense}, hidden={tuple(hidden)}: num_dense must be at "
                "least 0 and each width of hidden at least 1"
            )
        if not 0.0 <= dropout < 1.0:
            raise ConfigError(f"{name}: dropout={dropout} must be in [0, 1)")
        if not self.has_deep_part and (hidden or dropout):
            raise ConfigError(
                f"{name}: it has no deep part, hidden={tuple(hidden)} and dropout={dropout} do not "
                "apply; leave them out"
            )
        self.first_order_tables = self._find_first_order(server, features)
        self.embeddings = SparseEmbeddings(server, features, beside=self.first_order_tables)
        self._means: BagMeans | None = None
        columns = {
            table: server.tables[table].dim + (table in self.first_order_tables)
            for table in features
        }
        self.check_columns(columns)
        self.sequences = dict(sorted((sequences or {}).items()))
        if self.takes_sequences or self.sequences:
            check_sequences(type(self), self.sequences, features, columns)
            self._apart = ApartRows(server, features, self.sequences)
        self.features = dict(features)
        self.num_features = sum(features.values())
        self.num_dense = num_dense
        first = int(self.has_first_order)
        self.dims_of_tables = {table: count - first for table, count in columns.items()}
        self.width = sum(self.dims_of_tables[table] * count for table, count in features.items())
        is_equal = len(set(columns.values())) == 1
        self.dim = next(iter(self.dims_of_tables.values())) if is_equal else 0
        self.columns = next(iter(columns.values())) if is_equal else 0
        self._table_columns = columns
        self._build(hidden, dropout)

    @classmethod
    def check_columns(cls, columns: Mapping[str, int]) -> None:
        """Refuses tables whose rows the class cannot take.

        Args:
            columns: table name -> columns of its rows, a first-order weight elsewhere counted.

        Raises:
            ConfigError: unequal dims, unless the class takes any; rows without an embedding, or
                with one that the class does not have.
        """
        name = cls.__name__
        if len(set(columns.values())) != 1 and not cls.takes_any_dims:
            dims = {table: count - cls.has_first_order for table, count in columns.items()}
            raise ConfigError(
                f"{name}: the tables' dims {dims} must be equal, as it multiplies embeddings with "
                "each other; give all tables one dim, or take a model that puts embeddings side by "
                "side: dcn_v2, wide_deep, din, or one of your own that says takes_any_dims = True"
            )
        if cls.has_vectors and min(columns.values()) <= cls.has_first_order:
            raise ConfigError(f"{name}: needs tables of at least 2 columns, the last first order")
        if not cls.has_vectors and max(columns.values()) > cls.has_first_order:
            raise ConfigError(
                f"{name}: needs tables of 1 column, the weight; these have {max(columns.values())}"
            )

    @classmethod
    def why_one_level(cls) -> str:
        """Why the class cannot have its first-order weights in tables of their own, in words; empty
        if it can."""
        if not cls.has_first_order:
            return "it has no first-order weight, by whose row a key would come by its vector"
        if not cls.has_vectors:
            return "it has first-order weights alone, and no vector that could wait"
        if cls.takes_sequences:
            return "it looks at the keys of sequences one by one, as whole rows"
        return ""

    def _find_first_order(self, server: "RowServer", features: Mapping[str, int]) -> dict[str, str]:
        """Of each table that of its first-order weights; none where rows hold both."""
        others = {table: first_order_table(table) for table in features}
        known = server.tables.keys() - features.keys()  # a table of features may have such a name
        found = {table: other for table, other in others.items() if other in known}
        if not found or not self.has_first_order or not self.has_vectors:
            return {}
        name, why = type(self).__name__, self.why_one_level()
        if why:
            raise ConfigError(f"{name}: first-order weights in tables of their own {found}: {why}")
        if missing := [table for table in features if table not in found]:
            raise ConfigError(
                f"{name}: the first-order weights of tables {sorted(found)} lie in tables of their "
                f"own, and there is no table {first_order_table(missing[0])!r}; give all tables "
                "such a one, or none"
            )
        for other in found.values():
            if server.tables[other].dim != 1:
                raise ConfigError(
                    f"{name}: table {other!r} holds first-order weights: its dim must be 1, not "
                    f"{server.tables[other].dim}"
                )
        return found

    @classmethod
    def row_columns(cls, dim: int, *, two_level: bool = False) -> int:
        """Columns of a row: `dim` floats of an embedding, one first-order weight, as it has them;
        with `two_level` the weight lies elsewhere.

        >>> from hps.models import MODELS
        >>> {kind: model.row_columns(16) for kind, model in MODELS.items() if kind < "e"}
        {'deepfm': 17, 'dlrm': 16, 'dcn_v2': 16, 'autoint': 16, 'din': 16}
        """
        return dim * cls.has_vectors + (cls.has_first_order and not two_level)

    def use_means(self, server: "RowServer", are_means: Mapping[str, Sequence[bool]]) -> None:
        """Has the model get the mean of some features' rows instead of their sum.

        A bag's sum is divided by the number of its keys, whatever their weights; an empty bag stays
        zeros. Sums and gradients have the bits of `hps.SparseEmbedding(pooling="mean")`.

        Args:
            server: that the model was made with.
            are_means: table -> of each of its features whether it is a mean; tables left out are
                sums.

        Raises:
            ConfigError: another table or number of features than the model has.
        """
        counts = {table: len(found) for table, found in are_means.items()}
        wrong = {table: n for table, n in counts.items() if self.features.get(table) != n}
        if wrong:
            raise ConfigError(
                f"{type(self).__name__}.use_means: it is told of {wrong} features by table, and "
                f"the model has {self.features}"
            )
        by_table = {
            table: list(are_means.get(table, [False] * count))
            for table, count in self.features.items()
        }
        pooling, beside = pooling_of(by_table), self.first_order_tables
        self.embeddings = SparseEmbeddings(server, self.features, pooling, beside=beside)
        self._means = BagMeans.of(by_table, self._table_columns)
        of_features = [is_mean for found in by_table.values() for is_mean in found]
        if self.takes_sequences:
            self._apart.means = frozenset(place for place, found in enumerate(of_features) if found)

    @property
    def device(self) -> str:
        """Where the embeddings come out, as torch names it; the other layers belong there, too."""
        return self.embeddings.device

    def _build(self, hidden: Sequence[int], dropout: float) -> None:
        """Makes the model's own layers, once sizes are checked and `features`, `dim` are set."""

    @property
    def output_bias(self) -> nn.Parameter:
        """What is added to every logit: a parameter of one element.

        Raises:
            ConfigError: the class does not have one.
        """
        raise ConfigError(
            f"{type(self).__name__} does not say which parameter its output bias is; give it a "
            "property output_bias, or train it without a base rate (--no-base-rate)"
        )

    def input_axes(self, fields: Fields) -> Axes:
        """Which weights go with which input, so that a stored model can be given other features.

        A weight of an input that is new begins at 0, and those of one that is gone are dropped. A
        class says it for any fields, not just its own: `self` tells the sizes that stay.

        Args:
            fields: the inputs of a model of this class and of this one's sizes.

        Returns:
            Name of a parameter -> dimension -> what each position along it stands for, equal for
            the same input of other fields; parameters that no field changes are left out.

        Raises:
            ConfigError: the class does not say it.
        """
        raise ConfigError(
            f"{type(self).__name__} does not say which of its weights go with which feature; give "
            "it a method input_axes(fields), or train another model in another store"
        )

    def set_base_rate(self, logit: float) -> None:
        """Has the logits of a new model begin at the log's share of clicks, not at one half.

        Draws nothing: all other weights are what they were. For a model that has been trained it
        would undo what its bias has learned.

        Args:
            logit: log(clicks / others); `hps.train.first_labels` counts them.

        Raises:
            ConfigError: it is not a finite number.
        """
        if not math.isfinite(logit):
            raise ConfigError(
                f"{type(self).__name__}.set_base_rate({logit!r}): not finite; a log without "
                "clicks, or of clicks alone, needs (clicks + 1) / (others + 1)"
            )
        with torch.no_grad():
            self.output_bias.fill_(logit)

    def score(self, batch: Batch) -> torch.Tensor:
        """Logits [B] for examples as they come: to measure and to predict, not to train.

        Of a model that is trained on the share R of the negatives the odds are 1/R times those of
        the log, so that log(R) is added.

        Source: He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook", ADKDD
        2014, section 6.3.
        """
        logits: torch.Tensor = self(batch)
        if self.negative_rate == 1:
            return logits
        return logits.float() + math.log(self.negative_rate)

    def embed(self, batch: Batch) -> torch.Tensor:
        """The pooled row of every feature, of tables of one dim; in training with
        `embedding_dropout`.

        Returns:
            float32 [B, F, columns], the tables' features side by side.

        Raises:
            ConfigError: the batch holds another number of features than the model was made for, or
                the tables differ in their dims.
        """
        if not self.columns:
            raise ConfigError(
                f"{type(self).__name__}.embed: the tables have rows of {self._table_columns} "
                "columns; embed_side_by_side takes unequal ones"
            )
        return self._pooled(batch).reshape(len(batch), self.num_features, self.columns)

    def embed_side_by_side(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """All embeddings one after the other, of tables of any dims, and first-order weights.

        Returns:
            float32 [B, width], the tables' features in their order; float32 [B, F, 1], or of a
            class without a first-order term [B, F, 0].

        Raises:
            ConfigError: as embed, but for the dims.
        """
        first = int(self.has_first_order)
        if self.columns:
            # One split: its backward is one copy, that of two slices four passes over the rows.
            vectors, weights = torch.split_with_sizes(self.embed(batch), [self.dim, first], dim=2)
            return vectors.flatten(1), weights
        pooled = self._pooled(batch)
        sizes = [self._table_columns[table] * count for table, count in self.features.items()]
        parts = []
        for (table, count), rows in zip(
            self.features.items(), torch.split_with_sizes(pooled, sizes, dim=1), strict=True
        ):
            columns = self._table_columns[table]
            by_feature = rows.reshape(len(batch), count, columns)
            parts.append(torch.split_with_sizes(by_feature, [columns - first, first], dim=2))
        vectors = torch.cat([part[0].flatten(1) for part in parts], dim=1)
        return vectors, torch.cat([part[1] for part in parts], dim=1)

    def _pooled(self, batch: Batch) -> torch.Tensor:
        """Rows of all features side by side, [B, sum of their columns]."""
        pooled: torch.Tensor = self.embeddings(batch)
        if self._means is not None:
            pooled = self._means(pooled, batch)
        return self._thinned(pooled)

    def _thinned(self, values: torch.Tensor) -> torch.Tensor:
        """The same, in training with `embedding_dropout`."""
        if self.training and self.embedding_dropout:
            return nn.functional.dropout(values, self.embedding_dropout)
        return values

    def embed_apart(self, batch: Batch) -> list[torch.Tensor | SequenceRows]:
        """The pooled embedding of every feature but of `sequences`, whose keys come one by one.

        One look-up a table: a step is to call `embed` or this once. In training with
        `embedding_dropout`.

        Returns:
            Of each feature float32 [B, columns of its table], of a sequence its `SequenceRows`.

        Raises:
            ConfigError: the batch holds another number of features than the model was made for.
        """
        return [
            replace(own, rows=self._thinned(own.rows))
            if isinstance(own, SequenceRows)
            else self._thinned(own)
            for own in self._apart(batch)
        ]

    def graph_seams(self, path: str, names: Names | None) -> list[Seam]:
        """As `hps.nn.graph_seams.HasSeams` has it."""
        if not self.takes_sequences:
            name = input_name(name_at(path, "embeddings"))
            return [seams_of_bags(self.embeddings, self._means, name, names)]
        name = input_name(name_at(path, "bags"))
        bags = seams_of_bags(self.embeddings, self._means, name, names)
        return [bags, seams_of_sequences(self._apart, bags, self.sequences, path)]

    def export_dense(self, names: Names | None = None) -> DenseGraph:
        """The dense part as an ONNX graph, which is given what `embed`, `embed_side_by_side` or
        `embed_apart` look up, and dense columns; as `hps.export_dense`, which says more.

        Args:
            names: table -> names of its features, for the graph's description; None: as the tables
                list them, or numbered.

        Raises:
            ConfigError: as `hps.export_dense`.
        """
        return export_sized(self, self.num_dense, None, names)

    def graph_mark(self) -> str:
        """Equal for models whose graphs are equal, as far as code, layers and numbers tell."""
        means = self._means
        are_means = [
            means is not None and means.are_of(table, place)
            for table, count in self.features.items()
            for place in range(count)
        ]
        return f"{module_mark(self)}-{''.join(str(int(one)) for one in are_means)}"

    def dense_of(self, batch: Batch) -> torch.Tensor:
        """Dense columns [B, num_dense] as the batch has them; NaN is taken as 0.

        Bringing them to scale is the reader's work: criteo's counts come as log1p already.
        """
        if batch.dense.shape[1] != self.num_dense:
            raise ConfigError(
                f"{type(self).__name__}: the batch has {batch.dense.shape[1]} dense columns, the "
                f"model was made for {self.num_dense}"
            )
        return torch.nan_to_num(batch.dense.float())


class MLP(nn.Sequential):
    """Linear, ReLU, dropout for every hidden width; then a linear layer if `output` is given.

    Args:
        activation: of a layer of some width, instead of ReLU.
    """

    def __init__(
        self,
        width: int,
        hidden: Sequence[int],
        dropout: float,
        output: int | None = None,
        activation: Callable[[int], nn.Module] | None = None,
    ) -> None:
        layers: list[nn.Module] = []
        for next_width in hidden:
            layers.append(TrainedLinear(width, next_width))
            layers.append(nn.ReLU() if activation is None else activation(next_width))
            if dropout:
                layers.append(nn.Dropout(dropout))
            width = next_width
        if output is not None:
            layers.append(TrainedLinear(width, output))
            width = output
        super().__init__(*layers)
        self.output_width = width

    @property
    def output_bias(self) -> nn.Parameter:
        """Of the last linear layer, where `output` was given: [output]."""
        last = self[-1]
        assert isinstance(last, nn.Linear)
        return last.bias


def dense_factors(num_dense: int, dim: int) -> nn.Parameter:
    """One small vector a dense column, by which the column takes part in interactions: [C, dim]."""
    return nn.Parameter(torch.randn(num_dense, dim) * (0.1 / math.sqrt(dim)))


def pair_products(
    vectors: torch.Tensor, dense: torch.Tensor, factors: torch.Tensor
) -> torch.Tensor:
    """The sum of <v_i, v_j> over all pairs of an example's fields, features and dense columns.

    In time linear in the fields: half of (sum v)^2 - sum v^2. Source: Rendle, "Factorization
    Machines", ICDM 2010, lemma 3.1.

    Args:
        vectors: of the features, [B, F, dim].
        dense: columns, [B, C]; x_j times the learned factors[j] is the vector of column j.
        factors: [C, dim], as `dense_factors` makes them.

    Returns:
        [B].

    >>> pair_products(torch.tensor([[[1.0], [2.0]]]), torch.tensor([[3.0]]), torch.tensor([[1.0]]))
    tensor([11.])
    """
    total = vectors.sum(dim=1) + dense @ factors
    squares = vectors.square().sum(dim=1) + dense.square() @ factors.square()
    return 0.5 * (total.square() - squares).sum(dim=1)
