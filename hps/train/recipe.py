"""ModelRecipe: everything but numbers learned that makes a stored model whole again.

Above it: the training run, which stores it in each checkpoint, and `hps evaluate`, which reads it.
Below it: `hps.models`, `hps.reader`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from hps.common.json_text import Json, JsonView
from hps.common.model_names import first_order_table
from hps.config import TableConfig
from hps.errors import ConfigError
from hps.features.transform import FeatureTransform
from hps.models import MODELS, ClickModel, class_of
from hps.models.kinds import require_kind
from hps.models.own import blamed_on_file
from hps.models.sequences import require_sequences
from hps.reader.batch_source import BatchSource
from hps.reader.config import LOG1P, NO_TRANSFORM, ReaderConfig
from hps.reader.files import Batches
from hps.reader.open import open_reader
from hps.reader.reader import Reader
from hps.train.options import TrainOptions

if TYPE_CHECKING:
    from hps.contracts.training import RowServer

# What says how a log is read, by name, with the flag of it.
_FLAGS = {
    "format": "--format",
    "label": "--label",
    "weight": "--weight",
    "group": "--group",
    "hash_keys": "--hash-keys, --raw-keys",
    "dense": "--dense",
    "dense_transform": "--dense-log",
    "dense_columns": "--dense-columns; if not given, the columns of floats in DATA",
    "ignore": "--ignore",
    "shared_vocabulary": "--shared-vocabulary",
    "negative_rate": "--negative-rate",
}
READING = tuple(_FLAGS)
ZEROS = "leading_zeros"
HEADER = "header"
# Of the log that is trained on alone: of others all examples are read.
_OF_TRAINING = ("negative_rate",)
# What a log that is only measured or scored may have otherwise: the model gets neither.
_ASIDE = ("weight", "group")
_MEASURED, _MOST_TIMES = 4096, 8  # examples that are measured at a time, and times a batch
# What `change_features` lets a run that goes on have otherwise, beside the features file.
CHANGEABLE = ("dense", "dense_columns", "ignore")
_CHANGE = "--new-data --change-features changes the features of a model"
_FLAGS_OF_SHAPE = {
    "model": "--model",
    "dim": "--dim",
    "hidden": "--hidden",
    "dropout": "--dropout",
    "embedding_dropout": "--embedding-dropout",
    "optimizer": "--optimizer",
    "statistics": "--statistics",
    "row_dtype": "--row-dtype",
    "two_level": "--two-level",
}


@dataclass(frozen=True, kw_only=True)
class ModelRecipe:
    """Kind and sizes of a model, and how the log it was trained on is read.

    Args:
        kind: a name in `hps.models.MODELS`, or `file.py:Class` as it was given.
        features: table name -> names of its features in order.
        num_dense: dense columns.
        hidden: widths of the deep part.
        dropout: of the deep part.
        reader: fields of `ReaderConfig`, `shared_vocabulary`, and of csv `leading_zeros`: features
            some of whose values are whole numbers that begin with 0 or end in .0; and `header`:
            names of the log's columns in their order, and its delimiter. What earlier versions
            did not store is as they had it: keys that are numbers as they are (but for criteo), and
            of criteo's integers missing, 0 and below read as 0; all negatives.
        transform: what becomes of the log's columns before the model sees them, as
            `FeatureTransform.to_dict` has it; None of a model without a features file.
        embedding_dropout: of pooled embeddings; earlier versions had none.
        two_level: the score by which a key comes by its vector, where first-order weights have
            tables of their own; None where they are the last columns of the vectors' rows.
    """

    kind: str
    features: dict[str, list[str]]
    num_dense: int
    hidden: list[int]
    dropout: float
    reader: Json
    transform: Json | None = None
    embedding_dropout: float = 0.0
    two_level: float | None = None

    def to_dict(self) -> Json:
        """Plain values, for a checkpoint."""
        values = asdict(self)
        if self.transform is None:
            del values["transform"]  # as it was before there were any
        if not self.embedding_dropout:
            del values["embedding_dropout"]  # likewise
        if self.two_level is None:
            del values["two_level"]  # likewise
        return values

    @classmethod
    def from_dict(cls, values: JsonView) -> Self:
        """What `to_dict` returned, as a recipe.

        Raises:
            ConfigError: the checkpoint's model is not one that hps wrote.
        """
        try:
            recipe = cls(**values)
        except TypeError as error:
            raise ConfigError(f"the checkpoint's model has no recipe of hps: {error}") from error
        require_kind(recipe.kind)
        return recipe

    def make_transform(self) -> FeatureTransform | None:
        """What becomes of the log's columns; None where they are the model's."""
        return None if self.transform is None else FeatureTransform.from_dict(self.transform)

    @property
    def raw_features(self) -> dict[str, list[str]]:
        """Table name -> names of the log's features in order, before a transform."""
        if self.transform is None:
            return self.features
        raw = self.transform["raw"]
        return {raw["table"]: list(raw["features"])}

    @property
    def num_raw_dense(self) -> int:
        """Dense columns of the log, before a transform."""
        return self.num_dense if self.transform is None else len(self.transform["raw"]["dense"])

    @property
    def first_order_tables(self) -> dict[str, str]:
        """Table of vectors -> that of their first-order weights; none where rows have both."""
        if self.two_level is None:
            return {}
        return {table: first_order_table(table) for table in self.features}

    @property
    def tables(self) -> list[str]:
        """Names of the tables that the model reads; its server may have others."""
        return [*self.features, *self.first_order_tables.values()]

    @property
    def other_columns(self) -> int:
        """Columns of its rows beside the embedding: 1 where they hold a first-order weight.

        Raises:
            ConfigError: the file of a user's own model is not there, or not right.
        """
        return int(class_of(self.kind).has_first_order and self.two_level is None)

    def repeat_ids(self, reader: Reader) -> None:
        """Has the batches of a reader hold the keys of each table that the model reads, so that
        hps.Pipeline prepares the rows of all."""
        reader.repeated = {other: table for table, other in self.first_order_tables.items()}

    def raw_tables(self, tables: Iterable[TableConfig]) -> list[TableConfig]:
        """What a reader of the model's logs is given: the log's features by name, in the table that
        they are read into.

        Args:
            tables: of the model's server.
        """
        if self.transform is None:
            known = [table for table in tables if table.name in self.features]
            return [replace(table, features=self.features[table.name]) for table in known]
        # A server need not have that table: the transform puts each feature into its own.
        ((name, features),) = self.raw_features.items()
        is_shared = bool(self.transform["raw"]["is_shared"])
        return [TableConfig(name=name, dim=1, features=features, shared_vocabulary=is_shared)]

    @property
    def sequences(self) -> dict[int, int]:
        """Place of each sequence that has a target among the features -> that of its target."""
        transform = self.make_transform()
        names = [name for of_table in self.features.values() for name in of_table]
        targets = {} if transform is None else transform.measured.targets
        places = {names.index(name): names.index(target) for name, target in targets.items()}
        return dict(sorted(places.items()))

    def reading(self) -> Json:
        """How raw values become keys, dense columns and labels, every value settled."""
        kind = self.reader.get("format", "criteo")
        settled = {
            "format": kind,
            "label": "label",
            "weight": None,
            "group": None,
            "hash_keys": False,
            "dense_transform": LOG1P if kind == "criteo" else NO_TRANSFORM,
            "dense_columns": None,
            "ignore": [],
            "shared_vocabulary": False,
            "negative_rate": 1.0,
            **self.reader,
            "dense": self.num_raw_dense,
        }
        settled["hash_keys"] = bool(settled["hash_keys"]) or kind == "criteo"
        return {name: settled[name] for name in READING}

    def reader_config(self) -> ReaderConfig:
        """How another log of the same columns is read: the features are named, so that nothing
        need be ignored, and no negative is left out."""
        left_out = ("ignore", "shared_vocabulary", ZEROS, HEADER, *_OF_TRAINING)
        fields = {**self.reader, **self.reading()}
        return ReaderConfig(**{k: value for k, value in fields.items() if k not in left_out})

    @property
    def left_out(self) -> list[str]:
        """Of parquet and csv the columns that training was told to ignore."""
        return list(self.reader.get("ignore", ()))

    @property
    def digit_texts(self) -> list[str]:
        """Of csv the features whose values are text, and no whole numbers, however they look."""
        return list(self.reader.get(ZEROS, ()))

    def csv_header(self) -> tuple[list[str] | None, str]:
        """Of csv the columns of the log's first file, in its order, and the delimiter; None where
        an earlier version stored neither."""
        header = self.reader.get(HEADER)
        if header is None:
            return None, ","
        return list(header["columns"]), str(header["delimiter"])

    def as_before(self, stored: "ModelRecipe") -> "ModelRecipe":
        """With what only logs of before have shown."""
        zeros = list(dict.fromkeys([*stored.digit_texts, *self.digit_texts]))
        return replace(self, reader={**self.reader, ZEROS: zeros}) if zeros else self

    def batch_to_measure(self, server: "RowServer") -> int:
        """How many examples to measure at a time: more than are trained on, for what a batch costs
        by itself is much of a small one; not so many more that memory would tell.

        Args:
            server: of the rows. With a gpu_cache on a device, which must hold all keys of a batch,
                from servers and between ranks it is the batch of the training.
        """
        own = self.reader_config().batch_size
        if server.joint is None:
            return own
        return max(own, min(_MEASURED, _MOST_TIMES * own))

    def build(self, server: "RowServer") -> ClickModel:
        """A new model, its dense weights drawn from torch's global generator.

        Raises:
            ConfigError: a user's own class cannot be made.
        """
        counts = {table: len(names) for table, names in self.features.items()}
        made = class_of(self.kind)
        more = {"sequences": self.sequences} if made.takes_sequences else {}
        with blamed_on_file(self.kind, "making the model"):
            model = made(server, counts, self.num_dense, self.hidden, self.dropout, **more)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigError(
                f"model {self.kind}: it has no parameter of its own to train, beside its rows; "
                "give it one, such as an output bias"
            )
        model.negative_rate = self.reading()["negative_rate"]
        transform = self.make_transform()
        if transform is not None and any(map(any, transform.are_means.values())):
            model.use_means(server, transform.are_means)
        model.embedding_dropout = self.embedding_dropout
        return model

    def check_weights(self, model: ClickModel, stored: Mapping[str, torch.Tensor]) -> None:
        """Refuses dense weights that are not this model's: its class is another one than it was.

        Raises:
            ConfigError: names those that differ.
        """
        own, kept = (
            {name: list(getattr(value, "shape", ())) for name, value in weights.items()}
            for weights in (model.state_dict(), stored)
        )
        wrong = [
            f"{name} {kept.get(name, 'not there')}, now {own.get(name, 'not there')}"
            for name in sorted({*own, *kept})
            if own.get(name) != kept.get(name)
        ]
        if wrong:
            what = "this version of hps" if self.kind in MODELS else "its file"
            raise ConfigError(
                f"model {self.kind}: the stored weights are of another class than {what} has now: "
                f"stored {'; '.join(wrong[:3])}{' and more' if len(wrong) > 3 else ''}; take the "
                "one that it was trained with"
            )

    def open_reader(
        self,
        paths: Sequence[str | Path] | Batches,
        tables: Sequence[TableConfig],
        **changes: Any,
    ) -> Reader:
        """A reader of another log with the same columns.

        The features are named, not looked for: a test log may lack some of them. Weights, which
        count in training alone, are not read unless `weight` is given.

        Args:
            changes: fields of `ReaderConfig` that are not the training run's; `weight` and `group`
                may name any column, or be None.

        Raises:
            ConfigError: one of them would change what an example is.
        """
        fixed = [name for name in READING if name not in (*_OF_TRAINING, *_ASIDE)]
        said = {name: changes.pop(name) for name in fixed if name in changes}
        wrong = differing(self.reading(), said)
        if wrong is not None:
            raise wrong.error("the stored model")
        config = replace(self.reader_config(), **{"epochs": 1, "weight": None, **changes})
        reader = open_reader(paths, tables=self.raw_tables(tables), config=config)
        transform = self.make_transform()
        if transform is not None:
            reader.use(transform)
        self.repeat_ids(reader)
        return reader

    def check_same(self, other: "ModelRecipe", *, changes_features: bool = False) -> None:
        """Refuses to go on with another model than the stored one.

        Args:
            other: the recipe to go on with.
            changes_features: it may have other features and dense columns.

        Raises:
            ConfigError: names each value that differs.
        """
        of_columns = () if changes_features else ("features", "num_dense")
        of_rows = ("embedding_dropout", "two_level")
        for field in ("kind", *of_columns, "hidden", "dropout", *of_rows):
            stored, asked = getattr(self, field), getattr(other, field)
            if stored != asked:
                raise ConfigError(
                    f"the stored model has {field}={stored!r}, this run asks for {asked!r}; "
                    "give the same flags to resume it, or another store"
                    f"{f'; {_CHANGE}' if field in of_columns else ''}"
                )
        if not changes_features and self.transform != other.transform:
            raise ConfigError(
                "the stored model was trained with other features (--features) than this run has: "
                "what is made of its columns, or what was measured of them, differs; leave them "
                f"out to go on as the model was trained, or train another model in another store; "
                f"{_CHANGE}"
            )
        left_out = CHANGEABLE if changes_features else ("ignore",)
        asked = {name: value for name, value in other.reading().items() if name not in left_out}
        if self.reading()["dense_columns"] is None:  # stored before their names were
            asked.pop("dense_columns", None)
        if "shared_vocabulary" not in self.reader:
            del asked["shared_vocabulary"]
        wrong = differing(self.reading(), asked)
        if wrong is not None:
            raise wrong.error("the stored model")


