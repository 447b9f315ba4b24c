"""SequenceRows: the rows of a feature's keys one by one, for models that look at a sequence's keys.

Above it: base.py, models that take sequences. Below it: `hps.SparseEmbedding`, `hps.Batch`. There
is no padding: what an example's keys give depends neither on other examples nor on their number.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from hps.errors import ConfigError
from hps.nn.embedding import SparseEmbedding
from hps.types import Batch, Ids

if TYPE_CHECKING:
    from hps.contracts.training import RowServer

_Column = TypeVar("_Column", str, int)  # by its name, or its place
_WAY_OUT = (
    "describe a column of several keys in a features file (--features; docs/features.md), such as"
    ' [columns.last_items] with kind = "sequence" and target = "item", the column of the'
    " candidate"
)


@dataclass(frozen=True)
class SequenceRows:
    """The rows of one feature's keys, example after example, in the order of the log.

    Args:
        rows: float32 [L, D]; where keys have weights, multiplied by them.
        lengths: int64 [B], keys of each example; L in all.
        example: int64 [L], the example of each row.

    >>> lengths = torch.tensor([2, 0])
    >>> found = SequenceRows(torch.tensor([[1.0], [2.0]]), lengths, torch.tensor([0, 0]))
    >>> found.sums(found.rows).tolist(), found.spread(torch.tensor([[5.0], [7.0]])).tolist()
    ([[3.0], [0.0]], [[5.0], [5.0]])
    """

    rows: torch.Tensor
    lengths: torch.Tensor
    example: torch.Tensor

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """What each example has, [B, W], for each of its rows: [L, W]."""
        spread: torch.Tensor = _Spread.apply(values, self)  # type: ignore[no-untyped-call]
        return spread

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """Of what each row has, [L, W], the sum over each example's: [B, W]; zeros of none."""
        return torch.segment_reduce(values, "sum", lengths=self.lengths, unsafe=True)


class _Spread(torch.autograd.Function):
    """As `index_select`, whose own backward adds in no fixed order on a GPU."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, of: SequenceRows) -> torch.Tensor:
        ctx.of = of
        return values.index_select(0, of.example)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.of.sums(grad.contiguous()), None


def look_up_apart(
    embedding: SparseEmbedding, batch: Batch, num_features: int, sequences: Collection[int]
) -> list[torch.Tensor | SequenceRows]:
    """The rows of every feature of a table, pooled but for sequences.

    One look-up of all keys: each key of a sequence is a bag of its own, so that the native core
    pools the others, and sums the gradients of equal keys, as in any model.

    Args:
        embedding: sums the bags of the table.
        num_features: F of the table.
        sequences: places, among these features, of those whose keys come one by one.

    Raises:
        ConfigError: the batch holds another number of features.
    """
    table, size = embedding.table, len(batch)
    if table not in batch.features:
        raise ConfigError(f"the batch lacks table {table!r}; it holds {sorted(batch.features)}")
    ids = batch.features[table]
    offsets = ids.offsets
    if len(offsets) != num_features * size + 1:
        raise ConfigError(
            f"the batch has {len(offsets) - 1} bags of table {table!r}; {num_features} features "
            f"of {size} examples have {num_features * size}"
        )
    bounds = offsets[:: max(size, 1)].tolist() if size else [0] * (num_features + 1)
    starts, counts = [], []
    for place in range(num_features):
        begin, end = bounds[place], bounds[place + 1]
        if place in sequences:
            starts.append(torch.arange(begin, end, dtype=offsets.dtype, device=offsets.device))
        else:
            starts.append(offsets[place * size : (place + 1) * size])
        counts.append(len(starts[-1]))
    cut = torch.cat([*starts, offsets[-1:]])
    bags = replace(
        batch,
        features={table: Ids(ids.keys_L, cut, ids.weights_L)},
        # Whose length is the number of bags; their values count in a table with statistics.
        labels=(
            _labels_of_bags(batch.labels, offsets, sequences)
            if embedding.counts
            else batch.labels.new_empty(len(cut) - 1)
        ),
        weights=None,
        groups=None,
    )
    rows = embedding(bags).reshape(len(cut) - 1, embedding.dim)
    found: list[torch.Tensor | SequenceRows] = list(torch.split_with_sizes(rows, counts))
    for place in sequences:
        lengths = offsets[place * size : (place + 1) * size + 1].diff()
        example = torch.repeat_interleave(lengths, output_size=counts[place]).to(rows.device)
        own = found[place]
        assert isinstance(own, torch.Tensor)
        found[place] = SequenceRows(own, lengths.to(rows.device), example)
    return found


class ApartRows(nn.Module):
    """Looks up every feature of some tables, pooled but for sequences, whose keys come one by one.

    Args:
        server: of the rows.
        features: table -> number of its features.
        sequences: places among all features of those whose keys come one by one.
    """

    def __init__(
        self, server: "RowServer", features: Mapping[str, int], sequences: Collection[int]
    ) -> None:
        super().__init__()
        self._embeddings = nn.ModuleList(SparseEmbedding(server, table) for table in features)
        self._counts = list(features.values())
        self._sequences = sorted(sequences)
        self.means: frozenset[int] = frozenset()  # places of the features that are means

    def forward(self, batch: Batch) -> "list[torch.Tensor | SequenceRows]":
        """Of each feature float32 [B, columns of its table], of a sequence its `SequenceRows`; one
        look-up a table."""
        found: list[torch.Tensor | SequenceRows] = []
        for embedding, count in zip(self._embeddings, self._counts, strict=True):
            assert isinstance(embedding, SparseEmbedding)
            first = len(found)
            places = range(first, first + count)
            one_by_one = [place - first for place in self._sequences if place in places]
            of_table = look_up_apart(embedding, batch, count, one_by_one)
            offsets = batch.features[embedding.table].offsets
            for place, own in enumerate(of_table):
                if first + place in self.means and isinstance(own, torch.Tensor):
                    lengths = offsets[place * len(batch) : (place + 1) * len(batch) + 1].diff()
                    own = own / lengths.clamp(min=1).to(own).unsqueeze(1)
                found.append(own)
        return found


def _labels_of_bags(
    labels: torch.Tensor, offsets: torch.Tensor, sequences: Collection[int]
) -> torch.Tensor:
    """The label of each bag's example, where each key of a sequence is a bag of its own."""
    size = len(labels)
    num_features = (len(offsets) - 1) // max(size, 1)
    lengths = offsets.diff().to(labels.device)
    found = [labels[:0]]
    for place in range(num_features):
        own = lengths[place * size : (place + 1) * size]
        found.append(labels.repeat_interleave(own) if place in sequences else labels)
    return torch.cat(found)


