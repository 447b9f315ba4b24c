"""The training run: open the store, take up a checkpoint if asked to, loop, measure, report.

Above it: `hps train`. Below it: a server of rows (servers.py), `hps.Pipeline`, a reader, `Trainer`.
"""

import dataclasses
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hps.cluster.catalog import NAME as CLUSTER
from hps.cluster.glance import Glance, check_stays, glance
from hps.errors import ConfigError
from hps.parameter_server import open as open_store
from hps.pipeline import Pipeline, Trace, add_seconds, bound_of
from hps.reader.column_use import describe_columns, format_columns
from hps.reader.files import find_files
from hps.reader.open import open_reader
from hps.row_server import CutServer
from hps.ssd_store.engine import ROCKSDB_MANIFEST
from hps.stops import Stops, StopWaiting, name_of
from hps.train.base_rate import first_labels
from hps.train.boundary import Boundary
from hps.train.checkpoints import ModelCheckpoint, newest_with_model
from hps.train.checks import (
    check_test_log,
    checkpoint_to_resume,
    is_strict,
    nothing_to_resume,
    on_first_rank,
    read_ahead,
    require_examples,
)
from hps.train.context import RunContext
from hps.train.course import Course
from hps.train.dense_watch import DenseWatch
from hps.train.depth import AUTO, DepthChooser
from hps.train.options import TrainOptions
from hps.train.progress import Progress
from hps.train.rank_report import find_stragglers, sum_tiers
from hps.train.ranks import Ranks, cores_of_rank
from hps.train.reading import StoredModel, as_the_model, free_fields, model_to_resume
from hps.train.recipe import ModelRecipe, reading_of
from hps.train.report import peak_rss_bytes, row_moves, tiers_of
from hps.train.run_mark import RunMark
from hps.train.servers import connect, open_server
from hps.train.start import start_together
from hps.train.test_figures import TestFailed, measure_test
from hps.train.trainer import Trainer

if TYPE_CHECKING:
    from hps.cluster.world import World
    from hps.reader.reader import Reader

FINAL_TAG = "final"
_FEW_BATCHES = 8  # in which queues are only filled: nobody can tell what bounds such a run


def train(
    options: TrainOptions,
    progress: Progress | None = None,
    world: "World | None" = None,
    mark: RunMark | None = None,
    stops: Stops | None = None,
) -> dict[str, Any]:
    """Trains as asked; leaves a checkpoint that holds all it takes to go on.

    It is tagged "final"; where the run was stopped it has no tag.

    Args:
        options: what to train, on what, where.
        progress: told how the run begins, and about every batch; None for silence.
        world: the ranks that train together, all of which call this; None for this process alone.
        mark: of torchrun's run, set once its restarts may go on from what the store holds; None
            for none.
        stops: asks the run to end after the step under way; None: nothing does, and signals do what
            they do in the caller's program.

    Returns:
        The figures of `hps train --json`, on every rank; docs/training.md lists them.

    Raises:
        ConfigError: flags that do not fit each other or what the store holds, or ranks that were
            asked for different things.
        ClusterError: another rank is gone.
        HpsError: whatever the store, the reader or a diverged model raises.
    """
    try:
        told = progress or Progress(0, StringIO())
        return _train(options, RunContext(Ranks(world), told, stops or Stops()), mark)
    except BaseException as error:
        if world is not None and not getattr(error, "is_shared", False):
            world.abort(f"{type(error).__name__}: {error}")
        raise