@dataclass(frozen=True)
class Difference:
    """A value that is not the stored model's."""

    name: str
    stored: object
    asked: object

    def error(self, what: str) -> ConfigError:
        """Says it in the words of the flags."""
        flag = (_FLAGS | _FLAGS_OF_SHAPE)[self.name]
        why = "how a log is read is" if self.name in _FLAGS else "that is"
        return ConfigError(
            f"{what} was trained with {self.name}={self.stored!r}, this run asks for "
            f"{self.asked!r} ({flag}); {why} part of the model: leave it out to go on as the model "
            "was trained, or train another model in another store"
            f"{f'; {_CHANGE}' if self.name in CHANGEABLE else ''}"
        )


def differing(stored: JsonView, asked: JsonView) -> Difference | None:
    """The first value asked for that is not the stored one; None if all are."""
    for name, value in asked.items():
        own = stored[name]
        plain = list(value) if isinstance(value, tuple) else value
        is_same = sorted(plain) == sorted(own) if name == "ignore" else plain == own
        if not is_same:
            return Difference(name, own, plain)
    return None


def _reading_of(reader: Reader, options: TrainOptions) -> Json:
    """`ModelRecipe.reader` of the log that a run trains on."""
    config = reader.config
    return {
        "format": config.format,
        "batch_size": config.batch_size,
        "label": config.label,
        "weight": config.weight,
        "group": config.group,
        "hash_keys": config.hashes_numbers,
        "on_error": config.on_error,
        "dense_transform": config.transform,
        "dense_columns": reader.dense_columns,
        "ignore": _ignored(options.ignore or (), config.ignore),
        "shared_vocabulary": bool(options.shared_vocabulary),
        "negative_rate": config.negative_rate,
        **({"nan_columns": list(config.nan_columns)} if config.nan_columns else {}),
        **({"vocabularies": dict(config.vocabularies)} if config.vocabularies else {}),
        **({"separators": dict(config.separators)} if config.separators else {}),
        **({} if config.fields is None else {"fields": dict(config.fields)}),
        **({} if config.slot_layout is None else {"slot_layout": config.slot_layout}),
        **({ZEROS: list(reader.digit_texts)} if reader.digit_texts else {}),
        **_header_of(reader),
    }


