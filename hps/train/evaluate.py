"""How good a model is on a log it was not trained on: AUC, GAUC, logloss, calibration.

Above it: `hps train --test`, `hps evaluate`. Below it: `hps.metrics`, `hps.group_metrics`,
model.py, or servers.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hps.common.json_text import Json, JsonView
from hps.config import GpuCacheConfig
from hps.errors import ClusterError, ConfigError, HpsError
from hps.group_metrics import GroupMetrics
from hps.metrics import BinaryMetrics
from hps.service.client.options import ClientConfig
from hps.stops import Stops, StopWaiting
from hps.train.absent_keys import AbsentKeys
from hps.train.base_rate import why_empty
from hps.train.checkpoints import ModelCheckpoint, newest_with_model
from hps.train.graph_model import GraphModel
from hps.train.joined_metrics import joined_group_figures, joined_metrics
from hps.train.model import Model
from hps.train.model_places import is_published
from hps.train.ranks import TrainingRanks
from hps.train.report import peak_rss_bytes, tiers_of
from hps.train.row_server import connect
from hps.types import NO_GROUP, Batch

if TYPE_CHECKING:
    from hps.models import ClickModel

_FAILED = 1000  # above the numbers of all signals


def evaluate_model(
    model: "ClickModel | GraphModel",
    batches: Iterable[Batch],
    ranks: TrainingRanks | None = None,
    stops: Stops | None = None,
) -> Json:
    """Runs a model over batches in eval mode: rows are read, none is created.

    Args:
        model: in whatever mode; it is left in that. Or the ONNX graph of a published one.
        batches: of the log; of several ranks each gives its part of every batch.
        ranks: that measure together; every rank calls it.
        stops: what asks to stop; None for nothing.

    Returns:
        What `BinaryMetrics.compute` returns: examples, auc, logloss, calibration and more, all
        examples counting alike, of the logits that `ClickModel.score` gives; under `scores` what
        `BinaryMetrics.scores` returns. Where batches have groups, also what `GroupMetrics.compute`
        does: gauc, groups, gauc_examples; examples of no group (NO_GROUP) take no part in these.

    Raises:
        StopWaiting: it was asked to stop, on any rank; all have left it.
        ClusterError: another rank cannot read its part.
        HpsError: what the batches raise.
    """
    ranks = ranks or TrainingRanks()
    metrics, in_groups = BinaryMetrics(), GroupMetrics()
    has_groups = False
    with _to_measure(model), torch.no_grad():
        for batch in _in_step(iter(batches), ranks, stops or Stops()):
            logits = model.score(batch.to(model.device))
            metrics.update(logits.cpu(), batch.labels.cpu())
            if batch.groups is not None:
                has_groups = True
                _add_grouped(in_groups, logits, batch.labels, batch.groups)
    joined = joined_metrics(metrics, ranks)
    figures: Json = {**joined.compute(), "scores": joined.scores()}
    if ranks.any(has_groups):
        figures |= joined_group_figures(in_groups, ranks)
    return figures


@contextmanager
def _to_measure(model: "ClickModel | GraphModel") -> Iterator[None]:
    """A module is in eval mode meanwhile; a graph always is."""
    if isinstance(model, GraphModel):
        yield
        return
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _add_grouped(
    metrics: GroupMetrics, logits: torch.Tensor, labels: torch.Tensor, groups: torch.Tensor
) -> None:
    """Adds the examples that have a group."""
    has_group = groups.cpu() != NO_GROUP
    of_all = (logits.cpu().reshape(-1), labels.cpu(), groups.cpu())
    metrics.update(*(values[has_group] for values in of_all))


def _in_step(batches: Iterator[Batch], ranks: TrainingRanks, stops: Stops) -> Iterator[Batch]:
    """The batches, until one rank cannot go on: then none does, as each waits for the others'
    rows."""
    while True:
        batch: Batch | None = None
        failure: HpsError | None = None
        try:
            # A rank that leaves a wait alone would leave the others waiting.
            batch = stops.next_of(batches) if ranks.world is None else next(batches, None)
        except HpsError as error:
            if ranks.world is None:
                raise
            failure = error
        wish = ranks.most(_FAILED if failure is not None else stops.asked)
        if wish == _FAILED:
            _raise_failed(failure, ranks)
        if wish:
            raise StopWaiting(wish)
        if batch is None:
            return
        yield batch


def _raise_failed(failure: HpsError | None, ranks: TrainingRanks) -> None:
    told = ranks.gather(None if failure is None else str(failure))
    rank = next(rank for rank, text in enumerate(told) if text is not None)
    error = failure or ClusterError(f"rank {rank}: {told[rank]}")
    error.is_shared = True
    raise error


def evaluate_store(
    data: Sequence[str | Path],
    store: str | Path,
    checkpoint: str | int | None = None,
    dram: int | str = "256MiB",
    gpu: GpuCacheConfig | None = None,
    **changes: Any,
) -> Json:
    """Measures a stored model on a log; the store is opened read-only.

    Args:
        data: the log's files, of the format the model was trained on.
        store: directory of the store.
        checkpoint: tag or id of the checkpoint to measure; None takes the newest with a model.
        dram: budget of the host tier.
        gpu: budget and device of a GPU tier; the model runs there, too. None for none.
        changes: fields of `ReaderConfig` that differ from the training run's; `batch_size` is that
            of `ModelRecipe.batch_to_measure` if it is not given.

    Returns:
        The metrics, and seconds, examples_per_second, skipped_lines, tiers, rows, peak_rss_bytes;
        weight, the training's column, which is not looked at here; absent_keys as
        `AbsentKeys.figures` has it.

    Raises:
        ConfigError: no such checkpoint, or it holds no model of hps.
    """
    with Model.load(store, checkpoint, dram=dram, gpu=gpu) as model:
        return _measure(model, data, changes)


def evaluate_published(
    data: Sequence[str | Path],
    url: str | Path,
    version: int | None = None,
    dram: int | str = "256MiB",
    gpu: GpuCacheConfig | None = None,
    **changes: Any,
) -> Json:
    """Measures a published model on a log: a version of it, with rows and dense part as `Model`
    scores them.

    Args:
        data: the log's files, of the format the model was trained on.
        url: the folder or URL that `hps publish` writes to.
        version: its number; None takes the newest.
        dram, gpu, changes: as `evaluate_store` takes them.

    Returns:
        As `evaluate_store`; `checkpoint` is the version's number.

    Raises:
        ConfigError: no such version, or it has no recipe that makes keys of a log.
        CorruptionError, StoreError: it is damaged, or cannot be read.
    """
    if not is_published(url):
        raise ConfigError(
            f"{url}: no model is published here; `hps publish STORE {url}` writes there"
        )
    with Model.load(url, version=version, dram=dram, gpu=gpu) as model:
        return _measure(model, data, changes)


def evaluate_remote(
    data: Sequence[str | Path],
    remote: ClientConfig,
    checkpoint: str | int | None = None,
    **changes: Any,
) -> Json:
    """Measures a model on servers: their rows as they are, the dense side of a checkpoint.

    Rows that were trained since that checkpoint are newer than the dense side.

    Args:
        data: the log's files, of the format the model was trained on.
        remote: the servers.
        checkpoint: tag or id of the checkpoint; None takes the newest with a model.
        changes: fields of `ReaderConfig` that differ from the training run's.

    Returns:
        As evaluate_store, without absent_keys.

    Raises:
        ConfigError: no such checkpoint, or it holds no model of hps.
        RemoteError: a shard does not answer.
    """
    with connect(remote) as server:
        if checkpoint is None:
            found = newest_with_model(server)
        else:
            state, _ = server.checkpoint_state(checkpoint)
            found = None if state is None else ModelCheckpoint(checkpoint, state, {})
        if found is None:
            raise ConfigError(
                f"service {','.join(remote.addresses)}: there is no checkpoint with a model; "
                "`hps train` writes one that has it"
            )
        return _measure(Model(server, found), data, changes)


def _measure(model: Model, data: Sequence[str | Path], changes: JsonView) -> Json:
    server = model.server
    start = time.perf_counter()
    size: Json = {"batch_size": model.recipe.batch_to_measure(server)}
    reader = model.open_reader(data, **{**size, **changes})
    absent = AbsentKeys(model.loaded)
    metrics = evaluate_model(model.loaded.scores, absent.watch(reader))
    if not metrics["examples"]:
        why = why_empty(reader.counts.skipped, is_sample=reader.config.is_sample)
        raise ConfigError(f"DATA has no example to measure the model on, {why}")
    seconds = time.perf_counter() - start
    absent.warn(reader)
    return {
        "model": model.recipe.kind,
        "checkpoint": model.checkpoint,
        "weight": model.recipe.reader.get("weight"),
        **metrics,
        "seconds": seconds,
        "examples_per_second": metrics["examples"] / seconds,
        "skipped_lines": reader.counts.skipped,
        "rows": sum(server.num_rows(name) for name in model.recipe.tables),
        "tiers": tiers_of(server.stats()),
        "peak_rss_bytes": peak_rss_bytes(),
        **absent.figures(),
    }
