"""`hps train`: runs the command: alone or as one rank, its final table, its JSON, its exit status.

Above it: `hps.cli.main`. Below it: train_flags.py (what the flags are), hps/train/options.py (what
they become: budgets, reader, model), `hps.train`.
"""

import argparse
import re
import shlex
import sys
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from hps.checkpoint.names import text_of
from hps.cli import flags
from hps.cli.output import check_out_path, stream_for_people, stream_of_progress, write_json
from hps.cli.server_flags import client_config
from hps.cli.train_flags import add_train_flags
from hps.common.full_disk import is_full_disk
from hps.common.json_text import Json, JsonView
from hps.common.url_text import hidden_url
from hps.config import RankEnvironment, is_malloc_set, keep_torch_silent, limit_idle_spinning
from hps.errors import ConfigError, HpsError

if TYPE_CHECKING:
    from hps.stops import Stops
    from hps.train import TrainOptions


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `train`."""
    parser = subparsers.add_parser(
        "train",
        help="train a click model from logs",
        description="Trains a click model from logs, with its rows in a store or on servers, and "
        "ends with a checkpoint that holds all it takes to go on (--resume). docs/training.md says "
        "more.",
    )
    add_train_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Trains as the flags say, under torchrun as one of several ranks; returns the exit status."""
    if (arguments.store is None) == (arguments.server is None):
        raise ConfigError("give --store DIR or --server HOST:PORT,...: rows lie in one of the two")
    from hps.stops import RANK_PATIENCE_SECONDS, Stops

    place = RankEnvironment.of()
    patience = 0.0 if place is None else RANK_PATIENCE_SECONDS
    with Stops(patience_seconds=patience, tells=place is None) as stops:
        return _run(arguments, place, stops)


def _run(arguments: argparse.Namespace, place: RankEnvironment | None, stops: "Stops") -> int:
    remote = client_config(arguments)
    if arguments.report is not None:
        from hps.report.page import require_plotly

        require_plotly()
    limit_idle_spinning()
    if place is not None:
        keep_torch_silent()
    from hps.common.process_memory import keep_freed_memory
    from hps.train import TrainOptions  # torch takes its time to import

    if not is_malloc_set():
        keep_freed_memory()
    resume = arguments.resume or arguments.resume_from is not None
    values = {**vars(arguments), "remote": remote, "resume": resume, "held_out": None}
    values["followed"] = None
    options = TrainOptions(**{field.name: values[field.name] for field in fields(TrainOptions)})
    try:
        if place is None:
            return _run_alone(arguments, options, stops)
        return _run_rank(arguments, options, place, stops)
    except HpsError as error:
        if is_full_disk(error):
            error.add_note(_how_to_go_on(arguments.store and Path(arguments.store)))
        raise


def _run_alone(arguments: argparse.Namespace, options: "TrainOptions", stops: "Stops") -> int:
    from hps.train import train
    from hps.train.progress import Progress

    check_out_path(arguments.json)
    with closing(Progress(arguments.progress_seconds, stream_of_progress())) as progress:
        figures = train(options, progress, stops=stops)
    _report(arguments, figures)
    return _status(figures, tells=True)


def _how_to_go_on(store: Path | None) -> str:
    """What a training that a full disk ended can go on from, in words."""
    from hps.parameter_server.open_server import open as open_store

    try:
        if store is not None:
            with open_store(store) as server:
                listed = server.checkpoints()
            if not listed:
                return "it has no checkpoint yet: without --resume it begins anew"
            # After --resume-from the current one is not the newest.
            found = next((one for one in listed if one["current"]), listed[-1])
            name = text_of(found["tag"] or found["id"])
            return f"with --resume it goes on from checkpoint {name!r}"
    except (HpsError, OSError):
        pass  # the disk that has no room may refuse that, too
    return "with --resume it goes on from the newest checkpoint"


