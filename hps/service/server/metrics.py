"""Figures of a running server for Prometheus, in a registry of their own.

Above it: metrics_http.py, where --metrics is given. Below it: prometheus_client; call_counts.py,
admission.py and the shard, which are asked when somebody looks and cost nothing until then.
"""

from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from hps.common.json_text import Json
from hps.errors import DeadlineError, HpsError
from hps.service.server.admission import Admissions
from hps.service.server.auth import Caller
from hps.service.server.call_counts import BUCKETS, CallCounts, MethodCounts
from hps.service.server.store_metrics import (
    checkpoint_families,
    disk_families,
    period_family,
    store_families,
)
from hps.service.shard.reads import Standing
from hps.service.shard.shard import Shard

_SECONDS = 5.0  # that somebody who looks waits for the store


class ServerCollector:
    """Everything that is shown, read at the moment of asking.

    Args:
        counts: of calls.
        admissions: what is in flight.
        shard: for the tiers, the tables and the log.
    """

    def __init__(self, counts: CallCounts, admissions: Admissions, shard: Shard) -> None:
        self._counts = counts
        self._admissions = admissions
        self._shard = shard

    def seen_by(self, caller: Caller) -> Collector:
        """The figures as one caller sees them."""
        return _View(self, caller)

    def collect(self, caller: Caller) -> Iterator[Metric]:
        """The families, in the order in which docs/service.md lists them; tables that the caller
        may not read are left out."""
        yield from call_families(self._counts.snapshot())
        for name, value in self._admissions.in_flight().items():
            yield GaugeMetricFamily(f"hps_in_flight_{name}", f"{name} in flight now", value)
        standing: Standing | None = None
        try:
            figures = self._shard.stats(_SECONDS)
            standing = self._shard.standing(_SECONDS)
        except DeadlineError:
            figures = {}  # the store is being opened anew
        except HpsError as error:  # a store that has failed still tells of its calls
            figures = {"service": {"failure": str(error)}}
        tables = figures.get("tables", {}).items()
        figures["tables"] = {name: part for name, part in tables if caller.right(name)}
        yield from store_families(figures)
        yield from _log(figures.get("service", {}))
        if standing is not None:
            yield from checkpoint_families(standing.checkpoint_times)
            yield period_family(standing.period)
            yield from disk_families(standing.path)


class _View(Collector):
    """What prometheus_client asks for the figures of one caller."""

    def __init__(self, figures: ServerCollector, caller: Caller) -> None:
        self._figures = figures
        self._caller = caller

    def collect(self) -> Iterator[Metric]:
        return self._figures.collect(self._caller)


def call_families(methods: dict[str, MethodCounts]) -> Iterator[Metric]:
    """Calls by method and status, their bytes and seconds."""
    calls = CounterMetricFamily(
        "hps_calls",
        "Calls that have ended, and messages of push streams",
        labels=("method", "status"),
    )
    received = CounterMetricFamily("hps_request_bytes", "Bytes of requests", labels=("method",))
    sent = CounterMetricFamily("hps_reply_bytes", "Bytes of replies", labels=("method",))
    seconds = HistogramMetricFamily(
        "hps_call_seconds", "From the arrival of a call to its reply", labels=("method",)
    )
    for method, counts in sorted(methods.items()):
        for status, number in sorted(counts.by_status.items()):
            calls.add_metric((method, status), number)
        received.add_metric((method,), counts.request_bytes)
        sent.add_metric((method,), counts.reply_bytes)
        total, buckets = 0, []
        for end, number in zip((*BUCKETS, "+Inf"), counts.buckets, strict=True):
            total += number
            buckets.append((str(end), float(total)))
        seconds.add_metric((method,), buckets, counts.seconds)
    yield from (calls, received, sent, seconds)


def _log(figures: Json) -> Iterator[Metric]:
    """The update log and the sessions whose marks it moves."""
    for name, text in (
        ("records", "Number of the newest record: of every session's marks together"),
        ("records_since_checkpoint", "Records that a start would apply again"),
        ("log_bytes", "Bytes of the update log after the newest checkpoint"),
        ("sessions", "Clients whose marks are kept"),
        ("waiting", "Changes that wait for their turn"),
        ("checkpoint_failures", "Checkpoints taken by the server itself that failed"),
    ):
        if name in figures:
            yield GaugeMetricFamily(f"hps_{name}", text, figures[name])
    if figures:
        text = "1 while no change is taken because the log or the store has failed"
        yield GaugeMetricFamily("hps_failed", text, float(bool(figures.get("failure"))))
