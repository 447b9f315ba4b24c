"""How good predicted clicks are: AUC, logloss and calibration over any number of examples.

Above it: `hps train`, `hps evaluate`, a user's own loop; hps/group_metrics.py. Below it: numpy.

AUC needs the order of all predictions. They are kept as counts per distinct float32 logit, in a
sorted array of at most `max_distinct` entries; while they fit, the AUC is exact. When more turn up,
the lowest bit of the (order-preserving) integer form of a logit is dropped, neighbours merge, and
pairs within one entry count one half. The error is then at most `auc_error_bound`, which is summed
from the entries themselves and returned with the AUC.

All sums are whole numbers (losses in steps of 2^-32), so the result depends only on which examples
were seen, never on their order, on batch sizes or on how partial metrics were merged.
"""

import math

import numpy as np
import numpy.typing as npt

from hps.common.arrays import AnyArray
from hps.common.json_text import Json
from hps.errors import ConfigError, NonFiniteError

_FRACTION_BITS = 32
_CHUNK = 1 << 16
_BUFFERED_EXAMPLES = 1 << 18


class BinaryMetrics:
    """AUC, logloss and calibration of click predictions, as a stream.

    Args:
        max_distinct: entries kept for the AUC; 20 bytes each. Up to as many distinct float32
            logits the AUC is exact.

    Raises:
        ConfigError: max_distinct below 2.

    >>> metrics = BinaryMetrics()
    >>> metrics.update([2.0, -1.0, 0.5, -3.0], [1, 0, 0, 1])
    >>> metrics.compute()["auc"]
    0.5
    """

    def __init__(self, max_distinct: int = 1 << 20) -> None:
        if max_distinct < 2:
            raise ConfigError(f"BinaryMetrics(max_distinct={max_distinct}): must be at least 2")
        self.max_distinct = max_distinct
        self.reset()

    def reset(self) -> None:
        """Forgets every example."""
        self._dropped_bits = 0
        self._codes = np.zeros(0, np.uint32)
        self._counts = np.zeros((0, 2), np.int64)  # negatives, positives of each code
        self._pending: list[tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]] = []
        self._num_pending = 0
        self._loss_units = 0
        self._predicted_units = 0
        self._num_examples = 0
        self._num_positives = 0

    def update(
        self, logits: "npt.ArrayLike | AnyArray", labels: "npt.ArrayLike | AnyArray"
    ) -> None:
        """Adds examples.

        Args:
            logits: [B] log-odds of a click, numpy or torch; rounded to float32.
            labels: [B], each 0 or 1.

        Raises:
            ConfigError: shapes differ, or a label is neither 0 nor 1.
            NonFiniteError: a logit is NaN or infinite; nothing was added.
        """
        values, is_click = checked_examples("BinaryMetrics.update", logits, labels)
        self._add_sums(values, is_click)
        self._pending.append((ordered_codes(values), is_click.astype(np.int64)))
        self._num_pending += values.size
        if self._num_pending >= _BUFFERED_EXAMPLES:
            self._settle()

    def merge(self, other: "BinaryMetrics") -> None:
        """Adds what another metric has seen, as if its examples had come here.

        Raises:
            ConfigError: the two keep different numbers of entries.
        """
        if other.max_distinct != self.max_distinct:
            raise ConfigError(
                f"BinaryMetrics.merge: max_distinct is {self.max_distinct} here and "
                f"{other.max_distinct} there; make them equal"
            )
        other._settle()
        self._settle()
        self._loss_units += other._loss_units
        self._predicted_units += other._predicted_units
        self._num_examples += other._num_examples
        self._num_positives += other._num_positives
        shift = max(self._dropped_bits, other._dropped_bits)
        codes = [self._codes >> (shift - self._dropped_bits)]
        codes.append(other._codes >> (shift - other._dropped_bits))
        self._dropped_bits = shift
        self._combine(np.concatenate(codes), np.concatenate([self._counts, other._counts]))

    def compute(self) -> dict[str, float]:
        """The figures over all examples so far.

        Returns:
            examples, positives: counts.
            auc: area under the ROC curve, ties one half; nan without both classes.
            auc_error_bound: how far it can be off; 0.0 means exact.
            logloss: mean in nats; nan without examples.
            normalized_entropy: logloss over that of the share of clicks predicted for all, so that
                below 1 is better than knowing the share alone; nan without both classes. Source:
                He et al. 2014, "Practical Lessons from Predicting Clicks on Ads at Facebook",
                section 2.
            calibration: sum of predicted clicks / sum of clicks; nan without clicks.
        """
        self._settle()
        num_negatives = self._num_examples - self._num_positives
        auc = bound = logloss = calibration = normalized = math.nan
        if self._num_positives and num_negatives:
            negatives, positives = self._counts[:, 0], self._counts[:, 1]
            below = np.cumsum(negatives) - negatives
            pairs = float(self._num_positives) * float(num_negatives)
            tied = float((positives.astype(np.float64) * negatives).sum())
            won = float((positives.astype(np.float64) * below).sum())
            auc = (won + 0.5 * tied) / pairs
            bound = 0.5 * tied / pairs if self._dropped_bits else 0.0
        if self._num_examples:
            logloss = math.ldexp(self._loss_units, -_FRACTION_BITS) / self._num_examples
        if self._num_positives and num_negatives:
            counts = (self._num_positives, num_negatives)
            shares = [count / self._num_examples for count in counts]
            normalized = logloss / -sum(share * math.log(share) for share in shares)
        if self._num_positives:
            calibration = math.ldexp(self._predicted_units, -_FRACTION_BITS) / self._num_positives
        return {
            "examples": self._num_examples,
            "positives": self._num_positives,
            "auc": auc,
            "auc_error_bound": bound,
            "logloss": logloss,
            "normalized_entropy": normalized,
            "calibration": calibration,
        }

    def scores(self, num_bins: int = 20) -> Json:
        """How predictions are spread, and how often clicks followed them.

        Args:
            num_bins: of each kind.

        Returns:
            reliability: bins of about equally many examples, lowest predictions first, equal
                predictions together: examples, clicks, predicted (the mean probability).
            histogram: num_bins pairs [examples without, with a click] of equally wide ranges of
                probability from 0 to 1.

        >>> metrics = BinaryMetrics()
        >>> metrics.update([-20.0, 0.0, 0.0, 20.0], [0, 1, 0, 1])
        >>> metrics.scores(num_bins=2)["histogram"]
        [[1, 0], [1, 2]]
        """
        self._settle()
        counts = self._counts.sum(axis=1)
        chances = _chances(self._codes.astype(np.uint64) << np.uint64(self._dropped_bits))
        before = np.cumsum(counts) - counts
        bins = before * num_bins // max(int(counts.sum()), 1)
        reliability = []
        for number in np.unique(bins):
            own = bins == number
            examples = int(counts[own].sum())
            reliability.append(
                {
                    "examples": examples,
                    "clicks": int(self._counts[own, 1].sum()),
                    "predicted": float((chances[own] * counts[own]).sum() / examples),
                }
            )
        places = np.minimum((chances * num_bins).astype(np.int64), num_bins - 1)
        histogram = np.zeros((num_bins, 2), np.int64)
        np.add.at(histogram, places, self._counts)
        return {"reliability": reliability, "histogram": histogram.tolist()}

    def state_dict(self) -> Json:
        """Everything seen, as plain numbers and arrays (copies)."""
        self._settle()
        return {
            "max_distinct": self.max_distinct,
            "dropped_bits": self._dropped_bits,
            "codes": self._codes.copy(),
            "counts": self._counts.copy(),
            "loss_units": self._loss_units,
            "predicted_units": self._predicted_units,
            "num_examples": self._num_examples,
            "num_positives": self._num_positives,
        }

    def load_state_dict(self, state: Json) -> None:
        """Takes up where the metric that gave `state` stood."""
        self.reset()
        self.max_distinct = int(state["max_distinct"])
        self._dropped_bits = int(state["dropped_bits"])
        self._codes = np.array(state["codes"], np.uint32)
        self._counts = np.array(state["counts"], np.int64).reshape(-1, 2)
        self._loss_units = int(state["loss_units"])
        self._predicted_units = int(state["predicted_units"])
        self._num_examples = int(state["num_examples"])
        self._num_positives = int(state["num_positives"])

    def _add_sums(self, values: npt.NDArray[np.float32], clicks: npt.NDArray[np.bool_]) -> None:
        scale = float(1 << _FRACTION_BITS)
        for first in range(0, values.size, _CHUNK):  # so that a chunk's sum fits 64 bits
            logits = values[first : first + _CHUNK].astype(np.float64)
            is_click = clicks[first : first + _CHUNK]
            decay = np.exp(-np.abs(logits))
            # -log(sigmoid(+-x)) without overflow; a float32 logit beyond 1e4 counts as 1e4.
            losses = np.where(is_click, -logits, logits).clip(0.0, 1e4) + np.log1p(decay)
            predicted = np.where(logits >= 0, 1.0, decay) / (1.0 + decay)
            self._loss_units += int(np.rint(losses * scale).astype(np.int64).sum())
            self._predicted_units += int(np.rint(predicted * scale).astype(np.int64).sum())
        self._num_examples += int(values.size)
        self._num_positives += int(clicks.sum())

    def _settle(self) -> None:
        """Counts the buffered examples into the sorted entries."""
        if not self._pending:
            return
        fresh = np.concatenate([codes for codes, _ in self._pending]) >> self._dropped_bits
        clicks = np.concatenate([clicks for _, clicks in self._pending])
        self._pending.clear()
        self._num_pending = 0
        counts = np.stack([1 - clicks, clicks], axis=1)
        self._combine(np.concatenate([self._codes, fresh]), np.concatenate([self._counts, counts]))

    def _combine(self, codes: npt.NDArray[np.uint32], counts: npt.NDArray[np.int64]) -> None:
        """Sorts, adds up equal codes, and drops bits until the entries fit."""
        order = np.argsort(codes, kind="stable")
        codes, counts = codes[order], counts[order]
        while True:
            is_first = np.ones(codes.size, np.bool_)
            is_first[1:] = codes[1:] != codes[:-1]
            firsts = np.flatnonzero(is_first)
            codes = codes[firsts]
            if firsts.size:
                counts = np.add.reduceat(counts, firsts, axis=0)
            if codes.size <= self.max_distinct:
                break
            codes = codes >> np.uint32(1)
            self._dropped_bits += 1
        self._codes, self._counts = codes, counts