def _train(options: TrainOptions, context: RunContext, mark: RunMark | None) -> dict[str, Any]:
    ranks = context.ranks
    if options.torch_threads:
        torch.set_num_threads(options.torch_threads)
    stored = model_to_resume(options, ranks.world)
    options = options.settled() if stored is None else as_the_model(options, stored)
    prepare = partial(_prepare, options, context, stored)
    if ranks.world is None:
        reader, _ = prepare()
    else:
        reader = start_together(ranks.world, options, prepare)
    if not options.resume:
        context.labels = read_ahead(options, ranks, reader)
    figures: dict[str, Any] = {}
    try:
        with (
            nullcontext() if options.trace is None else Trace(options.trace) as trace,
            open_server(options, ranks.world) as server,
        ):
            run = TrainingRun(server, options, reader, context)
            if mark is not None:
                mark.set()
            context.stops.defer()
            figures |= run.train(trace)
            figures["rows"] = sum(server.num_rows(name) for name in server.tables)
            if not figures["stopped"]:
                if options.digest:
                    figures["digests"] = {name: server.digest(name) for name in server.tables}
                if options.test:
                    figures |= measure_test(run.trainer, options, context)
            figures["peak_rss_bytes"] = sum(ranks.gather(peak_rss_bytes()))
    except TestFailed as failure:  # the ranks are out of step: nothing more is asked of them
        figures["test_error"] = str(failure)
    return figures


def _prepare(
    options: TrainOptions, context: RunContext, stored: StoredModel | None
) -> tuple["Reader", list[Path]]:
    """Opens the log, and finds all that can be wrong with flags and files, before the store is
    made: the first run fixes its dim, optimizer and seed. Returns the test log's files, too."""
    ranks, progress = context.ranks, context.progress
    config = dataclasses.replace(options.reader_config(), part=ranks.part)
    if stored is None:
        reader = open_reader(options.data, tables=[options.table()], config=config)
        reader.settle()
    else:  # the features are the model's: new data may lack some
        fields = free_fields(config)
        reader = stored.recipe.open_reader(options.data, [options.table()], **fields)
    test_files = list(find_files(options.test)) if options.test else []
    if not options.resume:
        new = _recipe(options, reader)  # here, as it may read the whole log
        if ranks.rank == 0:
            check_test_log(new, options, reader, progress)
    elif is_strict(options) and options.remote is not None:
        with connect(options.remote) as server:  # makes no table there
            checkpoint_to_resume(options, server)
    if options.remote is None and ranks.rank == 0:  # of several one tells, for all
        seen = _check_store(options, ranks, has_model=stored is not None)
        if seen is not None and seen.ranks != ranks.size:
            progress.say(
                f"{options.where}: its {seen.rows:,} rows, of {seen.ranks} rank(s), move to "
                f"{ranks.size} rank(s)"
            )
    return reader, test_files


def _check_store(options: TrainOptions, ranks: Ranks, *, has_model: bool) -> Glance | None:
    """Refuses a store of other tables, before opening it for writing would add this run's own.

    Of another dim, too: the store would speak of columns, the user knows of --dim. And of a
    cluster a model that this run is not to go on with: opening it may move all of its rows.

    Args:
        has_model: there is one to go on with, on whatever rank's host.

    Returns:
        What a cluster's folder holds; None of others, or where it is not seen.
    """
    config = options.server_config()
    path = Path(config.path)
    seen: Glance | None = None
    if ranks.world is not None:
        seen = glance(path)
        if is_strict(options) and (seen is None or not has_model):
            raise nothing_to_resume(options, is_there=seen is not None)
        if seen is None:
            return None
        dims = seen.dims
        if seen.model is not None and not options.resume:
            raise _holds_model(options, str(ModelCheckpoint(seen.model, {}, {})))
        if options.resume_from is not None:
            check_stays(path, options.resume_from, ranks.size)
    elif any((path / name).exists() for name in ("CURRENT", ROCKSDB_MANIFEST)):
        with open_store(config.path) as stored:
            dims = {table.name: table.dim for table in stored.tables.values()}
            _refuse_model(options, stored)
            if is_strict(options):
                checkpoint_to_resume(options, stored)
    elif is_strict(options) and not (path / CLUSTER).exists():
        raise nothing_to_resume(options, is_there=False)
    else:
        return None
    held = sorted(dims)
    wanted = sorted(table.name for table in config.tables)
    if held and not set(wanted) <= set(held):
        raise ConfigError(
            f"store {str(config.path)!r} holds the tables {held}, this run needs {wanted}; it "
            "belongs to another run or to a program of its own: give another --store"
        )
    shape = options.shape()
    for table in config.tables:
        others = table.dim - shape.dim  # a first-order weight, in models that have one
        if held and dims[table.name] != table.dim:
            beside = f" and {others} first-order weight" if others else ""
            raise ConfigError(
                f"--dim {shape.dim}: the rows of store {str(config.path)!r} have "
                f"{dims[table.name]} columns, and --model {shape.model} wants {shape.dim}"
                f"{beside}; give --dim {dims[table.name] - others}, or another --store"
            )
    return seen


