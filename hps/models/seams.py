"""Seams of a click model: where it looks rows up, for its dense part as a graph.

Above it: `ClickModel.graph_seams`. Below it: hps/nn/graph_seams.py, sequences.py, pooling.py. Means
of bags are made before the graph. A sequence comes as its rows, and the example of each.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from hps.common.json_text import Json
from hps.models.pooling import BagMeans
from hps.models.sequences import ApartRows, SequenceRows
from hps.nn.embeddings import SparseEmbeddings
from hps.nn.graph_seams import (
    BATCH,
    GivenEmbeddings,
    GraphInput,
    Names,
    Seam,
    columns_of,
    given_of,
    input_name,
)
from hps.publish.graph import EMBEDDINGS, EXAMPLE, ROWS
from hps.types import Batch


@dataclass(frozen=True)
class GivenRows(SequenceRows):
    """A sequence's rows in a graph, of operators that ONNX has."""

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """As SequenceRows has it."""
        return values.index_select(0, self.example)

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """As SequenceRows has it, but for the order of the additions."""
        nothing = values.new_zeros(self.lengths.shape[0], values.shape[1])
        return nothing.index_add(0, self.example, values)


class GivenMeans(nn.Module):
    """In place of what divides sums: a graph is given means."""

    def forward(self, pooled: torch.Tensor, batch: Batch) -> torch.Tensor:
        """What it gets."""
        return pooled


class GivenApart(nn.Module):
    """In place of `ApartRows`: gives what the batch carries.

    Args:
        pooled: the graph's input for all features but sequences, side by side.
        widths: of each feature that is in it.
        sequences: place of each sequence among all features -> the graph's inputs for its rows, and
            for the example of each.
    """

    def __init__(
        self, pooled: str, widths: list[int], sequences: Mapping[int, tuple[str, str]]
    ) -> None:
        super().__init__()
        self._pooled, self._widths = pooled, widths
        self._sequences = dict(sequences)

    def forward(self, batch: Batch) -> list[torch.Tensor | SequenceRows]:
        """As ApartRows has it."""
        pooled = list(torch.split_with_sizes(given_of(batch, self._pooled), self._widths, dim=1))
        found: list[torch.Tensor | SequenceRows] = []
        for place in range(len(self._widths) + len(self._sequences)):
            if place not in self._sequences:
                found.append(pooled.pop(0))
                continue
            rows, example = (given_of(batch, name) for name in self._sequences[place])
            lengths = example.new_zeros(batch.dense.shape[0])
            lengths = lengths.index_add(0, example, torch.ones_like(example))
            found.append(GivenRows(rows, lengths, example))
        return found


def seams_of_bags(
    embeddings: SparseEmbeddings, means: BagMeans | None, name: str, names: Names | None
) -> Seam:
    """Where a model takes the pooled rows of all features.

    Args:
        means: what divides the sums of some of them.
        name: of the graph's input.
        names: of features.
    """
    columns, features = columns_of(embeddings, embeddings.server.tables, names)
    given: dict[int, nn.Module] = {
        id(embeddings): GivenEmbeddings(
            name, embeddings.dtype, embeddings.feature_names, embeddings.widths
        )
    }
    if means is not None:
        given[id(means)] = GivenMeans()
        columns = [_pooled_by(means, one) for one in columns]
    shape = (BATCH, sum(embeddings.widths))
    about: Json = {"holds": EMBEDDINGS, "columns": columns}
    return Seam([GraphInput(name, "float32", shape, about)], features, given)


def seams_of_sequences(
    apart: ApartRows, bags: Seam, sequences: Mapping[int, int], path: str
) -> Seam:
    """Where a model takes the rows of sequences one by one.

    Args:
        apart: its look-up.
        bags: of the same features, all of them pooled.
        sequences: place of each among all features -> that of its target.
        path: of the model in the whole module.
    """
    of_all = bags.inputs[0].about["columns"]
    pooled = [one for place, one in enumerate(of_all) if place not in sequences]
    widths, name = [one["columns"] for one in pooled], input_name(path)
    about: Json = {"holds": EMBEDDINGS, "columns": pooled}
    inputs = [GraphInput(name, "float32", (BATCH, sum(widths)), about)]
    given: dict[int, tuple[str, str]] = {}
    for place in sequences:
        column = of_all[place]
        own = f"{column['feature']}{f'.{path}' if path else ''}"
        given[place] = rows, example = f"{ROWS}.{own}", f"{EXAMPLE}.{own}"
        where = {field: column[field] for field in ("feature", "keys", "place", "table")}
        shape = (rows, column["columns"])
        inputs.append(GraphInput(rows, "float32", shape, {"holds": ROWS, **where}))
        inputs.append(GraphInput(example, "int64", (rows,), {"holds": EXAMPLE, **where}))
    return Seam(inputs, bags.features, {id(apart): GivenApart(name, widths, given)})


def _pooled_by(means: BagMeans, column: Json) -> Json:
    is_mean = means.are_of(column["keys"], column["place"]) or column["pooling"] == "mean"
    return {**column, "pooling": "mean" if is_mean else "sum"}
