"""Figures of a store for Prometheus: its tiers, its SSD, its tables, its checkpoints, its disk.

Above it: metrics.py, hps/serving/metrics.py, hps/train/run_metrics.py: one text for all that have
rows. Below it: prometheus_client, and what `stats()` of a server of rows says.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hps.common.json_text import Json, JsonView

TIERS = ("gpu_cache", "dram_cache", "ssd_store")
Family = TypeVar("Family", CounterMetricFamily, GaugeMetricFamily)
Words = Iterable[tuple[str, str, str]]  # name of the metric, name in stats(), text

_TIER_COUNTERS = (
    ("hps_tier_hits", "hits", "Hits of rows"),
    ("hps_tier_misses", "misses", "Misses of rows"),
    ("hps_tier_evictions", "evictions", "Evictions of rows"),
    ("hps_tier_write_backs", "write_backs", "Changed rows that went to the tier below"),
    ("hps_tier_seconds", "seconds", "Spent in the tier, all threads together"),
)
_TIER_GAUGES = (
    ("hps_tier_rows", "rows", "Rows in the tier"),
    ("hps_tier_bytes", "bytes", "Bytes of the tier"),
    ("hps_tier_budget_bytes", "budget_bytes", "Bytes that the tier may have"),
    ("hps_tier_dirty_rows", "dirty_rows", "Rows that are newer than those of the tier below"),
)
_SSD_COUNTERS = (
    ("hps_ssd_read_bytes", "bytes_read", "Bytes read from the SSD"),
    ("hps_ssd_written_bytes", "bytes_written", "Bytes written to the SSD"),
    ("hps_ssd_compactions", "compactions", "Segments that were rewritten"),
    ("hps_ssd_compaction_failures", "compaction_failures", "Compactions that failed"),
)
# Of the store's whole life as of its checkpoint: a restore takes them back, as no counter may go.
_SSD_GAUGES = (
    ("hps_ssd_appended_bytes", "bytes_appended", "Bytes of rows ever stored"),
    ("hps_ssd_compacted_bytes", "bytes_compacted", "Bytes of rows ever stored anew by compaction"),
    ("hps_ssd_write_amplification", "write_amplification", "Bytes written a byte of rows"),
    ("hps_ssd_live_bytes", "live_bytes", "Bytes of rows that are current"),
    ("hps_ssd_segment_bytes", "segment_bytes", "Bytes of the segments of the current rows"),
    ("hps_ssd_checkpoint_bytes", "checkpoint_only_bytes", "Bytes that only checkpoints hold"),
    ("hps_ssd_segments", "segments", "Segments"),
    ("hps_ssd_index_bytes", "index_bytes", "Memory of the index"),
)
_TABLE_COUNTERS = (("hps_table_expired_rows", "expired_rows", "Rows that died as a period began"),)
_TABLE_GAUGES = (
    ("hps_table_rows", "rows", "Stored rows of a table"),
    ("hps_table_max_rows", "max_rows", "Rows that the table may have as a period begins"),
    ("hps_table_bounded_rows", "rows_bounded", "Rows that died early in this period by its bound"),
)


def store_families(figures: JsonView) -> Iterator[Metric]:
    """Of what `stats()` of a server says: tiers, SSD, tables.

    Args:
        figures: as `ParameterServer.stats` returns them; a part that is absent is left out.
    """
    tiers = {name: figures[name] for name in TIERS if name in figures}
    yield from _of_each(CounterMetricFamily, _TIER_COUNTERS, "tier", tiers)
    yield from _of_each(GaugeMetricFamily, _TIER_GAUGES, "tier", tiers)
    ssd = figures.get("ssd_store", {})
    for kind, words in ((CounterMetricFamily, _SSD_COUNTERS), (GaugeMetricFamily, _SSD_GAUGES)):
        for metric, name, text in words:
            if name in ssd:
                yield kind(metric, text, ssd[name])
    tables = figures.get("tables", {})
    yield from _of_each(CounterMetricFamily, _TABLE_COUNTERS, "table", tables)
    yield from _of_each(GaugeMetricFamily, _TABLE_GAUGES, "table", tables)
    waiting = GaugeMetricFamily(
        "hps_table_waiting_keys", "Keys that are counted and have no row yet", labels=("table",)
    )
    yield _filled(waiting, {name: one.get("waiting", {}) for name, one in tables.items()}, "rows")


def period_family(period: int) -> Metric:
    """The period that changes count in."""
    return GaugeMetricFamily("hps_period", "Period that changes count in", period)


def checkpoint_families(created: Iterable[float]) -> Iterator[Metric]:
    """Of the checkpoints that are kept.

    Args:
        created: when each was taken, seconds since 1970; of none there is no newest.
    """
    times = list(created)
    yield GaugeMetricFamily("hps_checkpoints", "Checkpoints that are kept", len(times))
    if times:
        yield newest_family(max(times))


def newest_family(created: float) -> Metric:
    """When the newest checkpoint was taken, seconds since 1970."""
    text = "When the newest checkpoint was taken, seconds since 1970"
    return GaugeMetricFamily("hps_checkpoint_created_seconds", text, created)


def disk_families(path: str | os.PathLike[str]) -> Iterator[Metric]:
    """Size and room of the file system of a store; nothing where it cannot be asked."""
    try:
        found = os.statvfs(path)
    except OSError:
        return
    text = "Size of the file system of the store"
    yield GaugeMetricFamily("hps_disk_bytes", text, found.f_frsize * found.f_blocks)
    text = "Room in the file system of the store"
    yield GaugeMetricFamily("hps_disk_free_bytes", text, found.f_frsize * found.f_bavail)


def _of_each(
    kind: "type[Family]", words: Words, label: str, owners: Mapping[str, Json]
) -> Iterator[Metric]:
    for metric, name, text in words:
        yield _filled(kind(metric, text, labels=(label,)), owners, name)


def _filled(family: Family, owners: Mapping[str, Json], name: str) -> Family:
    for owner, figures in owners.items():
        if name in figures:
            family.add_metric((owner,), figures[name])
    return family
