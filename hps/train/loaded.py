"""Loaded: what scores of a model, over rows of one version or checkpoint, ready to be taken over.

Above it: model.py. Below it: recipe.py, `hps.models`; graph_model.py of what is published as an
ONNX graph; overlaid_rows.py, through which versions read. A model of hps is scored by torch, with
the bits of training. One of a user's own is scored by its graph, where it was published with one:
then no code of it is run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

from hps.common.json_text import Json
from hps.contracts.joint import Overlays
from hps.contracts.training import RowServer, TrainingServer
from hps.errors import ConfigError
from hps.models.kinds import MODELS, load_class
from hps.nn.graph_run import GraphSession
from hps.publish.version import Version
from hps.train.checkpoints import ModelCheckpoint
from hps.train.follower import PublishedState
from hps.train.graph_model import GraphModel, missing_tables, num_dense_of
from hps.train.overlaid_rows import OverlaidRows
from hps.train.published_rows import PublishedRows
from hps.train.raw_columns import RawColumns
from hps.train.recipe import ModelRecipe
from hps.train.trainer import stored_recipe
from hps.types import Batch

if TYPE_CHECKING:
    import torch

    from hps.models import ClickModel


class Scores(Protocol):
    """What makes logits of batches."""

    @property
    def device(self) -> str:
        """Where batches are to lie."""

    @property
    def sequences(self) -> Mapping[int, int]:
        """Place of each sequence among the features -> that of its target."""

    def score(self, batch: Batch) -> "torch.Tensor":
        """Logits [B] of examples as they come."""


@dataclass(frozen=True)
class Loaded:
    """A model over rows, of one checkpoint or version, ready to score.

    Args:
        checkpoint: that both are of, as `Model.checkpoint` has it.
        server: of the rows.
        rows: the server as the model reads it; of a version OverlaidRows.
        recipe: that the model was made by; None of a graph that was published without one.
        scores: the module, in eval mode, or the graph.
        features: table -> names of its features, in the order of a batch; the same object in all
            versions that differ by their weights alone.
        num_dense: dense columns of a batch.
        raw: makes batches of raw columns; None where there is no recipe.
    """

    checkpoint: str | int | None
    server: TrainingServer
    rows: RowServer
    recipe: ModelRecipe | None
    scores: "ClickModel | GraphModel"
    features: dict[str, list[str]]
    num_dense: int
    raw: RawColumns | None

    @property
    def version(self) -> str:
        """The checkpoint as text."""
        return "newest" if self.checkpoint is None else str(self.checkpoint)

    @classmethod
    def of(cls, server: TrainingServer, found: ModelCheckpoint) -> Self:
        """Of a checkpoint, by torch; errors as Model."""
        return cls._by_torch(found.name, server, server, found.model)

    @classmethod
    def published(
        cls,
        rows: PublishedRows,
        version: Version,
        state: PublishedState,
        before: Self | None = None,
        spare: Self | None = None,
    ) -> Self:
        """Of a version.

        Args:
            rows: of it, or of the version before it, which changes lead from.
            state: of the version.
            before: what is read now, over the same rows.
            spare: what was before that, over the same rows, and nobody reads any more: its module
                becomes this version's.

        Raises:
            ConfigError: its model needs tables that were not published, or the file of a user's
                own class, which is not there; or onnxruntime. CorruptionError: no such graph.
        """
        number, recipe = version.number, recipe_of(state)
        if before is not None and before._is_alike(recipe, state):
            return before._with_weights(number, state, spare)
        server, read = rows.server, OverlaidRows(rows.server)
        if state.graph is None or is_torch(recipe):
            assert recipe is not None, "without a graph there is one"
            _check_tables(number, recipe.tables, rows)
            load_class(recipe.kind, store=rows.folder, is_stored=True)
            return cls._by_torch(number, server, read, state.model)
        graph, session = state.graph, new_session(state)
        _check_tables(number, missing_tables(graph, server.tables), rows)
        sequences = {} if recipe is None else recipe.sequences
        scores = GraphModel(read, graph, session, sequences)
        if recipe is not None:
            return cls._by_recipe(number, server, read, recipe, scores)
        features, num_dense = dict(graph.features), num_dense_of(graph)
        return cls(number, server, read, None, scores, features, num_dense, None)

    def lay_over(self, overlays: Overlays) -> None:
        """Rows that are read in place of the server's; of a version."""
        assert isinstance(self.rows, OverlaidRows), "the rows of a version"
        self.rows.overlays = overlays

    def _is_alike(self, recipe: ModelRecipe | None, state: PublishedState) -> bool:
        """Whether another version's model differs from this one by its weights alone."""
        if self.recipe != recipe:
            return False
        if not isinstance(self.scores, GraphModel):
            return True
        graph, own = state.graph, self.scores.graph
        return graph is not None and (graph.inputs, graph.features) == (own.inputs, own.features)

    def _with_weights(self, number: int, state: PublishedState, spare: Self | None) -> Self:
        """The model with another version's weights; this one stays as it is, for those who read it
        now."""
        if (
            spare is None
            or spare.features is not self.features
            or not spare._is_alike(self.recipe, state)
        ):
            spare = None
        rows = OverlaidRows(self.server) if spare is None else spare.rows
        scores = None if spare is None else spare.scores
        if isinstance(self.scores, GraphModel):
            assert state.graph is not None, "it is alike"
            session = new_session(state)
            if isinstance(scores, GraphModel):
                scores.session = session
            else:
                scores = GraphModel(rows, state.graph, session, self.scores.sequences)
        else:
            assert self.recipe is not None, "of a module there is one"
            if scores is None:
                scores = self.recipe.build(rows).to(rows.device).eval()
            assert not isinstance(scores, GraphModel), "it is alike"
            self.recipe.check_weights(scores, state.model["model"])
            scores.load_state_dict(state.model["model"])
        return replace(self, checkpoint=number, rows=rows, scores=scores)

    @classmethod
    def _by_torch(
        cls, name: str | int | None, server: TrainingServer, rows: RowServer, model: Json
    ) -> Self:
        recipe = stored_recipe(model)
        load_class(recipe.kind, is_stored=True)
        module = recipe.build(rows).to(rows.device)
        recipe.check_weights(module, model["model"])
        module.load_state_dict(model["model"])
        return cls._by_recipe(name, server, rows, recipe, module.eval())

    @classmethod
    def _by_recipe(
        cls,
        name: str | int | None,
        server: TrainingServer,
        rows: RowServer,
        recipe: ModelRecipe,
        scores: "ClickModel | GraphModel",
    ) -> Self:
        features = {table: list(names) for table, names in recipe.features.items()}
        raw = RawColumns(recipe, server.tables, features, scores.sequences)
        return cls(name, server, rows, recipe, scores, features, recipe.num_dense, raw)


def recipe_of(state: PublishedState) -> ModelRecipe | None:
    """Of a version's model; None where it has none, and a graph.

    Raises:
        ConfigError: neither, or a recipe of another version of hps.
    """
    if "recipe" not in state.model and state.graph is not None:
        return None
    return stored_recipe(state.model)


def is_torch(recipe: ModelRecipe | None) -> bool:
    """Whether a version's model is scored by torch, though it has a graph: one of hps."""
    return recipe is not None and recipe.kind in MODELS


def new_session(state: PublishedState) -> GraphSession:
    """Of a version's graph and weights; errors as GraphSession."""
    return GraphSession(state.onnx, state.weights, state.where)


def _check_tables(number: int, needed: list[str], rows: PublishedRows) -> None:
    missing = sorted(set(needed) - rows.server.tables.keys())
    if missing:
        raise ConfigError(
            f"version {number}: its model needs tables {missing}, which were not published; "
            "publish all tables"
        )
