"""The streaming metrics agree with exact ones, whatever the order, batch size and merging."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hps.errors import ConfigError, NonFiniteError
from hps.metrics import BinaryMetrics


def exact_auc(logits: np.ndarray, labels: np.ndarray) -> float:
    """By ranks, ties sharing their mean rank (Mann-Whitney)."""
    _values, inverse, counts = np.unique(logits, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2
    positives = int(labels.sum())
    negatives = labels.size - positives
    won = mean_ranks[inverse][labels == 1].sum() - positives * (positives + 1) / 2
    return float(won / (positives * negatives))


def make_examples(num: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=num).astype(np.float32) * 2 - 1
    labels = (generator.random(num) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return logits, labels


def filled(logits: np.ndarray, labels: np.ndarray, **options: int) -> BinaryMetrics:
    metrics = BinaryMetrics(**options)
    metrics.update(logits, labels)
    return metrics


def test_auc_is_exact_with_ties() -> None:
    logits, labels = make_examples(50_000)
    logits = np.round(logits, 1)
    figures = filled(logits, labels).compute()
    assert figures["auc"] == pytest.approx(exact_auc(logits, labels), abs=1e-12)
    assert figures["auc_error_bound"] == 0.0


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.floats(-(2.0**90), 2.0**90, width=32), st.sampled_from([0.0, 1.0])),
        min_size=2,
        max_size=40,
    )
)
def test_auc_equals_exact_auc_for_any_small_input(pairs: list[tuple[float, float]]) -> None:
    logits, labels = np.array(pairs, np.float32).T
    auc = filled(logits, labels).compute()["auc"]
    if len(set(labels)) == 1:
        assert math.isnan(auc)
    else:
        assert auc == pytest.approx(exact_auc(logits, labels), abs=1e-12)


def test_logloss_and_calibration_equal_their_definitions() -> None:
    logits, labels = make_examples(10_000)
    predicted = 1 / (1 + np.exp(-logits.astype(np.float64)))
    figures = filled(logits, labels).compute()
    losses = -np.where(labels == 1, np.log(predicted), np.log1p(-predicted))
    assert figures["logloss"] == pytest.approx(losses.mean(), abs=1e-9)
    assert figures["calibration"] == pytest.approx(predicted.sum() / labels.sum(), abs=1e-9)
    assert (figures["examples"], figures["positives"]) == (10_000, labels.sum())


def test_bounded_memory_keeps_auc_within_its_own_bound() -> None:
    logits, labels = make_examples(200_000)
    for max_distinct in (1000, 20):
        metrics = filled(logits, labels, max_distinct=max_distinct)
        figures = metrics.compute()
        assert len(metrics.state_dict()["codes"]) <= max_distinct
        assert 0 < figures["auc_error_bound"] < (0.002 if max_distinct == 1000 else 0.2)
        error = abs(figures["auc"] - exact_auc(logits, labels))
        assert error <= figures["auc_error_bound"]


@pytest.mark.parametrize("max_distinct", [300, 1 << 20])
def test_order_batches_and_merging_change_nothing(max_distinct: int) -> None:
    logits, labels = make_examples(20_000)
    whole = filled(logits, labels, max_distinct=max_distinct).compute()
    order = np.random.default_rng(1).permutation(logits.size)
    parts = [BinaryMetrics(max_distinct=max_distinct) for _ in range(3)]
    for number, piece in enumerate(np.array_split(order, 50)):
        parts[number % 3].update(logits[piece], labels[piece])
        parts[number % 3].compute()  # settling early must not matter either
    parts[0].merge(parts[1])
    parts[2].merge(parts[0])
    assert parts[2].compute() == whole


def test_state_dict_resumes() -> None:
    logits, labels = make_examples(3000)
    first = filled(logits[:1000], labels[:1000], max_distinct=200)
    second = BinaryMetrics()
    second.load_state_dict(first.state_dict())
    second.update(logits[1000:], labels[1000:])
    assert second.compute() == filled(logits, labels, max_distinct=200).compute()


def test_torch_tensors_are_accepted() -> None:
    torch = pytest.importorskip("torch")
    logits, labels = make_examples(500)
    metrics = BinaryMetrics()
    metrics.update(torch.from_numpy(logits).requires_grad_(), torch.from_numpy(labels))
    assert metrics.compute() == filled(logits, labels).compute()


def test_a_single_class_has_no_auc() -> None:
    figures = filled(np.array([1.0, 2.0]), np.array([0, 0])).compute()
    assert math.isnan(figures["auc"]) and math.isnan(figures["calibration"])
    assert figures["logloss"] > 1
    assert all(math.isnan(BinaryMetrics().compute()[name]) for name in ("auc", "logloss"))


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
def test_non_finite_logits_are_refused_and_nothing_is_added(value: float) -> None:
    metrics = filled(np.array([0.0, 1.0]), np.array([0, 1]))
    before = metrics.compute()
    with pytest.raises(NonFiniteError, match="logit 1 of 2"):
        metrics.update(np.array([0.0, value]), np.array([0, 1]))
    assert metrics.compute() == before


def test_wrong_labels_and_shapes_are_refused() -> None:
    metrics = BinaryMetrics()
    with pytest.raises(ConfigError, match="label 1 is 2"):
        metrics.update([0.0, 0.0], [1, 2])
    with pytest.raises(ConfigError, match="1 logits but 2 labels"):
        metrics.update([0.0], [1, 0])
    with pytest.raises(ConfigError, match="max_distinct"):
        metrics.merge(BinaryMetrics(max_distinct=2))
    with pytest.raises(ConfigError):
        BinaryMetrics(max_distinct=1)


def test_zeros_of_both_signs_are_a_tie() -> None:
    assert filled(np.array([-0.0, 0.0]), np.array([0, 1])).compute()["auc"] == 0.5


def test_normalized_entropy_is_the_logloss_over_that_of_the_base_rate() -> None:
    logits, labels = make_examples(5000)
    rate = float(labels.mean())
    figures = filled(logits, labels).compute()
    base = filled(np.full(5000, math.log(rate / (1 - rate))), labels).compute()
    assert base["normalized_entropy"] == pytest.approx(1.0, abs=1e-6)
    assert figures["normalized_entropy"] == pytest.approx(
        figures["logloss"] / base["logloss"], rel=1e-6
    )
    assert figures["normalized_entropy"] < 0.9


@pytest.mark.parametrize("labels", [[], [1], [0, 0], [1, 1, 1]])
def test_normalized_entropy_needs_both_classes(labels: list[int]) -> None:
    metrics = BinaryMetrics()
    metrics.update([0.5] * len(labels), labels)
    assert math.isnan(metrics.compute()["normalized_entropy"])
