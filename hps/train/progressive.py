"""Progressive: how well the model scored each example before it was trained on it, by file.

Above it: loop.py, `Trainer`, which keeps it in checkpoints. Below it: `hps.metrics`. Also called
test-then-train; of a log in the order of time it is what a model would have scored online. Source:
Blum, Kalai and Langford, "Beating the Hold-Out: Bounds for K-fold and Progressive
Cross-Validation", COLT 1999.
"""

import torch

from hps.common.json_text import Json, JsonView
from hps.metrics import BinaryMetrics
from hps.reader.position import file_of
from hps.reader.position_files import PositionFiles
from hps.train.joined_metrics import joined_metrics
from hps.train.ranks import TrainingRanks
from hps.types import Batch

_MAX_DISTINCT = 1 << 16  # of these a checkpoint holds 20 bytes each


class Progressive:
    """Figures of DATA's files, in the order in which they were read; of the first epoch alone.

    A batch that reaches over the end of a file counts to the file that it ends in; where examples
    are shuffled, so does each block of them, with all its batches.

    Args:
        ranks: that train together, each on its part of a batch; all call the same verbs.
    """

    def __init__(self, ranks: TrainingRanks | None = None) -> None:
        self._ranks = ranks or TrainingRanks()
        self._entries: list[Json] = []  # of files that are over
        self._file: str | None = None  # that is under way
        self._metrics = BinaryMetrics(_MAX_DISTINCT)

    @staticmethod
    def is_due(batch: Batch) -> bool:
        """True if nothing of the batch has been trained on before."""
        return bool(batch.position["epoch"] == 0)

    def add(self, batch: Batch, logits: torch.Tensor) -> None:
        """Counts the examples of a batch that are here.

        Args:
            batch: of DATA.
            logits: [B], of the model before the batch's step.
        """
        place = file_of(batch.position)
        order = batch.position.get("order")
        files = PositionFiles.of(batch.position["files"])
        name = str(files.at(place if order is None else order[place])[0])
        if name != self._file:
            self._end_file()
            self._file = name
        self._metrics.update(logits, batch.labels.cpu())

    def _end_file(self) -> None:
        if self._file is not None:
            self._entries.append(self._entry())
        self._metrics.reset()

    def _entry(self) -> Json:
        return {"file": self._file, **joined_metrics(self._metrics, self._ranks).compute()}

    def entries(self) -> list[Json]:
        """Of each file `file` (its name) and what `BinaryMetrics.compute` returns; the last one is
        of what has been read of it. Every rank calls it."""
        under_way = [] if self._file is None else [self._entry()]
        return [*self._entries, *under_way]

    def state_dict(self) -> Json:
        """All of it, as torch.load(weights_only=True) can read it. Every rank calls it."""
        state = joined_metrics(self._metrics, self._ranks).state_dict()
        for name in ("codes", "counts"):
            state[name] = torch.from_numpy(state[name].astype("int64"))
        return {"entries": list(self._entries), "file": self._file, "metrics": state}

    def load_state_dict(self, state: JsonView, *, is_new_data: bool = False) -> None:
        """Goes on from there.

        Args:
            state: what `state_dict` returned.
            is_new_data: the file under way is over: what comes is another log.
        """
        self._entries = [dict(entry) for entry in state["entries"]]
        self._file = state["file"]
        if self._ranks.rank == 0:  # of all ranks together it is the same
            metrics = dict(state["metrics"])
            for name in ("codes", "counts"):
                metrics[name] = metrics[name].numpy()
            self._metrics.load_state_dict(metrics)
        if is_new_data:
            self._end_file()
            self._file = None


def without_file(state: JsonView) -> Json:
    """What `Progressive.state_dict` returned, without the file under way: not all of that will have
    been measured."""
    metrics = BinaryMetrics(_MAX_DISTINCT).state_dict()
    for name in ("codes", "counts"):
        metrics[name] = torch.from_numpy(metrics[name].astype("int64"))
    return {"entries": list(state["entries"]), "file": None, "metrics": metrics}
