"""FeatureTransform: what a features file makes of batches, whatever format they were read from.

Above it: open.py, which gives it to a reader; a model's recipe, which keeps it; `hps.Model`. Below
it: dense.py and keys.py, which describe what csrc/reader/batch_transform.h does. Training,
evaluation and prediction pass through here.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import torch

from hps import _C
from hps.common.json_text import Json, JsonView
from hps.errors import ConfigError
from hps.features.column import (
    CATEGORICAL,
    DENSE,
    DROP,
    FIRST,
    IGNORED,
    MEAN,
    OF_TABLES,
    SEQUENCE,
    Column,
    Cross,
    Scale,
)
from hps.features.dense import DenseRules, native_of
from hps.features.features import Features
from hps.features.keys import KeyRules
from hps.features.raw import RawColumns
from hps.features.shared import check_shared
from hps.reader.column_use import DENSE as DENSE_USE
from hps.reader.column_use import FEATURE, ColumnUse, dense_rule
from hps.reader.column_use import IGNORED as IGNORED_USE
from hps.reader.config import SIGNED_LOG1P, WITH_COLUMNS
from hps.reader.dense import signed_log1p
from hps.types import Batch, Ids

_MOST_SIZES = 8  # of batches, whose offsets are kept


class FeatureTransform:
    """From batches as a log has them to batches as a model sees them.

    A model has the features of the log in the log's order, then buckets in the order of their
    columns, then crosses in the order of the file. Where they lie in several tables, the tables
    come in the order of their first features, each with its own in that order.

    Args:
        asked: as the file has it.
        measured: the same with the numbers that were measured.
        raw: what the reader's batches hold.

    Raises:
        ConfigError: a column that the log does not have, or one that cannot be of its kind; a
            table in which no feature lies, or two of one name.
    """

    def __init__(self, asked: Features, measured: Features, raw: RawColumns) -> None:
        _check_names(measured, raw)
        self.asked = asked
        self.measured = measured
        self.raw = raw
        dropped = measured.of_kind(IGNORED)
        self._dense = DenseRules(measured, raw, dropped)
        self._keys = KeyRules(measured, raw, self._dense, dropped)
        if not self._keys.names:
            raise ConfigError(
                f"{measured.source}: no feature is left of {list(raw.features)}; a model needs one"
            )
        _check_tables(measured, raw.table, self._keys)
        self._native = native_of(raw, len(self._keys.tables))
        self._dense.add_to(self._native)
        self._keys.add_to(self._native)
        self._ones: dict[int, torch.Tensor] = {}  # offsets of so many bags of one key each
        text = json.dumps([measured.to_dict(), raw.to_dict()], sort_keys=True)
        self.name = hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def features(self) -> Mapping[str, tuple[str, ...]]:
        """As BatchTransform has it."""
        return self._keys.tables

    @property
    def are_means(self) -> dict[str, list[bool]]:
        """Of each table whether a model gets the mean of each feature's rows, or their sum."""
        return {
            table: [self.measured.is_mean(name) for name in names]
            for table, names in self._keys.tables.items()
        }

    @property
    def dense_names(self) -> tuple[str, ...]:
        """Names of the dense columns after the transform."""
        return self._dense.names

    @property
    def num_dense(self) -> int:
        """As BatchTransform has it."""
        return len(self._dense.names)

    def __call__(self, batch: Batch, threads: _C.ThreadPool | None = None) -> Batch:
        """The batch as a model sees it.

        Args:
            batch: as the reader makes it.
            threads: those of the reader that has just made it, which share the work; None for the
                caller's. What is made does not depend on them.

        Cost: one native pass over its keys and dense values, and a copy of them.

        Raises:
            ConfigError: a batch of other columns, or whose offsets divide its keys into no bags.
        """
        num_dense, num_tables = batch.dense.shape[1], list(batch.features)
        if num_dense != len(self.raw.dense) or num_tables != [self.raw.table]:
            raise ConfigError(
                f"features: the batch has {num_dense} dense columns and the tables {num_tables}; "
                f"the transform is for {len(self.raw.dense)} and {self.raw.table!r}"
            )
        ids = batch.features[self.raw.table]
        weights = None if ids.weights_L is None else ids.weights_L.contiguous().numpy()
        try:
            dense, tables = self._native.apply(
                ids.keys_L.contiguous().numpy(),
                ids.offsets.contiguous().numpy(),
                weights,
                batch.dense.contiguous().numpy(),
                # A line of criteo has one key a feature.
                threads is not None and self.raw.format == "criteo",
                threads,
            )
        except ValueError as error:
            raise ConfigError(f"features: the batch's keys make no bags: {error}") from None
        if tables is None:  # as they were
            features = dict.fromkeys(self._keys.tables, ids)
        else:
            features = {
                name: self._ids_of(one) for name, one in zip(self._keys.tables, tables, strict=True)
            }
        made = batch.dense if dense is None else torch.from_numpy(dense)
        return replace(batch, features=features, dense=made)

    def _ids_of(self, table: "_C._TableIds") -> Ids:
        """Ids of a table; where each bag has one key, with offsets of a batch before."""
        keys, offsets, weights = table
        return Ids(
            torch.from_numpy(keys),
            self._one_each(len(keys)) if offsets is None else torch.from_numpy(offsets),
            None if weights is None else torch.from_numpy(weights),
        )

    def _one_each(self, num_bags: int) -> torch.Tensor:
        """Offsets of bags of one key each. Any number of threads may be here."""
        ones = self._ones.get(num_bags)
        if ones is None:
            # Not torch.arange, whose threads then wait for more to do.
            ones = torch.from_numpy(np.arange(num_bags + 1, dtype=np.int64))
            if len(self._ones) >= _MOST_SIZES:
                self._ones = {}
            self._ones[num_bags] = ones
        return ones

    def keys_of(self, feature: str, key: int | None) -> list[int]:
        """The keys that a model has of a feature of the log.

        Args:
            feature: of the log, and not left out.
            key: as the reader makes it, 0 to 2^64 - 1; None of an example without one.

        Returns:
            One key or none.
        """
        return self._native.keys_of(self._keys.place_of(feature), [] if key is None else [key])

    def bucket_of(self, name: str, number: float | None) -> int | None:
        """The bucket of a number of a column with buckets.

        Args:
            name: of the column.
            number: as the log has it; None: missing.

        Returns:
            Counted from 0; None: that of missing numbers.
        """
        is_criteo = self.raw.format == "criteo"
        missing = 0.0 if is_criteo and not self.raw.is_logged else np.nan  # as the reader has it
        values = np.array([missing if number is None else number])
        if self.raw.is_logged:
            values = signed_log1p(values, np.isnan(values) if is_criteo else None)
        with np.errstate(over="ignore"):
            value = float(values.astype(np.float32)[0])
        found = self._native.bucket_of(self._dense.bucket_names.index(name), value)
        column = self.measured.column(name)
        assert column is not None and not isinstance(column.buckets, int)
        return found if found <= len(column.buckets or ()) else None

    @property
    def bucket_names(self) -> tuple[str, ...]:
        """Names of the columns that have buckets, in the order of the log."""
        return self._dense.bucket_names

    def columns(self, uses: Sequence[ColumnUse]) -> list[ColumnUse]:
        """As BatchTransform has it."""
        changed = [self._use_of(use) for use in uses]
        for name in self._dense.bucket_names:
            column = self.measured.column(name)
            assert column is not None and not isinstance(column.buckets, int)
            count = len(column.buckets or ()) + 1
            why = f"the number of one of {count} buckets, hashed with the feature"
            changed.append(self._use_of_made(name, "bucket", why, column))
        for cross in self.measured.crosses:
            why = f"cross of {' and '.join(cross.columns)}{_folded(cross.hash_buckets)}"
            changed.append(self._use_of_made(cross.name, "cross", why, cross))
        return changed

    def _use_of_made(self, name: str, kind: str, why: str, said: Column | Cross) -> ColumnUse:
        """Of a feature that is no column of the log."""
        table = self._keys.table_of[name]
        return ColumnUse(name, FEATURE, kind, ", ".join([why, *self._of_table(name, said)]), table)

    def _of_table(self, name: str, said: Column | Cross) -> list[str]:
        """Where a feature's rows lie and how they are pooled, in words, but for what is usual."""
        table = self._keys.table_of[name]
        words = [] if table == self.raw.table else [f"in table {table!r}"]
        return [*words, *(["the mean of its rows"] if said.pooling == MEAN else [])]

    def _use_of(self, use: ColumnUse) -> ColumnUse:
        column = self.measured.column(use.name)
        if column is None or use.kind not in (FEATURE, DENSE_USE):
            return use
        if column.kind == IGNORED:
            return ColumnUse(use.name, IGNORED_USE, use.type, "left out by the features file")
        if use.kind == DENSE_USE and not column.is_kept:
            return ColumnUse(use.name, IGNORED_USE, use.type, "its bucket is a feature instead")
        if use.kind == DENSE_USE:
            return replace(use, why=self._dense_rule(column) or use.why)
        steps = [*_steps(column), *self._of_table(use.name, column)]
        why = f"{use.why}; {', '.join(steps)}" if steps else use.why
        return replace(use, why=why, table=self._keys.table_of[use.name])

    def _dense_rule(self, column: Column) -> str:
        """What is done to a dense column, in words; nothing if that is what the reader does."""
        said = {key: one for key, one in column.to_dict().items() if key not in OF_TABLES}
        if said.keys() <= {"kind", "log"} and said.get("log") in (None, self.raw.is_logged):
            return ""
        is_log = self.raw.is_logged if column.log is None else column.log
        steps = []
        if column.clip is not None:
            steps.append("from {:g} to {:g}".format(*column.clip))
        if is_log:
            steps.append(dense_rule(SIGNED_LOG1P).partition(";")[0])
        missing = said.get("missing", -0.5 if is_log else 0.0)
        steps.append(f"missing is {missing:g}")
        if isinstance(column.normalise, Scale):
            scale = column.normalise
            steps.append(f"less {scale.mean:.4g}, divided by {scale.std:.4g}")
        return "; ".join(steps)

    def to_dict(self) -> Json:
        """Plain values, for a checkpoint; `from_dict` takes them."""
        return {
            "asked": self.asked.to_dict(),
            "measured": self.measured.to_dict(),
            "raw": self.raw.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: JsonView) -> Self:
        """The transform that a checkpoint has.

        Raises:
            ConfigError: it is none that hps wrote.
        """
        try:
            raw = RawColumns.from_dict(values["raw"])
            source = "the stored model's features"
            asked, measured = (
                Features.from_dict(values[name], source) for name in ("asked", "measured")
            )
        except (KeyError, TypeError) as error:
            raise ConfigError(f"the checkpoint's features are none of hps: {error!r}") from error
        return cls(asked, measured, raw)