def _header_of(reader: Reader) -> Json:
    """Of a csv file its columns, which lines that are scored one by one do not name."""
    path = reader.paths[0]
    if reader.config.format != "csv" or isinstance(path, BatchSource):
        return {}
    from hps.reader.csv_files import told_delimiter  # pyarrow takes its time to import

    columns = [use.name for use in reader.raw_columns]
    delimiter = reader.config.delimiter or told_delimiter(path)
    return {HEADER: {"columns": columns, "delimiter": delimiter}}


def _ignored(asked: Sequence[str], read: Sequence[str]) -> list[str]:
    """Columns left out: by flags, then by the features file."""
    return [*asked, *(name for name in read if name not in asked)]


def recipe_of(options: TrainOptions, reader: Reader) -> ModelRecipe:
    """The recipe of a new model on a log."""
    shape = options.shape()
    transform = reader.transform
    recipe = ModelRecipe(
        kind=shape.model,
        features={name: list(names) for name, names in reader.features.items()},
        num_dense=reader.num_dense,
        hidden=list(shape.hidden),
        dropout=shape.dropout,
        reader=_reading_of(reader, options),
        transform=transform.to_dict() if isinstance(transform, FeatureTransform) else None,
        embedding_dropout=shape.embedding_dropout,
        two_level=options.two_level,
    )
    if class_of(recipe.kind).takes_sequences:
        require_sequences(recipe.kind, recipe.sequences)
        if options.compile:
            raise ConfigError(
                f"compile (--compile): model {recipe.kind} takes sequences of any length, of which "
                "no one graph can be made; leave it out"
            )
    return recipe
