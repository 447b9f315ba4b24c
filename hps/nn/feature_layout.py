"""FeatureLayout: which features of which tables a joint look-up reads, and the columns of each.

Above it: `hps.SparseEmbeddings`. Below it: `hps.contracts.joint`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hps.config import TableConfig
from hps.contracts.joint import Places
from hps.errors import ConfigError

Pooling = Literal["sum", "mean"]


@dataclass(frozen=True)
class Chosen:
    """Some of a table's features.

    Args:
        count: how many a batch has.
        places: those that are read, among them, ascending.
    """

    count: int
    places: tuple[int, ...]


@dataclass(frozen=True)
class FeatureLayout:
    """Features in the order of their columns.

    Args:
        names: of the features, in the order of the output.
        tables: of each of them.
        widths: the dim of each of them.
        places: the same by table; a table's features are in the order in which batches have them.
        chosen: of each table of which a batch has more features, those that are read.
    """

    names: tuple[str, ...]
    tables: tuple[str, ...]
    widths: tuple[int, ...]
    places: Places
    chosen: Mapping[str, Chosen] = field(default_factory=dict)

    def count(self, table: int) -> int:
        """How many features a batch has of the table at a place."""
        chosen = self.chosen.get(self.places.tables[table])
        return len(self.places.features[table]) if chosen is None else chosen.count


def layout_of(
    configs: Mapping[str, TableConfig],
    features: Mapping[str, str],
    means: Mapping[str, bool],
    numbered: Collection[str] = (),
) -> FeatureLayout:
    """Of features by name, each with its table, in the order of their columns.

    Args:
        configs: the tables of the server.
        means: of each table, whether its bags are means.
        numbered: tables whose features go by their numbers, whatever names the tables list.

    Raises:
        ConfigError: no feature, an unknown table, or a feature that its table does not have.
    """
    if not features:
        raise ConfigError("SparseEmbeddings: features={}: at least one feature is needed")
    unknown = sorted({table for table in features.values() if table not in configs})
    if unknown:
        raise ConfigError(
            f"SparseEmbeddings: no table {unknown[0]!r}; the server has {sorted(configs)}"
        )
    tables = list(dict.fromkeys(features.values()))
    names = list(features)
    by_table, chosen = [], {}
    for table in tables:
        asked = [name for name in names if features[name] == table]
        listed = asked if table in numbered else _in_batch(configs[table], asked)
        by_table.append(tuple(names.index(name) for name in listed if name in asked))
        if len(asked) < len(listed):
            places = tuple(place for place, name in enumerate(listed) if name in asked)
            chosen[table] = Chosen(len(listed), places)
    widths = [configs[table].dim for table in features.values()]
    starts = [sum(widths[:place]) for place in range(len(widths))]
    all_places = Places.of(
        tables,
        [configs[table].dim for table in tables],
        [means[table] for table in tables],
        [[starts[place] for place in own] for own in by_table],
        by_table,
    )
    return FeatureLayout(tuple(names), tuple(features.values()), tuple(widths), all_places, chosen)


def _in_batch(config: TableConfig, asked: Sequence[str]) -> list[str]:
    """All features of a table as batches have them: as it lists them, or as they are asked for."""
    if config.features is None:
        return list(asked)
    listed = list(config.features)
    unknown = [name for name in asked if name not in listed]
    if unknown:
        raise ConfigError(
            f"SparseEmbeddings: features {sorted(unknown)} of table {config.name!r}, which has "
            f"{sorted(listed)}"
        )
    return listed


def numbered_features(table: str, count: int) -> list[str]:
    """Names of a table's features that have none.

    >>> numbered_features("ads", 2)
    ['ads.0', 'ads.1']
    """
    return [f"{table}.{number}" for number in range(count)]
