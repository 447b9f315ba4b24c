"""The training run: open the log and the store, begin or go on, loop, measure, report.

Above it: `hps train`. Below it, in the order of a run: reading.py (the model to go on with),
opening.py (the log), row_server.py (the rows), beginning.py, loop.py, closing.py, figures.py.
"""

from contextlib import AbstractContextManager, nullcontext
from io import StringIO
from typing import TYPE_CHECKING

import torch

from hps.common.json_text import Json
from hps.errors import ConfigError
from hps.pipeline import Trace
from hps.report.history import BEGIN, History, Sink, open_history
from hps.stops import Stops
from hps.train.beginning import begin
from hps.train.boundary import Boundary
from hps.train.checks import read_ahead
from hps.train.closing import add_end_figures, save_end
from hps.train.context import RunContext
from hps.train.course import Course
from hps.train.default_rules import with_batch_size, with_row_defaults
from hps.train.depth import DepthChooser
from hps.train.field_advice import advice_on_dim
from hps.train.figures import RunFigures
from hps.train.file_advice import advice_on_files
from hps.train.final_figures import TestFailed
from hps.train.following import Following
from hps.train.loop import TrainingLoop
from hps.train.loss_advice import advice_on_loss
from hps.train.opening import open_log, open_new
from hps.train.options import TrainOptions
from hps.train.progress import Progress
from hps.train.ranks import TrainingRanks, first_depth
from hps.train.reading import as_the_model, model_to_resume
from hps.train.row_server import held_by, open_server
from hps.train.run_mark import RunMark
from hps.train.run_publisher import RunPublisher
from hps.train.step_checkpoints import StepCheckpoints

if TYPE_CHECKING:
    from hps.cluster.world.world import World
    from hps.reader.reader import Reader


def train(
    options: TrainOptions,
    progress: Progress | None = None,
    world: "World | None" = None,
    mark: RunMark | None = None,
    stops: Stops | None = None,
) -> Json:
    """Trains as asked; leaves a checkpoint that holds all it takes to go on.

    It is tagged "final", or as `options.tag` says; where the run was stopped it has no tag. Where
    the run validates, the model that was best is kept, too, under the tag "best".

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
        context = RunContext(TrainingRanks(world), told, stops or Stops())
        with _metrics(options, context):
            return _train(options, context, mark)
    except BaseException as error:
        if world is not None and not getattr(error, "is_shared", False):
            world.abort(f"{type(error).__name__}: {error}")
        raise


def _history(options: TrainOptions, context: RunContext) -> AbstractContextManager[History]:
    """Files are the first rank's alone; figures are served by each."""
    own: list[Sink] = [] if context.metrics is None else [context.metrics]
    if context.ranks.rank > 0:
        return nullcontext(History(own))
    say = context.progress.say
    return open_history(
        options.report, options.tensorboard, goes_on=options.resume, say=say, others=own
    )


def _metrics(options: TrainOptions, context: RunContext) -> "AbstractContextManager[object]":
    """Serves the run's figures, from before anything is read."""
    if options.metrics is None:
        return nullcontext()
    from hps.train.run_metrics import RunMetrics  # the service, only where it is wanted

    context.metrics = RunMetrics(options, context.ranks)
    context.progress.say(f"figures on {context.metrics.address}/metrics (--metrics)")
    return context.metrics


def _follow(options: TrainOptions, context: RunContext, *, is_new: bool) -> TrainOptions:
    """Looks into the folder to follow; returns the options with the files that the run begins
    with."""
    if context.ranks.world is not None:
        raise ConfigError(
            f"follow={str(options.follow)!r} (--follow) goes with one process: ranks would see a "
            "folder at different moments; leave torchrun out, or give DATA"
        )
    following = context.following = Following(options, context.progress, context.stops)
    options = options.with_followed(following.first_files())
    if is_new:
        options = following.begun_with(options, lambda one: open_new(one, one.reader_config()))
    return options


def _advise(options: TrainOptions, reader: "Reader", dim: int | None, progress: Progress) -> None:
    """Of options that say something else than they seem to; `dim` is that of a new model."""
    for line in advice_on_files(options.data, options.valid, options.test):
        progress.say(line)
    for line in advice_on_dim(dim, options.features, reader.features):
        progress.say(line)
    if options.scheduler_steps and options.scheduler == "constant":
        progress.say("warning: --scheduler-steps says nothing without a --scheduler")


def _train(options: TrainOptions, context: RunContext, mark: RunMark | None) -> Json:
    ranks, progress, stops = context.ranks, context.progress, context.stops
    if options.torch_threads:
        torch.set_num_threads(options.torch_threads)
    stored = model_to_resume(options, ranks.world)
    asked = options
    options = options.settled() if stored is None else as_the_model(options, stored)
    if options.follow is not None:
        options = _follow(options, context, is_new=stored is None)
    options = with_batch_size(options.with_last_files(), stored, progress)
    reader = open_log(options, context, stored)
    if ranks.rank == 0:
        _advise(options, reader, asked.dim if stored is None else None, progress)
    if stored is None:
        context.labels = read_ahead(options, ranks, reader)
        options = with_row_defaults(options, context.labels, progress)
    figures: Json = {}
    try:
        with (
            nullcontext() if options.trace is None else Trace(options.trace) as trace,
            _history(options, context) as progress.history,
            open_server(
                options,
                reader.features,
                ranks.world,
                keeps_start=asked.initial_accumulator is None,
            ) as server,
            RunPublisher(options, ranks, progress.say, held_by(server, ranks.world)) as publisher,
        ):
            every = (options.checkpoint_every, options.publish_every)
            boundary = Boundary(every, options.checkpoint_seconds, stops, ranks)
            depths = DepthChooser(ranks.agreed_depth(options.depth), start=first_depth())
            checkpoints = StepCheckpoints(server, boundary, publisher)
            begun = begin(server, options, reader, context, checkpoints)
            publisher.begin(begun.trainer)
            if context.metrics is not None:
                context.metrics.begin(server, checkpoints)
            loop = TrainingLoop(server, options, begun, checkpoints, depths, context)
            figures["new_data"] = begun.new_data
            if mark is not None:
                mark.set()
            stops.defer()
            run_figures = RunFigures(server, options, ranks, begun, checkpoints, depths)
            progress.begin(Course(reader, options.limit))
            progress.history.add(BEGIN, begun.trainer.totals.examples, {})
            run_figures.start()
            ended = loop.run(trace)
            run_figures.stop(ended.stages)
            save_end(
                checkpoints,
                begun.trainer,
                ended,
                is_changed=run_figures.is_changed,
                say=progress.say,
                tag=options.tag,
            )
            publisher.finish()
            progress.finish()
            figures |= run_figures.to_dict(ended)
            for line in advice_on_loss(figures["run_logloss"]):
                progress.say(line)
            figures |= {"published": publisher.done, "publish_error": publisher.error}
            add_end_figures(figures, server, begun.trainer, options, context)
    except TestFailed as failure:  # the ranks are out of step: nothing more is asked of them
        figures["test_error"] = str(failure)
    return figures
