"""AUC and logloss of predictions, whatever made them.

Above it: contenders.py, linear.py. Below it: `hps.metrics`.
"""

import numpy as np

from benchmarks.quality.logs import Array
from hps.metrics import BinaryMetrics


def measure(probabilities: Array, labels: Array) -> dict[str, float]:
    """AUC and logloss of float32 or float64 [B], by hps's metrics."""
    metrics = BinaryMetrics()
    clipped = np.clip(probabilities.astype(np.float64), 1e-7, 1 - 1e-7)
    metrics.update(np.log(clipped) - np.log1p(-clipped), labels)
    figures = metrics.compute()
    assert figures["auc_error_bound"] == 0, "more distinct predictions than the exact AUC takes"
    return {"auc": figures["auc"], "logloss": figures["logloss"]}
