"""GAUC: how well predictions order the examples within each group, most often each user.

Above it: `hps train --group`, `hps evaluate --group`, a user's own loop. Below it: hps/metrics.py,
numpy.

GAUC = sum of n_g * AUC_g / sum of n_g over the groups g that have both classes, n_g being the
examples (impressions) of the group: Zhou et al. 2018, "Deep Interest Network for Click-Through Rate
Prediction", section 5.1. (Others weigh by clicks; that is another figure.) A group of one class has
no order to get right or wrong and counts nowhere.

Every example is kept, 16 bytes each, and sorted when the figure is asked for, which takes about 75
bytes an example more for that time. AUC_g is a quotient of whole numbers, and the groups' terms are
added up without rounding in between: the result depends only on which examples were seen, never on
their order, on batch sizes, or on how they were divided over metrics that were merged.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hps.common.arrays import AnyArray
from hps.common.json_text import Json
from hps.errors import ConfigError
from hps.metrics import checked_examples, ordered_codes

Entries = npt.NDArray[np.int64]
_BUFFERED_EXAMPLES = 1 << 18


class GroupMetrics:
    """GAUC of click predictions, as a stream.

    >>> metrics = GroupMetrics()
    >>> metrics.update([2.0, 1.0, 0.0, 9.0], [1, 0, 1, 1], groups=[7, 7, 7, 8])
    >>> metrics.compute()
    {'gauc': 0.5, 'groups': 1, 'gauc_examples': 3}
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets every example."""
        self._parts: list[Entries] = []  # [n, 2]: the group; the logit's code and the label
        self._fresh: list[Entries] = []
        self._num_fresh = 0

    def update(
        self,
        logits: "npt.ArrayLike | AnyArray",
        labels: "npt.ArrayLike | AnyArray",
        groups: "npt.ArrayLike | AnyArray",
    ) -> None:
        """Adds examples.

        Args:
            logits: [B] log-odds of a click, numpy or torch; rounded to float32.
            labels: [B], each 0 or 1.
            groups: [B] whole numbers of 64 bits, signed or not: keys of the groups, any of them.

        Raises:
            ConfigError: shapes differ, a label is neither 0 nor 1, or groups are no whole numbers;
                nothing was added.
            NonFiniteError: a logit is NaN or infinite; nothing was added.
        """
        values, is_click = checked_examples("GroupMetrics.update", logits, labels)
        keys = _to_keys(groups)
        if keys.shape != values.shape:
            raise ConfigError(
                f"GroupMetrics.update: {values.size} logits but {keys.size} groups; give one group "
                "for each logit"
            )
        marks = (ordered_codes(values).astype(np.int64) << 1) | is_click
        self.add_entries(np.stack([keys, marks], axis=1))

    def add_entries(self, entries: Entries) -> None:
        """Adds examples as `entries` has given them; they are kept, not copied."""
        self._fresh.append(entries)
        self._num_fresh += len(entries)
        if self._num_fresh >= _BUFFERED_EXAMPLES:
            self._settle()

    def entries(self) -> Entries:
        """Every example, int64 [n, 2]: the key of its group; what orders logits, times two, and one
        more for a click."""
        self._settle()
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0] if self._parts else np.empty((0, 2), np.int64)

    def merge(self, other: "GroupMetrics") -> None:
        """Adds what another metric has seen, as if its examples had come here."""
        self.add_entries(other.entries())

    def terms(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The groups that have both classes, in the order of their keys.

        Returns:
            int64 [G], examples of each; float64 [G], these times its AUC, ties one half.

        Cost: sorts all examples.
        """
        entries = self.entries()
        entries = entries[np.lexsort((entries[:, 1], entries[:, 0]))]
        groups, codes, is_click = entries[:, 0], entries[:, 1] >> 1, entries[:, 1] & 1
        # Runs of one group and one logit, and runs of one group.
        tied = np.flatnonzero(_begins(groups) | _begins(codes))
        positives = _sums(is_click, tied)
        negatives = _sums(1 - is_click, tied)
        of_group = np.flatnonzero(_begins(groups[tied]))
        num_positives, num_negatives = _sums(positives, of_group), _sums(negatives, of_group)
        # Negatives of the group below each run: those of all groups, less those of groups before.
        runs = np.diff(np.append(of_group, len(tied)))
        before = np.cumsum(num_negatives) - num_negatives
        below = np.cumsum(negatives) - negatives - np.repeat(before, runs)
        twice_won = _sums(positives * (2 * below + negatives), of_group)
        counts = (num_positives > 0) & (num_negatives > 0)
        pairs = num_positives[counts] * num_negatives[counts]
        impressions = (num_positives + num_negatives)[counts]
        shares = twice_won[counts] / (2.0 * pairs)
        return impressions, impressions.astype(np.float64) * shares

    def compute(self) -> dict[str, float]:
        """The figures over all examples so far.

        Returns:
            gauc: mean of the groups' AUC, weighted by their examples; nan where no group counts.
            groups: that have both classes, and count.
            gauc_examples: examples of these groups.
        """
        return group_figures([self.terms()])

    def state_dict(self) -> Json:
        """Everything seen (a copy)."""
        return {"entries": self.entries().copy()}

    def load_state_dict(self, state: Json) -> None:
        """Takes up where the metric that gave `state` stood."""
        self.reset()
        self.add_entries(np.array(state["entries"], np.int64).reshape(-1, 2))

    def _settle(self) -> None:
        """Makes one part of many small ones."""
        if self._fresh:
            self._parts.append(np.concatenate(self._fresh))
            self._fresh.clear()
            self._num_fresh = 0


def group_figures(
    parts: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]],
) -> dict[str, float]:
    """What `GroupMetrics.compute` returns, of the `terms` of metrics that share no group."""
    num_examples = sum(int(impressions.sum()) for impressions, _ in parts)
    weighted = math.fsum(term for _, terms in parts for term in terms.tolist())
    return {
        "gauc": weighted / num_examples if num_examples else math.nan,
        "groups": sum(len(impressions) for impressions, _ in parts),
        "gauc_examples": num_examples,
    }


def _to_keys(groups: "npt.ArrayLike | AnyArray") -> npt.NDArray[np.int64]:
    """A flat int64 array from numpy, a list, or a torch tensor (without importing torch)."""
    if hasattr(groups, "detach"):
        groups = groups.detach().cpu().numpy()
    try:
        keys = np.asarray(groups).reshape(-1)
    except (OverflowError, ValueError) as error:
        raise ConfigError(f"GroupMetrics.update: groups make no array: {error}") from None
    if keys.size == 0:
        return np.empty(0, np.int64)
    if keys.dtype.kind not in "iu":
        raise ConfigError(
            f"GroupMetrics.update: groups are of {keys.dtype}; give keys, whole numbers of 64 bits "
            "(hps.keys_of makes them of text)"
        )
    return keys.astype(np.int64)


def _begins(values: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """True where a value is not the one before it."""
    is_first = np.ones(len(values), np.bool_)
    is_first[1:] = values[1:] != values[:-1]
    return is_first


def _sums(values: npt.NDArray[np.int64], begins: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    """Sums of the runs that begin at these places."""
    return np.add.reduceat(values, begins) if len(begins) else np.empty(0, np.int64)
