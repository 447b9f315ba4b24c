"""From a GeneratorConfig to the numbers of a planted model, calibrated on a pilot sample.

Above it: log.py. Below it: kernels.py, bags.py. The log-odds of a click are the intercept plus
three sums: one effect a key, one slope a dense column, and the products of factors of two keys over
all pairs of a few small features. A bag has the sums of its keys' effects and of their factors, as
they differ from their feature's mean, which a model that sums its embeddings can learn. Each sum is
scaled so that it has its share of the variance; the intercept gives the click rate.
"""

import math
from collections.abc import Iterator

import numpy as np

from hps.generate.bags import length_law
from hps.generate.config import GeneratorConfig
from hps.generate.kernels import (
    Block,
    PlantedModel,
    Real,
    add_effects,
    draw_examples,
    draw_offsets,
)

PILOT_EXAMPLES = 1 << 14
# Of bags, by which the pilot has fewer examples; and by which it comes in pieces.
PILOT_VALUES = 1 << 24
LEAST_PILOT_EXAMPLES = 256
PIECE_VALUES = 1 << 20
PILOT_FIRST = 1 << 62
MIXING_FEATURES = 6
# Shares of the variance of the log-odds: effects of single keys, dense columns, pairs of keys.
VARIANCE_SHARES = (0.50, 0.35, 0.15)


def draw_block(model: PlantedModel, first: int, num_examples: int) -> Block:
    """The examples from `first` on: a function of the model and their numbers alone."""
    num_features, num_dense = len(model.cardinalities), len(model.dense)
    offsets = np.empty(num_examples * num_features + 1, np.int64)
    draw_offsets(model, first, offsets)
    block = Block(
        offsets=offsets,
        ids=np.empty(offsets[-1], np.int64),
        dense=np.empty((num_examples, num_dense), np.int64),
        parts=np.empty((num_examples, 3), np.float64),
        logits=np.empty(num_examples, np.float64),
        labels=np.empty(num_examples, np.uint8),
    )
    draw_examples(model, first, block)
    return block


def plant(config: GeneratorConfig) -> PlantedModel:
    """The planted model of a config; equal configs give equal models."""
    generator = np.random.Generator(np.random.PCG64(config.seed))
    cardinalities, spans = config.cardinalities(), config.spans()
    slopes = generator.uniform(0.3, 1.0, config.dense) * generator.choice([-1.0, 1.0], config.dense)
    deviations = generator.uniform(0.6, 1.6, config.dense)
    dense = [generator.uniform(0.5, 4.0, config.dense), deviations, slopes / deviations]
    # The smallest features mix: their keys are often seen together, so the products can be learned.
    mixing = np.argsort(cardinalities, kind="stable")[: min(MIXING_FEATURES, config.features)]
    model = PlantedModel(
        seeds=generator.integers(0, 2**64, 3, np.uint64),
        cardinalities=cardinalities,
        spans=spans,
        bases=np.cumsum(spans) - spans,
        zipf=np.array([_zipf_constants(int(size), config.alpha) for size in cardinalities]),
        alpha=config.alpha,
        dense=np.ascontiguousarray(np.stack(dense, axis=1)),
        mixing=mixing,
        scales=np.zeros(4),
        drift=np.array([0.0 if config.periods > 1 else config.drift, float(config.examples)]),
        moves=config.moves,
        periods=np.array([config.periods, config.examples]),
        lengths=_lengths_of(config),
        centers=np.zeros((config.features, 3)),
    )
    if len(model.lengths) > 1:
        model = model._replace(centers=_centers_of(model, config))
    parts = np.concatenate([block.parts for block in _pilot(model, config)])
    return model._replace(scales=_calibrate(parts, config))


def _lengths_of(config: GeneratorConfig) -> Real:
    mean = 1.0 if config.bag is None else config.bag
    return length_law(mean, config.bag_lengths)


def _pilot(model: PlantedModel, config: GeneratorConfig) -> Iterator[Block]:
    """Examples that lie where no log reaches, the same for every number of examples of a log."""
    still = model._replace(drift=np.array([0.0, 1.0]), periods=np.array([1, 1 << 62]))
    count = PILOT_EXAMPLES
    if config.bag is not None:
        count = min(count, max(int(PILOT_VALUES / config.mean_values), LEAST_PILOT_EXAMPLES))
    piece = max(1, int(PIECE_VALUES / config.mean_values))
    for done in range(0, count, piece):
        yield draw_block(still, PILOT_FIRST + done, min(piece, count - done))


def _centers_of(model: PlantedModel, config: GeneratorConfig) -> Real:
    sums = np.zeros_like(model.centers)
    for block in _pilot(model, config):
        add_effects(model, block, sums)
    # Beside what a bag's factor begins with, its keys' deviations are as large as one's alone.
    means = sums / sums[:, 2:]
    means[:, 2] = means[:, 1] * math.sqrt(config.mean_values / config.features)
    return means


def _integral(x: float, alpha: float) -> float:
    if alpha == 1.0:
        return float(np.log(x))
    return float(np.expm1((1.0 - alpha) * np.log(x)) / (1.0 - alpha))


def _inverse(value: float, alpha: float) -> float:
    if alpha == 1.0:
        return float(np.exp(value))
    return float(np.exp(np.log1p(value * (1.0 - alpha)) / (1.0 - alpha)))


def _zipf_constants(size: int, alpha: float) -> tuple[float, float, float]:
    """Both ends of the integral to draw from, and the width within which a rank needs no test."""
    low = _integral(1.5, alpha) - 1.0
    high = _integral(size + 0.5, alpha)
    return low, high, 2.0 - _inverse(_integral(2.5, alpha) - 2.0**-alpha, alpha)


def _calibrate(parts: Real, config: GeneratorConfig) -> Real:
    deviations = parts.std(axis=0)
    shares = np.where(deviations > 1e-9, VARIANCE_SHARES, 0.0)
    total = shares.sum()
    scales = np.zeros(4)
    if total > 0:
        scales[:3] = config.spread * np.sqrt(shares / total) / np.maximum(deviations, 1e-9)
    logits = parts @ scales[:3]
    low, high = -60.0, 60.0
    for _ in range(60):
        scales[3] = (low + high) / 2
        rate = np.mean(1.0 / (1.0 + np.exp(-(logits + scales[3]))))
        low, high = (scales[3], high) if rate < config.click_rate else (low, scales[3])
    return scales