def _folded(hash_buckets: int | None) -> str:
    return "" if hash_buckets is None else f", folded into {hash_buckets:,} keys"


def _steps(column: Column) -> list[str]:
    """What is done to a feature, in words."""
    steps = [] if column.target is None else [f"a sequence that {column.target!r} attends to"]
    if column.missing is not None:
        steps.append("a missing value has " + ("no key" if column.missing == DROP else "a key"))
    if column.max_length is not None:
        steps.append(f"the {column.keep or FIRST} {column.max_length:,} keys")
    if column.hash_buckets is not None:
        steps.append(f"folded into {column.hash_buckets:,} keys")
    return steps


def _check_tables(features: Features, default: str, keys: KeyRules) -> None:
    """Every table that is described has a feature, and one of a column's own no other."""
    for table in features.tables:
        if table.name not in keys.tables:
            raise ConfigError(
                f"{features.at('tables', table.name)}: "
                f"tables.{table.name}: no feature lies in it; give a column "
                f'table = "{table.name}", or leave the table out (there are {list(keys.tables)})'
            )
    for group, described in (("columns", features.columns), ("crosses", features.crosses)):
        for one in described:
            if one.dim is not None and one.name == default:
                raise ConfigError(
                    f"{features.at(group, one.name, 'dim')}: "
                    f"{group}.{one.name}.dim: it gives the feature a table of "
                    "its own, of its name, which is that of all features that have no other; give "
                    f'it another one, table = "NAME", and [tables.NAME] dim = {one.dim}'
                )