def require_sequences(name: str, sequences: Mapping[int, int]) -> None:
    """Refuses a model that takes sequences where there is none.

    Args:
        name: of the model, or its class.

    Raises:
        ConfigError: says what to write.
    """
    if not sequences:
        raise ConfigError(f"model {name}: no column is a sequence with a target; {_WAY_OUT}")


def check_targets(
    batch: Batch, sequences: Mapping[int, int], features: Mapping[str, Sequence[str]]
) -> None:
    """Refuses a batch to be scored in which an example has several keys of a target: the log that
    the model was trained on has one.

    Args:
        sequences: place of each sequence -> that of its target.
        features: table -> names of its features, in the order of the places.

    Raises:
        ConfigError: names the target and the example.
    """
    places = [
        (table, place, name)
        for table, names in features.items()
        for place, name in enumerate(names)
    ]
    size = len(batch)
    for target in sorted(set(sequences.values())):
        table, place, name = places[target]
        lengths = batch.features[table].offsets[place * size : (place + 1) * size + 1].diff()
        if bool((lengths > 1).any()):
            row = int((lengths > 1).to(torch.int8).argmax())
            raise ConfigError(
                f"predict: column {name!r} has {int(lengths[row])} keys in row {row + 1}; "
                "it is what sequences are weighed by, and has one key an example"
            )


def require_one_dim(
    name: str, targets: Mapping[_Column, _Column], dims: Mapping[_Column, int]
) -> None:
    """Refuses sequences and targets of several dims: rows of one are held against those of another.

    Args:
        name: of the model, or its class.
        targets: of each sequence its target, by names or places.
        dims: of the features, likewise.

    Raises:
        ConfigError: names the columns and their dims.
    """
    found = {column: dims[column] for pair in targets.items() for column in pair}
    if len(set(found.values())) > 1:
        raise ConfigError(
            f"{name}: the dims {found} of sequences and their targets must be equal, as their rows "
            "are held against each other; in the features file give these columns one table, or "
            "tables of one dim"
        )


def check_sequences(
    model: type,
    sequences: Mapping[int, int],
    features: Mapping[str, int],
    columns: Mapping[str, int],
) -> None:
    """Refuses sequences that a class does not take, or that its features do not have.

    Args:
        model: the class.
        sequences: places of sequences -> those of their targets.
        features: table -> number of its features.
        columns: table -> columns of its rows.

    Raises:
        ConfigError: names what is wrong.
    """
    name = model.__name__
    if not getattr(model, "takes_sequences", False):
        raise ConfigError(
            f"{name}: sequences={dict(sequences)}: the class does not say takes_sequences = True, "
            "and sums the keys of every feature; leave them out"
        )
    require_sequences(name, sequences)
    dims = [columns[table] for table, count in features.items() for _ in range(count)]
    count = len(dims)
    for place, target in sequences.items():
        if not (0 <= place < count and 0 <= target < count) or target in sequences:
            raise ConfigError(
                f"{name}: sequences={dict(sequences)}: {place} -> {target}: both must be places "
                f"of {count} features, from 0, and the target no sequence"
            )
    require_one_dim(name, sequences, dict(enumerate(dims)))
