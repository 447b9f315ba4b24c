"""What a loss says where it is no use: that a constant would predict better.

Above it: run.py, validation.py. Below it: nothing.
"""

from collections.abc import Mapping
from typing import Any

# Nats an example; to say 0.5 of each costs 0.69, whatever the labels are.
_DIVERGED = 1.0


def advice_on_loss(logloss: float | None) -> list[str]:
    """Warnings of a run by its mean training loss.

    Args:
        logloss: in nats an example; None of a run without examples.

    >>> advice_on_loss(0.45), advice_on_loss(None)
    ([], [])
    >>> len(advice_on_loss(1193.7))
    1
    """
    if logloss is None or logloss <= _DIVERGED:
        return []
    return [
        f"warning: the mean logloss of this run is {logloss:.5g}, and 0.5 as the probability of "
        "every example has 0.693: the training has diverged, and its model predicts nothing; lower "
        "--lr and --dense-lr, and bring dense columns to scale (--dense-log, or a features file "
        "with normalise = true)"
    ]


def remark_on_figures(figures: Mapping[str, Any]) -> str:
    """What is said behind a validation's figures; empty of a model that is better than nothing.

    Args:
        figures: of the validation; `normalized_entropy` is its logloss by that of the share of
            clicks as every example's probability, None on labels of one kind.

    >>> remark_on_figures({"normalized_entropy": 0.78}), remark_on_figures({})
    ('', '')
    >>> remark_on_figures({"normalized_entropy": 9.1})
    ', and worse than the share of clicks for every example'
    """
    entropy = figures.get("normalized_entropy")
    if entropy is None or entropy <= 1:
        return ""
    return ", and worse than the share of clicks for every example"
