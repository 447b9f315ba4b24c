"""What a run that goes on takes from its model, its shape and how a log is read, and what it
refuses.

Above it: `hps.train.run`. Below it: recipe.py, what the store or the servers hold.
"""

from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from hps.checkpoint.blobs import MODEL, READER, TABLES, Dense, decode_dense, described_tables
from hps.cluster.folder.glance import FirstParts
from hps.common.initializers import Normal
from hps.common.json_text import Json, JsonView
from hps.config import TableConfig
from hps.errors import ConfigError
from hps.features.column import IGNORED
from hps.features.features import Features
from hps.models.kinds import are_same, load_class
from hps.ssd_store import check_no_writer, engine_of, is_unfinished, open_store
from hps.ssd_store.cluster.catalog import Catalog
from hps.train.checkpoints import ModelCheckpoint, named_with_model, newest_with_model
from hps.train.options import ACCUMULATOR, TABLE, TrainOptions
from hps.train.recipe import CHANGEABLE, ModelRecipe, differing
from hps.train.row_server import connect
from hps.train.shape_rules import refuse_what_it_lacks
from hps.train.start import together
from hps.train.trainer import stored_recipe

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from hps.cluster.world.world import World
    from hps.contracts.training import KeptCheckpoints
    from hps.reader.config import ReaderConfig


@dataclass(frozen=True)
class StoredModel:
    """The model that a run goes on with.

    Args:
        recipe: its kind, its sizes, how its log is read.
        columns: of its tables that have the dim of `--dim`; None where the checkpoint describes
            none of them.
        optimizer: of its tables' rows; None where it describes none.
        init_std: of their rows; None where it describes none.
        initial_accumulator: of their rows; None of optimizers without.
        weight_decay: of its rows; versions that had none did not store it.
        row_dtype: of its rows' weights; None where it describes none.
        statistics: its rows count; None where it describes none.
        expiry: by which rules they die, as plain values; None where they live for ever.
        admission: by which rule keys come by rows, as plain values; None where each does.
        bounds: on their number, as fields of TableConfig.
        seed: of the store; of servers, which have one of their own, that of the run; None where
            neither tells.
    """

    recipe: ModelRecipe
    columns: int | None
    optimizer: str | None
    weight_decay: float = 0.0
    init_std: float | None = None
    initial_accumulator: float | None = None
    row_dtype: str | None = None
    seed: int | None = None
    statistics: bool | None = None
    expiry: "Json | None" = None
    admission: "Json | None" = None
    bounds: "Json | None" = None

    @classmethod
    def of(
        cls, model: "JsonView", tables: "Sequence[TableConfig]", seed: int | None = None
    ) -> Self:
        """What a checkpoint's dense state, its tables and its store's seed tell."""
        recipe = stored_recipe(model)
        described = {table.name: table for table in tables}
        own = [described[name] for name in recipe.features if name in described]
        table = own[0] if own else described.get(TABLE)
        if "shared_vocabulary" not in recipe.reader:
            # Recipes of earlier versions left that to the table.
            shared = table is not None and table.shared_vocabulary
            recipe = replace(recipe, reader={**recipe.reader, "shared_vocabulary": shared})
        decay = model["settings"].get("weight_decay", 0.0)
        if table is None:
            return cls(recipe, None, None, decay, seed=seed)
        transform = recipe.make_transform()
        said = None if transform is None else transform.asked
        of_run = [one for one in own if said is None or said.dim_of(one.name) is None]
        columns = of_run[0].dim if of_run else None
        std = table.initializer.std if isinstance(table.initializer, Normal) else None
        start = getattr(table.optimizer, ACCUMULATOR, None)
        kind, dtype = table.optimizer.kind, table.dtype
        # Vectors wait by their first-order weights, which may wait by a rule of their own.
        of_keys = described.get(recipe.first_order_tables.get(table.name, table.name), table)
        return cls(
            recipe,
            columns,
            kind,
            decay,
            std,
            start,
            dtype,
            seed,
            statistics=table.statistics,
            expiry=None if table.expiry is None else table.expiry.described(),
            admission=None if of_keys.admission is None else of_keys.admission.described(),
            bounds={"max_rows": table.max_rows, "max_bytes": table.max_bytes},
        )

    def flags(self) -> Json:
        """Every option that is part of the model, kind first, as far as the checkpoint tells."""
        recipe = self.recipe
        known: Json = {"model": recipe.kind}
        if self.columns is not None:
            known["dim"] = self.columns - recipe.other_columns
        known |= {"hidden": recipe.hidden, "dropout": recipe.dropout}
        known["embedding_dropout"] = recipe.embedding_dropout
        known["two_level"] = recipe.two_level
        if self.optimizer is not None:
            known["optimizer"] = self.optimizer
        if self.statistics is not None:
            known["statistics"] = self.statistics
        if self.row_dtype is not None:
            known["row_dtype"] = self.row_dtype
        return known | recipe.reading()


