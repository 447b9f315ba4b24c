"""The baseline that every model has to beat: logistic regression over hashed features.

Above it: contenders.py. Below it: figures.py, scikit-learn.
"""

import warnings
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_matrix, hstack
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction import FeatureHasher
from sklearn.linear_model import LogisticRegression

from benchmarks.quality.figures import measure
from benchmarks.quality.logs import Array, Log, labels_of

BUCKETS = 1 << 20
STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0)  # C, the inverse of the weight of the penalty


def inputs_of(log: Log, table: pa.Table) -> csr_matrix:
    """[B, BUCKETS + C]: one for each value of each feature and bag, then the dense columns."""
    words: list[list[str]] = [[] for _ in range(len(table))]
    for name in log.columns("features"):
        for own, value in zip(words, table[name].to_pylist(), strict=True):
            own.append(f"{name}={value}")
    for name in log.columns("bags"):
        for own, values in zip(words, table[name].to_pylist(), strict=True):
            own.extend(f"{name}={value}" for value in values)
    hasher = FeatureHasher(BUCKETS, input_type="string", alternate_sign=False, dtype=np.float64)
    hashed = hasher.transform(words)
    dense = [table[name].to_numpy().reshape(-1, 1) for name in log.columns("dense")]
    return hstack([hashed, *(csr_matrix(column) for column in dense)]).tocsr()


def predictions(log: Log, parts: Mapping[str, pa.Table], seed: int) -> dict[str, Array]:
    """Of the valid and the test part, by the C that is best on the valid part."""
    inputs = {part: inputs_of(log, table) for part, table in parts.items()}
    used = np.unique(inputs["train"].indices)  # a bucket without examples has the weight 0
    inputs = {part: made[:, used] for part, made in inputs.items()}
    labels = {part: labels_of(table) for part, table in parts.items()}
    best: tuple[float, LogisticRegression] | None = None
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, max_iter=60, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(inputs["train"], labels["train"])
        auc = measure(model.predict_proba(inputs["valid"])[:, 1], labels["valid"])["auc"]
        if best is None or auc > best[0]:
            best = (auc, model)
    assert best is not None
    return {part: best[1].predict_proba(inputs[part])[:, 1] for part in ("valid", "test")}
