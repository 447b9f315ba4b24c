"""DenseWatch: looks whether the dense columns of a log are of a scale that a model can learn from.

Above it: the training run, which says what is found and stores it in --json. Below it: torch.
"""

from collections.abc import Sequence

import torch

from hps.reader.column_use import DENSE, ColumnUse
from hps.reader.config import SIGNED_LOG1P

WATCHED_EXAMPLES = 10_000
# Logarithms of counts stay below the first, columns brought to scale below both.
_LARGE_ROOT_MEAN_SQUARE = 20.0
_LARGE_VALUE = 1000.0


class DenseWatch:
    """Mean and range of each dense column over the first examples that a run trains on.

    Args:
        columns: of the log, as `Reader.columns` has them.
        transform: of the reader, `ReaderConfig.transform`.
    """

    def __init__(self, columns: Sequence[ColumnUse], transform: str) -> None:
        self._names = [column.name for column in columns if column.kind == DENSE]
        self._transform = transform
        self._is_done = not self._names
        self._examples = 0
        count = len(self._names)
        self._sums = torch.zeros(2, count, dtype=torch.float64)
        self._lows = torch.full((count,), torch.inf)
        self._highs = torch.full((count,), -torch.inf)

    def add(self, dense: torch.Tensor) -> list[str]:
        """Looks at the dense values of a batch, [B, columns], on any device.

        Returns:
            Warnings, a line a column, once enough was seen; it costs nothing from then on.
        """
        if self._is_done or not len(dense):
            return []
        values = dense.detach().cpu()
        self._examples += len(values)
        wide = values.double()
        self._sums += torch.stack([wide.sum(0), wide.square().sum(0)])
        self._lows = torch.minimum(self._lows, values.amin(0))
        self._highs = torch.maximum(self._highs, values.amax(0))
        return self.finish() if self._examples >= WATCHED_EXAMPLES else []

    def finish(self) -> list[str]:
        """Warnings of a run that was too short for `add` to give them."""
        if self._is_done or not self._examples:
            return []
        self._is_done = True
        return [
            self._warning(name, found) for name, found in self.found().items() if _is_far(found)
        ]

    def found(self) -> dict[str, dict[str, float]]:
        """Of each dense column mean, root mean square, min and max, and of how many examples."""
        if not self._examples:
            return {}
        means, squares = (self._sums / self._examples).tolist()
        return {
            name: {
                "mean": means[idx],
                "root_mean_square": squares[idx] ** 0.5,
                "min": float(self._lows[idx]),
                "max": float(self._highs[idx]),
                "examples": self._examples,
            }
            for idx, name in enumerate(self._names)
        }

    def _warning(self, name: str, found: dict[str, float]) -> str:
        way_out = "bring it to scale by a features file (--features, normalise = true)"
        if self._transform != SIGNED_LOG1P:
            way_out = f"train a new model with --dense-log, which takes its logarithm, or {way_out}"
        return (
            f"warning: dense column {name!r} is far from scale: mean {found['mean']:.4g}, from "
            f"{found['min']:.4g} to {found['max']:.4g} in the first {found['examples']:,} "
            f"examples; a model learns badly from it: {way_out}"
        )


def _is_far(found: dict[str, float]) -> bool:
    largest = max(abs(found["min"]), abs(found["max"]))
    return found["root_mean_square"] > _LARGE_ROOT_MEAN_SQUARE or largest > _LARGE_VALUE