def _to_float32(values: "npt.ArrayLike | AnyArray") -> npt.NDArray[np.float32]:
    """A flat float32 array from numpy, a list, or a torch tensor (without importing torch)."""
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    with np.errstate(over="ignore"):  # too large for float32 becomes inf and is refused by name
        return np.ascontiguousarray(values, dtype=np.float32).reshape(-1)


def checked_examples(
    where: str, logits: "npt.ArrayLike | AnyArray", labels: "npt.ArrayLike | AnyArray"
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Logits as float32 [B], and bool [B], True for a click.

    Args:
        where: this is asked, for messages.

    Raises:
        ConfigError, NonFiniteError: as `BinaryMetrics.update` has it.
    """
    values = _to_float32(logits)
    clicks = _to_float32(labels)
    if values.shape != clicks.shape:
        raise ConfigError(
            f"{where}: {values.size} logits but {clicks.size} labels; give one label for each logit"
        )
    is_finite = np.isfinite(values)
    if not is_finite.all():
        first = int(np.argmin(is_finite))
        raise NonFiniteError(
            f"{where}: logit {first} of {values.size} is {values[first]}; all must be finite. "
            "Nothing was added; look for a diverged model"
        )
    is_click = clicks == 1.0
    if not (is_click | (clicks == 0.0)).all():
        first = int(np.argmin(is_click | (clicks == 0.0)))
        raise ConfigError(f"{where}: label {first} is {clicks[first]}; labels are 0 or 1")
    return values, is_click


def ordered_codes(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    """uint32 codes in the order of the values; -0.0 and 0.0 are one value."""
    bits = (values + np.float32(0.0)).view(np.uint32)
    sign = np.uint32(0x80000000)
    return np.where(bits & sign, ~bits, bits | sign)


def _chances(codes: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Probabilities of the logits that codes stand for."""
    bits = codes.astype(np.uint32)
    sign = np.uint32(0x80000000)
    logits = np.where(bits & sign, bits ^ sign, ~bits).view(np.float32).astype(np.float64)
    decay = np.exp(-np.abs(logits))
    chances: npt.NDArray[np.float64] = np.where(logits >= 0, 1.0, decay) / (1.0 + decay)
    return chances
