"""Expected distinct keys beside those of generated batches, misses beside those of a real cache.

Above it: pytest. Below it: hps/plan/keys.py, hps.generate, hps.ParameterServer.
"""

import numpy as np
import pytest

import hps
from hps.generate.config import GeneratorConfig, cardinalities_of
from hps.generate.kernels import fill_keys
from hps.generate.planted import draw_block, plant
from hps.plan.keys import KeyLaw

ALPHAS = (0.0, 0.6, 1.0, 1.05, 1.3)


def law_of(config):
    return KeyLaw([int(size) for size in config.cardinalities()], config.alpha)


def drawn(config, first, count):
    """Keys of generated examples, uint64 [count, F]."""
    model = plant(config)
    block = draw_block(model, first, count)
    keys = np.empty(len(block.ids), np.uint64)
    fill_keys(model, block, keys, np.empty(len(block.offsets), np.int64))
    return keys.reshape(config.features, count).T


@pytest.mark.parametrize("alpha", ALPHAS)
def test_expected_unique_keys_are_those_of_every_rank_by_itself(alpha):
    sizes = [50_000, 50_000, 7]
    chances = [np.arange(1, size + 1.0) ** -alpha for size in sizes]
    for examples in (1, 300, 10**6):
        absent = [np.log1p(-np.minimum(p / p.sum(), 1 - 1e-15)) for p in chances]
        exact = sum(-np.expm1(examples * each).sum() for each in absent)
        assert KeyLaw(sizes, alpha).unique(examples) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_expected_unique_keys_are_those_of_generated_batches(alpha):
    config = GeneratorConfig(keys=300_000, features=8, dense=0, alpha=alpha, seed=5)
    keys = drawn(config, 0, 8192)
    for count in (512, 8192):
        found = [len(np.unique(keys[first : first + count])) for first in range(0, 8192, count)]
        assert np.mean(found) == pytest.approx(law_of(config).unique(count), rel=0.01)


def test_several_ids_of_a_feature_are_as_many_examples():
    assert KeyLaw([1000], 1.0, ids=5).unique(20) == pytest.approx(KeyLaw([1000], 1.0).unique(100))


def test_examples_for_is_the_inverse_of_unique():
    law = KeyLaw([100_000, 2000], 1.05)
    assert law.unique(law.examples_for(12_345)) == pytest.approx(12_345)
    assert law.examples_for(102_000) == np.inf
    assert law.misses(100, 102_000) == 0.0


def test_a_trillion_keys_take_no_more_memory_than_a_million():
    million, trillion = KeyLaw([10**6], 1.05), KeyLaw([10**12], 1.05)
    assert len(trillion._counts) < 3 * len(million._counts) < 30_000
    assert trillion.num_keys == pytest.approx(1e12)


def test_misses_of_a_real_cache_are_near_the_expected_ones(tmp_path):
    config = GeneratorConfig(keys=60_000, features=4, dense=0, alpha=1.05, seed=3)
    batch, num_batches, cached = 256, 160, 8192
    keys = drawn(config, 0, batch * num_batches)
    table = hps.TableConfig(name="ads", dim=4, optimizer=hps.SGD(lr=0.1))
    row = hps.plan.PlanQuestion(keys=60_000, dim=4, optimizer="sgd", features=4)
    slot = hps.plan.make_plan(row).row.dram_slot
    dram = hps.DramCacheConfig(bytes=int(cached * slot) + 8192)
    with hps.ParameterServer(hps.Config(path=tmp_path, tables=[table], dram=dram)) as server:
        capacity = server.stats()["dram_cache"]["capacity_rows"]
        assert abs(capacity - cached) <= 64
        misses = []
        for number in range(num_batches):
            own = np.ascontiguousarray(keys[number * batch : (number + 1) * batch]).reshape(-1)
            before = server.stats()["dram_cache"]["misses"]
            server.push("ads", own, np.zeros((len(own), 4), np.float32))
            misses.append(server.stats()["dram_cache"]["misses"] - before)
        assert server.stats()["dram_cache"]["evictions"] > 5000
    settled = np.mean(misses[num_batches // 2 :])
    law = law_of(config)
    expected = law.misses(batch, capacity)
    assert 0.1 < expected / law.unique(batch) < 0.9
    # The cache knows how often a row was used, and loses a little where its buckets are full.
    assert settled == pytest.approx(expected, rel=0.12)


def test_cardinalities_are_those_of_generated_logs():
    config = GeneratorConfig(keys=12_345, features=7)
    assert cardinalities_of(12_345, 7).tolist() == config.cardinalities().tolist()
