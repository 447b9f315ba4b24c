"""Opens the log of a training run, and finds all that can be wrong before its store is made.

Above it: `hps.train.run`. Below it: the readers, checks.py, store_checks.py, and, of several ranks,
start.py.
"""

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from hps.errors import ConfigError
from hps.features.features import Features
from hps.features.open import open_with_features
from hps.features.transform import FeatureTransform
from hps.models import class_of
from hps.models.sequences import require_one_dim
from hps.reader.config import ReaderConfig
from hps.reader.files import find_files
from hps.reader.open import open_reader
from hps.reader.urls import LogFile
from hps.train.base_rate import names_of
from hps.train.changed_log import open_changed
from hps.train.checks import check_measured_logs, checkpoint_to_resume, is_strict
from hps.train.context import RunContext
from hps.train.field_advice import advice_on
from hps.train.options import TrainOptions
from hps.train.reading import StoredModel, free_fields
from hps.train.recipe import recipe_of
from hps.train.row_server import connect
from hps.train.sample_advice import advice_on_sample
from hps.train.start import start_together
from hps.train.store_checks import check_store

if TYPE_CHECKING:
    from hps.reader.reader import Reader


def open_log(options: TrainOptions, context: RunContext, stored: StoredModel | None) -> "Reader":
    """The reader of DATA, at its beginning. Of several ranks all go on or none.

    Args:
        options: of the run.
        context: around it.
        stored: the model that the run goes on with; None for a new one.

    Raises:
        ConfigError: flags that do not fit each other, the log or what the store holds, or ranks
            that differ.
        HpsError: what cannot be read.
    """
    prepare = partial(_prepare, options, context, stored)
    if context.ranks.world is None:
        reader, _ = prepare()
        return reader
    return start_together(context.ranks.world, options, prepare)


def _prepare(
    options: TrainOptions, context: RunContext, stored: StoredModel | None
) -> tuple["Reader", dict[str, list[LogFile]]]:
    """Opens the log, and finds all that can be wrong with flags and files, before the store is
    made: the first run fixes its dim, optimizer and seed. Returns the files of the logs to measure
    on, too."""
    ranks, progress = context.ranks, context.progress
    if options.held_out is not None and options.held_out.failure is not None:
        raise options.held_out.failure
    config = dataclasses.replace(options.reader_config(), part=ranks.part)
    if stored is None:
        reader = open_new(options, config)
        reader.settle()
    elif options.change_features:
        reader = open_changed(options, config, stored.recipe)
    else:  # the features are the model's: new data may lack some
        reader = _open_stored(options, config, stored)
    _check_tables(options, reader, stored)
    held_out = () if options.held_out is None else options.held_out.files
    measured = {"test": options.test, "valid": options.valid or held_out}
    measured_files = {name: list(find_files(log)) if log else [] for name, log in measured.items()}
    if not options.resume:
        new = recipe_of(options, reader)  # here, as it may read the whole log
        if ranks.rank == 0:
            check_measured_logs(new, options, reader, progress)
            for line in [*advice_on(reader, new.kind), *advice_on_sample(reader)]:
                progress.say(line)
    elif is_strict(options) and options.remote is not None:
        with connect(options.remote) as server:  # makes no table there
            checkpoint_to_resume(options, server)
    if options.remote is None and ranks.rank == 0:  # of several one tells, for all
        seen = check_store(options, reader.features, ranks, has_model=stored is not None)
        if seen is not None and seen.ranks != ranks.size:
            progress.say(
                f"{options.where}: its {seen.rows:,} rows, of {seen.ranks} rank(s), move to "
                f"{ranks.size} rank(s)"
            )
    return reader, measured_files


def _check_tables(options: TrainOptions, reader: "Reader", stored: StoredModel | None) -> None:
    """The model takes rows of the tables' dims, and one that goes on has the tables that it had."""
    if not any(reader.features.values()):
        raise ConfigError(
            f"{names_of(options.data)} has no feature, and a model needs one; it has "
            f"{', '.join(f'{use.name} ({use.kind})' for use in reader.columns) or 'no column'}"
        )
    tables = options.tables(reader.features)
    made, two_level = class_of(options.shape().model), options.two_level is not None
    columns = {one.name: one.dim + two_level for one in tables if one.name in reader.features}
    made.check_columns(columns)
    if made.takes_sequences and isinstance(reader.transform, FeatureTransform):
        dims = {name: columns[table] for table, of in reader.features.items() for name in of}
        require_one_dim(options.shape().model, reader.transform.measured.targets, dims)
    if stored is None:
        return
    held, wanted = sorted(stored.recipe.features), sorted(reader.features)
    if held != wanted:
        raise ConfigError(
            f"--change-features: the features of the model in {options.where} lie in the tables "
            f"{held}, those that it is to get in {wanted}; give each table that it has a feature, "
            "and no feature another one (table in the features file), or train another model in "
            "another store"
        )


def _open_stored(options: TrainOptions, config: ReaderConfig, stored: StoredModel) -> "Reader":
    """The log as the model reads it."""
    fields = free_fields(config)
    try:
        reader = stored.recipe.open_reader(options.data, [options.table()], **fields)
    except ConfigError as error:
        if options.new_data:
            error.add_note("--change-features gives the model the columns that DATA has now")
        raise
    reader.left_out = stored.recipe.reading()["ignore"]
    return reader


def open_new(options: TrainOptions, config: ReaderConfig) -> "Reader":
    """The log of a new model; what a features file leaves to it is measured."""
    tables, features = [options.table()], options.features
    if not isinstance(features, Features):
        return open_reader(options.data, tables=tables, config=config)
    return open_with_features(options.data, tables=tables, config=config, features=features)
