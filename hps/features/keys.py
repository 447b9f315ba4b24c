"""KeyRules: what is made of the features of a log, as the native transform is told it.

Above it: transform.py. Below it: csrc/reader/key_rules.h, which does it. Which key becomes which is
a promise of docs/features.md: models and clients rely on it.
"""

from collections.abc import Sequence

from hps import _C
from hps.features.column import DROP, KEY, LAST, MAX_CROSS_LENGTH, Column
from hps.features.dense import DenseRules
from hps.features.features import Features
from hps.features.raw import RawColumns, seed_of


class KeyRules:
    """What is made of the features of a log: folded, cut, crossed, by table.

    Args:
        features: of the columns and crosses; what is to be measured is measured.
        raw: what the reader's batches hold.
        dense: its dense columns, some of which have buckets.
        dropped: features that are left out.
    """

    def __init__(
        self, features: Features, raw: RawColumns, dense: DenseRules, dropped: Sequence[str]
    ) -> None:
        self._features = features
        self._raw = raw
        self._dense = dense
        self._dropped = frozenset(dropped)
        self._of_log = [name for name in raw.features if name not in self._dropped]
        crosses = [cross.name for cross in features.crosses]
        self.names = (*self._of_log, *dense.bucket_names, *crosses)
        self.table_of = {name: features.table_of(name, raw.table) for name in self.names}
        by_table: dict[str, list[str]] = {}
        for name, table in self.table_of.items():
            by_table.setdefault(table, []).append(name)
        self.tables = {table: tuple(names) for table, names in by_table.items()}

    def add_to(self, native: _C.BatchTransform) -> None:
        """Tells a transform of the features that a model has, in the order of `names`."""
        numbers = {table: number for number, table in enumerate(self.tables)}
        for place, name in enumerate(self._raw.features):
            if name not in self._dropped:
                self._add_feature(native, place, numbers[self.table_of[name]])
        for name in self._dense.bucket_names:
            self._dense.add_bucket_to(native, name, numbers[self.table_of[name]])
        places = {name: place for place, name in enumerate(self.names)}
        for cross in self._features.crosses:
            native.add_cross(
                parts=[places[name] for name in cross.columns],
                table=numbers[self.table_of[cross.name]],
                seed=seed_of(cross.name),
                most=cross.max_length or MAX_CROSS_LENGTH,
                buckets=cross.hash_buckets,
            )

    def place_of(self, name: str) -> int:
        """The number of a feature of the log among those that are not left out."""
        return self._of_log.index(name)

    def _add_feature(self, native: _C.BatchTransform, place: int, table: int) -> None:
        name = self._raw.features[place]
        column = self._features.column(name) or Column(name=name, kind="categorical")
        seed = self._raw.seed(self._features.vocabulary(name))
        native.add_feature(
            column=place,
            table=table,
            seed=seed,
            missing=int(_C.xxh64(b"", seed)),
            drops=column.missing == DROP,
            fills=column.missing == KEY,
            most=column.max_length or 0,
            is_last=column.keep == LAST,
            buckets=column.hash_buckets,
        )
