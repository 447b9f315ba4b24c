"""Seams: where a module looks rows up, and what takes the look-up's place in a graph.

Above it: dense_export.py; `hps.models.ClickModel`, which has seams of its own. Below it:
`hps.SparseEmbeddings`, `hps.SparseEmbedding`. A graph is given what a look-up gives: a copy of the
module has a `GivenEmbeddings` in place of each look-up, which finds it in the batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, Protocol, runtime_checkable

import torch
from torch import nn

from hps.common.json_text import Json
from hps.config import TableConfig
from hps.errors import ConfigError
from hps.nn.embedding import SparseEmbedding
from hps.nn.embeddings import SparseEmbeddings
from hps.nn.feature_layout import numbered_features
from hps.publish.graph import EMBEDDINGS
from hps.types import Batch, Ids

if TYPE_CHECKING:
    from hps.contracts.training import RowServer

BATCH = "batch"  # the length that all examples' tensors have
Names = Mapping[str, Sequence[str]]  # table -> names of its features


@dataclass(frozen=True)
class GraphInput:
    """One input of a graph.

    Args:
        name: of it.
        dtype: "float32" or "int64".
        shape: a text is any length, and BATCH that of all examples.
        about: what it holds; docs/publishing.md has the fields.
    """

    name: str
    dtype: str
    shape: tuple[str | int, ...]
    about: Json

    def described(self) -> Json:
        """As a version has it."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), **self.about}


@dataclass(frozen=True)
class Seam:
    """Where one module looks rows up.

    Args:
        inputs: of a graph in which it looks nothing up.
        features: table -> names of the features that a batch has of it.
        given: what takes the place of what, by its id, in a copy of the module.
    """

    inputs: Sequence[GraphInput]
    features: Mapping[str, Sequence[str]]
    given: Mapping[int, nn.Module]


@runtime_checkable
class HasSeams(Protocol):
    """A module that knows where it looks rows up, beside the look-ups among its modules."""

    def graph_seams(self, path: str, names: Names | None) -> list[Seam]:
        """Its seams.

        Args:
            path: by which it goes in the whole module; empty of the whole.
            names: of features; None: as the tables list them, or numbered.
        """


@dataclass(slots=True)
class GivenBatch(Batch):
    """A batch as a graph has it: dense values, and what look-ups give.

    Args:
        given: by the names of the graph's inputs.
    """

    given: dict[str, torch.Tensor] = field(default_factory=dict)


class NoFeatures(Mapping[str, Ids]):
    """In place of a batch's keys, which a graph has not."""

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            "a graph has no keys: take rows by hps.SparseEmbeddings alone (a sequence's by "
            "hps.models.ClickModel.embed_apart), and look at no batch.features beside them"
        )

    def __getitem__(self, table: str) -> Ids:
        self._refuse()

    def __iter__(self) -> Iterator[str]:
        self._refuse()

    def __len__(self) -> int:
        self._refuse()


def given_of(batch: Batch, name: str) -> torch.Tensor:
    """The input of a graph that a batch carries."""
    if not isinstance(batch, GivenBatch):
        raise ConfigError(
            f"in a graph the look-up {name!r} is called with the batch that the module is called "
            f"with, and not with a {type(batch).__name__}; export a module that does so"
        )
    return batch.given[name]


class GivenEmbeddings(nn.Module):
    """In place of a look-up: gives what the batch carries.

    Args:
        name: of the graph's input.
        dtype: of the look-up's output.
        features, widths: of the look-up, in the order of its columns.
    """

    def __init__(
        self, name: str, dtype: torch.dtype, features: Sequence[str], widths: Sequence[int]
    ) -> None:
        super().__init__()
        self._name = name
        self.dtype = dtype
        self.feature_names, self.widths = tuple(features), tuple(widths)

    def forward(self, batch: Batch) -> torch.Tensor:
        """The rows side by side, [B, sum of widths]."""
        return given_of(batch, self._name).to(self.dtype)

    def by_name(self, batch: Batch) -> dict[str, torch.Tensor]:
        """As `SparseEmbeddings.by_name`."""
        parts = torch.split_with_sizes(self(batch), list(self.widths), dim=1)
        return dict(zip(self.feature_names, parts, strict=True))


def seams_of(
    module: nn.Module, tables: Mapping[str, TableConfig], batch: Batch | None, names: Names | None
) -> list[Seam]:
    """Every seam of a module, each once.

    Args:
        tables: of the server whose rows it looks up.
        batch: that it was called with; None: every look-up knows its features.
        names: of features.

    Raises:
        ConfigError: a look-up that no graph can be given.
    """
    found: list[Seam] = []
    seen: list[str] = []
    for path, own in module.named_modules():
        if any(path.startswith(f"{one}." if one else "") for one in seen):
            continue
        if isinstance(own, HasSeams):
            seen.append(path)
            found += own.graph_seams(path, names)
        elif isinstance(own, SparseEmbeddings):
            found.append(_of_embeddings(own, path, tables, names))
        elif isinstance(own, SparseEmbedding):
            found.append(_of_embedding(own, path, tables, batch))
    return found