def model_to_resume(options: TrainOptions, world: "World | None") -> StoredModel | None:
    """The model that a run is to go on with, told before anything is opened for
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

    def told() -> Json | None:
        found = _find(options)
        return None if found is None else asdict(found)

    of_ranks = together(world, "reading the stored model's recipe", told)
    for values in of_ranks:
        if values is not None:
            return StoredModel(**{**values, "recipe": ModelRecipe.from_dict(values["recipe"])})
    return None


def _find(options: TrainOptions) -> StoredModel | None:
    if options.remote is not None:
        with connect(options.remote) as server:
            found = _chosen(options, server)
            tables = list(server.tables.values())
            if found is None:
                return None
            # Versions that kept no options did not keep the seed, either.
            seed = found.model.get("options", {}).get("seed")
            return StoredModel.of(found.model, tables, seed)
    path = options.server_config().path
    if Catalog.load(Path(path)) is not None:
        parts = FirstParts.of(Path(path))
        if parts is None:
            return None
        with closing(parts):
            # A rank on another host may see it.
            return _stored_in(options, parts) if parts.sees(options.resume_from) else None
    if engine_of(path) is None or is_unfinished(path):
        return None
    check_no_writer(path)  # told before all that may be missing: its writer may be about to add it
    with closing(open_store(path, [], read_only=True, rows=False)) as store:
        return _stored_in(options, store)


class _Blobs(Protocol):
    """A store or `FirstParts`, whose rows nobody asks for."""

    @property
    def seed(self) -> int: ...

    def checkpoints(self) -> list[Json]: ...

    def extras(self, name: str | int | None, names: "Collection[str]", /) -> dict[str, bytes]: ...


def _stored_in(options: TrainOptions, blobs: _Blobs) -> StoredModel | None:
    found = _chosen(options, _StoredCheckpoints(blobs))
    if found is None:
        return None
    tables = described_tables(blobs.extras(found.name, {TABLES}))
    return StoredModel.of(found.model, tables, blobs.seed)


def _chosen(options: TrainOptions, kept: "KeptCheckpoints") -> ModelCheckpoint | None:
    """The checkpoint that the flags name, or the newest with a model."""
    if options.resume_from is not None:
        return named_with_model(kept, options.resume_from)
    return newest_with_model(kept)


class _StoredCheckpoints:
    """As a server has them."""

    def __init__(self, store: _Blobs) -> None:
        self._store = store

    def checkpoints(self) -> list[Json]:
        return self._store.checkpoints()

    def checkpoint_state(self, tag: str | int | None = None) -> Dense:
        return decode_dense(self._store.extras(tag, {MODEL, READER}))


def as_the_model(options: TrainOptions, model: StoredModel) -> TrainOptions:
    """The options of a run that goes on: shape, and how the log is read, are as the model has it;
    with `change_features` but for its columns. So are the seed, the rows' weight decay and the
    accumulators of new ones, unless given.

    Raises:
        ConfigError: a flag was given that says otherwise; names it and both values. Or the file of
            a user's own model is not there, or not right.
    """
    kind = model.recipe.kind
    load_class(kind, store=options.store, is_stored=True)
    options = replace(options, features=_features_of(options, model))
    stored = model.flags()
    if options.change_features:
        stored = {name: value for name, value in stored.items() if name not in CHANGEABLE}
    asked = {name: getattr(options, name) for name in stored}
    given = {name: value for name, value in asked.items() if value is not None}
    if "ignore" in given and isinstance(options.features, Features):
        # The model has those of the flags and those of the file as one.
        given["ignore"] = sorted({*given["ignore"], *options.features.of_kind(IGNORED)})
    _refuse_uncounted(options, model)
    if are_same(given.get("model", kind), kind):
        given["model"] = kind
        refuse_what_it_lacks(kind, given)
    wrong = differing(stored, given)
    if wrong is not None:
        raise wrong.error(f"the model in {options.where}")
    if options.init_std is None:
        stored["init_std"] = model.init_std
    if options.initial_accumulator is None:
        stored["initial_accumulator"] = model.initial_accumulator
    if options.weight_decay is None:
        stored["weight_decay"] = model.weight_decay
    for name, number in (model.expiry or {}).items():
        option = "expire_below" if name == "min_score" else f"expire_{name}"
        if getattr(options, option) is None:
            stored[option] = number
    rule = model.admission or {}
    if "by" in rule:
        raise ConfigError(
            f"the model in {options.where} has a table with Admission(by={rule['by']!r}), for "
            "which `hps train` has no option; train it on with hps.ParameterServer"
        )
    if options.admission() is None:
        stored |= {f"admit_{name}": value for name, value in rule.items()}
    for name, bound in (model.bounds or {}).items():
        if getattr(options, name) is None:
            stored[name] = bound
    completed = replace(options, seed=_seed_of(options, model), **stored)
    completed.check_bounds()
    return completed


def _refuse_uncounted(options: TrainOptions, model: StoredModel) -> None:
    """ConfigError if a rule is given that goes by what rows have counted, and the model's count
    nothing."""
    if model.statistics is not False or options.statistics is not None:  # that one has its own
        return
    rules = ["expire_unseen", "expire_below", "expire_decay", "expire_nonclick", "expire_click"]
    rules += ["max_rows", "max_bytes"]
    if model.recipe.two_level is None:  # else keys are counted by their first-order weights
        rules.append("admit_count")
    for name in rules:
        if getattr(options, name) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')}: it goes by shows and clicks, and the rows of the "
                f"model in {options.where} do not count them, as it was made without --statistics; "
                "leave it out to go on as the model was trained, or train another model with it in "
                "another store"
            )


def _seed_of(options: TrainOptions, model: StoredModel) -> int:
    """The seed that the model has; one that is asked for must be the same."""
    if model.seed is None:
        return options.run_seed()
    if options.seed not in (None, model.seed):
        raise ConfigError(
            f"the model in {options.where} was trained with seed={model.seed}, this run asks for "
            f"{options.seed} (--seed); rows and shuffles follow from it: leave it out to go on as "
            "the model was trained, or train another model in another store"
        )
    return model.seed


def _features_of(options: TrainOptions, model: StoredModel) -> Features | None:
    """The features that the model has; those that are asked for must be the same."""
    transform = model.recipe.make_transform()
    asked = options.features
    if asked is not None and options.change_features:
        return asked if isinstance(asked, Features) else None
    if asked is not None:
        assert isinstance(asked, Features)
        what = f"the model in {options.where} was trained"
        if transform is None:
            raise ConfigError(
                f"{what} without a features file, this run asks for {asked.source} (--features); "
                "leave it out to go on as the model was trained, or train another model in another "
                "store; --new-data --change-features changes the features of this one"
            )
        if not (asked.is_same(transform.asked) or asked.is_same(transform.measured)):
            where = first_difference(transform.asked, asked)
            raise ConfigError(
                f"{what} with other features than {asked.source} (--features) has: {where}; leave "
                "it out to go on as the model was trained, or train another model in another store"
                "; --new-data --change-features changes the features of this one"
            )
    return None if transform is None else transform.asked


def first_difference(stored: Features, asked: Features) -> str:
    """What differs first, in words.

    >>> first_difference(Features(), Features.from_toml('[columns.C1]\\nkind = "ignored"'))
    "columns.C1 is now {'kind': 'ignored'} and was not described"
    """
    of_stored, of_asked = stored.to_dict(), asked.to_dict()
    for group in ("fields", "columns", "crosses", "tables"):
        before, now = of_stored.get(group, {}), of_asked.get(group, {})
        for name in {**before, **now}:
            if before.get(name) != now.get(name):
                was, given = before.get(name), now.get(name)
                return (
                    f"{group}.{name} is now {'not described' if given is None else given} and was "
                    f"{'not described' if was is None else was}"
                )
    if list(of_stored.get("fields", ())) != list(of_asked.get("fields", ())):
        return f"fields come in the order {list(of_asked['fields'])}"
    return f"crosses come in the order {list(of_asked['crosses'])}"


def free_fields(config: "ReaderConfig") -> Json:
    """What a run that goes on may change, as none of it changes what an example is; and what is of
    the log that is trained on alone, which `as_the_model` has seen to: which of its examples are
    read, and their weights."""
    free = ("batch_size", "on_error", "epochs", "shuffle_files", "threads", "part")
    shuffle = ("shuffle_buffer", "shuffle_seed")
    of_training = ("hash_range", "negative_rate", "weight")
    return {name: getattr(config, name) for name in (*free, *shuffle, *of_training)}
