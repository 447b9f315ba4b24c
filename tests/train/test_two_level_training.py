"""hps train --two-level: each key has a first-order weight and comes by its vector at a score; the
model keeps it, whoever goes on with it, measures it or scores with it.

Above it: pytest. Below it: the days of test_training_periods.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.errors import ConfigError
from hps.train import evaluate_store, train
from tests.train.test_training_periods import counts_of, days, options_of

__all__ = ["days"]  # a fixture

SCORE = 0.35
AGAIN: dict[str, Any] = {"resume": True, "new_data": True}


def keys_of(server: hps.ParameterServer, table: str) -> set[int]:
    return {key for keys, _ in server.items(table) for key in keys.tolist()}


def test_each_key_has_a_weight_and_those_of_a_score_a_vector(
    days: list[Path], tmp_path: Path
) -> None:
    # Score: shows / 10 without a click, so that 4 shows, or a click, make it.
    figures = train(options_of(days[:2], tmp_path / "store", two_level=SCORE))
    assert set(figures["digests"]) == {"features", "features.first_order"}
    counts = counts_of(days[:2])
    with hps.open(tmp_path / "store") as server:
        vectors, weights = server.tables["features"], server.tables["features.first_order"]
        assert (vectors.dim, weights.dim, weights.statistics) == (2, 1, True)
        assert vectors.admission == hps.Admission(by="features.first_order", min_score=SCORE)
        keys = np.array(list(counts), np.int64)
        assert keys_of(server, "features.first_order") == {*keys.view(np.uint64).tolist()}
        seen = server.statistics("features.first_order", keys.view(np.uint64))
        assert np.array_equal(np.stack([seen["show"], seen["click"]], 1), [*counts.values()])
        with_vector = keys_of(server, "features")
    scores = {key: 0.1 * (show - click) + click for key, (show, click) in counts.items()}
    # By the score of before its update a key may have it, and its vector comes with the next one.
    assert with_vector <= {key for key, score in scores.items() if score >= SCORE}
    assert with_vector >= {key for key, score in scores.items() if score >= SCORE + 4}
    assert 0 < len(with_vector) < len(counts)
