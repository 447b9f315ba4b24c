"""What a GPU does of an exchange, on tensors of the host: the sums that the native plan makes.

Above it: pytest. Below it: hps.cluster.exchange.device_rows.
"""

import numpy as np
import pytest
import torch

from hps import _C
from hps.cluster.exchange.device_rows import places_of, sums_of
from hps.common.sharding import ShardMap
from tests.lab import random_keys


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("num_occurrences", [0, 1, 1000])
def test_places_and_sums_are_those_of_the_plan(size: int, num_occurrences: int) -> None:
    generator = np.random.default_rng(size)
    plan = _C.ShardPlan(ShardMap(size).owners().tolist())
    keys = random_keys(generator, num_occurrences, 150)
    plan.build(keys)
    places = places_of(plan, "cpu")
    assert np.array_equal(plan.unique_keys[places.numpy()], keys)
    if not num_occurrences:
        return
    # Eighths: every order of summation rounds alike.
    grads = generator.integers(-64, 64, (num_occurrences, 3)).astype(np.float32) / 8
    sums = sums_of(torch.from_numpy(grads), places, plan.num_unique)
    expected = np.zeros((plan.num_unique, 3), np.float32)
    np.add.at(expected, places.numpy(), grads)
    assert np.array_equal(sums.numpy(), expected)
    plan.sum_gradients(grads)
    assert np.array_equal(sums.numpy(), plan.sums(3))


def test_sums_have_the_same_bits_every_time() -> None:
    generator = torch.Generator().manual_seed(1)
    places = torch.randint(0, 40, (5000,), generator=generator)
    grads = torch.randn(5000, 4, generator=generator)
    first = sums_of(grads, places, 40)
    assert all(torch.equal(sums_of(grads, places, 40), first) for _ in range(3))
    in_order = torch.stack([grads[places == key].double().sum(dim=0) for key in range(40)])
    assert torch.allclose(first.double(), in_order, atol=1e-4)


@pytest.mark.parametrize("times, are_equal", [(1, True), (32, True), (64, False)])
def test_sums_have_the_bits_of_the_host_up_to_32_occurrences(times: int, are_equal: bool) -> None:
    plan = _C.ShardPlan(ShardMap(2).owners().tolist())
    plan.build(np.tile(np.arange(50, dtype=np.uint64), times))
    generator = np.random.default_rng(times)
    grads = generator.standard_normal((50 * times, 5)).astype(np.float32)
    on_device = sums_of(torch.from_numpy(grads), places_of(plan, "cpu"), plan.num_unique).numpy()
    plan.sum_gradients(grads)
    assert np.array_equal(on_device, plan.sums(5)) == are_equal
    assert np.allclose(on_device, plan.sums(5), atol=1e-4)