def _run_rank(
    arguments: argparse.Namespace, options: "TrainOptions", place: RankEnvironment, stops: "Stops"
) -> int:
    """One process of several; rank 0 alone reports, and of an error the rank that it struck."""
    from hps.cluster.world.torch_world import torch_world
    from hps.train import train
    from hps.train.progress import Progress
    from hps.train.ranks import options_of_rank, restart_warning
    from hps.train.run_mark import RunMark, name_of_run

    is_first = place.rank == 0
    if is_first:
        check_out_path(arguments.json)
        for line in restart_warning(place):
            print(f"hps: {line}", file=sys.stderr)
    on_gpu = options.gpu is not None and options.device != "cpu"
    # Without a GPU, gloo: the store then says what --gpu needs.
    world = torch_world(None if on_gpu else "gloo", arguments.cluster_timeout)
    try:
        mark = None
        if options.store is not None:
            mark = RunMark(options.store, name_of_run(options, place))
        is_restart = mark is not None and mark.is_restart(world, place)
        options = options_of_rank(options, place, is_restart)
        with closing(Progress(arguments.progress_seconds, stream_of_progress())) as progress:
            figures = train(options, progress if is_first else None, world, mark, stops)
        world.close()
        # After a signal to one rank alone torchrun may start all of them anew: they go on.
        if mark is not None and not figures["stopped"]:
            mark.remove()  # every rank is done
    except HpsError as error:
        if error.is_shared:
            world.close()
        else:
            world.abort(str(error))
        # What strikes several ranks is told by the first of them.
        if world.left_before is not None or is_told_elsewhere(error, place.rank):
            return 1
        if not str(error).startswith(f"rank {place.rank}"):
            error.add_note(f"rank {place.rank} of {place.size}")
        raise
    if is_first:
        _report(arguments, figures)
    return _status(figures, tells=is_first)


def _status(figures: Json, *, tells: bool) -> int:
    """The exit status of a run whose figures are written."""
    if figures["test_error"] is not None:
        if tells:
            print(
                "hps: error: the model is trained and saved, but not measured on --test: "
                f"{' '.join(figures['test_error'].split())}",
                file=sys.stderr,
            )
        return 1
    if figures["publish_error"] is not None:
        if tells:
            print(
                "hps: error: the model is trained and saved, but its newest checkpoint is not "
                f"published: {' '.join(figures['publish_error'].split())}",
                file=sys.stderr,
            )
        return 1
    from hps.stops import status_of

    return 0 if figures["stopped"] is None else status_of(figures["stopped"])


def is_told_elsewhere(error: HpsError, rank: int) -> bool:
    """True for what all ranks raise and one of them tells: the one whose number opens the message.

    >>> is_told_elsewhere(HpsError("rank 3: the disk is full"), 0)
    True
    """
    found = re.match(r"rank (\d+)[:,] ", str(error))
    return found is not None and int(found[1]) != rank


def _why_nothing_is_left(
    limit: int, epochs: int, num_examples: int, folder: str | None = None
) -> str:
    """Why a run that goes on has nothing to do.

    >>> _why_nothing_is_left(100, 1, 1024)
    'after 1,024 examples, and --limit is 100: give a larger one'
    """
    if 0 < limit <= num_examples:
        return f"after {num_examples:,} examples, and --limit is {limit:,}: give a larger one"
    if folder is not None:
        return f"at the end of the files in {folder}, after {num_examples:,} examples"
    return (
        f"at the end of the data, after {num_examples:,} examples, and --epochs is {epochs:,}: "
        "give a larger one, or other data with --new-data"
    )


