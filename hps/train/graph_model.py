"""GraphModel: scores batches by a published ONNX graph over rows of a server.

Above it: loaded.py, `hps.Model`. Below it: hps/nn/graph_run.py (onnxruntime), the look-ups of
`hps.nn` and `hps.models`. No code of the model's class is needed, and none is run.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hps.common.json_text import Json
from hps.errors import ConfigError, CorruptionError
from hps.models.pooling import BagMeans, pooling_of
from hps.models.sequences import ApartRows, SequenceRows
from hps.nn.embeddings import SparseEmbeddings
from hps.nn.graph_run import GraphSession
from hps.publish.graph import DENSE, EMBEDDINGS, EXAMPLE, ROWS
from hps.publish.version import PublishedGraph
from hps.types import Batch

if TYPE_CHECKING:
    from hps.contracts.training import RowServer

_Column = tuple[str, int, str]  # table of a batch, place of the feature there, table of the rows


class GraphModel:
    """A graph and its weights over rows; threads may share it.

    Args:
        server: of the rows.
        graph: as a version describes it.
        session: of its file and its weights.
        sequences: place of each sequence among the features -> that of its target.

    Raises:
        ConfigError: tables that it needs were not published. CorruptionError: what the version says
            of its inputs is not what the graph has.
    """

    def __init__(
        self,
        server: "RowServer",
        graph: PublishedGraph,
        session: GraphSession,
        sequences: Mapping[int, int],
    ) -> None:
        self.session = session
        self.device = server.device
        wanted = {str(one["name"]): one for one in graph.inputs}
        if sorted(session.inputs) != sorted(wanted):
            raise CorruptionError(
                f"{graph.file.name}: the graph's inputs are {sorted(session.inputs)}, its version "
                f"names {sorted(wanted)}"
            )
        self.graph = graph
        self.num_dense = num_dense_of(graph)
        features = _features_read(graph)
        places = _places_of(features)
        own = {
            places[one["keys"], one["place"]]: one for one in graph.inputs if one["holds"] == ROWS
        }
        self.sequences = dict(sequences) if own else {}
        self._apart = ApartRows(server, features, own).eval() if own else None
        self._of_rows = {str(one["name"]): place for place, one in own.items()}
        self._of_example = {
            str(one["name"]): places[one["keys"], one["place"]]
            for one in graph.inputs
            if one["holds"] == EXAMPLE
        }
        self._bags: dict[str, _Bags] = {}
        self._of_apart: dict[str, list[int]] = {}
        means: set[int] = set()
        for one in graph.inputs:
            if one["holds"] != EMBEDDINGS:
                continue
            at = [places[column["keys"], column["place"]] for column in one["columns"]]
            is_plain = all(column["table"] == column["keys"] for column in one["columns"])
            if own and is_plain and not own.keys() & set(at):
                self._of_apart[one["name"]] = at
                columns = zip(at, one["columns"], strict=True)
                means |= {place for place, column in columns if column["pooling"] == "mean"}
            else:
                self._bags[one["name"]] = _Bags(server, one["columns"], features)
        if self._apart is not None:
            self._apart.means = frozenset(means)

    def score(self, batch: Batch) -> torch.Tensor:
        """Logits [B] of examples as they come, float32 on the host.

        Raises:
            ConfigError: the batch has other features or dense columns than the model.
        """
        if not len(batch):
            return torch.zeros(0)
        given = {name: bags(batch) for name, bags in self._bags.items()}
        if self._apart is not None:
            given |= self._look_up_apart(batch, self._apart)
        if self.num_dense:
            if batch.dense.shape[1] != self.num_dense:
                raise ConfigError(
                    f"the batch has {batch.dense.shape[1]} dense columns, the model was made for "
                    f"{self.num_dense}"
                )
            given[DENSE] = batch.dense.float()
        arrays = {name: np.ascontiguousarray(own.cpu().numpy()) for name, own in given.items()}
        return torch.from_numpy(self.session.logits(arrays))

    def _look_up_apart(self, batch: Batch, apart: ApartRows) -> dict[str, torch.Tensor]:
        found: list[Any] = apart(batch)
        given = {
            name: torch.cat([found[place] for place in places], dim=1)
            for name, places in self._of_apart.items()
        }
        for names, part in ((self._of_rows, "rows"), (self._of_example, "example")):
            for name, place in names.items():
                assert isinstance(found[place], SequenceRows), "a sequence's place"
                given[name] = getattr(found[place], part)
        return given


class _Bags:
    """The pooled rows that one input of a graph holds.

    Args:
        columns: of the input, as its version has them.
        features: table -> number of its features in a batch.
    """

    def __init__(
        self, server: "RowServer", columns: Sequence[Json], features: Mapping[str, int]
    ) -> None:
        keys = list(dict.fromkeys(str(one["keys"]) for one in columns))
        beside = {one["keys"]: str(one["table"]) for one in columns if one["table"] != one["keys"]}
        counts = {table: features[table] for table in keys}
        are_means = {table: [False] * count for table, count in counts.items()}
        for one in columns:
            are_means[one["keys"]][one["place"]] |= one["pooling"] == "mean"
        self._embeddings = SparseEmbeddings(
            server, counts, pooling_of(are_means), beside=beside
        ).eval()
        rows = {table: [table, *([beside[table]] if table in beside else [])] for table in keys}
        dims = {name: server.tables[name].dim for names in rows.values() for name in names}
        self._means = BagMeans.of(
            are_means, {table: sum(dims[name] for name in rows[table]) for table in keys}
        )
        of_all: list[_Column] = [
            (table, place, name)
            for table, count in counts.items()
            for place in range(count)
            for name in rows[table]
        ]
        asked = [(str(one["keys"]), int(one["place"]), str(one["table"])) for one in columns]
        self._order: torch.Tensor | None = None
        if asked != of_all:
            ends = list(accumulate(dims[own[2]] for own in of_all))
            starts = dict(zip(of_all, [0, *ends[:-1]], strict=True))
            self._order = torch.tensor(
                [starts[own] + number for own in asked for number in range(dims[own[2]])]
            )

    def __call__(self, batch: Batch) -> torch.Tensor:
        """[B, sum of the columns]."""
        pooled: torch.Tensor = self._embeddings(batch)
        if self._means is not None:
            pooled = self._means(pooled, batch)
        if self._order is None:
            return pooled
        return pooled.index_select(1, self._order.to(pooled.device))


def num_dense_of(graph: PublishedGraph) -> int:
    """Dense columns that it reads."""
    return sum(int(one["shape"][1]) for one in graph.inputs if one["holds"] == DENSE)


def missing_tables(graph: PublishedGraph, tables: Mapping[str, object]) -> list[str]:
    """Those whose rows it needs that are not among these."""
    needed: set[str] = set()
    for one in graph.inputs:
        needed |= {str(column["table"]) for column in one.get("columns", ())}
        needed |= {str(one["table"])} if "table" in one else set()
    return sorted(needed - tables.keys())


def _features_read(graph: PublishedGraph) -> dict[str, int]:
    return {table: len(names) for table, names in graph.features.items()}


def _places_of(features: Mapping[str, int]) -> dict[tuple[str, int], int]:
    """Of each feature of each table its place among all."""
    of_each = [(table, place) for table, count in features.items() for place in range(count)]
    return {own: number for number, own in enumerate(of_each)}
