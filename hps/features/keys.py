"""KeyTransform: from the features of a log to those of a model: folded, cut, crossed, by table.

Above it: transform.py. Below it: bags.py, hps/reader/columns.py (hashes of numbers), the native
XXH64. Which key becomes which is a promise of docs/features.md: models and clients rely on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hps import _C
from hps.common.row_layout import Keys
from hps.features.bags import FeatureBags, combinations
from hps.features.column import DROP, KEY, LAST, MAX_CROSS_LENGTH, OF_TABLES, Column, Cross
from hps.features.features import Features
from hps.features.raw import RawColumns, seed_of
from hps.types import Ids

MISSING_BUCKET = b"missing"
_MOST_TABLED = 2**18  # keys that a table of hashes is made for


def hash_numbers(numbers: Keys, seed: int) -> Keys:
    """XXH64 of the decimal text of each number, uint64 [L]."""
    import pyarrow as pa  # which takes its time to import

    from hps.reader.columns import to_keys

    return to_keys(pa.array(numbers), seed, True)[0]


class Fold:
    """Makes of any keys as many as are asked for: key k becomes that of the number k % buckets.

    Args:
        buckets: how many keys there are then.
        seed: of the feature's hash.
    """

    def __init__(self, buckets: int, seed: int) -> None:
        self._buckets = np.uint64(buckets)
        self._seed = seed
        self._table: Keys | None = None
        if buckets <= _MOST_TABLED:
            self._table = hash_numbers(np.arange(buckets, dtype=np.uint64), seed)

    def __call__(self, keys: Keys) -> Keys:
        numbers = keys % self._buckets
        if self._table is not None:
            return self._table[numbers.view(np.int64)]
        return hash_numbers(numbers, self._seed)


@dataclass(frozen=True)
class _FeaturePlan:
    """What is done to the bags of one feature of the log.

    Args:
        column: what is said of it.
        fold: of its keys; None for none.
        missing: the key of the empty text.
    """

    column: Column
    fold: Fold | None
    missing: int

    @property
    def is_plain(self) -> bool:
        """True if the bags stay what they are."""
        return self.column.to_dict().keys() <= {"kind", *OF_TABLES}

    def apply(self, bags: FeatureBags) -> FeatureBags:
        column = self.column
        if column.missing == DROP:
            bags = bags.without(self.missing)
        if column.max_length is not None:
            bags = bags.limited(column.max_length, is_last=column.keep == LAST)
        if self.fold is not None:
            folded = self.fold(bags.keys)
            if column.missing == KEY:
                folded = np.where(bags.keys == np.uint64(self.missing), bags.keys, folded)
            bags = FeatureBags(folded, bags.ends, bags.weights)
        return bags.filled(self.missing) if column.missing == KEY else bags


@dataclass(frozen=True)
class _CrossPlan:
    """How a cross is made."""

    cross: Cross
    seed: int
    fold: Fold | None

    def apply(self, bags: Sequence[FeatureBags]) -> FeatureBags:
        most = self.cross.max_length or MAX_CROSS_LENGTH
        columns, ends, weights = combinations(bags, most)
        keys = np.empty(len(columns[0]), np.uint64)
        _C.hash_tuples(columns, self.seed, keys)
        return FeatureBags(keys if self.fold is None else self.fold(keys), ends, weights)


class KeyTransform:
    """What is made of the features of a log.

    Args:
        features: of the columns and crosses; what is to be measured is measured.
        raw: what the reader's batches hold.
        bucketed: names of the dense columns with buckets, in the order of the log.
        dropped: features that are left out.
    """

    def __init__(
        self, features: Features, raw: RawColumns, bucketed: Sequence[str], dropped: Sequence[str]
    ) -> None:
        self._raw = raw
        self._plans: dict[str, _FeaturePlan | None] = {}
        for name in raw.features:
            column = features.column(name)
            if column is not None and name not in dropped:
                seed = raw.seed(features.vocabulary(name))
                fold = None if column.hash_buckets is None else Fold(column.hash_buckets, seed)
                plan = _FeaturePlan(column, fold, int(_C.xxh64(b"", seed)))
                self._plans[name] = None if plan.is_plain else plan
            elif column is None:
                self._plans[name] = None
        self._bucket_keys = {
            name: _keys_of_buckets(name, features.column(name)) for name in bucketed
        }
        self._crosses = []
        for cross in features.crosses:
            seed = seed_of(cross.name)
            fold = None if cross.hash_buckets is None else Fold(cross.hash_buckets, seed)
            self._crosses.append(_CrossPlan(cross, seed, fold))
        # A line of criteo has one key a feature; unless the empty ones are left out.
        self._is_single = raw.format == "criteo" and all(
            plan is None or plan.column.missing != DROP for plan in self._plans.values()
        )
        self._ones: dict[str, torch.Tensor] = {}  # of each table, as long as its last batch's
        self._crossed = {name for cross in features.crosses for name in cross.columns}
        self.names = (*self._plans, *bucketed, *(cross.name for cross in features.crosses))
        self.table_of = {name: features.table_of(name, raw.table) for name in self.names}
        by_table: dict[str, list[str]] = {}
        for name, table in self.table_of.items():
            by_table.setdefault(table, []).append(name)
        self.tables = {table: tuple(names) for table, names in by_table.items()}
        is_as_read = self.names == tuple(raw.features) and not any(self._plans.values())
        self._only_renamed = next(iter(self.tables)) if is_as_read and len(by_table) == 1 else None

    def __call__(
        self, ids: Ids, num_examples: int, buckets: Sequence[NDArray[np.int64]]
    ) -> dict[str, Ids]:
        """The features of a batch, by table.

        Args:
            ids: of the log's features.
            num_examples: B.
            buckets: of each bucketed column the bucket of each example, int64 [B].
        """
        if self._only_renamed is not None:
            return {self._only_renamed: ids}
        whole = FeatureBags(
            ids.keys_L.numpy().view(np.uint64),
            ids.offsets.numpy(),
            None if ids.weights_L is None else ids.weights_L.numpy(),
        )
        pieces: dict[str, list[FeatureBags]] = {table: [] for table in self.tables}
        parts: dict[str, FeatureBags] = {}  # what crosses are made of
        run: list[int] = []  # features of one table that stay as they are, one after the other
        table = ""  # of them
        for place, name in enumerate(self._raw.features):
            is_plain = name in self._plans and self._plans[name] is None
            if run and not (is_plain and self.table_of[name] == table):
                pieces[table].append(_slice(whole, run[0], run[-1] + 1, num_examples))
                run = []
            if name not in self._plans:
                continue
            table, plan = self.table_of[name], self._plans[name]
            if plan is None:
                run.append(place)
                if name in self._crossed:
                    parts[name] = _slice(whole, place, place + 1, num_examples)
                continue
            parts[name] = plan.apply(_slice(whole, place, place + 1, num_examples))
            pieces[table].append(parts[name])
        if run:
            pieces[table].append(_slice(whole, run[0], run[-1] + 1, num_examples))
        one_each = np.arange(1, num_examples + 1)
        for (name, keys), numbers in zip(self._bucket_keys.items(), buckets, strict=True):
            parts[name] = FeatureBags(keys[numbers], one_each)
            pieces[self.table_of[name]].append(parts[name])
        for one in self._crosses:
            crossed = one.apply([parts[name] for name in one.cross.columns])
            pieces[self.table_of[one.cross.name]].append(crossed)
        has_weights = ids.weights_L is not None
        return {table: self._joined(table, own, has_weights) for table, own in pieces.items()}

    def keys_of(self, name: str, key: int | None) -> list[int]:
        """What a feature of the log has instead of one key, or of none: of `apply`'s bag."""
        keys = np.array([] if key is None else [key], np.uint64)
        plan = self._plans[name]
        bags = FeatureBags(keys, np.array([len(keys)], np.int64))
        return [int(one) for one in (bags if plan is None else plan.apply(bags)).keys]

    def _joined(self, table: str, pieces: Sequence[FeatureBags], has_weights: bool) -> Ids:
        """Ids of a table's pieces one after the other."""
        keys = np.concatenate([piece.keys for piece in pieces])
        offsets = self._offsets(table, pieces, len(keys))
        weights = None
        if has_weights:
            parts = [
                np.ones(len(piece.keys), np.float32) if piece.weights is None else piece.weights
                for piece in pieces
            ]
            weights = torch.from_numpy(np.concatenate(parts))
        return Ids(torch.from_numpy(keys.view(np.int64)), offsets, weights)

    def _offsets(self, table: str, pieces: Sequence[FeatureBags], num_keys: int) -> torch.Tensor:
        """Offsets of Ids, int64; where each bag has one key, those of the batch before."""
        num_bags = sum(len(piece.ends) for piece in pieces)
        if self._is_single:
            assert num_keys == num_bags
            ones = self._ones.get(table)  # any number of threads may be here
            if ones is None or len(ones) != num_bags + 1:
                # Not torch.arange, whose threads then wait for more to do.
                ones = torch.from_numpy(np.arange(num_bags + 1, dtype=np.int64))
                self._ones[table] = ones
            return ones
        offsets = np.zeros(num_bags + 1, np.int64)
        place, begin = 1, 0
        for piece in pieces:
            np.add(piece.ends, begin, out=offsets[place : place + len(piece.ends)])
            place, begin = place + len(piece.ends), begin + len(piece.keys)
        return torch.from_numpy(offsets)


def _keys_of_buckets(name: str, column: Column | None) -> Keys:
    """Of each bucket, then of a missing number: key_of(name, number), key_of(name, "missing")."""
    assert column is not None and column.buckets is not None
    assert not isinstance(column.buckets, int)
    seed = seed_of(name)
    numbers = np.arange(len(column.buckets) + 1, dtype=np.uint64)
    missing = np.array([_C.xxh64(MISSING_BUCKET, seed)], np.uint64)
    return np.concatenate([hash_numbers(numbers, seed), missing])


def _slice(whole: FeatureBags, first: int, last: int, num_examples: int) -> FeatureBags:
    """Features [first, last) of all; `whole.ends` are the offsets of Ids, with the 0 in front."""
    offsets = whole.ends[first * num_examples : last * num_examples + 1]
    begin, end = int(offsets[0]), int(offsets[-1])
    weights = None if whole.weights is None else whole.weights[begin:end]
    ends = offsets[1:] - begin if begin else offsets[1:]
    return FeatureBags(whole.keys[begin:end], ends, weights)
