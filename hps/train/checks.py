"""What a run looks at before it trains: a checkpoint to resume, examples in DATA and in the logs
that the model is measured on.

Above it: opening.py, beginning.py. Below it: the readers, the checkpoints. Each of these faults
would else show after hours, or not at all.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hps.checkpoint.names import text_of
from hps.common.json_text import Json
from hps.config import TableConfig
from hps.errors import ConfigError, HpsError
from hps.reader.column_use import FEATURE, IGNORED
from hps.reader.config import WITH_COLUMNS
from hps.reader.open import open_reader
from hps.train.base_rate import (
    NUM_EXAMPLES,
    FirstLabels,
    first_labels,
    names_of,
    refuse_bad_line,
    why_empty,
)
from hps.train.checkpoints import ModelCheckpoint, named_with_model, newest_with_model
from hps.train.start import together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hps.contracts.training import TrainingServer
    from hps.reader.files import PathLike
    from hps.reader.reader import Reader
    from hps.train.options import TrainOptions
    from hps.train.progress import Progress
    from hps.train.ranks import TrainingRanks
    from hps.train.recipe import ModelRecipe

_WAYS_OUT = (
    "leave --resume out to train from the beginning, or give --resume-if-any, which trains from "
    "the beginning where there is nothing to go on from"
)

T = TypeVar("T")


def is_strict(options: "TrainOptions") -> bool:
    """True if there must be a checkpoint to go on from: the newest, or the one that is named."""
    return options.resume and not (options.resume_if_any and options.resume_from is None)


def nothing_to_resume(options: "TrainOptions", *, is_there: bool) -> ConfigError:
    """What to raise where --resume finds nothing; `is_there`: a store, without a checkpoint."""
    flag, ways_out = "--resume", _WAYS_OUT
    if options.resume_from is not None:
        flag = f"--resume-from {text_of(options.resume_from)}"
        ways_out = "leave --resume-from and --resume out to train from the beginning"
    if not is_there:
        return ConfigError(
            f"{flag}: there is no store in {str(options.store)!r}; correct --store, or {ways_out}"
        )
    return ConfigError(
        f"{flag}: {options.where} has no checkpoint with a model and a position to resume from; "
        f"correct --{'store' if options.remote is None else 'server'}, or {ways_out}"
    )


def checkpoint_to_resume(
    options: "TrainOptions", server: "TrainingServer"
) -> ModelCheckpoint | None:
    """What a run with --resume goes on from; None where it may train a new model, and has to.

    Raises:
        ConfigError: there is none, and the user asked for one, or there are rows without one.
    """
    if options.resume_from is not None:
        return named_with_model(server, options.resume_from)
    found = newest_with_model(server)
    if found is not None:
        return found
    if any(server.num_rows(name) for name in server.tables):
        raise ConfigError(
            f"{options.where} holds rows, but no checkpoint with a model and a position to resume "
            "from; leave --resume out to train on top of its rows"
        )
    if is_strict(options):
        raise nothing_to_resume(options, is_there=True)
    return None


def read_ahead(
    options: "TrainOptions", ranks: "TrainingRanks", reader: "Reader"
) -> FirstLabels | None:
    """Counts the first labels of a new model's log, on rank 0, for all ranks. A bad line among
    them is told now: once the store is made, it would stay behind.

    Every rank calls it.

    Returns:
        None where nobody asks for them: then the lines alone are looked at.

    Raises:
        ConfigError: the log has no example, and that is not allowed.
        DataError: a bad line, where they are not skipped.
    """
    is_asked = options.base_rate or not options.allow_empty
    num_looked_at = min(NUM_EXAMPLES, options.limit or NUM_EXAMPLES)  # beyond a limit none is met

    def count() -> list[Any] | None:
        if not is_asked:
            refuse_bad_line(reader, num_looked_at)
            return None
        labels = first_labels(reader)
        require_examples(options, labels)
        # Bad lines after the last good one are counted nowhere.
        if labels.skipped or labels.examples < NUM_EXAMPLES:
            refuse_bad_line(reader, num_looked_at)
        counts = [labels.clicks, labels.others, labels.skipped, labels.click_share]
        return [*counts, labels.keys, labels.rare]

    counts = on_first_rank(ranks, "reading the first examples", count)
    return None if counts is None else FirstLabels(*counts)


def on_first_rank(ranks: "TrainingRanks", what: str, act: Callable[[], T]) -> T:
    """What `act` returns on rank 0, on every rank; what it raises there is raised on all. Every
    rank calls it.

    Args:
        what: it does, in words.
        act: returns what JSON holds.
    """
    if ranks.world is None:
        return act()
    of_ranks = together(ranks.world, what, lambda: act() if ranks.rank == 0 else None)
    return cast("T", of_ranks[0])


def require_examples(
    options: "TrainOptions",
    labels: FirstLabels,
    what: str = "DATA",
    files: "Sequence[PathLike] | None" = None,
    *,
    is_sample: bool | None = None,
) -> None:
    """Refuses a log without examples.

    Args:
        options: of the run.
        labels: of the log's first examples.
        what: the log is, in words.
        files: of the log; None for DATA's.
        is_sample: only some of its examples are read; None: as DATA is read.

    Raises:
        ConfigError: there is none, and that is not allowed.
    """
    if labels.examples or options.allow_empty:
        return
    if is_sample is None:
        is_sample = files is None and options.reader_config().is_sample
    files = options.data if files is None else files
    why = why_empty(labels.skipped, is_sample=is_sample)
    raise ConfigError(f"{names_of(files)}: {what} has no example, {why}; --allow-empty accepts it")


def check_measured_logs(
    recipe: "ModelRecipe",
    options: "TrainOptions",
    reader: "Reader",
    progress: "Progress",
) -> None:
    """Opens --test, --valid and files that are held out as they will be measured, compares their
    columns with those trained on, and reads their first batch.

    Args:
        recipe: of the model; its features and dense columns are wanted.
        options: of the run.
        reader: of the log that is trained on.
        progress: told of columns that are left out.

    Raises:
        ConfigError: other columns than those trained on, or no example.
        HpsError: what its beginning cannot be read for.
    """
    share = options.hashed_share
    if share is not None:
        held_out = _Measured("--valid-share", options.data, {"hash_range": (0.0, share)})
        _check_examples(held_out, recipe, options)
    files = () if options.held_out is None else options.held_out.files
    for log in (
        _Measured("--valid", options.valid),
        _Measured("--valid-by files", files),
        _Measured("--test", options.test),
    ):
        if log.files:
            _check_measured(log, recipe, options, reader, progress)


@dataclass(frozen=True)
class _Measured:
    """A log that a model is measured on, and the flag that names it."""

    flag: str
    files: "Sequence[PathLike]"
    changes: Json = field(default_factory=dict)  # fields of its reader's config


def _check_measured(
    log: _Measured,
    recipe: "ModelRecipe",
    options: "TrainOptions",
    reader: "Reader",
    progress: "Progress",
) -> None:
    try:
        _check_columns(log, recipe, options, reader, progress)
        _check_examples(log, recipe, options)
    except HpsError as error:
        error.add_note(f"this is {log.flag}, which is looked at before training")
        raise


def _check_examples(log: _Measured, recipe: "ModelRecipe", options: "TrainOptions") -> None:
    """Reads the first batch."""
    measured = recipe.open_reader(log.files, [options.table()], **log.changes)
    try:
        batch, skipped = next(measured, None), measured.counts.skipped
    finally:
        measured.close()
    if batch is None:
        is_sample = measured.config.is_sample
        require_examples(
            options, FirstLabels(0, 0, skipped), log.flag, log.files, is_sample=is_sample
        )


def _check_columns(
    log: _Measured,
    recipe: "ModelRecipe",
    options: "TrainOptions",
    reader: "Reader",
    progress: "Progress",
) -> None:
    """Of formats whose columns show at their beginning; slots and libffm name their features on
    each line, and a log may lack some."""
    if reader.config.format == "criteo":
        _check_criteo_columns(log, recipe, options, reader)
    elif reader.config.format in WITH_COLUMNS:
        _check_named_columns(log, recipe, options, progress)


def _check_criteo_columns(
    log: _Measured, recipe: "ModelRecipe", options: "TrainOptions", reader: "Reader"
) -> None:
    everything = [TableConfig(name=options.table().name, dim=1)]
    measured = open_reader(log.files, tables=everything, config=reader.config)
    try:
        found = [name for names in measured.features.values() for name in names]
    finally:
        measured.close()
    num_wanted = sum(len(names) for names in recipe.raw_features.values())
    if len(found) != num_wanted:  # columns have no names: any may be the one that differs
        raise ConfigError(
            f"{measured.paths[0]}: it has {len(found)} categories, the log trained on {num_wanted}"
        )


def _check_named_columns(
    log: _Measured, recipe: "ModelRecipe", options: "TrainOptions", progress: "Progress"
) -> None:
    """Dense columns are compared by the reader, which is given those of the recipe."""
    measured = recipe.open_reader(log.files, [options.table()])
    try:
        columns = measured.raw_columns
    finally:
        measured.close()
    wanted = [name for names in recipe.raw_features.values() for name in names]
    found = [column.name for column in columns if column.kind == FEATURE]
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ConfigError(
            f"{measured.paths[0]}: it lacks features that the log trained on has: {missing}; it "
            f"has {[column.name for column in columns]}"
        )
    reading = recipe.reading()
    known = [*reading["ignore"], reading["weight"]]
    more = [one.name for one in columns if one.kind == IGNORED and one.name not in known]
    if more:
        progress.say(f"{log.flag} has columns that the log trained on lacks, left out: {more}")
