"""Readable twin of csrc/optimizer: initial weights, sums of gradients and optimizers, in float32.

Above it: tests/twins/dram_cache.py. Every operation stands in the order that the native code keeps,
so equal inputs give equal bits. Rows are float32 [n, row floats]; column 2 and 3 are the header's
scalars.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
F32 = np.float32
RUN_LENGTH = 32
SUM_LANES = 16
HEADER = 4


def mix_key(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """MurmurHash3's finaliser."""
    keys = keys ^ (keys >> np.uint64(33))
    keys = keys * np.uint64(0xFF51AFD7ED558CCD)
    keys = keys ^ (keys >> np.uint64(33))
    keys = keys * np.uint64(0xC4CEB9FE1A85EC53)
    return keys ^ (keys >> np.uint64(33))


def initial_weights(
    kind: str, numbers: tuple[float, float], stream: int, keys: NDArray[np.uint64], dim: int
) -> Floats:
    """What absent keys [n] read as: float32 [n, dim]."""
    first, second = F32(numbers[0]), F32(numbers[1])
    if kind == "constant":
        return np.full((len(keys), dim), first, F32)
    state = mix_key(np.uint64(stream) ^ mix_key(keys))[:, None]

    def word(counter: NDArray[np.uint64]) -> NDArray[np.uint64]:
        step = (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        return mix_key(state + step[None, :])

    columns = np.arange(dim, dtype=np.uint64)
    if kind == "uniform":
        unit = (word(columns) >> np.uint64(40)).astype(F32) * F32(1.0 / 16777216.0)
        return first + (second - first) * unit
    total = np.full((len(keys), dim), -393210, np.int64)
    for i in range(3):
        bits = word(np.uint64(3) * columns + np.uint64(i))
        for shift in (0, 16, 32, 48):
            total += ((bits >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64)
    return total.astype(F32) * (first * F32(1.0 / 65536.0)) + second


def sum_occurrences(grads: Floats) -> Floats:
    """Sum of rows [count, D] of one key: runs of 32 in order, combined as a binary counter does."""
    levels: list[Floats] = []
    for run, first in enumerate(range(0, len(grads), RUN_LENGTH)):
        total = grads[first].copy()
        for grad in grads[first + 1 : first + RUN_LENGTH]:
            total = total + grad
        levels.append(total)
        carry = run + 1
        while carry % 2 == 0:
            younger = levels.pop()
            levels[-1] = levels[-1] + younger
            carry //= 2
    while len(levels) > 1:
        younger = levels.pop()
        levels[-1] = levels[-1] + younger
    return levels[0]


def pool_bags(
    rows: Floats, offsets: NDArray[np.int64], weights: Floats | None, mean: bool, out: Floats
) -> None:
    """Sums or means of bags of rows [L, D], feature-major, into out [B, F * D]."""
    dim, num_examples = rows.shape[1], len(out)
    for bag, (first, end) in enumerate(pairwise(offsets.tolist())):
        feature, example = divmod(bag, num_examples)
        place = out[example, feature * dim : (feature + 1) * dim]
        place[:] = 0
        if first == end:
            continue
        terms = rows[first:end]
        terms = terms if weights is None else terms * weights[first:end, None]
        place[:] = sum_occurrences(terms)
        if mean:
            place /= F32(end - first)


def spread_bags(
    grads: Floats, offsets: NDArray[np.int64], weights: Floats | None, mean: bool
) -> Floats:
    """The gradient of each occurrence, [L, D], from those of the bags [F * B, D]."""
    lengths = np.diff(offsets)
    if mean:
        grads = grads / np.maximum(lengths, 1).astype(F32)[:, None]
    spread = grads[np.repeat(np.arange(len(lengths)), lengths)]
    return spread if weights is None else spread * weights[:, None]


def lane_sum(values: Floats) -> Floats:
    """Sum over the columns of [n, D] in 16 lanes by d mod 16, then halving: [n]."""
    lanes = np.zeros((len(values), SUM_LANES), F32)
    for d in range(values.shape[1]):
        lanes[:, d % SUM_LANES] += values[:, d]
    width = SUM_LANES // 2
    while width:
        lanes[:, :width] += lanes[:, width : 2 * width]
        width //= 2
    return lanes[:, 0]


def start_state(kind: str, rows: Floats, dim: int, lr: float, numbers: list[float]) -> None:
    """Sets the state that belongs to weights nobody has updated, in place."""
    rows[:, 2:4] = 0
    rows[:, HEADER + dim :] = 0
    if kind == "rowwise_adagrad":
        rows[:, 2] = F32(numbers[1])
    elif kind == "adagrad":
        rows[:, HEADER + dim : HEADER + 2 * dim] = F32(numbers[1])
    elif kind == "ftrl":
        beta, l1, l2, start = (F32(number) for number in numbers)
        weights = rows[:, HEADER : HEADER + dim]
        scale = (beta + np.sqrt(start)) / F32(lr) + l2
        offset = np.where(weights > 0, -l1, np.where(weights < 0, l1, F32(0)))
        rows[:, HEADER + dim : HEADER + 2 * dim] = offset - weights * scale
        rows[:, HEADER + 2 * dim : HEADER + 3 * dim] = start


def update_rows(
    kind: str, rows: Floats, sums: Floats, dim: int, lr: float, numbers: list[float]
) -> None:
    """One optimizer step on rows [n, W] from summed gradients [n, D], in place."""
    rate = F32(lr)
    weights = rows[:, HEADER : HEADER + dim]
    first = rows[:, HEADER + dim : HEADER + 2 * dim]
    second = rows[:, HEADER + 2 * dim : HEADER + 3 * dim]
    if kind != "ftrl":
        weights *= F32(1) - rate * F32(numbers[-1])  # weight decay
    if kind == "sgd":
        weights -= rate * sums
    elif kind == "adagrad":
        first += sums * sums
        weights -= rate * sums / (np.sqrt(first) + F32(numbers[0]))
    elif kind == "rowwise_adagrad":
        rows[:, 2] += lane_sum(sums * sums) / F32(dim)
        step = rate / (np.sqrt(rows[:, 2]) + F32(numbers[0]))
        weights -= step[:, None] * sums
    elif kind == "adam":
        _adam(rows, sums, (weights, first, second), rate, numbers)
    elif kind == "ftrl":
        _ftrl((weights, first, second), sums, rate, numbers)


def _adam(
    rows: Floats,
    sums: Floats,
    parts: tuple[Floats, Floats, Floats],
    rate: F32,
    numbers: list[float],
) -> None:
    weights, first, second = parts
    beta1, beta2, eps = F32(numbers[0]), F32(numbers[1]), F32(numbers[2])
    share1, share2 = F32(1 - numbers[0]), F32(1 - numbers[1])
    rows[:, 2] = share1 + beta1 * rows[:, 2]
    rows[:, 3] = share2 + beta2 * rows[:, 3]
    step = (rate / rows[:, 2])[:, None]
    root = np.sqrt(rows[:, 3])[:, None]
    first[:] = beta1 * first + share1 * sums
    second[:] = beta2 * second + share2 * (sums * sums)
    weights -= step * first / (np.sqrt(second) / root + eps)


def _ftrl(
    parts: tuple[Floats, Floats, Floats], sums: Floats, rate: F32, numbers: list[float]
) -> None:
    weights, z, n = parts
    beta, l1, l2 = F32(numbers[0]), F32(numbers[1]), F32(numbers[2])
    old_root = np.sqrt(n)
    squares = n + sums * sums
    root = np.sqrt(squares)
    linear = z + (sums - (root - old_root) / rate * weights)
    n[:], z[:] = squares, linear
    shrunk = np.where(linear < 0, linear + l1, linear - l1)
    stepped = -shrunk / ((beta + root) / rate + l2)
    weights[:] = np.where(np.abs(linear) <= l1, F32(0), stepped)
