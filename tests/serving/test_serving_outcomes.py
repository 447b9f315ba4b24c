"""Outcomes: labels that come after the scores, by version and score, and what follows from them.

Above it: pytest. Below it: hps.serving.outcomes, by calls of both protocols.
"""

import random
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import hps
from hps.service.client.options import ClientConfig
from hps.service.messages.status import Refusal
from hps.service.server.limits import ServerLimits
from hps.serving.client import ModelServerClient
from hps.serving.outcomes import BUCKETS, OLDER, OutcomeFigures
from tests.serving.conftest import Models
from tests.serving.serving_lab import NAME, Local, ask, bytes_input, serving

OUTCOME = f"/v1/models/{NAME}:outcome"


def floats(values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)


def figures_of(local: Local, name: str) -> dict[tuple[str, str], float]:
    """(version, bucket) -> value, of those that are not 0."""
    port = local.server.front.metrics_port
    text = ask(f"http://127.0.0.1:{port}/metrics")[2].decode()
    return {
        (sample.labels["version"], sample.labels["score"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and sample.value
    }


def test_calibration_by_version_from_calls_of_both_protocols(models: Models) -> None:
    made, model = models("criteo")
    with (
        serving(model, metrics="127.0.0.1:0") as local,
        ModelServerClient(ClientConfig(addresses=[local.server.address])) as client,
    ):
        status, reply = local.infer(bytes_input("lines", made.lines()[:40]))
        assert status == 200
        version, scores = reply["model_version"], reply["outputs"][0]["data"]
        labels = [float(number % 3 == 0) for number in range(40)]
        weights = [float(1 + number % 2) for number in range(40)]
        assert client.add_outcomes(version, scores[:30], labels[:30], weights[:30]) == 30
        body = {"version": version, "scores": scores[30:], "labels": labels[30:]}
        assert local.ask(OUTCOME, {**body, "weights": weights[30:]}) == (200, {"examples": 10})
        places = np.searchsorted([float(one.split("-")[1]) for one in BUCKETS[:-1]], scores)
        expected: dict[str, dict[tuple[str, str], float]] = {"examples": {}, "clicks": {}}
        expected["scores"] = {}
        for place, score, label, weight in zip(places, scores, labels, weights, strict=True):
            for name, value in (
                ("examples", 1.0),
                ("clicks", label * weight),
                ("scores", np.float64(np.float32(score)) * weight),
            ):
                key = (version, BUCKETS[place])
                expected[name][key] = expected[name].get(key, 0.0) + value
        clicks = {key: value for key, value in expected["clicks"].items() if value}
        assert figures_of(local, "hps_outcomes_total") == expected["examples"]
        assert figures_of(local, "hps_outcome_clicks_total") == clicks
        assert figures_of(local, "hps_outcome_scores_total") == pytest.approx(expected["scores"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scores": []}, "there are no scores"),
        ({"labels": [1]}, "1 labels for 2 scores"),
        ({"weights": [1, 1, 1]}, "3 weights for 2 scores"),
        ({"scores": [0.5, 1.5]}, "scores: 1.5 of example 1 is not from 0 to 1"),
        ({"labels": [-1, 0]}, "labels: -1.0 of example 0 is not from 0 to 1"),
        ({"weights": [-0.5, 1]}, "weights: -0.5 of example 0 is not a number of 0 or more"),
        ({"weights": [1e39, 1]}, "weights: inf of example 0"),
        ({"scores": [True, 0.5]}, "scores: 'True' is no number"),
        ({"scores": ["0.5", 0.5]}, "scores: '0.5' is no number"),
        ({"labels": [10**400, 0]}, "a whole number is too large"),
        ({"labels": 1}, "'labels' is '1'; it is a JSON array"),
        ({"version": None}, 'give {"version": "41"'),
        ({"version": "nix"}, "has no version 'nix'; give the model_version of the reply"),
        ({"scores": [0.5] * 9, "labels": [1] * 9}, "9 examples in one call; 8 at most"),
    ],
)
def test_outcomes_that_are_none_are_refused_and_count_nothing(
    models: Models, change: dict[str, Any], says: str
) -> None:
    _, model = models("criteo")
    body = {"version": "final", "scores": [0.5, 0.25], "labels": [True, 0], **change}
    with serving(model, metrics="127.0.0.1:0", limits=ServerLimits(keys=8)) as local:
        status, said = local.ask(OUTCOME, body)
        assert status in (400, 404, 413) and says in said["error"]
        assert figures_of(local, "hps_outcomes_total") == {}


def test_a_call_of_numbers_that_are_none_is_refused_over_grpc(models: Models) -> None:
    _, model = models("criteo")
    with (
        serving(model) as local,
        ModelServerClient(ClientConfig(addresses=[local.server.address])) as client,
    ):
        with pytest.raises(hps.ConfigError, match=r"scores: nan of example 1"):
            client.add_outcomes("final", [0.5, float("nan")], [1, 0])
        with pytest.raises(hps.ConfigError, match="no version '41'"):
            client.add_outcomes("41", [0.5], [1])


def test_the_figures_stay_bounded_and_no_outcome_is_lost() -> None:
    figures, order = OutcomeFigures(), random.Random(3)
    for _ in range(500):
        figures.add(str(order.randrange(1, 40)), floats([0.015, 0.5]), floats([0, 1]), None)
    found = figures.snapshot()
    assert len(found) == 9 and OLDER in found
    assert sum(one.examples.sum() for one in found.values()) == 1000
    assert sum(one.clicks.sum() for one in found.values()) == 500
    assert sum(one.scores.sum() for one in found.values()) == pytest.approx(500 * 0.515)
    by_bucket = sum(one.examples for one in found.values())
    assert by_bucket[BUCKETS.index("0.01-0.02")] == by_bucket[BUCKETS.index("0.3-0.5")] == 500


def test_a_stores_version_may_have_the_name_of_all_older_ones() -> None:
    figures = OutcomeFigures()
    figures.add(OLDER, floats([0.5, 0.7]), floats([1, 0]), None)
    found = figures.snapshot()
    assert list(found) == [OLDER] and found[OLDER].examples.sum() == 2
    figures.add(OLDER, floats([0.5]), floats([1]), None)
    assert found[OLDER].examples.sum() == 2  # a copy


def test_the_last_eight_versions_are_told_of_apart() -> None:
    figures = OutcomeFigures()
    for version in range(1, 11):
        figures.add(str(version), floats([0.5]), floats([1]), None)
    figures.add("3", floats([0.5]), floats([1]), None)
    assert list(figures.snapshot()) == [*map(str, (4, 5, 6, 7, 8, 9, 10, 3)), OLDER]
    with pytest.raises(Refusal):
        figures.add("11", floats([2.0]), floats([1]), None)
    assert "11" not in figures.snapshot()
