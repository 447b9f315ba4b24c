"""TextLines: what the lines of a text log hold, and the native parser's rules and batches of it.

Above it: the text reader, raw_lines.py, which scores raw columns. Below it: csrc/reader. What is
read to train and what is scored pass through the same rules.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import torch

from hps import _C
from hps.errors import ConfigError
from hps.reader.config import MAX_DENSE, SIGNED_LOG1P, SLOT_KEY, ReaderConfig
from hps.reader.dense import signed_log1p
from hps.reader.index_fields import IndexFields
from hps.reader.part_parser import Parsed
from hps.reader.schema import Schema, encode_name
from hps.types import Batch, Ids

_PASSED_OVER = 2**32 - 1  # csrc/reader/text_schema.h: a field that no table takes


@dataclass(frozen=True)
class TextLines:
    """How lines are read.

    Args:
        config: with the format of the log.
    """

    config: ReaderConfig

    @cached_property
    def fields(self) -> IndexFields | None:
        """The fields of libsvm; None of a log whose indices are one feature, or of others."""
        return None if self.config.fields is None else IndexFields.of(self.config.fields)

    @cached_property
    def dense_names(self) -> list[str]:
        """Names of the dense values of fields, in their order: a field's own, or where it has
        several indices with the index.

        Raises:
            ConfigError: a dense field without indices of its own, or with too many.
        """
        dense = self.config.dense_columns or ()
        if dense and self.config.format == "libsvm" and self.fields is None:
            raise ConfigError(
                f"ReaderConfig.dense_columns={list(dense)!r} (--dense-columns): in libsvm they are "
                "names of fields; say which indices each has ([fields] of a features file)"
            )
        if self.fields is None:
            return list(dense)
        names: list[str] = []
        for name in dense:
            count = self.fields.num_indices(name)
            if not 0 < count <= MAX_DENSE - len(names):
                have = "the rest of the indices" if name == self.fields.rest else f"{count:,}"
                raise ConfigError(
                    f"ReaderConfig.fields.{name}: a dense field has a dense value for each index, "
                    f"and this one has {have}; {MAX_DENSE:,} may be in all"
                )
            own = self.fields.indices(name)
            names += [name] if count == 1 else [f"{name} {index}" for index in own]
        for name, count in Counter(names).items():
            if count > 1:
                raise ConfigError(f"ReaderConfig.fields: {count} dense values are called {name!r}")
        return names

    def native(
        self, schema: Schema | None, num_dense: int, num_categories: int = 0
    ) -> _C.TextSchema:
        """The native twin of a schema; of one without columns if there is none yet."""
        config = self.config
        columns = []
        sizes = []
        for table in schema.tables.values() if schema else ():
            sizes.append(len(table))
            for column in table:
                index = int(column.name[1:]) - 1 if config.format == "criteo" else 0
                columns.append((encode_name(column.name), column.seed, index))
        assert config.format is not None
        native = _C.TextSchema(config.format, columns, sizes)
        native.num_dense = num_dense
        native.num_categories = num_categories
        native.hash_keys = config.hashes_numbers
        native.signed_log = config.transform == SIGNED_LOG1P
        native.skip_bad_lines = config.on_error == "skip"
        native.refuse_unknown = schema is not None and schema.takes_all
        native.needs_labels = config.needs_labels
        if config.slot_layout is not None:
            native.set_slot_layout(config.slot_layout == SLOT_KEY)
        if config.format == "libffm" and schema is not None:
            native.set_dense_fields([encode_name(name) for name in self.dense_names])
        if self.fields is not None and schema is not None:
            native.set_index_ranges(self._index_ranges(schema, self.fields))
        return native

    def _index_ranges(self, schema: Schema, fields: IndexFields) -> list[tuple[int, int, int]]:
        """First and last index of each range, and what it is of, as csrc/reader/text_schema.h has
        it: a column, from the number of columns on a dense value."""
        dense = self.config.dense_columns or ()
        names = [column.name for columns in schema.tables.values() for column in columns]
        targets = {name: place for place, name in enumerate(names)}
        next_dense = len(names)
        for name in dense:
            targets[name] = next_dense
            next_dense += fields.num_indices(name)
        ranges = []
        for first, last, name in fields.sorted_ranges():
            ranges.append((first, last, targets.get(name, _PASSED_OVER)))
            if name in dense:
                targets[name] += last - first + 1
        return ranges

    def batch_of(self, parsed: Parsed, schema: Schema, num_examples: int) -> Batch:
        """The batch of what a parser took; `num_examples` of all parts."""
        labels, dense, tables, _ = parsed
        features = {
            name: Ids(
                torch.from_numpy(keys),
                torch.from_numpy(offsets),
                None if weights is None else torch.from_numpy(weights),
            )
            for name, (keys, offsets, weights) in zip(schema.tables, tables, strict=True)
        }
        if self.config.format == "slots" and self.config.transform == SIGNED_LOG1P:
            dense = signed_log1p(dense)
        return Batch(
            features,
            torch.from_numpy(dense),
            torch.from_numpy(labels),
            global_size=num_examples,
        )
