"""How a log is read is part of the model: what a run that goes on takes from there, and what it
refuses.

Above it: `hps.train.run`. Below it: recipe.py, what the store or the servers hold.
"""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hps.checkpoint import MODEL, READER, TABLES, decode_dense, described_tables
from hps.cluster.catalog import Catalog
from hps.cluster.glance import FirstParts
from hps.config import TableConfig
from hps.ssd_store import engine_of, open_store
from hps.train.checkpoints import ModelCheckpoint, named_with_model, newest_with_model
from hps.train.options import TABLE, TrainOptions
from hps.train.recipe import ModelRecipe, differing
from hps.train.servers import connect
from hps.train.start import together
from hps.train.trainer import stored_recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hps.cluster.world import World
    from hps.reader.config import ReaderConfig


def recipe_to_resume(options: TrainOptions, world: "World | None") -> ModelRecipe | None:
    """The recipe of the model that a run is to go on with, told before anything is opened for
    writing; None of a run that trains a new model.

    Args:
        world: the ranks, all of which call this; who does not see the store is told by the others.

    Raises:
        ConfigError: the model was not stored by `hps train`.
        CorruptionError, StoreError, RemoteError: the checkpoint cannot be read.
    """
    if not options.resume:
        return None
    if world is None:
        return _find(options)

    def told() -> dict[str, Any] | None:
        found = _find(options)
        return None if found is None else found.to_dict()

    of_ranks = together(world, "reading the stored model's recipe", told)
    found = [recipe for recipe in of_ranks if recipe is not None]
    return ModelRecipe.from_dict(found[0]) if found else None


def _find(options: TrainOptions) -> ModelRecipe | None:
    if options.remote is not None:
        with connect(options.remote) as server:
            found = _chosen(options, server)
            tables = list(server.tables.values())
            return None if found is None else _recipe_of(found.model, tables)
    path = options.server_config().path
    if Catalog.load(Path(path)) is not None:
        parts = FirstParts.of(Path(path))
        if parts is None:
            return None
        with closing(parts):
            # A rank on another host may see it.
            return _recipe_in(options, parts) if parts.sees(options.resume_from) else None
    if engine_of(path) is None:
        return None
    store: Any = open_store(path, [], read_only=True, rows=False)
    with closing(store):
        return _recipe_in(options, store)


def _recipe_in(options: TrainOptions, cuts: Any) -> ModelRecipe | None:
    """Of a store, or of `FirstParts`."""
    found = _chosen(options, _StoredCuts(cuts))
    if found is None:
        return None
    return _recipe_of(found.model, described_tables(cuts.extras(found.name, {TABLES})))


def _chosen(options: TrainOptions, server: Any) -> ModelCheckpoint | None:
    """The checkpoint that the flags name, or the newest with a model."""
    if options.resume_from is not None:
        return named_with_model(server, options.resume_from)
    return newest_with_model(server)


class _StoredCuts:
    """Of a store or parts whose rows nobody asks for, what `newest_with_model` does."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def checkpoints(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self._store.checkpoints()
        return listed

    def checkpoint_state(self, tag: str | int | None = None) -> tuple[Any, Any]:
        return decode_dense(self._store.extras(tag, {MODEL, READER}))


def _recipe_of(model: "Mapping[str, Any]", tables: "Sequence[TableConfig]") -> ModelRecipe:
    recipe = stored_recipe(model)
    if "shared_vocabulary" in recipe.reader:
        return recipe
    # Recipes of earlier versions left that to the tables.
    shared = any(table.shared_vocabulary for table in tables if table.name == TABLE)
    return replace(recipe, reader={**recipe.reader, "shared_vocabulary": shared})


def as_the_model(options: TrainOptions, recipe: ModelRecipe) -> TrainOptions:
    """The options of a run that goes on: how the log is read is as the model has it.

    Raises:
        ConfigError: a flag was given that says otherwise; names it and both values.
    """
    asked = {
        "format": options.format,
        "hash_keys": options.hash_keys,
        "label": options.label,
        "dense": options.dense,
        "dense_transform": options.dense_transform,
        "ignore": None if options.ignore is None else list(options.ignore),
        "shared_vocabulary": options.shared_vocabulary,
    }
    wrong = differing(recipe, {name: value for name, value in asked.items() if value is not None})
    if wrong is not None:
        raise wrong.error(f"the model in {options.where}")
    stored = recipe.reading()
    return replace(options, **{name: stored[name] for name in asked})


def check_model(options: TrainOptions, recipe: ModelRecipe) -> None:
    """Refuses flags of another model than the stored one, before the store is opened.

    Raises:
        ConfigError: names the value that differs.
    """
    hidden = list(options.hidden)
    recipe.check_same(replace(recipe, kind=options.model, hidden=hidden, dropout=options.dropout))


def free_fields(config: "ReaderConfig") -> dict[str, Any]:
    """What a run that goes on may change: none of it changes what an example is."""
    names = ("batch_size", "on_error", "epochs", "shuffle_files", "threads", "part")
    return {name: getattr(config, name) for name in names}
