"""RawColumns: batches of raw columns, as the log that a model was trained on has them.

Above it: loaded.py, model.py. Below it: recipe.py, hps/reader/records.py and raw_lines.py, which
make keys of raw columns as training did, few_rows.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hps.config import TableConfig
from hps.errors import ConfigError
from hps.features.column import IGNORED
from hps.models.sequences import check_targets
from hps.reader.config import WITH_COLUMNS
from hps.reader.raw_lines import FORMATS as LINES
from hps.reader.raw_lines import RawLines
from hps.reader.schema import Schema, make_schema
from hps.train.recipe import ModelRecipe
from hps.types import Batch

if TYPE_CHECKING:
    import pyarrow as pa

    from hps.reader.records import RecordColumns
    from hps.train.few_rows import FewRows


class RawColumns:
    """Makes batches of one model's raw columns. Threads may share it.

    Args:
        recipe: of the model.
        tables: of its rows, by name.
        features: table -> names of its features, in the order of a batch.
        sequences: place of each sequence among the features -> that of its target.
    """

    def __init__(
        self,
        recipe: ModelRecipe,
        tables: Mapping[str, TableConfig],
        features: dict[str, list[str]],
        sequences: Mapping[int, int],
    ) -> None:
        self._recipe = recipe
        self._tables = tables
        self._features = features
        self._sequences = sequences
        self._transform = recipe.make_transform()
        self._is_of_lines = recipe.reading()["format"] in LINES
        # Made at first use; two threads may make the same.
        self._columns: RecordColumns | None = None
        self._few: FewRows | None = None
        self._lines: RawLines | None = None

    def batch_of(self, given: "Mapping[str, Any] | pa.RecordBatch") -> Batch:
        """The batch of raw columns; as `Model.predict` takes them, and its errors."""
        if self._is_of_lines:
            return self._batch_of_lines(given)
        if isinstance(given, Mapping):
            few = self._few_rows().batch_of(given)
            if few is not None:
                return self._to_score(few)
        import pyarrow as pa

        from hps.reader.columns import value_type
        from hps.reader.dense_text import FORMATS, with_numbers
        from hps.reader.records import Piece
        from hps.train.given_columns import (
            record_batch_of,
            require_text,
            with_nan_missing,
            with_whole_numbers,
        )

        columns = self._record_columns()
        known, left_out = columns.names(), self._left_out()
        if isinstance(given, Mapping):
            names = [name for name in known if name in given or name not in left_out]
            _require_columns(names, list(given))
            try:
                given = record_batch_of(given, names, columns.dense)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise ConfigError(f"predict: these columns make no batch: {error}") from None
        elif not isinstance(given, pa.RecordBatch):
            raise _not_columns(given)
        for name in left_out.intersection(known).difference(given.schema.names):
            kind = pa.float64() if name in columns.dense else pa.string()
            given = given.append_column(name, pa.nulls(len(given), kind))
        is_csv, dense = columns.config.format == "csv", list(columns.dense)
        require_text(given, self._recipe.digit_texts)
        given = with_whole_numbers(given, set(known).difference(dense))
        if is_csv:
            given = with_nan_missing(given, dense)
        if columns.config.format in FORMATS:
            given = with_numbers(given, dense, columns.config.format)
        columns.check("predict: the batch", given.schema, "the model's log")
        given = given.select(known)
        flags = [
            one.name for one in given.schema if is_csv and pa.types.is_boolean(value_type(one.type))
        ]
        if flags:
            raise ConfigError(
                f"predict: columns {flags} are booleans, and keys of csv come from its text; give "
                "the text, such as 'True'"
            )
        rows, _ = columns.rows_of(Piece.whole(given, 0), "predict")
        return self._to_score(columns.batch_of([rows], len(rows)))

    def _to_score(self, raw: Batch) -> Batch:
        """Of a batch as the log has it, one that the model scores."""
        batch = raw if self._transform is None else self._transform(raw)
        if self._sequences:
            check_targets(batch, self._sequences, self._features)
        return batch

    def _batch_of_lines(self, given: "Mapping[str, Any] | pa.RecordBatch") -> Batch:
        """Of libsvm, libffm and slots."""
        if self._lines is None:
            config = replace(self._recipe.reader_config(), on_error="raise")
            self._lines = RawLines(self._raw_schema(), config)
        if not isinstance(given, Mapping):
            import pyarrow as pa

            if not isinstance(given, pa.RecordBatch):
                raise _not_columns(given)
            given = dict(zip(given.schema.names, given.columns, strict=True))
        left_out = self._left_out()
        wanted = [name for name in self._lines.names if name in given or name not in left_out]
        _require_columns(wanted, list(given))
        return self._to_score(self._lines.batch_of(given))

    def _left_out(self) -> set[str]:
        """Columns that a features file leaves out: they may be given or not."""
        return set() if self._transform is None else set(self._transform.measured.of_kind(IGNORED))

    def _few_rows(self) -> "FewRows":
        if self._few is None:
            from hps.train.few_rows import FewRows  # pyarrow takes its time to import

            self._few = FewRows(self._record_columns(), self._left_out(), self._recipe.digit_texts)
        return self._few

    def _record_columns(self) -> "RecordColumns":
        if self._columns is not None:
            return self._columns
        from hps.reader.records import RecordColumns  # pyarrow takes its time to import

        config = replace(self._recipe.reader_config(), on_error="raise", needs_labels=False)
        dense = config.dense_columns
        if config.format == "criteo":
            dense = [f"I{number}" for number in range(1, self._recipe.num_raw_dense + 1)]
        if config.format not in (*WITH_COLUMNS, "criteo") or dense is None:
            raise ConfigError(
                f"predict: the model was trained on a log of {config.format} by an earlier "
                "version, which did not store the names of its dense columns; give it batches of "
                "open_reader"
            )
        self._columns = RecordColumns(self._raw_schema(), dense, config, None)
        return self._columns

    def _raw_schema(self) -> Schema:
        """Of the log, before a transform."""
        tables = self._recipe.raw_tables(self._tables.values())
        vocabularies = self._recipe.reader_config().vocabularies
        return make_schema(tables, None, self._recipe.num_raw_dense, vocabularies)


def _require_columns(wanted: Sequence[str], given: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in given]
    if missing:
        raise ConfigError(
            f"predict: columns {missing} are missing; given are {list(given)}; give None (null in "
            "JSON) for each value that is not known"
        )


def _not_columns(given: object) -> ConfigError:
    return ConfigError(
        f"predict: got {type(given).__name__}; pass an hps.Batch, a pyarrow.RecordBatch or "
        "a dict of columns"
    )
