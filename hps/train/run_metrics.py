"""RunMetrics: the figures of a training run while it goes on, for Prometheus and `hps dashboard`.

Above it: `hps.train.run`, loop.py. Below it: hps/service/server/metrics_http.py, which serves them
as it does those of `hps serve`. The training thread notes the figures between two steps, once a
second at most; whoever asks is given the last ones and never waits for a step, nor a step for him.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hps.common.json_text import Json
from hps.errors import ConfigError
from hps.pipeline.clock import add_seconds
from hps.pipeline.slices import RecentSlices
from hps.service.messages.addresses import is_loopback, split_address
from hps.service.server.admission import Admissions
from hps.service.server.auth import Caller, TokenFile
from hps.service.server.limits import ServerLimits
from hps.service.server.metrics_http import MetricsAccess, MetricsServer
from hps.service.server.store_metrics import (
    disk_families,
    newest_family,
    period_family,
    store_families,
)
from hps.service.server.tls import TlsCredentials, TlsFiles

if TYPE_CHECKING:
    from hps.contracts.training import TrainingServer
    from hps.train.options import TrainOptions
    from hps.train.ranks import TrainingRanks
    from hps.train.step_checkpoints import StepCheckpoints
    from hps.train.totals import Totals

NOTE_SECONDS = 1.0  # between two notes of the training thread
STAGES_PATH = "/stages"
_EXAMPLE = "127.0.0.1:9200"
_HISTORY = {
    "train/logloss": ("hps_train_logloss", "Mean loss of the examples since the last figure"),
    "train/auc": ("hps_train_auc", "AUC of them, before they were trained on"),
    "train/calibration": ("hps_train_calibration", "Their mean score over their share of clicks"),
    "train/examples_per_second": ("hps_train_examples_per_second", "Examples a second"),
    "valid/logloss": ("hps_valid_logloss", "Mean loss on the validation log"),
    "valid/auc": ("hps_valid_auc", "AUC on the validation log"),
    "valid/calibration": ("hps_valid_calibration", "Mean score over share of clicks on it"),
}


@dataclass(frozen=True)
class RunNote:
    """What a run was at, at one moment.

    Args:
        time: of it, seconds since 1970.
        examples, batches: that the model has been trained on.
        stages: seconds by stage, as `Pipeline.seconds` has them.
        exchange_seconds: spent in exchanges with other ranks.
        stats: of the server of rows; empty where the rows lie on servers, which tell themselves.
        period: of the store; None where there is none.
        checkpoint: when the newest one was taken; None before the first.
        checkpoints, checkpoint_seconds: taken by the run, and what they took.
    """

    time: float
    examples: int
    batches: int
    stages: Mapping[str, Mapping[str, float]]
    exchange_seconds: float
    stats: Json
    period: int | None
    checkpoint: float | None
    checkpoints: int
    checkpoint_seconds: float


class Timed(Protocol):
    """What has seconds of stages, as `hps.Pipeline`."""

    def seconds(self) -> dict[str, dict[str, float]]:
        """By stage."""


class RunMetrics:
    """Serves a run's figures from the moment it is made until it is closed; a context manager, and
    a sink of the run's history.

    Args:
        options: of the run, with `metrics`; each rank takes the port that many above it.
        ranks: that train together.

    Attributes:
        address: HOST:PORT.
        slices: of the stages, for the pipelines of the run.

    Raises:
        ConfigError: an address that is taken, or that others can reach without TLS; tokens or
            certificates that cannot be used.
    """

    name = "--metrics"

    def __init__(self, options: "TrainOptions", ranks: "TrainingRanks") -> None:
        assert options.metrics is not None
        host, port = _address(options.metrics, ranks)
        tls = _tls(options, host)
        tokens = options.metrics_tokens
        admissions = Admissions(ServerLimits(), None if tokens is None else _token_file(tokens))
        self._ranks = ranks
        self._sources: tuple[TrainingServer, StepCheckpoints] | None = None
        self._labels = {"rank": str(ranks.rank), "ranks": str(ranks.size)}
        self._store = options.store
        self._note: RunNote | None = None
        self._history: dict[str, float] = {}
        self._due = 0.0
        self._before: dict[str, dict[str, float]] = {}  # seconds of stages of earlier spans
        self.slices = RecentSlices()
        self._server = MetricsServer(
            self,
            (host, port),
            tls,
            MetricsAccess(
                lambda header: admissions.identify(header, "metrics"), tokens is not None
            ),
            lambda: True,
            {STAGES_PATH: self._stages},
        )
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self._server.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.stop()

    def begin(self, server: "TrainingServer", checkpoints: "StepCheckpoints") -> None:
        """The run begins: what its figures are of."""
        self._sources = (server, checkpoints)

    def batch_done(self, totals: "Totals", batches: Timed) -> None:
        """Notes the figures where the last ones are a second old; between two steps."""
        if time.monotonic() >= self._due:
            self.note(totals, batches.seconds())

    def note(self, totals: "Totals", stages: Mapping[str, Mapping[str, float]]) -> None:
        """Notes the figures of the run; the training thread calls it.

        Args:
            totals: of the run.
            stages: seconds of the span under way.
        """
        assert self._sources is not None, "a step before the run began"
        server, checkpoints = self._sources
        summed = {stage: dict(seconds) for stage, seconds in self._before.items()}
        add_seconds(summed, stages)
        self._due = time.monotonic() + NOTE_SECONDS
        has_rows = self._store is not None  # servers tell of theirs themselves
        try:
            stats = server.stats() if has_rows else {}
            period = server.period if has_rows else None
        except Exception:  # whatever it is: what is told of a training may not end it
            return
        self._note = RunNote(
            time=time.time(),
            examples=totals.examples,
            batches=totals.batches,
            stages=summed,
            exchange_seconds=self._ranks.exchange_seconds(),
            stats=stats,
            period=period,
            checkpoint=checkpoints.newest,
            checkpoints=checkpoints.count,
            checkpoint_seconds=checkpoints.seconds,
        )

    def span_ended(self, totals: "Totals", stages: Mapping[str, Mapping[str, float]]) -> None:
        """Notes the figures; the seconds of the next span begin at nothing again."""
        self.note(totals, stages)
        add_seconds(self._before, stages)

    def add(self, kind: str, examples: int, values: Mapping[str, float]) -> None:
        """As a sink of the history has it: the newest figure of each kind."""
        self._history |= {f"{kind}/{name}": value for name, value in values.items()}

    def close(self) -> None:
        """The history is over; the figures stay until the run is."""

    def seen_by(self, caller: Caller) -> Collector:
        """The figures as one caller sees them: tables that it may not read are left out."""
        return _View(self, caller)

    def collect(self, caller: Caller) -> Iterator[Metric]:
        """The families, in the order in which docs/training.md lists them."""
        text = "1 for the rank that answers"
        info = GaugeMetricFamily("hps_train_rank", text, labels=tuple(self._labels))
        info.add_metric(tuple(self._labels.values()), 1.0)
        yield info
        for name, value in dict(self._history).items():
            if name in _HISTORY:
                yield GaugeMetricFamily(*_HISTORY[name], value)
        note = self._note
        if note is None:
            return
        yield from _note_families(note)
        tables = note.stats.get("tables", {}).items()
        seen = {name: part for name, part in tables if caller.right(name)}
        yield from store_families({**note.stats, "tables": seen})
        if note.period is not None:
            yield period_family(note.period)
        if note.checkpoint is not None:
            yield newest_family(note.checkpoint)
        if self._store is not None:
            yield from disk_families(self._store)

    def _stages(self) -> Json:
        """The newest slices of the stages; times in seconds since 1970."""
        origin = time.time() - time.perf_counter()
        return {
            "now": time.time(),
            "slices": [
                [one.stage, one.side, one.batch, origin + one.start, origin + one.end]
                for one in self.slices.slices()
            ],
        }


class _View(Collector):
    """What prometheus_client asks for the figures of one caller."""

    def __init__(self, figures: RunMetrics, caller: Caller) -> None:
        self._figures = figures
        self._caller = caller

    def collect(self) -> Iterator[Metric]:
        return self._figures.collect(self._caller)


def _note_families(note: RunNote) -> Iterator[Metric]:
    text = "When these figures were noted, seconds since 1970"
    yield GaugeMetricFamily("hps_train_noted_seconds", text, note.time)
    for name, text, value in (
        ("hps_train_examples", "Examples of the model's life", note.examples),
        ("hps_train_batches", "Batches of the model's life", note.batches),
        ("hps_train_exchange_seconds", "Spent in exchanges with ranks", note.exchange_seconds),
        ("hps_train_checkpoints", "Checkpoints that the run has taken", note.checkpoints),
        ("hps_train_checkpoint_seconds", "Spent in checkpoints", note.checkpoint_seconds),
    ):
        yield CounterMetricFamily(name, text, value)
    busy = CounterMetricFamily("hps_stage_busy_seconds", "Work of a stage", labels=("stage",))
    text = "Waits of a stage: for input, or for room behind it"
    waits = CounterMetricFamily("hps_stage_wait_seconds", text, labels=("stage", "side"))
    for stage, seconds in note.stages.items():
        busy.add_metric((stage,), seconds["busy_seconds"])
        for side in ("input", "output"):
            waits.add_metric((stage, side), seconds[f"wait_{side}_seconds"])
    yield from (busy, waits)


def _token_file(path: str | Path) -> TokenFile:
    return TokenFile(Path(path), "--metrics-tokens")


def _address(text: str, ranks: "TrainingRanks") -> tuple[str, int]:
    host, port = split_address("--metrics", text, _EXAMPLE)
    if port and ranks.rank:
        port += ranks.rank
        if port > 65535:
            raise ConfigError(
                f"--metrics {text}: rank {ranks.rank} takes the port {port}, and the last one is "
                f"65535; give a lower one"
            )
    return host, port


def _tls(options: "TrainOptions", host: str) -> TlsFiles | None:
    cert, key = options.metrics_cert, options.metrics_key
    if cert is None and not options.metrics_insecure and not is_loopback(host):
        raise ConfigError(
            f"--metrics {host}: other machines can reach it, and can read figures and tables' "
            "names without TLS; give --metrics-cert and --metrics-key, or --metrics-insecure if "
            "the network is trusted, or listen on 127.0.0.1"
        )
    if cert is None or key is None:
        return None
    files = TlsFiles(cert=Path(cert), key=Path(key), flags="--metrics")
    TlsCredentials(files)
    return files