def _outcome(arguments: argparse.Namespace, figures: Json) -> str | None:
    """What a run did that is not as any run does it, in words."""
    from hps.train.base_rate import names_of, why_empty

    resumed_from, limit = figures["resumed_from"], arguments.limit
    if figures["stopped"] is not None:
        return (
            f"stopped by {figures['stopped']} after {figures['model_examples']:,} examples of the "
            "model's life, all of them in a checkpoint; --resume goes on there"
        )
    if figures["stopped_early"]:
        best = figures["best"]
        if not figures["examples"] and resumed_from is not None:
            return (
                f"nothing left to train: checkpoint {resumed_from} is where --patience "
                f"{arguments.patience} ended the run, after {figures['total_examples']:,} "
                f"examples: no validation was better than that after {best['examples']:,}, whose "
                "model is kept under the tag 'best'; give a larger --patience, or other data with "
                "--new-data"
            )
        return (
            f"ended early: {arguments.patience} validation(s) in a row were no better than that "
            f"after {best['examples']:,} examples, whose model is kept under the tag 'best'"
        )
    follow = figures["follow"]
    if follow is not None and figures["examples"]:
        begun = "" if resumed_from is None else f"resumed from checkpoint {resumed_from}; "
        return (
            f"{begun}followed {follow['folder']} for {follow['files']:,} file(s), with "
            f"{follow['wait_seconds']:,.1f} s of waiting"
        )
    if figures["examples"]:
        return None if resumed_from is None else f"resumed from checkpoint {resumed_from}"
    is_sample = figures["negative_rate"] < 1
    empty = why_empty(figures["skipped_lines"], is_sample=is_sample)
    folder = None if follow is None else follow["folder"]
    why = f"{empty} ({folder or names_of(arguments.data)})"
    if resumed_from is None:
        return f"nothing was trained, and no checkpoint written: DATA has no example, {why}"
    if arguments.new_data and not 0 < limit <= figures["total_examples"]:
        return (
            f"nothing was trained: DATA has no example, {why}; the model is as in checkpoint "
            f"{resumed_from}"
        )
    return (
        f"nothing left to train: checkpoint {resumed_from} is "
        f"{_why_nothing_is_left(limit, arguments.epochs, figures['total_examples'], folder)}"
    )


def _report(arguments: argparse.Namespace, figures: Json) -> None:
    from hps.train.rank_report import format_ranks
    from hps.train.report import (
        format_evaluations,
        format_progressive,
        format_stages,
        format_table,
        format_weight,
    )

    out = stream_for_people(arguments.json)
    outcome = _outcome(arguments, figures)
    if outcome is not None:
        print(outcome, file=out)
    for change in figures["resumed_with"]:
        print(change, file=out)
    print(format_table(figures), file=out)
    weighted = format_weight(figures)
    if weighted is not None:
        print(weighted, file=out)
    if _is_past_the_best(figures):
        print("test figures are of the newest model, not of the one tagged 'best'", file=out)
    if figures["evaluations"] and (figures["validation_seconds"] or figures["stopped_early"]):
        print(f"\n{format_evaluations(figures['evaluations'], figures['best'])}", file=out)
    if figures["progressive"]:
        print(f"\n{format_progressive(figures['progressive'])}", file=out)
    print(f"\n{format_stages(figures)}", file=out)
    if "ranks" in figures:
        print(f"\n{format_ranks(figures['ranks'])}", file=out)
    if arguments.trace is not None:
        of_rank = ".rank-0, one for each rank" if "ranks" in figures else ""
        print(f"trace: {arguments.trace}{of_rank} (open it at ui.perfetto.dev)", file=out)
    write_json(arguments.json, figures)
    if arguments.report is not None:
        _write_report(arguments.report, figures, out)


def _is_past_the_best(figures: JsonView) -> bool:
    """True where --test measured another model than the one that --valid found best."""
    best, evaluations = figures["best"], figures["evaluations"]
    if figures["test_logloss"] is None or best is None:
        return False
    newest = figures["total_batches"]
    return bool(evaluations[-1]["batches"] == newest != best["batches"])


def _write_report(folder: Path, figures: Json, out: TextIO) -> None:
    """The page of the run beside its history."""
    from hps.report.history import FIGURES, PAGE
    from hps.report.page import write_page
    from hps.report.runs import read_run

    if figures["examples"] or not (folder / FIGURES).exists():  # else those of the run before stay
        words = [hidden_url(word) for word in sys.argv[1:]]
        write_json(folder / FIGURES, {**figures, "command": shlex.join(["hps", *words])})
    write_page([read_run(folder)], folder / PAGE)
    print(f"report: {folder / PAGE}", file=out)
