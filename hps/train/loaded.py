"""Loaded: what scores of a model, over rows of one version or checkpoint, ready to be taken over.

Above it: model.py. Below it: recipe.py, `hps.models`; graph_model.py of what is published as an
ONNX graph. A model of hps is scored by torch, with the bits of training. One of a user's own is
scored by its graph, where it was published with one: then no code of it is run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from hps.contracts.training import TrainingServer
from hps.errors import ConfigError
from hps.features.transform import FeatureTransform
from hps.models.kinds import MODELS, load_class
from hps.nn.graph_run import GraphSession
from hps.reader.raw_lines import FORMATS as LINES
from hps.train.checkpoints import ModelCheckpoint
from hps.train.follower import PublishedState
from hps.train.graph_model import GraphModel, missing_tables, num_dense_of
from hps.train.published_rows import PublishedRows
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
    """A model over rows, ready to score.

    Args:
        checkpoint: that both are of, as `Model.checkpoint` has it.
        server: of the rows.
        recipe: that the model was made by; None of a graph that was published without one.
        scores: the module, in eval mode, or the graph.
        features: table -> names of its features, in the order of a batch.
        num_dense: dense columns of a batch.
        transform: of raw columns; None where they are the model's.
        is_of_lines: the log's format has no columns.
    """

    checkpoint: str | int | None
    server: TrainingServer
    recipe: ModelRecipe | None
    scores: "ClickModel | GraphModel"
    features: dict[str, list[str]]
    num_dense: int
    transform: FeatureTransform | None
    is_of_lines: bool

    @classmethod
    def of(cls, server: TrainingServer, found: ModelCheckpoint) -> Self:
        """Of a checkpoint, by torch; errors as Model."""
        recipe = stored_recipe(found.model)
        load_class(recipe.kind, is_stored=True)
        module = recipe.build(server).to(server.device)
        recipe.check_weights(module, found.model["model"])
        module.load_state_dict(found.model["model"])
        return cls._by_recipe(found.name, server, recipe, module.eval())

    @classmethod
    def published(cls, rows: PublishedRows, number: int, state: PublishedState) -> Self:
        """Of a version.

        Raises:
            ConfigError: its model needs tables that were not published, or the file of a user's
                own class, which is not there; or onnxruntime. CorruptionError: no such graph.
        """
        recipe = recipe_of(state)
        if state.graph is None or is_torch(recipe):
            assert recipe is not None, "without a graph there is one"
            _check_tables(number, [*recipe.features, *recipe.first_order_tables.values()], rows)
            load_class(recipe.kind, store=rows.folder, is_stored=True)
            return cls.of(rows.server, ModelCheckpoint(number, state.model, {}))
        graph, session = state.graph, new_session(state)
        _check_tables(number, missing_tables(graph, rows.server.tables), rows)
        sequences = {} if recipe is None else recipe.sequences
        scores = GraphModel(rows.server, graph, session, sequences)
        if recipe is not None:
            return cls._by_recipe(number, rows.server, recipe, scores)
        features, num_dense = dict(graph.features), num_dense_of(graph)
        return cls(number, rows.server, None, scores, features, num_dense, None, False)

    def changed(self, number: int, state: PublishedState) -> Callable[[], None] | None:
        """What brings another version's weights into the model.

        Returns:
            None where the other version's model is another one. Else to be called once, while
            nobody scores; it cannot fail.
        """
        if self.recipe != recipe_of(state):
            return None
        scores = self.scores
        if isinstance(scores, GraphModel):
            if state.graph is None or state.graph.inputs != scores.inputs:
                return None
            session = new_session(state)
            return lambda: setattr(scores, "session", session)
        assert self.recipe is not None, "of a module there is one"
        weights = state.model["model"]
        self.recipe.check_weights(scores, weights)
        return lambda: _put(scores, weights)

    @classmethod
    def _by_recipe(
        cls,
        name: str | int | None,
        server: TrainingServer,
        recipe: ModelRecipe,
        scores: "ClickModel | GraphModel",
    ) -> Self:
        features = {table: list(names) for table, names in recipe.features.items()}
        is_of_lines = recipe.reading()["format"] in LINES
        transform = recipe.make_transform()
        return cls(name, server, recipe, scores, features, recipe.num_dense, transform, is_of_lines)


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


def _put(module: "ClickModel", weights: Mapping[str, "torch.Tensor"]) -> None:
    module.load_state_dict(weights)


def _check_tables(number: int, needed: list[str], rows: PublishedRows) -> None:
    missing = sorted(set(needed) - rows.server.tables.keys())
    if missing:
        raise ConfigError(
            f"version {number}: its model needs tables {missing}, which were not published; "
            "publish all tables"
        )
