"""Exposition: Prometheus' text taken apart, and what lies between two of them: rates, quantiles.

Above it: figures.py. Below it: prometheus_client's parser, which `hps serve` has anyway.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hps.errors import DataError

MOST_SAMPLES = 20_000
NOTED = "hps_train_noted_seconds"
_OF_STORE = ("hps_tier_", "hps_table_")  # not told of one that is being opened anew
_NOTE_SECONDS = 5.0  # then a training that notes nothing does nothing
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Exposition:
    """The samples of one answer.

    Args:
        time: of it, seconds since 1970.
        samples: value by labels, in the order of their names, by name of the metric.
    """

    time: float
    samples: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    def value(self, name: str) -> float | None:
        """Of a metric without labels; None where there is none."""
        return self.samples.get(name, {}).get(())

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Sums by the value of one label."""
        found: dict[str, float] = {}
        for labels, value in self.samples.get(name, {}).items():
            owner = dict(labels).get(label)
            if owner is not None:
                found[owner] = found.get(owner, 0.0) + value
        return found

    def labels_of(self, name: str) -> dict[str, str]:
        """Of the first sample of a metric; empty where there is none."""
        return dict(next(iter(self.samples.get(name, {})), ()))


def parse(text: str, time: float) -> Exposition:
    """Takes an answer apart.

    Raises:
        DataError: it is not what Prometheus reads, or has more samples than a server of hps.

    >>> found = parse('hps_tier_rows{tier="ssd_store"} 7\\n', 0.0)
    >>> found.by_label("hps_tier_rows", "tier")
    {'ssd_store': 7.0}
    """
    from prometheus_client.parser import text_string_to_metric_families

    # Before they are taken apart: the parser holds all of a family in memory, 100 times the text.
    if sum(1 for line in text.split("\n") if line and line[0] != "#") > MOST_SAMPLES:
        raise DataError(f"the answer has more than {MOST_SAMPLES:,} samples")
    samples: dict[str, dict[Labels, float]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                samples.setdefault(sample.name, {})[labels] = float(sample.value)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise DataError(f"the answer is not Prometheus' text: {error}") from error
    return Exposition(time, samples)


@dataclass(frozen=True)
class Between:
    """What happened between two answers of one target.

    Args:
        before, after: the answers.
    """

    before: Exposition
    after: Exposition

    @property
    def seconds(self) -> float:
        """That lie between them; of a training, whose figures are noted between two steps, between
        its notes, if there are two."""
        old, new = self.before.value(NOTED), self.after.value(NOTED)
        if old is not None and new is not None and new > old:
            return new - old
        return self.after.time - self.before.time

    @property
    def is_same_note(self) -> bool:
        """True of two answers of a training that has noted nothing in between, and may yet."""
        old, new = self.before.value(NOTED), self.after.value(NOTED)
        return new is not None and new == old and self.after.time - new < _NOTE_SECONDS

    def growth(self, name: str, label: str) -> dict[str, float]:
        """Of counters, by the value of one label; what a restart has set back counts from 0. None
        of a store that the earlier answer said nothing of: since when they count, nobody knows."""
        if name.startswith(_OF_STORE) and name not in self.before.samples:
            return {}
        old = self.before.by_label(name, label)
        return {
            owner: value - old.get(owner, 0.0) if value >= old.get(owner, 0.0) else value
            for owner, value in self.after.by_label(name, label).items()
        }

    def growth_of(self, name: str) -> float | None:
        """Of a counter without labels; None where one of the two has none."""
        new, old = self.after.value(name), self.before.value(name)
        if new is None or old is None:
            return None
        return new - old if new >= old else new

    def quantiles(
        self, name: str, label: str, wanted: tuple[float, ...]
    ) -> Iterator[tuple[str, tuple[float, ...]]]:
        """Of what a histogram counted between the two, by the value of one label; those that
        counted nothing are left out.

        Args:
            name: of the histogram, without "_bucket".
            label: whose values are told apart; "" for a histogram without labels.
            wanted: each above 0 and below 1.
        """
        old, new = self._buckets(self.before, name, label), self._buckets(self.after, name, label)
        for owner, buckets in new.items():
            earlier = old.get(owner, {})
            counts = {end: count - earlier.get(end, 0.0) for end, count in buckets.items()}
            if min(counts.values()) < 0:  # the server was started anew
                counts = dict(buckets)
            if counts and max(counts.values()) > 0:
                yield owner, tuple(quantile(counts, one) for one in wanted)

    @staticmethod
    def _buckets(found: Exposition, name: str, label: str) -> dict[str, dict[float, float]]:
        owners: dict[str, dict[float, float]] = {}
        for labels, value in found.samples.get(f"{name}_bucket", {}).items():
            by_name = dict(labels)
            owner, end = by_name.get(label, ""), float(by_name.get("le", "nan"))
            of_owner = owners.setdefault(owner, {})
            of_owner[end] = of_owner.get(end, 0.0) + value
        return owners


def quantile(counts: Mapping[float, float], wanted: float) -> float:
    """Of a histogram, as Prometheus' histogram_quantile finds it: evenly spread within a bucket;
    in the last one its beginning.

    Args:
        counts: of values up to each end, the last end infinite.
        wanted: above 0 and below 1.

    >>> quantile({1.0: 10.0, 2.0: 20.0, float("inf"): 20.0}, 0.75)
    1.5
    """
    ends = sorted(counts)
    rank = wanted * counts[ends[-1]]
    low = below = 0.0
    for end in ends:
        if counts[end] >= rank:
            if end == float("inf"):
                return low
            inside = counts[end] - below
            return low + (end - low) * ((rank - below) / inside if inside else 1.0)
        low, below = end, counts[end]
    return low
