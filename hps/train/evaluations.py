"""Evaluations: what the validations of a model's life have measured, and which was the best.

Above it: validation.py, `Trainer`, which keeps it in checkpoints. Below it: nothing.
"""

import math
from dataclasses import dataclass, field

from hps.common.json_text import Json, JsonView


@dataclass
class Evaluations:
    """Figures of one model on one log, oldest first.

    Args:
        entries: of each validation: `examples` and `batches` that the model had been trained on,
            `valid_examples`, and what `BinaryMetrics.compute` returns of these.
        log: what they were measured on, as the run names it; figures on another log are not
            comparable.
        num_epochs: of DATA that had ended at the last one.
        begun: entries that no longer count: those of other data, or of a best model that is gone.

    >>> done = Evaluations()
    >>> for examples, auc in ((100, 0.6), (200, 0.7), (300, 0.65)):
    ...     done.entries.append({"examples": examples, "auc": auc, "logloss": 0.5})
    >>> done.best("auc")["examples"], done.num_since_best("auc")
    (200, 1)
    """

    entries: list[Json] = field(default_factory=list)
    log: Json = field(default_factory=dict)
    num_epochs: int = 0
    begun: int = 0

    def begin_data(self) -> None:
        """Other data is trained on from here: its epochs count, and its own best model."""
        self.num_epochs = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """What was measured so far stays told, but the best is looked for from here on."""
        self.begun = len(self.entries)

    def to_dict(self) -> Json:
        """Plain values, for a checkpoint."""
        return {
            "evaluations": [dict(entry) for entry in self.entries],
            "valid_log": dict(self.log),
            "valid_epochs": self.num_epochs,
            "valid_begun": self.begun,
        }

    @classmethod
    def from_dict(cls, state: JsonView) -> "Evaluations":
        """Of a checkpoint's model; of one stored before there were validations, none."""
        return cls(
            [dict(entry) for entry in state.get("evaluations", ())],
            dict(state.get("valid_log", {})),
            int(state.get("valid_epochs", 0)),
            int(state.get("valid_begun", 0)),
        )

    @property
    def num_batches(self) -> int:
        """That the model had been trained on at the last one; 0 before the first."""
        return int(self.entries[-1]["batches"]) if self.entries else 0

    def best(self, by: str) -> Json | None:
        """The best entry, of equal ones the first; None before the first validation.

        Args:
            by: "auc" or "logloss". On a log of clicks alone, or of none, there is no AUC: then
                by logloss.
        """
        found = self._best(by)
        return None if found is None else self.entries[found]

    def num_since_best(self, by: str) -> int:
        """Validations after the best one."""
        found = self._best(by)
        return 0 if found is None else len(self.entries) - 1 - found

    def _best(self, by: str) -> int | None:
        counted = self.entries[self.begun :]
        if not counted:
            return None
        is_auc = by == "auc" and not math.isnan(counted[0]["auc"])
        scores = [entry["auc"] if is_auc else -entry["logloss"] for entry in counted]
        return self.begun + scores.index(max(scores))
