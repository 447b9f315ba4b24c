"""Pooling by torch alone, of rows that come to a GPU: the documented order, on any thread count."""

import numpy as np
import pytest
import torch

from hps.cluster.exchange.device_pooling import pool_rows, spread_gradients, sum_bags
from hps.common.bags import BagPooling, make_bags
from tests.front import random_bags
from tests.twins import row_math

RUN = 32  # occurrences; architecture and docs name it, so the twin does not import it


def counter_sum(rows: np.ndarray) -> np.ndarray:
    """The readable twin of pooling: runs of 32, then a binary counter."""
    runs = []
    for first in range(0, len(rows), RUN):
        total = rows[first].copy()
        for row in rows[first + 1 : first + RUN]:
            total += row
        runs.append(total)
    stack: list[tuple[int, np.ndarray]] = []
    for run in runs:
        size, total = 1, run
        while stack and stack[-1][0] == size:
            total = stack.pop()[1] + total
            size *= 2
        stack.append((size, total))
    total = stack.pop()[1]
    while stack:
        total = stack.pop()[1] + total
    return total


@pytest.mark.parametrize("longest", [1, 5, 32, 33, 400])
def test_pooling_adds_in_the_documented_order(longest: int) -> None:
    generator = np.random.default_rng(longest)
    lengths = np.append(generator.integers(0, longest + 1, 20), longest)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
    values = generator.standard_normal((int(offsets[-1]), 5)).astype(np.float32)
    pooled = sum_bags(torch.from_numpy(values), make_bags(offsets, len(values), "test")).numpy()
    for bag, length in enumerate(lengths):
        first = int(offsets[bag])
        rows = values[first : first + length]
        expected = counter_sum(rows) if length else np.zeros(5, np.float32)
        assert pooled[bag].tobytes() == expected.tobytes()


def test_pooling_is_equal_on_any_torch_thread_count() -> None:
    generator = np.random.default_rng(0)
    _, offsets = random_bags(generator, 3000, 70, 10)
    values = torch.from_numpy(generator.standard_normal((int(offsets[-1]), 16)).astype(np.float32))
    bags = make_bags(offsets, len(values), "test")
    before = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            results.append(sum_bags(values, bags))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_means_weights_and_gradients_are_those_of_the_twin(mean: bool, is_weighted: bool) -> None:
    generator = np.random.default_rng(3)
    _, offsets = random_bags(generator, 50, 70, 12)
    count = int(offsets[-1])
    values = generator.standard_normal((count, 5)).astype(np.float32)
    weights = generator.standard_normal(count).astype(np.float32) if is_weighted else None
    bags = make_bags(offsets, count, "test")
    pooling = BagPooling(bags, None if weights is None else torch.from_numpy(weights), mean)
    num_bags = len(bags.lengths)
    out, expected = torch.empty(num_bags // 2, 10), np.empty((num_bags // 2, 10), np.float32)
    row_math.pool_bags(values, offsets.numpy(), weights, mean, expected)
    pool_rows(torch.from_numpy(values.copy()), pooling, out)
    assert out.numpy().tobytes() == expected.tobytes()
    grads = generator.standard_normal((num_bags, 5)).astype(np.float32)
    spread = row_math.spread_bags(grads, offsets.numpy(), weights, mean)
    found = spread_gradients(torch.from_numpy(grads), pooling, count)
    assert found.numpy().tobytes() == spread.tobytes()
