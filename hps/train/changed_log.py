"""Opens the log of a run that changes the features of its model: the log decides what there is.

Above it: opening.py. Below it: the readers, a features file, changed_columns.py. A column that the
model has stays what it is; one that it has not is what it would be in a new run.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from hps.config import TableConfig
from hps.errors import ConfigError
from hps.features.column import DENSE, IGNORED, LABEL, WEIGHT
from hps.features.features import Features
from hps.features.open import open_with_features
from hps.reader.config import WITH_COLUMNS, ReaderConfig
from hps.reader.files import find_files
from hps.reader.open import open_reader
from hps.train.base_rate import names_of
from hps.train.changed_columns import raw_dense_names
from hps.train.options import TrainOptions
from hps.train.recipe import ModelRecipe

if TYPE_CHECKING:
    import pyarrow as pa

    from hps.reader.reader import Reader


def open_changed(options: TrainOptions, config: ReaderConfig, stored: ModelRecipe) -> "Reader":
    """The log with the features that it and the features file have, not those of the model.

    What the model has measured of a column that is described as before stays as it was measured.

    Args:
        options: of the run, as `as_the_model` has made them.
        config: that follows from them.
        stored: the recipe of the model.

    Raises:
        ConfigError: columns that do not fit the flags or the file.
    """
    table = options.table()
    if config.format in WITH_COLUMNS:
        config, table = _of_named_columns(options, config, stored, table)
    elif config.format == "criteo" and config.dense is None:
        config = replace(config, dense=stored.num_raw_dense)
    elif config.format == "libffm" and config.dense_columns is None:
        described = _described(options)
        own = [name for name in raw_dense_names(stored) if described.get(name, DENSE) == DENSE]
        config = replace(config, dense_columns=own or None)
    if isinstance(options.features, Features):
        reader = open_with_features(
            options.data,
            tables=[table],
            config=config,
            features=options.features,
            before=stored.make_transform(),
        )
    else:
        reader = open_reader(options.data, tables=[table], config=config)
    reader.settle()
    if not any(reader.features.values()):
        raise ConfigError(
            f"--change-features: {names_of(options.data)} has no feature, and a model needs one"
        )
    return reader


def _of_named_columns(
    options: TrainOptions, config: ReaderConfig, stored: ModelRecipe, table: TableConfig
) -> tuple[ReaderConfig, TableConfig]:
    from hps.reader.columns import is_feature, is_number  # pyarrow takes its time to import

    types, inferred = _types(options, config, table)
    described = _described(options)
    ignored = options.ignore
    if ignored is None:
        transform = stored.make_transform()
        # What a file leaves out is for the file of this run to say again.
        of_file = [] if transform is None else transform.asked.of_kind(IGNORED)
        ignored = [
            name
            for name in stored.reading()["ignore"]
            if name in types and name not in of_file and described.get(name, IGNORED) == IGNORED
        ]
    config = replace(config, ignore=ignored)
    features = {name for names in stored.raw_features.values() for name in names}
    others = {config.label, config.weight, config.group, *ignored}
    if config.dense_columns is None:
        own = raw_dense_names(stored)
        keeps_text = config.format == "csv"  # whose numbers can be read as text
        dense = [
            name
            for name, kind in types.items()
            if name not in others
            if (name in own and is_number(kind))
            or (name in inferred and not (keeps_text and name in features))
        ]
        config = replace(config, dense_columns=dense)
    if config.format == "csv" and options.table().features is None:
        taken = {config.label, config.weight, *ignored, *(config.dense_columns or ())}
        taken |= {name for name, kind in described.items() if kind in (*_NOT_KEYS, DENSE)}
        left = [name for name in types if name not in taken]
        if any(name in features and not is_feature(types[name]) for name in left):
            table = replace(table, features=left)
    return config, table


_NOT_KEYS = (LABEL, WEIGHT, IGNORED)


def _described(options: TrainOptions) -> dict[str, str]:
    """Name of each column of the features file -> its kind."""
    features = options.features
    if not isinstance(features, Features):
        return {}
    return {column.name: column.kind for column in features.columns}


def _types(
    options: TrainOptions, config: ReaderConfig, table: TableConfig
) -> "tuple[dict[str, pa.DataType], list[str]]":
    """The types of a log's columns, and those that a new run would take for dense."""
    from hps.reader.record_reader import RecordReader  # pyarrow takes its time to import

    # Names no feature, so that nothing is refused yet that is left out.
    bare = TableConfig(name=table.name, dim=1, features=[])
    plain = replace(config, dense=None, dense_columns=None, ignore=(), nan_columns=())
    probe = open_reader(find_files(options.data), tables=[bare], config=plain)
    assert isinstance(probe, RecordReader)
    types, dense = probe.types, probe.dense_columns or []
    probe.close()
    return types, dense
