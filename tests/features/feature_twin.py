"""A readable twin of the feature transform: one example at a time, from raw keys and numbers.

Above it: tests/features. Below it: `hps.key_of`, math. Keys are those of docs/features.md.
"""

import math
import struct
from itertools import islice, product
from typing import Any

import numpy as np

import hps
from hps.features import Column, Features, Scale

MAX_CROSS = 256
# What is made of features a, b, c and dense columns x, y: something of every kind, in two tables.
MANY = """
[columns.a]
kind = "sequence"
hash_buckets = 100_000
missing = "key"
[columns.b]
kind = "sequence"
max_length = 2
keep = "last"
table = "others"
[columns.x]
kind = "dense"
clip = [-2, 3]
log = true
normalise = {mean = 0.3, std = 2}
[columns.y]
kind = "dense"
buckets = [-1, 0, 0.5]
missing = 0
[crosses.p]
columns = ["a", "c"]
[crosses.q]
columns = ["y", "b", "a"]
hash_buckets = 50
table = "others"
"""


def signed_log(number: float) -> float:
    return math.copysign(math.log1p(abs(number)), number)


def dense_of(column: Column, raw: float | None, is_log: bool) -> np.float32:
    """The number that a model sees; `is_log`: logarithms are what the log is read with."""
    log = is_log if column.log is None else column.log
    number = raw if raw is not None else column.missing
    if number is None:
        value = -0.5 if log else 0.0
    else:
        assert isinstance(number, int | float)
        value = float(np.float32(number))
        if column.clip is not None:
            low, high = (float(np.float32(bound)) for bound in column.clip)
            value = min(max(value, low), high)
        value = signed_log(value) if log else value
    if isinstance(column.normalise, Scale):
        centred = np.float32(value) - np.float32(column.normalise.mean)
        return np.float32(centred * np.float32(1 / column.normalise.std))
    return np.float32(value)


def bucket_of(column: Column, raw: float | None) -> int:
    """The key of a number's bucket."""
    number = raw if raw is not None else column.missing
    assert column.buckets is not None and not isinstance(column.buckets, int)
    if number is None:
        return hps.key_of(column.name, "missing")
    return hps.key_of(column.name, sum(bound <= number for bound in column.buckets))


def bag_of(column: Column, keys: list[int], seed_name: str | None) -> list[int]:
    """The keys of one example after what is said of the column."""
    empty = hps.key_of(seed_name, "")
    if column.missing == "drop":
        keys = [key for key in keys if key != empty]
    if column.max_length is not None:
        keys = keys[-column.max_length :] if column.keep == "last" else keys[: column.max_length]
    if column.hash_buckets is not None:
        stays = column.missing == "key"
        keys = [
            key if stays and key == empty else hps.key_of(seed_name, key % column.hash_buckets)
            for key in keys
        ]
    return [empty] if column.missing == "key" and not keys else keys


def features_of(
    described: Features, bags: dict[str, list[int]], dense: dict[str, float | None]
) -> dict[str, list[int]]:
    """All features of one example, in the model's order."""
    made: dict[str, list[int]] = {}
    for name, keys in bags.items():
        column = described.column(name)
        if column is None or column.kind != "ignored":
            made[name] = keys if column is None else bag_of(column, keys, name)
    for name, raw in dense.items():
        column = described.column(name)
        if column is not None and column.buckets is not None:
            made[name] = [bucket_of(column, raw)]
    for cross in described.crosses:
        combined = islice(
            product(*(made[name] for name in cross.columns)), cross.max_length or MAX_CROSS
        )
        keys = [hps.key_of(cross.name, struct.pack(f"<{len(part)}Q", *part)) for part in combined]
        if cross.hash_buckets is not None:
            keys = [hps.key_of(cross.name, key % cross.hash_buckets) for key in keys]
        made[cross.name] = keys
    return made


def bags_of(batch: hps.Batch, names: Any) -> list[dict[str, list[int]]]:
    """The keys of each example of a batch of one table, by feature."""
    (ids,) = batch.features.values()
    keys = ids.keys_L.numpy().view(np.uint64).tolist()
    offsets = ids.offsets.tolist()
    count = len(batch)
    assert len(offsets) == len(names) * count + 1 and offsets[-1] == len(keys)
    return [
        {
            name: keys[offsets[place * count + row] : offsets[place * count + row + 1]]
            for place, name in enumerate(names)
        }
        for row in range(count)
    ]
