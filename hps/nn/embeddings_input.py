"""What SparseEmbeddings is made from and called with: features, batches, KeyedJaggedTensors.

Above it: `hps.nn.embeddings`. Below it: `hps.nn.feature_layout`.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch

from hps import _C
from hps.common.bags import make_bags
from hps.config import TableConfig
from hps.contracts.joint import KeysOfAll
from hps.errors import ConfigError
from hps.nn.feature_layout import FeatureLayout, Pooling, numbered_features
from hps.types import Batch, Ids

if TYPE_CHECKING:
    from hps.contracts.training import RowServer


def found_in(batch: Batch, tables: tuple[str, ...]) -> tuple[list[Ids], bool]:
    """What a batch has of each of these tables, and whether any of it has weights; ConfigError if
    it lacks a table."""
    try:
        return _C.find_ids(batch.features, tables)
    except KeyError as error:
        held = sorted(batch.features)
        raise ConfigError(
            f"SparseEmbeddings: the batch lacks table {error}; it holds {held}"
        ) from None


def counts_of(server: "RowServer", batch: Batch) -> dict[str, str]:
    """Names of the features that a batch seems to have, with their tables in the server's order."""
    counts = {
        table: max(1, (len(ids.offsets) - 1) // max(1, len(batch)))
        for table, ids in batch.features.items()
    }
    in_order = [table for table in server.tables if table in counts]
    return {name: table for table in in_order for name in numbered_features(table, counts[table])}


def check_counts(layout: FeatureLayout, found: list[Ids], num_examples: int) -> None:
    for place, (table, ids) in enumerate(zip(layout.places.tables, found, strict=True)):
        num_bags, num_features = ids.offsets.numel() - 1, layout.count(place)
        if num_bags != num_features * num_examples:
            raise ConfigError(
                f"SparseEmbeddings: the batch has {num_bags} bags of table {table!r}; "
                f"{num_features} features of {num_examples} examples have "
                f"{num_features * num_examples}"
            )


def chosen_of(layout: FeatureLayout, found: list[Ids], num_examples: int) -> list[Ids]:
    """What a batch has of each table, without the features that are not read.

    Raises:
        ConfigError: offsets that divide the keys of such a table into no bags.
    """
    own = list(found)
    for place, table in enumerate(layout.places.tables):
        chosen = layout.chosen.get(table)
        if chosen is not None:
            ids = found[place]
            bags = ids.known_bags or make_bags(ids.offsets, len(ids.keys_L), "SparseEmbeddings")
            tensors = (ids.keys_L, bags.offsets, ids.weights_L)
            own[place] = Ids(*ids_of_features(*tensors, chosen.places, num_examples))
    return own


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
        ConfigError: another number of offsets or dimensions.
    """
    keys, offsets, weights = tensors
    for what, one in (("keys", keys), ("offsets", offsets), ("weights", weights)):
        if one is not None and one.dim() != 1:
            raise ConfigError(
                f"SparseEmbeddings: {what} of shape {tuple(one.shape)}; one dimension is needed"
            )
    wanted = len(layout.names) * num_examples + 1
    if offsets.shape[0] != wanted:
        raise ConfigError(
            f"SparseEmbeddings: {len(offsets)} offsets of {len(layout.names)} features and "
            f"{num_examples} examples; {wanted} are needed"
        )
    return KeysOfAll(keys, offsets, weights, layout.places, num_examples)


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


def learns_weights(ids: object) -> bool:
    """True if a weight of a batch or a KeyedJaggedTensor is to get a gradient."""
    if isinstance(ids, Batch):
        return any(want_gradients(own.weights_L) for own in ids.features.values())
    weights: torch.Tensor | None = ids.weights_or_none()  # type: ignore[attr-defined]
    return want_gradients(weights)


def means_of(server: "RowServer", pooling: Pooling | Mapping[str, Pooling]) -> dict[str, bool]:
    by_table = pooling if isinstance(pooling, Mapping) else dict.fromkeys(server.tables, pooling)
    for table, how in by_table.items():
        if table not in server.tables or how not in ("sum", "mean"):
            raise ConfigError(
                f"SparseEmbeddings: pooling {how!r} of table {table!r}; give 'sum' or 'mean' to "
                f"some of {sorted(server.tables)}"
            )
    return {table: by_table.get(table) == "mean" for table in server.tables}


def check_beside(
    tables: Mapping[str, TableConfig],
    features: Mapping[str, str] | Mapping[str, int] | None,
    pooling: Pooling | Mapping[str, Pooling],
    beside: object,
) -> dict[str, str]:
    """Table -> the table whose features come one by one behind its own.

    Raises:
        ConfigError: it names no tables, or some whose columns would be elsewhere, too, or nowhere.
    """
    if beside is None:
        return {}
    given = f"SparseEmbeddings: beside={beside!r}"
    if not isinstance(beside, Mapping) or not all(
        isinstance(name, str) for pair in beside.items() for name in pair
    ):
        raise ConfigError(f"{given}; give a dict of a table -> the table that comes behind it")
    found = dict(beside)
    if unknown := sorted({*found, *found.values()} - tables.keys()):
        raise ConfigError(f"{given}: there is no table {unknown[0]!r}; there are {sorted(tables)}")
    numbered = {name for name, value in (features or {}).items() if isinstance(value, int)}
    if unnumbered := sorted(found.keys() - numbered):
        raise ConfigError(
            f"{given}: features of table {unnumbered[0]!r} do not go by their number; give "
            "features={table: number of its features}"
        )
    others = list(found.values())
    named = {*(features or {}), *found, *(one for one in (features or {}).values())}
    again = sorted({name for name in others if name in named or others.count(name) > 1})
    if again:
        raise ConfigError(
            f"{given}: table {again[0]!r} comes behind another one, so that it may not be among "
            "the features, nor come behind two; leave it out of `features`, or of `beside`"
        )
    if isinstance(pooling, Mapping):
        for table, other in found.items():
            if other in pooling and pooling[other] != pooling.get(table, "sum"):
                raise ConfigError(
                    f"{given}: table {other!r} has the bags of {table!r}, and so its pooling; "
                    f"leave {other!r} out of `pooling`"
                )
    return found


def named_features(
    tables: Mapping[str, TableConfig],
    features: Mapping[str, str] | Mapping[str, int] | None,
    beside: Mapping[str, str],
) -> tuple[dict[str, str], set[str]]:
    """Feature -> table, and the tables whose features are numbered.

    Args:
        beside: table -> the table whose features come one by one behind its own.

    Raises:
        ConfigError: something else than names and numbers, or two features of one name.
    """
    named: dict[str, str] = {}
    numbered: set[str] = set()

    def add(names: Iterable[str], table: str) -> None:
        for name in names:
            if name in named:
                raise ConfigError(
                    f"SparseEmbeddings: two features are called {name!r}, of tables "
                    f"{named[name]!r} and {table!r}; their names must differ"
                )
            named[name] = table

    if features is None:
        for own in tables.values():
            add(own.features or (), own.name)
    elif not isinstance(features, Mapping):
        raise ConfigError(
            f"SparseEmbeddings: features is a {type(features).__name__}; give a dict of each "
            "feature's name -> its table, or of tables -> the number of their features"
        )
    for name, value in (features or {}).items():
        if isinstance(name, str) and isinstance(value, str):
            add([name], value)
        elif isinstance(name, str) and type(value) is int and value >= 1:
            side_by_side = [name, beside[name]] if name in beside else [name]
            numbered.update(side_by_side)
            names = {table: numbered_features(table, value) for table in side_by_side}
            for number in range(value):
                for table, of_table in names.items():
                    add([of_table[number]], table)
        else:
            raise ConfigError(
                f"SparseEmbeddings: features[{name!r}]={value!r}; give the name of its table, or "
                "of a table the number of its features"
            )
    return named, numbered
