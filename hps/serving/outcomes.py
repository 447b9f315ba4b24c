"""Outcomes: what became of scored examples, by version and score: how well each is calibrated.

Above it: scorer.py adds, metrics.py shows. Below it: numpy. Labels come minutes to hours after the
scores, out of a log that holds both and the version, from whatever server it was: so they are
counted where they are told, and nothing is remembered of a request.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from hps.common.row_layout import Floats
from hps.serving.figures import SCORES
from hps.serving.refusals import invalid

OLDER = "older"  # the sum of versions of which nothing came for longest
_MOST_VERSIONS = 8
_ENDS = (*(str(end) for end in SCORES), "1.0")
BUCKETS = tuple(f"{low}-{high}" for low, high in zip(("0.0", *_ENDS), _ENDS, strict=False))


@dataclass
class Outcomes:
    """Sums of one version, by bucket of the score: each float64 [buckets].

    >>> some = Outcomes()
    >>> scores, labels = np.array([0.2, 0.4], np.float32), np.array([0, 1], np.float32)
    >>> some.add(scores, labels, np.ones(2, np.float32))
    >>> round(float(some.clicks.sum() / some.scores.sum()), 4)
    1.6667
    """

    examples: np.ndarray = field(default_factory=lambda: np.zeros(len(BUCKETS)))
    clicks: np.ndarray = field(default_factory=lambda: np.zeros(len(BUCKETS)))
    scores: np.ndarray = field(default_factory=lambda: np.zeros(len(BUCKETS)))

    def add(self, scores: Floats, labels: Floats, weights: Floats) -> None:
        """Examples: score, label and weight of each, float32 [B]."""
        places = np.searchsorted(np.asarray(SCORES, np.float32), scores)
        heavy = weights.astype(np.float64)
        for sums, values in (
            (self.examples, None),
            (self.clicks, heavy * labels),
            (self.scores, heavy * scores),
        ):
            sums += np.bincount(places, values, len(BUCKETS))

    def join(self, other: "Outcomes") -> None:
        """Those of another one, too."""
        self.examples += other.examples
        self.clicks += other.clicks
        self.scores += other.scores

    def copy(self) -> "Outcomes":
        """As they are now."""
        return Outcomes(self.examples.copy(), self.clicks.copy(), self.scores.copy())


class OutcomeFigures:
    """Outcomes since the server was started, of the eight versions that were told of last, and the
    sum of all others; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[str, Outcomes] = {}
        self._older = Outcomes()

    def add(self, version: str, scores: Floats, labels: Floats, weights: Floats | None) -> int:
        """Examples that a version has scored.

        Args:
            version: that has scored.
            scores: float32 [B], from 0 to 1.
            labels: float32 [B], 1 for a click, 0 for none, or what is between.
            weights: float32 [B], 0 or more; None: 1 each.

        Returns:
            How many were added.

        Raises:
            Refusal: they are none of these; nothing is added.
        """
        weights = np.ones_like(scores) if weights is None else weights
        _check(scores, labels, weights)
        with self._lock:
            known = self._versions.pop(version, None) or Outcomes()
            known.add(scores, labels, weights)
            self._versions[version] = known  # the last one is the newest
            if len(self._versions) > _MOST_VERSIONS:
                self._older.join(self._versions.pop(next(iter(self._versions))))
        return len(scores)

    def snapshot(self) -> dict[str, Outcomes]:
        """A copy of the figures, by version; under `OLDER` the sum of those before."""
        with self._lock:
            found = {version: one.copy() for version, one in self._versions.items()}
            # The one version of a store may have that name for a tag; then there are no others.
            return {**found, OLDER: found.get(OLDER) or self._older.copy()}


def _check(scores: Floats, labels: Floats, weights: Floats) -> None:
    if not len(scores):
        raise invalid("there are no scores; give the score and the label of each example")
    for name, values, most in (
        ("scores", scores, 1.0),
        ("labels", labels, 1.0),
        ("weights", weights, np.inf),
    ):
        if len(values) != len(scores):
            raise invalid(f"{len(values)} {name} for {len(scores)} scores; give one an example")
        for place in _wrong(values, most):
            range_text = "a number of 0 or more" if most > 1 else "from 0 to 1"
            raise invalid(f"{name}: {values[place]} of example {place} is not {range_text}")


def _wrong(values: Floats, most: float) -> Iterator[int]:
    """Places of values that are not finite, below 0 or above `most`."""
    is_right = np.isfinite(values) & (values >= 0) & (values <= most)
    yield from np.flatnonzero(~is_right).tolist()
