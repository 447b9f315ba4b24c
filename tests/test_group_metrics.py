"""GAUC equals its definition, example by example, whatever the order, batch size and merging.

Above it: pytest. Below it: hps/group_metrics.py.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hps.cluster.world.world import World
from hps.errors import ConfigError, NonFiniteError
from hps.group_metrics import GroupMetrics
from hps.train.joined_metrics import joined_group_figures
from hps.train.ranks import TrainingRanks
from tests.cluster.ranks import run_ranks
from tests.group_twin import by_definition

Examples = tuple[np.ndarray, np.ndarray, np.ndarray]


def figures(metrics: GroupMetrics) -> tuple[float, float, float]:
    found = metrics.compute()
    return found["gauc"], found["groups"], found["gauc_examples"]


def filled(logits: Any, labels: Any, groups: Any) -> GroupMetrics:
    metrics = GroupMetrics()
    metrics.update(logits, labels, groups)
    return metrics


def make_examples(size: int, num_groups: int, seed: int = 0, decimals: int = 1) -> Examples:
    """With ties, and groups of one class and of one example."""
    random = np.random.default_rng(seed)
    print(f"seed {seed}")
    groups = random.integers(-(2**63), 2**63 - 1, num_groups)[
        (num_groups * random.random(size) ** 3).astype(int)
    ]
    logits = np.round(random.normal(size=size), decimals).astype(np.float32)
    return logits, random.integers(0, 2, size), groups


@pytest.mark.parametrize(("size", "num_groups"), [(300, 1), (400, 17), (500, 400), (1, 1), (0, 1)])
def test_gauc_equals_its_definition(size: int, num_groups: int) -> None:
    examples = make_examples(size, num_groups)
    found, wanted = figures(filled(*examples)), by_definition(*examples)
    assert found[1:] == wanted[1:]
    assert found[0] == pytest.approx(wanted[0], rel=0, abs=1e-15, nan_ok=True)


def test_figures_of_a_case_worked_by_hand() -> None:
    """Group 1: 1 of 2 pairs won and one tied: 3/4, of 3 examples. Group 2: 0, of 2. The others have
    one class alone."""
    metrics = GroupMetrics()
    for logit, label, group in [
        (0.5, 1, 1), (0.5, 0, 1), (-1.0, 0, 1), (0.0, 1, 2), (0.25, 0, 2),
        (9.0, 1, 3), (8.0, 1, 3), (7.0, 0, 4), (6.0, 0, 5),
    ]:  # fmt: skip
        metrics.update([logit], [label], [group])
    assert figures(metrics) == ((3 * 0.75 + 2 * 0.0) / 5, 2, 5)


def test_without_a_group_of_both_classes_there_is_no_gauc() -> None:
    nothing = GroupMetrics()
    one_class = filled([1.0, 2.0, 3.0], [1, 1, 0], [1, 1, 2])
    for metrics in (nothing, one_class):
        gauc, num_groups, num_examples = figures(metrics)
        assert math.isnan(gauc) and (num_groups, num_examples) == (0, 0)


def test_zero_has_one_sign_and_all_other_logits_are_told_apart() -> None:
    assert figures(filled([-0.0, 0.0], [1, 0], [1, 1]))[0] == 0.5
    tiny = np.float32(1.4e-45)
    assert figures(filled([tiny, 0.0], [1, 0], [1, 1]))[0] == 1.0
    largest = np.float32(3.4e38)
    assert figures(filled([-largest, -tiny, largest, tiny], [0, 0, 1, 1], [1] * 4))[0] == 1.0


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(
            st.sampled_from([-1.0, -0.0, 0.0, 1e-30, 2.0]),
            st.sampled_from([0, 1]),
            st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1]),
        ),
        max_size=40,
    ),
    st.integers(1, 5),
)
def test_any_small_input_is_measured_by_the_definition(
    rows: Sequence[tuple[float, int, int]], num_parts: int
) -> None:
    logits, labels, groups = ([row[idx] for row in rows] for idx in range(3))
    merged = GroupMetrics()
    for part in range(num_parts):
        places = range(part, len(rows), num_parts)
        merged.merge(filled(*([column[i] for i in places] for column in (logits, labels, groups))))
    wanted = by_definition(logits, labels, groups)
    assert figures(merged) == pytest.approx(wanted, rel=0, abs=1e-15, nan_ok=True)


def test_order_batches_and_merging_change_no_bit() -> None:
    examples = make_examples(20_000, 700, decimals=3)
    whole = figures(filled(*examples))
    order = np.random.default_rng(1).permutation(20_000)
    parts = [GroupMetrics() for _ in range(3)]
    for number, piece in enumerate(np.array_split(order, 50)):
        parts[number % 3].update(*(column[piece] for column in examples))
        parts[number % 3].compute()  # asking early must not matter either
    merged = GroupMetrics()
    for part in parts:
        again = GroupMetrics()
        again.load_state_dict(part.state_dict())
        merged.merge(again)
    assert figures(merged) == whole
    merged.reset()
    assert merged.compute()["groups"] == 0


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_have_the_bits_of_one_that_has_seen_all(size: int) -> None:
    """Whatever the ranks have seen: of one user each has a part, and one rank has nothing."""
    logits, labels, groups = make_examples(3000, 40, decimals=2)
    whole = filled(logits, labels, groups).compute()

    def body(world: World) -> Any:
        own = GroupMetrics()
        if world.rank or size == 1:
            step = max(size - 1, 1)
            places = slice(max(world.rank - 1, 0), None, step)
            own.update(logits[places], labels[places], groups[places])
        return joined_group_figures(own, TrainingRanks(world))

    assert whole["groups"] > 20
    assert run_ranks(size, body) == [whole] * size


def test_ranks_that_have_seen_nothing_say_so() -> None:
    found = run_ranks(2, lambda world: joined_group_figures(GroupMetrics(), TrainingRanks(world)))
    assert all(one["groups"] == 0 and math.isnan(one["gauc"]) for one in found)


def test_tensors_and_unsigned_keys_are_taken() -> None:
    keys = np.array([2**64 - 1, 2**64 - 1, 5, 5], np.uint64)
    wanted = filled([1.0, 0.0, 1.0, 2.0], [1, 0, 1, 0], keys)
    for groups in (torch.tensor([-1, -1, 5, 5]), [-1, -1, 5, 5]):
        logits = torch.tensor([1.0, 0.0, 1.0, 2.0], requires_grad=True)
        found = filled(logits, torch.tensor([1.0, 0.0, 1.0, 0.0]), groups)
        assert found.compute() == wanted.compute() == {"gauc": 0.5, "groups": 2, "gauc_examples": 4}


def test_wrong_examples_are_refused_and_nothing_is_added() -> None:
    metrics = filled([1.0, 0.0], [1, 0], [1, 1])
    refused: list[tuple[Any, Any, Any, type[Exception], str]] = [
        ([1.0], [1, 0], [1, 1], ConfigError, "1 logits but 2 labels"),
        ([1.0, 2.0], [1, 0], [1], ConfigError, "2 logits but 1 groups"),
        ([1.0, 2.0], [1, 0], [], ConfigError, "2 logits but 0 groups"),
        ([1.0, 2.0], [1, 2], [1, 1], ConfigError, "GroupMetrics.update: label 1 is 2.0"),
        ([1.0, math.nan], [1, 0], [1, 1], NonFiniteError, "GroupMetrics.update: logit 1 of 2"),
        ([1.0, 2.0], [1, 0], [1.0, 1.0], ConfigError, "groups are of float64; give keys"),
        ([1.0, 2.0], [1, 0], ["a", "b"], ConfigError, "groups are of <U1; give keys"),
        ([1.0, 2.0], [1, 0], [2**70, 1], ConfigError, "groups"),
        ([1.0, 2.0], [1, 0], [True, False], ConfigError, "groups are of bool"),
        ([1.0, 2.0], [1, 0], [[1], [1, 2]], ConfigError, "groups make no array"),
    ]
    for logits, labels, groups, kind, message in refused:
        with pytest.raises(kind, match=message):
            metrics.update(logits, labels, groups)
    assert figures(metrics) == (1.0, 1, 2)


def test_an_example_takes_sixteen_bytes() -> None:
    metrics = GroupMetrics()
    for _ in range(20):
        metrics.update(*make_examples(50_000, 1000))
    entries = metrics.entries()
    assert entries.nbytes == 16 * 20 * 50_000 and metrics.entries() is entries