def server_of(module: nn.Module) -> "RowServer":
    """Whose rows a module looks up.

    Raises:
        ConfigError: it looks none up.
    """
    for own in module.modules():
        if isinstance(own, SparseEmbeddings | SparseEmbedding):
            return own.server
    raise ConfigError(
        f"export_dense: {type(module).__name__} looks no rows up: none of its modules is an "
        "hps.SparseEmbeddings or hps.SparseEmbedding; export it by torch.onnx itself"
    )


def input_name(path: str) -> str:
    """The graph's input for a look-up that lies at a path in the whole module.

    >>> input_name(""), input_name("embeddings"), input_name("tower.embeddings")
    ('embeddings', 'embeddings', 'embeddings.tower.embeddings')
    """
    return EMBEDDINGS if path in ("", EMBEDDINGS) else f"{EMBEDDINGS}.{path}"


def name_at(path: str, name: str) -> str:
    """Of a part of a module that lies at a path in the whole one.

    >>> name_at("", "embeddings"), name_at("tower", "embeddings")
    ('embeddings', 'tower.embeddings')
    """
    return f"{path}.{name}" if path else name


def columns_of(
    embeddings: SparseEmbeddings, tables: Mapping[str, TableConfig], names: Names | None
) -> tuple[list[Json], dict[str, list[str]]]:
    """What the columns of a look-up are.

    Returns:
        Of each group of columns `feature`, `keys` and `place` (the table of a batch, and the
        feature's place there), `table` (of the rows), `columns` and `pooling`; and the features of
        each table of a batch.
    """
    layout = embeddings.layout
    assert layout is not None, "of a look-up that was called"
    found: dict[int, Json] = {}
    features: dict[str, list[str]] = {}
    for number, table in enumerate(layout.places.tables):
        keys = embeddings.ids_of.get(table, table)
        chosen = layout.chosen.get(table)
        listed = _names_of(tables[keys], layout.count(number), names)
        features.setdefault(keys, listed)
        for order, at in enumerate(layout.places.features[number]):
            place = order if chosen is None else chosen.places[order]
            found[at] = {
                "feature": listed[place],
                "keys": keys,
                "place": place,
                "table": table,
                "columns": layout.widths[at],
                "pooling": "mean" if layout.places.are_means[number] else "sum",
            }
    return [found[at] for at in sorted(found)], features


def _names_of(table: TableConfig, count: int, names: Names | None) -> list[str]:
    own = (names or {}).get(table.name, table.features)
    if own is None or len(own) != count:
        return numbered_features(table.name, count)
    return list(own)


def _of_embeddings(
    module: SparseEmbeddings, path: str, tables: Mapping[str, TableConfig], names: Names | None
) -> Seam:
    if module.layout is None:
        raise ConfigError(
            f"export_dense: the look-up {path!r} does not know its features, and was not called "
            "with the batch; pass features= when it is made"
        )
    columns, features = columns_of(module, tables, names)
    name, about = input_name(path), {"holds": EMBEDDINGS, "columns": columns}
    given = GivenEmbeddings(name, module.dtype, module.feature_names, module.widths)
    shape = (BATCH, sum(module.widths))
    return Seam([GraphInput(name, "float32", shape, about)], features, {id(module): given})


def _of_embedding(
    module: SparseEmbedding, path: str, tables: Mapping[str, TableConfig], batch: Batch | None
) -> Seam:
    table, pooling = module.table, module.pooling
    if pooling is None:
        raise ConfigError(
            f"export_dense: the look-up {path!r} gives a row a key (pooling=None), and a graph is "
            "given a row an example; pool it, or take a sequence's rows by "
            "hps.models.ClickModel.embed_apart"
        )
    if batch is None or table not in batch.features:
        raise ConfigError(f"export_dense: the batch has no table {table!r}, which {path!r} reads")
    count = (len(batch.features[table].offsets) - 1) // len(batch)
    listed = _names_of(tables[table], count, None)
    columns = [
        {
            "feature": name,
            "keys": table,
            "place": place,
            "table": table,
            "columns": module.dim,
            "pooling": pooling,
        }
        for place, name in enumerate(listed)
    ]
    name, about = input_name(path), {"holds": EMBEDDINGS, "columns": columns}
    given = GivenEmbeddings(name, module.dtype, listed, [module.dim] * count)
    found = GraphInput(name, "float32", (BATCH, module.dim * count), about)
    return Seam([found], {table: listed}, {id(module): given})
