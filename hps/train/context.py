"""RunContext: what surrounds a training run: who trains, who is told, who may stop it.

Above it: opening.py, loop.py. Below it: `TrainingRanks`, `Progress`, `hps.stops.Stops`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hps.stops import Stops
from hps.train.base_rate import FirstLabels
from hps.train.following import Following
from hps.train.progress import Progress
from hps.train.ranks import TrainingRanks

if TYPE_CHECKING:
    from hps.train.run_metrics import RunMetrics


@dataclass
class RunContext:
    """Around one run.

    Args:
        ranks: that train together.
        progress: told how the run goes.
        stops: what asks it to stop.
        following: of the folder that is followed; None where DATA was given.
        metrics: the run's figures; None where nobody asks for them.
        labels: of the log's first examples, once they have been counted; None where they are not.
    """

    ranks: TrainingRanks
    progress: Progress
    stops: Stops
    labels: FirstLabels | None = None
    following: Following | None = None
    metrics: "RunMetrics | None" = None
