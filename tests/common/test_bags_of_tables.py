"""Bags of a batch's tables, measured together, are those of each table alone.

Above it: pytest. Below it: hps.common.bags.
"""

from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.common.bags import Bags, bags_of, make_bags


def ids_of(offsets: Any, dtype: torch.dtype = torch.int64) -> hps.Ids:
    offsets = torch.tensor(offsets, dtype=dtype)
    return hps.Ids(torch.zeros(int(offsets[-1]) if len(offsets) else 0), offsets)


def random_ids(seed: int, num_bags: int) -> hps.Ids:
    lengths = np.random.default_rng(seed).integers(0, 5, num_bags)
    return ids_of([0, *np.cumsum(lengths).tolist()])


def alike(one: Bags, other: Bags) -> bool:
    return (
        one.offsets.equal(other.offsets)
        and one.lengths.equal(other.lengths)
        and (one.shortest, one.longest, one.num_occurrences)
        == (other.shortest, other.longest, other.num_occurrences)
    )


@pytest.mark.parametrize("has_gaps", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_bags_of_several_tables_are_those_of_each(dtype: torch.dtype, has_gaps: bool) -> None:
    features = {f"table{i}": random_ids(i, num_bags) for i, num_bags in enumerate((0, 1, 40, 0, 7))}
    features["other"] = ids_of([0, 2, 3], dtype)
    features["gaps"] = ids_of([0, 2, 3])
    if has_gaps:
        features["gaps"].offsets = torch.tensor([0, 9, 2, 9, 3])[::2]
    features["known"] = random_ids(9, 12)
    known = make_bags(features["known"].offsets, len(features["known"].keys_L), "here")
    features["known"].offsets, features["known"].bags = known.offsets, known
    found = bags_of(features, "cpu", "here")
    assert list(found) == list(features) and found["known"] is features["known"].bags
    for table, own in features.items():
        assert alike(found[table], make_bags(own.offsets, len(own.keys_L), "here")), table


def test_what_becomes_of_offsets_later_does_not_count() -> None:
    features = {"a": ids_of([0, 1, 3]), "b": ids_of([0, 2])}
    found = bags_of(features, "cpu", "here")
    features["b"].offsets.zero_()
    assert found["b"].offsets.tolist() == [0, 2] and found["a"].offsets.tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("offsets", "num_keys", "message"),
    [
        ([1, 3], 3, "offsets run from 1 to 3"),
        ([0, 2], 3, "offsets run from 0 to 2"),
        ([0, 2, 1, 3], 3, r"offsets\[2\]=1 follows on offsets\[1\]=2"),
        ([0, 5, 3, 3], 3, r"offsets\[1\]=5 follows on offsets\[0\]=0"),
        ([0, -(2**63), 2**63 - 1, 3], 3, "offsets must not fall"),
        ([], 0, "int64 of shape"),
    ],
)
@pytest.mark.parametrize("is_first", [False, True])
def test_what_is_wrong_with_one_table_is_told(
    offsets: list[int], num_keys: int, message: str, is_first: bool
) -> None:
    bad = hps.Ids(torch.zeros(num_keys), torch.tensor(offsets, dtype=torch.int64))
    features = {"bad": bad, "good": ids_of([0, 1])}
    order = sorted(features, reverse=not is_first)
    with pytest.raises(hps.ConfigError, match=message):
        bags_of({table: features[table] for table in order}, "cpu", "here")
