"""Pooled look-ups of one example in eval mode: SparseEmbedding, SparseEmbeddings, nn.EmbeddingBag.

Above it: small_pulls_bench.py. Below it: rows.py. Each module reads the same rows; all of them are
called under no_grad.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import hps
from benchmarks.common.jagged import JaggedTensor
from benchmarks.parameter_server.small_pulls.rows import Rows, keys_of, zipf_ids

ONE_BAG = "torch: nn.EmbeddingBag"
BAG_A_TABLE = "torch: nn.EmbeddingBag a table"
ONE_TABLE = "SparseEmbedding"
TABLES = "SparseEmbeddings"
JOINT = "SparseEmbeddings, KeyedJaggedTensor"


@dataclass(frozen=True)
class Bags:
    """So many features of so many ids."""

    features: int
    length: int

    @property
    def text(self) -> str:
        return f"{self.features} x {self.length}"


def pooled_calls(
    bags: Bags, shape: dict[str, int], lifetime: contextlib.ExitStack
) -> tuple[dict[str, Callable[[int], torch.Tensor]], list[Rows]]:
    """The calls by name, and what they read. `shape`: rows, dim, inputs, threads.

    Every table has its part of the rows; a feature reads its own part, in one table too.
    """
    features, length, num_inputs = bags.features, bags.length, shape["inputs"]
    num_rows = shape["rows"] // features * features
    one = Rows(num_rows, shape["dim"], 1, shape["threads"], lifetime)
    many = Rows(num_rows, shape["dim"], features, shape["threads"], lifetime)
    own = zipf_ids(many.rows_of_one, features * length, num_inputs).view(num_inputs, features, -1)
    ids = own + (torch.arange(features) * many.rows_of_one).view(1, features, 1)
    keys, offsets = keys_of(ids), torch.arange(features + 1) * length
    bag_offsets = torch.tensor([0, length])
    batches = [
        hps.Batch(
            {
                name: hps.Ids(part, bag_offsets)
                for name, part in zip(many.names, of_one, strict=True)
            },
            torch.zeros(1, 0),
            torch.ones(1),
        )
        for of_one in keys
    ]
    flat_keys = list(keys.view(num_inputs, -1))
    tensors = [JaggedTensor(many.names, one, offsets) for one in flat_keys]
    sparse = hps.SparseEmbedding(one.server, one.names[0]).eval()
    by_batch = hps.SparseEmbeddings(many.server, dict.fromkeys(many.names, 1)).eval()
    by_tensor = hps.SparseEmbeddings(many.server, {name: name for name in many.names}).eval()
    one_bag = _bag(one.weights)
    flat_ids = list(ids.view(num_inputs, -1))
    parts = [_bag(part) for part in many.weights.view(features, -1, shape["dim"])]
    own_ids = [list(of_one) for of_one in own]

    def bag_a_table(idx: int) -> torch.Tensor:
        of_tables = zip(parts, own_ids[idx], strict=True)
        return torch.cat([bag(part, bag_offsets) for bag, part in of_tables], dim=1)

    calls: dict[str, Callable[[int], torch.Tensor]] = {
        ONE_TABLE: lambda idx: sparse(flat_keys[idx], offsets, num_features=features),
        TABLES: lambda idx: by_batch(batches[idx]),
        JOINT: lambda idx: by_tensor(tensors[idx]),
        ONE_BAG: lambda idx: one_bag(flat_ids[idx], offsets),
        BAG_A_TABLE: bag_a_table,
    }
    return calls, [one, many]


def _bag(weights: torch.Tensor) -> Any:
    return torch.nn.EmbeddingBag(
        *weights.shape, mode="sum", sparse=True, include_last_offset=True, _weight=weights
    ).eval()