def _refuse_model(options: TrainOptions, server: CutServer) -> None:
    """A new model may not be trained on top of one, in whatever checkpoint that is."""
    if not options.resume:
        found = newest_with_model(server, passes_over=True)
        if found is not None:
            raise _holds_model(options, str(found))


def _holds_model(options: TrainOptions, checkpoint: str) -> ConfigError:
    return ConfigError(
        f"{options.where} holds a trained model (checkpoint: {checkpoint}); continue it with "
        "--resume, or give another one"
    )


class TrainingRun:
    """One run over an open store; `reader` is at the beginning of the log.

    Every rank has one and does the same at the same batches.
    """

    def __init__(
        self,
        server: CutServer,
        options: TrainOptions,
        reader: "Reader",
        context: RunContext,
    ) -> None:
        self._server = server
        self._options = options
        self._progress = context.progress
        self._ranks = ranks = context.ranks
        self._stops = context.stops
        self._boundary = Boundary(
            options.checkpoint_every, options.checkpoint_seconds, context.stops, ranks
        )
        self._depths = DepthChooser(ranks.agreed_depth(options.depth))
        self._checkpoint_seconds = 0.0
        self._num_checkpoints = 0
        self._stopped = 0  # the signal
        self.base_rate: float | None = None
        stored = self._stored()
        self.resumed_from = None if stored is None else str(stored)
        self._reader = self._place_reader(reader, stored)
        recipe = _recipe(options, self._reader)
        self.trainer = Trainer(server, recipe, options, ranks)
        self.changes: list[str] = []
        if stored is None:
            self._set_base_rate(context)
        else:
            self.trainer.check_state(stored.model)
            on_first_rank(ranks, "looking at the logs", partial(self._check_logs, recipe))
            # Nothing refuses the run from here on; one that is refused has not gone back.
            server.restore(stored.name)
            self.changes = self.trainer.load_state(stored.model)
            self._boundary.checkpoint_done()
            if options.new_data:
                # What is resumed from now on goes on here, not where the run before was.
                self._checkpoint(None, self._reader.state_dict())
            self._say_resumed()
        self._columns = self._reader.columns
        self._watch = DenseWatch(self._columns, self._reader.config.transform)
        for line in format_columns(self._columns):
            context.progress.say(line)

    def _check_logs(self, recipe: ModelRecipe) -> None:
        """Where it was not clear before what features the model has."""
        if self._options.new_data:
            require_examples(self._options, first_labels(self._reader, 1), "DATA")
        check_test_log(recipe, self._options, self._reader, self._progress)

    def _set_base_rate(self, context: RunContext) -> None:
        """Has a new model begin at the log's share of clicks."""
        if self._options.resume:  # only now is it clear that there is nothing to go on from
            context.labels = read_ahead(self._options, self._ranks, self._reader)
            check = partial(self._check_logs, self.trainer.recipe)
            on_first_rank(self._ranks, "looking at the logs", check)
        labels = context.labels
        if self._options.base_rate and labels is not None and labels.examples:
            self.trainer.model.set_base_rate(labels.logit)
            self.base_rate = labels.rate

    def _say_resumed(self) -> None:
        totals = self.trainer.totals
        where = ", at the beginning of DATA" if self._options.new_data else ""
        if self._options.remote is not None:
            where += "; what clients changed on the servers after it, erased rows too, is undone"
        self._progress.say(
            f"goes on from checkpoint {self.resumed_from}, after {totals.batches:,} batches and "
            f"{totals.examples:,} examples{where}"
        )

    def train(self, trace: Trace | None = None) -> dict[str, Any]:
        """Trains to the end of the log and writes the final checkpoint; returns the figures."""
        before = self.trainer.totals.to_dict()
        first, first_batch = before["examples"], before["batches"]
        self._progress.begin(Course(self._reader, self._options.limit))
        exchanged = self._ranks.exchange_seconds()
        start, cpu_start = time.perf_counter(), time.process_time()
        stages, position = self._loop(trace)
        for line in self._watch.finish():
            self._progress.say(line)
        if self._ranks.world is not None:
            stages["compute"]["exchange_seconds"] = self._ranks.exchange_seconds() - exchanged
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        depth = self._depths.depth
        totals = self.trainer.totals
        num_examples = totals.examples - first
        if self._stopped and not self._boundary.is_saved:
            self._checkpoint(None, position)
        elif num_examples and not self._stopped:
            self._checkpoint(FINAL_TAG, position)
        self._progress.finish()
        stats = self._server.stats()
        if "client" in stats:
            stages["compute"]["server_seconds"] = stats["client"]["wait_seconds"]
        for stage, moves in row_moves(stats).items():
            stages[stage].update(moves)
        why = self._why_depth()
        bound = bound_of(stages, seconds, cpu_seconds, cores_of_rank(), depth, why)
        if totals.batches - first_batch < _FEW_BATCHES:
            bound = dataclasses.replace(bound, text=_too_few(totals.batches - first_batch))
        return {
            "model": self._options.shape().model,
            "examples": num_examples,
            "seconds": seconds,
            "examples_per_second": num_examples / seconds if seconds else 0.0,
            **_logloss(before, totals.to_dict()),
            "base_rate": self.base_rate,
            "stopped": name_of(self._stopped),
            "test_error": None,
            "test_auc": None,
            "test_logloss": None,
            "test_calibration": None,
            "total_examples": totals.examples,
            "total_batches": totals.batches,
            "loss_digest": totals.loss_digest,
            "resumed_from": self.resumed_from,
            "resumed_with": self.changes,
            "checkpoints": self._num_checkpoints,
            "checkpoint_seconds": self._checkpoint_seconds,
            # A reader that was left in a wait is elsewhere.
            "skipped_lines": position["skipped"] if self._stopped else self._reader.counts.skipped,
            "test_skipped_lines": None,
            "format": self._reader.config.format,
            "columns": describe_columns(self._columns, self._watch.found()),
            "peak_rss_bytes": peak_rss_bytes(),
            "stages": stages,
            "bound": asdict(bound),
            "depth": depth,
            "depth_trials": [asdict(trial) for trial in self._depths.trials],
            **self._sums(stages, cpu_seconds),
        }

    def _sums(self, stages: dict[str, dict[str, float]], cpu_seconds: float) -> dict[str, Any]:
        """The figures that are sums over all ranks, and under "ranks" what each of them did."""
        world = self._ranks.world
        own: dict[str, Any] = {
            "cpu_seconds": cpu_seconds,
            "tiers": tiers_of(self._server.stats()),
            "stages": stages,
            "bytes_sent": self._ranks.bytes_sent(),
        }
        of_ranks = self._ranks.gather(own)
        sums = {
            "cpu_seconds": sum(of_rank["cpu_seconds"] for of_rank in of_ranks),
            "tiers": sum_tiers([of_rank["tiers"] for of_rank in of_ranks]),
        }
        if world is not None:
            stages_of_ranks = [of_rank["stages"] for of_rank in of_ranks]
            sums["ranks"] = {
                "size": world.size,
                "stages": stages_of_ranks,
                "stragglers": find_stragglers(stages_of_ranks),
                "bytes_sent": [of_rank["bytes_sent"] for of_rank in of_ranks],
            }
        return sums

    def _why_depth(self) -> str:
        """Why the run ends at depth 0, if the user has not asked for it."""
        if self._ranks.world is not None and self._options.depth == AUTO and not self._depths.depth:
            return "which --depth auto chooses for ranks without two cores each"
        return self._depths.why

    def _stored(self) -> ModelCheckpoint | None:
        """What the run goes on from, where the server has not gone yet; None for a new run."""
        if not self._options.resume:
            _refuse_model(self._options, self._server)
            return None
        return checkpoint_to_resume(self._options, self._server)

    def _place_reader(self, reader: "Reader", stored: ModelCheckpoint | None) -> "Reader":
        """Where the run goes on: at the stored position, or at the beginning of new data."""
        if stored is not None and not self._options.new_data:
            reader.load_state_dict(stored.reader)
        return reader

    def _loop(self, trace: Trace | None) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
        """Trains; returns seconds by stage and the position after the last batch."""
        self.trainer.model.train()
        stages: dict[str, dict[str, float]] = {}
        accumulate = self._options.accumulate
        while True:
            depth = self._depths.depth
            batches = Pipeline(
                self._reader,
                self._server,
                depth,
                accumulate,
                lookahead=self._options.lookahead if depth else 0,
                trace=trace,
            )
            try:
                with batches:
                    self._span(batches)
            except StopWaiting as stop:  # between two steps
                self._stopped = stop.signal_number
            add_seconds(stages, batches.seconds())
            if batches.is_exhausted or self._is_limit_reached or self._stopped:
                return stages, batches.state_dict()
            self._depths.next_span()

    def _span(self, batches: Pipeline) -> None:
        """Trains on batches until they end, or as many examples have been seen as are asked for, or
        the run is to stop."""
        trainer, accumulate = self.trainer, self._options.accumulate
        num_gathered = 0
        while not self._is_limit_reached:
            # A rank alone cannot leave: the others may have the batch, and wait for its rows.
            may_leave = num_gathered == 0 and self._ranks.world is None
            batch = self._stops.next_of(batches) if may_leave else next(batches, None)
            if batch is None:
                break
            for line in self._watch.add(batch.dense):
                self._progress.say(line)
            logits = trainer.backward(batch)
            num_gathered += 1
            self._boundary.batch_done()
            if num_gathered == accumulate:
                trainer.step()
                num_gathered = 0
            self._progress.update(trainer.totals, logits, batch, self._server.stats)
            seconds_before = self._checkpoint_seconds
            if num_gathered == 0:
                due = self._boundary.due()
                self._stopped = due.stop
                if due.stop:
                    return
                if due.is_checkpoint:
                    self._checkpoint(None, batches.state_dict())
            if self._depths.batch_done(self._checkpoint_seconds - seconds_before):
                batches.stop_reading()
        if num_gathered:
            trainer.step()

    @property
    def _is_limit_reached(self) -> bool:
        limit = self._options.limit
        return bool(limit) and self.trainer.totals.examples >= limit

    def _checkpoint(self, tag: str | None, position: dict[str, Any]) -> None:
        start = time.perf_counter()
        self._server.checkpoint(tag=tag, model=self.trainer.state(), reader=position)
        self._boundary.checkpoint_done()
        self._num_checkpoints += 1
        self._checkpoint_seconds += time.perf_counter() - start


def _too_few(num_batches: int) -> str:
    """Instead of what bounds the run."""
    if not num_batches:
        return "no batch was trained on, so nothing bounds this run"
    return f"{num_batches} batch(es) are too few to tell what bounds this run"


def _logloss(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Means over this run and over the model's life, each beside its number of examples."""
    count = after["examples"] - before["examples"]
    model = after["loss_sum"] / after["examples"] if after["examples"] else None
    return {
        "train_logloss": model,
        "model_logloss": model,
        "model_examples": after["examples"],
        "run_logloss": (after["loss_sum"] - before["loss_sum"]) / count if count else None,
    }


def _recipe(options: TrainOptions, reader: "Reader") -> ModelRecipe:
    shape = options.shape()
    return ModelRecipe(
        kind=shape.model,
        features={name: list(names) for name, names in reader.features.items()},
        num_dense=reader.num_dense,
        hidden=list(shape.hidden),
        dropout=shape.dropout,
        reader=reading_of(reader, options),
    )