def _check_names(features: Features, raw: RawColumns) -> None:
    """Every column that is described is in the log, as what it is described as."""
    known = {DENSE: raw.dense, CATEGORICAL: raw.features, SEQUENCE: raw.features}
    if raw.format not in WITH_COLUMNS:  # in those, what is ignored is not read
        known[IGNORED] = (*raw.dense, *raw.features)
    for column in features.columns:
        names = known.get(column.kind)
        if names is None or column.name in names:
            continue
        if column.name in (*raw.dense, *raw.features):
            is_number = column.name in raw.dense
            was = "dense, whose buckets can be a feature" if is_number else "a feature"
            raise ConfigError(
                f"{features.at('columns', column.name, 'kind')}: "
                f"columns.{column.name}: kind = {column.kind!r}, but in a log "
                f"of {raw.format} it is {was}"
            )
        raise _unknown(features, ("columns", column.name), column.name, raw)
    everything = (*raw.dense, *raw.features)
    for cross in features.crosses:
        if cross.name in everything:
            raise ConfigError(
                f"{features.at('crosses', cross.name)}: "
                f"crosses.{cross.name}: a column of the log has this name; "
                "give the cross another one"
            )
        for name in cross.columns:
            column_of = features.column(name)
            is_bucketed = column_of is not None and column_of.buckets is not None
            if name not in raw.features and not is_bucketed:
                if name in raw.dense:
                    raise ConfigError(
                        f"{features.at('crosses', cross.name, 'columns')}: "
                        f"crosses.{cross.name}: column {name!r} is dense; give "
                        "it buckets, whose numbers can be crossed"
                    )
                raise _unknown(features, ("crosses", cross.name, "columns"), name, raw)
    check_shared(features, raw)
    for column in features.columns:
        is_measured = column.normalise in (None, False) or isinstance(column.normalise, Scale)
        assert is_measured and not isinstance(column.buckets, int)


def _unknown(features: Features, place: tuple[str, ...], name: str, raw: RawColumns) -> ConfigError:
    return ConfigError(
        f"{features.at(*place)}: {'.'.join(place)}: the log has no column {name!r}; dense columns "
        f"are {list(raw.dense)}, features {list(raw.features)}"
    )
