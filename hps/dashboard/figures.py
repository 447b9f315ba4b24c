"""Figures: what two answers of a target come to, by the names that panels.py shows.

Above it: endpoint_source.py. Below it: exposition.py. A name is that of a panel, and after a slash
what is told apart in it: "hit_rate/dram_cache".
"""

from collections.abc import Iterator

from hps.dashboard.exposition import Between, Exposition

Figure = tuple[str, float]
MOST_METHODS = 24  # of a server, with the most calls
# Gauges that are shown as they are: metric -> figure.
_PLAIN = {
    "hps_train_logloss": "loss/train",
    "hps_valid_logloss": "loss/valid",
    "hps_train_auc": "auc/train",
    "hps_valid_auc": "auc/valid",
    "hps_train_calibration": "calibration/train",
    "hps_valid_calibration": "calibration/valid",
    "hps_ssd_write_amplification": "write_amplification",
    "hps_ssd_live_bytes": "ssd_bytes/live",
    "hps_ssd_segment_bytes": "ssd_bytes/segments",
    "hps_ssd_checkpoint_bytes": "ssd_bytes/checkpoints",
    "hps_disk_free_bytes": "disk_free",
    "hps_log_bytes": "log_bytes",
    "hps_records_since_checkpoint": "log_records",
    "hps_waiting": "in_flight/waiting changes",
    "hps_waiting_requests": "in_flight/waiting requests",
    "hps_in_flight_requests": "in_flight/calls",
    "hps_period": "period",
    "hps_model_following": "following",
    "hps_failed": "failed",
}
_PLAIN_BY_LABEL = (
    ("hps_tier_rows", "tier", "rows"),
    ("hps_tier_bytes", "tier", "bytes"),
    ("hps_table_rows", "table", "table_rows"),
    ("hps_table_waiting_keys", "table", "waiting_keys"),
)
# Counters that are shown a second: metric -> figure.
_RATES = {
    "hps_train_examples_total": "examples",
    "hps_scored_rows_total": "scored",
    "hps_ssd_read_bytes_total": "ssd_rate/read",
    "hps_ssd_written_bytes_total": "ssd_rate/written",
    "hps_ssd_compactions_total": "compactions",
}
_RATES_BY_LABEL = (
    ("hps_tier_hits_total", "tier", "hits"),
    ("hps_tier_misses_total", "tier", "misses"),
    ("hps_tier_evictions_total", "tier", "evictions"),
    ("hps_table_expired_rows_total", "table", "dying"),
    ("hps_request_bytes_total", "method", "request_bytes"),
    ("hps_reply_bytes_total", "method", "reply_bytes"),
)
_QUANTILES = (0.5, 0.99)
_OK = "OK"


def now_figures(found: Exposition) -> Iterator[Figure]:
    """What one answer says by itself."""
    # Of a store without rows it is the manifest over nothing.
    is_empty = found.value("hps_ssd_appended_bytes") == 0
    for metric, name in _PLAIN.items():
        value = found.value(metric)
        if value is not None and not (is_empty and name == "write_amplification"):
            yield name, value
    for metric, label, name in _PLAIN_BY_LABEL:
        for owner, value in found.by_label(metric, label).items():
            yield f"{name}/{owner}", value
    created = found.value("hps_checkpoint_created_seconds")
    if created is not None:
        yield "checkpoint_age", max(found.time - created, 0.0)  # another machine's clock
    created = found.value("hps_model_created_seconds")
    if created is not None:
        yield "version_age", max(found.time - created, 0.0)
    yield from _served_calibration(found)


def _served_calibration(found: Exposition) -> Iterator[Figure]:
    clicks = found.by_label("hps_outcome_clicks_total", "version")
    scores = found.by_label("hps_outcome_scores_total", "version")
    for version, total in clicks.items():
        if total > 0:
            yield f"calibration/version {version}", scores.get(version, 0.0) / total


def rate_figures(between: Between) -> Iterator[Figure]:
    """What two answers say of the time between them."""
    seconds = between.seconds
    if seconds <= 0:
        return
    for metric, name in _RATES.items():
        value = between.growth_of(metric)
        if value is not None:
            yield name, value / seconds
    for metric, label, name in _RATES_BY_LABEL:
        for owner, value in between.growth(metric, label).items():
            if name not in ("request_bytes", "reply_bytes"):
                yield f"{name}/{owner}", value / seconds
    for name, metric in (("in", "hps_request_bytes_total"), ("out", "hps_reply_bytes_total")):
        growth = between.growth(metric, "method")
        if growth:
            yield f"network/{name}", sum(growth.values()) / seconds
    yield from _hit_rates(between)
    yield from _born(between)
    yield from _stages(between)
    yield from _calls(between)


def _hit_rates(between: Between) -> Iterator[Figure]:
    hits = between.growth("hps_tier_hits_total", "tier")
    misses = between.growth("hps_tier_misses_total", "tier")
    for tier, count in hits.items():
        asked = count + misses.get(tier, 0.0)
        if asked:
            yield f"hit_rate/{tier}", count / asked


def _born(between: Between) -> Iterator[Figure]:
    """Rows that came by less those that were erased: what a table has more, and what died."""
    old = between.before.by_label("hps_table_rows", "table")
    dead = between.growth("hps_table_expired_rows_total", "table")
    for table, rows in between.after.by_label("hps_table_rows", "table").items():
        if table in old:
            more = rows - old[table] + dead.get(table, 0.0)
            yield f"born/{table}", max(more, 0.0) / between.seconds


def stage_shares(between: Between) -> dict[str, dict[str, float]]:
    """Stage -> the share of the time in which it was busy, and waited for "input" and "output"."""
    found: dict[str, dict[str, float]] = {}
    for stage, value in between.growth("hps_stage_busy_seconds_total", "stage").items():
        found[stage] = {"busy": value / between.seconds}
    for side in ("input", "output"):
        before, after = (
            {
                dict(labels)["stage"]: value
                for labels, value in one.samples.get("hps_stage_wait_seconds_total", {}).items()
                if dict(labels).get("side") == side and "stage" in dict(labels)
            }
            for one in (between.before, between.after)
        )
        for stage, value in after.items():
            more = value - before.get(stage, 0.0)
            more = value if more < 0 else more  # it was started anew
            found.setdefault(stage, {})[side] = more / between.seconds
    return found


def _stages(between: Between) -> Iterator[Figure]:
    for stage, shares in stage_shares(between).items():
        for what, share in shares.items():
            yield f"stage_{what}/{stage}", share
    exchanged = between.growth_of("hps_train_exchange_seconds_total")
    if exchanged:
        yield "stage_busy/exchange", exchanged / between.seconds


def _calls(between: Between) -> Iterator[Figure]:
    seconds = between.seconds
    methods = between.growth("hps_calls_total", "method")
    totals = between.after.by_label("hps_calls_total", "method")
    busiest = sorted(methods, key=lambda one: -totals[one])
    kept = set(busiest[:MOST_METHODS])
    for method in kept:
        yield f"calls/{method}", methods[method] / seconds
    statuses = between.growth("hps_calls_total", "status")
    if statuses:
        bad = sum(count for status, count in statuses.items() if status != _OK)
        yield "refused", bad / seconds
    for method, (middle, high) in between.quantiles("hps_call_seconds", "method", _QUANTILES):
        if method in kept:
            yield f"latency/{method} p50", middle
            yield f"latency/{method} p99", high
    for _, (middle, high) in between.quantiles("hps_batch_wait_seconds", "", _QUANTILES):
        yield "latency/wait for a batch p50", middle
        yield "latency/wait for a batch p99", high
