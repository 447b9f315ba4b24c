"""Figures of a model's server for Prometheus.

Above it: server.py, where --metrics is given. Below it: prometheus_client; figures.py, and what
`hps serve` shows of calls and tiers (hps/service/server/metrics.py).
"""

from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from hps.service.server.admission import Admissions
from hps.service.server.auth import Caller
from hps.service.server.call_counts import CallCounts
from hps.service.server.metrics import call_families
from hps.service.server.store_metrics import store_families
from hps.serving.figures import Histogram
from hps.serving.outcomes import BUCKETS
from hps.serving.scorer import Scorer


class ScorerCollector:
    """Everything that is shown, read at the moment of asking.

    Args:
        counts: of calls.
        admissions: what is in flight.
        scorer: for batches and scores, and for its model's tiers.
    """

    def __init__(self, counts: CallCounts, admissions: Admissions, scorer: Scorer) -> None:
        self._counts = counts
        self._admissions = admissions
        self._scorer = scorer

    def seen_by(self, caller: Caller) -> Collector:
        """The figures as one caller sees them: rows of tables that it may not read are left out."""
        return _View(self, caller)

    def collect(self, caller: Caller) -> Iterator[Metric]:
        """The families, in the order in which docs/serving.md lists them."""
        yield from call_families(self._counts.snapshot())
        for name, value in self._admissions.in_flight().items():
            yield GaugeMetricFamily(f"hps_in_flight_{name}", f"{name} in flight now", value)
        yield from self._scoring()
        figures = dict(self._scorer.model.server.stats())
        tables = figures.get("tables", {}).items()
        figures["tables"] = {name: part for name, part in tables if caller.right(name)}
        yield from store_families(figures)

    def _scoring(self) -> Iterator[Metric]:
        scorer = self._scorer
        found = scorer.figures.snapshot()
        yield CounterMetricFamily("hps_scored_rows", "Examples that were scored", found.num_rows)
        for name, text, one in (
            ("hps_batch_rows", "Examples of a batch", found.rows),
            ("hps_batch_requests", "Requests of a batch", found.requests),
            (
                "hps_batch_wait_seconds",
                "From a request's arrival to its batch's start",
                found.waits,
            ),
        ):
            histogram = HistogramMetricFamily(name, text)
            histogram.add_metric((), _buckets(one), one.total)
            yield histogram
        text = "Requests that wait for their batch"
        yield GaugeMetricFamily("hps_waiting_requests", text, scorer.batcher.num_waiting)
        scores = HistogramMetricFamily(
            "hps_score", "Probabilities by version; sum / count is their mean", labels=("version",)
        )
        for version, one in found.scores.items():
            scores.add_metric((version,), _buckets(one), one.total)
        yield scores
        served = GaugeMetricFamily(
            "hps_model_version", "1 for the version that is served", labels=("name", "version")
        )
        served.add_metric((scorer.name, scorer.model.version), 1.0)
        yield served
        yield from self._outcomes()
        if scorer.model.has_versions:
            state = scorer.model.following()
            for name, text, value in (
                ("hps_model_following", "1 while newer versions are taken over", "is_following"),
                ("hps_model_newest", "Newest version seen where it is published", "newest"),
                ("hps_model_created_seconds", "When the served version was made", "created"),
            ):
                yield GaugeMetricFamily(name, text, float(state[value]))

    def _outcomes(self) -> Iterator[Metric]:
        found = self._scorer.outcomes.snapshot()
        for name, text, part in (
            ("hps_outcomes", "Examples whose outcome was told, by version and score", "examples"),
            ("hps_outcome_clicks", "Sum of their labels, weighted", "clicks"),
            ("hps_outcome_scores", "Sum of their scores, weighted", "scores"),
        ):
            family = CounterMetricFamily(name, text, labels=("version", "score"))
            for version, one in found.items():
                for bucket, value in zip(BUCKETS, getattr(one, part).tolist(), strict=True):
                    family.add_metric((version, bucket), value)
            yield family


class _View(Collector):
    """What prometheus_client asks for the figures of one caller."""

    def __init__(self, figures: ScorerCollector, caller: Caller) -> None:
        self._figures = figures
        self._caller = caller

    def collect(self) -> Iterator[Metric]:
        return self._figures.collect(self._caller)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    total, found = 0, []
    for end, count in zip((*histogram.ends, "+Inf"), histogram.counts, strict=True):
        total += count
        found.append((str(end), float(total)))
    return found
