"""What SparseEmbeddings is made from and called with: features, batches, KeyedJaggedTensors.

Above it: `hps.nn.embeddings`. Below it: `hps.nn.feature_layout`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from hps.common.arrays import as_contiguous, as_keys
from hps.config import TableConfig
from hps.contracts.joint import KeysOfAll
from hps.errors import ConfigError
from hps.nn.feature_layout import FeatureLayout, Pooling, numbered_features
from hps.types import Batch, Ids

if TYPE_CHECKING:
    from hps.contracts.training import RowServer


def ids_of(batch: Batch, table: str) -> Ids:
    if table not in batch.features:
        raise ConfigError(
            f"SparseEmbeddings: the batch lacks table {table!r}; it holds {sorted(batch.features)}"
        )
    return batch.features[table]


def counts_of(batch: Batch) -> dict[str, str]:
    """Names of the features that a batch seems to have, with their tables."""
    return {
        name: table
        for table, ids in batch.features.items()
        for name in numbered_features(table, max(1, (len(ids.offsets) - 1) // max(1, len(batch))))
    }


def check_counts(layout: FeatureLayout, found: list[Ids], num_examples: int) -> None:
    for table, features, ids in zip(
        layout.places.tables, layout.places.features, found, strict=True
    ):
        num_bags = len(ids.offsets) - 1
        if num_bags != len(features) * num_examples:
            raise ConfigError(
                f"SparseEmbeddings: the batch has {num_bags} bags of table {table!r}; "
                f"{len(features)} features of {num_examples} examples have "
                f"{len(features) * num_examples}"
            )


def tables_of(server: "RowServer", names: list[str]) -> dict[str, str]:
    """Features by name, where one table has all of them."""
    if len(server.tables) > 1:
        raise ConfigError(
            "SparseEmbeddings: which features are which table's is not known; pass features="
            "{feature: table}, or list them in TableConfig.features"
        )
    return dict.fromkeys(names, next(iter(server.tables)))


def check_names(layout: FeatureLayout, found: list[str]) -> None:
    """ConfigError unless a KeyedJaggedTensor has the features of the module in their order."""
    wanted = layout.names
    if found == list(wanted):
        return
    missing = [name for name in wanted if name not in found]
    unknown = [name for name in found if name not in wanted]
    told = "SparseEmbeddings: the KeyedJaggedTensor "
    if missing:
        raise ConfigError(f"{told}lacks features {missing}; it holds {found}")
    if unknown:
        raise ConfigError(
            f"{told}has features {unknown}, which the module has not: it has {list(wanted)}"
        )
    order = [found.index(name) for name in wanted]
    raise ConfigError(
        f"{told}has its features in another order, {found}, than the module, {list(wanted)}; pass "
        f"tensor.permute({order})"
    )


def keys_of_all(
    layout: FeatureLayout,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
    num_examples: int,
) -> KeysOfAll:
    """Keys [L], offsets [F * B + 1] and weights [L] of all features, which are in order.

    Raises:
        ConfigError: another number of offsets, or what is not on the host or of another dtype.
    """
    keys, offsets, weights = tensors
    wanted = len(layout.names) * num_examples + 1
    if len(offsets) != wanted:
        raise ConfigError(
            f"SparseEmbeddings: {len(offsets)} offsets of {len(layout.names)} features and "
            f"{num_examples} examples; {wanted} are needed"
        )
    return KeysOfAll(
        as_keys(keys),
        as_contiguous(offsets, "offsets"),
        None if weights is None else as_contiguous(weights, "weights"),
        layout.places,
        num_examples,
    )


def ids_of_features(
    keys: torch.Tensor,
    offsets: torch.Tensor,
    weights: torch.Tensor | None,
    features: tuple[int, ...],
    num_examples: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Keys, offsets and weights of some of the features, one after the other."""
    bags = [slice(one * num_examples, (one + 1) * num_examples) for one in features]
    bounds = [(int(offsets[one.start]), int(offsets[one.stop])) for one in bags]
    lengths = torch.cat([offsets.diff()[one] for one in bags]).to(torch.int64)
    own = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    pieces = [keys[first:end] for first, end in bounds]
    if weights is None:
        return torch.cat(pieces), own, None
    return torch.cat(pieces), own, torch.cat([weights[first:end] for first, end in bounds])


def want_gradients(weights: torch.Tensor | None) -> bool:
    return weights is not None and weights.requires_grad and torch.is_grad_enabled()


def means_of(server: "RowServer", pooling: Pooling | Mapping[str, Pooling]) -> dict[str, bool]:
    by_table = pooling if isinstance(pooling, Mapping) else dict.fromkeys(server.tables, pooling)
    for table, how in by_table.items():
        if table not in server.tables or how not in ("sum", "mean"):
            raise ConfigError(
                f"SparseEmbeddings: pooling {how!r} of table {table!r}; give 'sum' or 'mean' to "
                f"some of {sorted(server.tables)}"
            )
    return {table: by_table.get(table) == "mean" for table in server.tables}


def named_features(
    tables: Mapping[str, TableConfig], features: Mapping[str, str] | Mapping[str, int] | None
) -> tuple[dict[str, str], set[str]]:
    """Feature -> table, and the tables whose features are numbered."""
    if features is None:
        return {
            name: table.name for table in tables.values() for name in table.features or ()
        }, set()
    named: dict[str, str] = {}
    numbered: set[str] = set()
    for name, value in features.items():
        if isinstance(value, str):
            named[name] = value
        elif isinstance(value, int) and value >= 1:
            named |= dict.fromkeys(numbered_features(name, value), name)
            numbered.add(name)
        else:
            raise ConfigError(
                f"SparseEmbeddings: features[{name!r}]={value!r}; give the name of its table, or "
                "of a table the number of its features"
            )
    return named, numbered
