"""Figures of a running server for Prometheus, in a registry of their own.

Above it: metrics_http.py, where --metrics is given. Below it: prometheus_client; call_counts.py,
admission.py and the shard, which are asked when somebody looks and cost nothing until then.
"""

from collections.abc import Iterator
from typing import TypeVar

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
from hps.service.shard.shard import Shard

_TIERS = ("gpu_cache", "dram_cache", "ssd_store")
_TIER_COUNTERS = ("hits", "misses", "evictions")
_TIER_GAUGES = ("rows", "bytes")
_SECONDS = 5.0  # that somebody who looks waits for the store

Family = TypeVar("Family", CounterMetricFamily, GaugeMetricFamily)


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
        try:
            figures = self._shard.stats(_SECONDS)
        except DeadlineError:
            figures = {}  # the store is being opened anew
        except HpsError as error:  # a store that has failed still tells of its calls
            figures = {"service": {"failure": str(error)}}
        tables = figures.get("tables", {}).items()
        figures["tables"] = {name: part for name, part in tables if caller.right(name)}
        yield from tier_families(figures)
        yield from _log(figures.get("service", {}))


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


def tier_families(figures: Json) -> Iterator[Metric]:
    """Hits, misses, rows and bytes of each tier of `stats()`, and the rows of its tables."""
    tiers = {name: figures[name] for name in _TIERS if name in figures}
    for name in _TIER_COUNTERS:
        family = CounterMetricFamily(f"hps_tier_{name}", f"{name} of rows", labels=("tier",))
        yield _filled(family, tiers, name)
    for name in _TIER_GAUGES:
        gauge = GaugeMetricFamily(f"hps_tier_{name}", f"{name} in the tier", labels=("tier",))
        yield _filled(gauge, tiers, name)
    rows = GaugeMetricFamily("hps_table_rows", "Stored rows of a table", labels=("table",))
    yield _filled(rows, figures.get("tables", {}), "rows")


def _filled(family: Family, owners: Json, name: str) -> Family:
    for owner, figures in owners.items():
        if name in figures:
            family.add_metric((owner,), figures[name])
    return family


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
