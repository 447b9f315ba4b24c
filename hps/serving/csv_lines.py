"""CsvLines: rows of csv, sent without their header, as a batch.

Above it: lines.py. Below it: pyarrow, as in hps/reader/csv_files.py; `Model.batch_of`, whose rules
of columns are those of training.
"""

import csv as python_csv
from collections.abc import Sequence
from typing import NoReturn

import pyarrow as pa
from pyarrow import csv

from hps.reader.csv_lines import ends_in_quote
from hps.reader.csv_words import DELIMITERS
from hps.serving.refusals import invalid
from hps.train.model import Model
from hps.types import Batch

_LEAST_BLOCK = 1 << 16


class CsvLines:
    """Makes batches of rows of csv; threads may share it.

    Args:
        model: that was trained on csv.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._header, self._delimiter = model.recipe.csv_header()
        config = model.recipe.reader_config()
        self._dense = list(config.dense_columns or ())
        features = [name for names in model.recipe.raw_features.values() for name in names]
        self._wanted = [*self._dense, *features]

    def batch_of(self, lines: Sequence[bytes], header: str | None) -> Batch:
        """The batch of rows, one a line.

        Args:
            lines: without their ends, none of them empty.
            header: names of the columns, as csv; None: those of the training's log.

        Raises:
            Refusal: rows that the header does not divide; names line and reason.
            ConfigError, DataError: of `Model.batch_of`.
        """
        names, delimiter = self._columns(header)
        # An entry of the log is missing where its column is: that a features file leaves it out is
        # for batch_of to know.
        known = [name for name in self._wanted if name in names]
        text = b"".join(b"%b\n" % line for line in lines)
        if b'"' in text:  # one that is open at its line's end would take in the next lines
            _refuse_unclosed(lines, delimiter)
        try:
            table = self._read(text, names, delimiter, dict.fromkeys(known, pa.binary()))
        except pa.ArrowException as error:
            raise invalid(f"these lines are no csv: {error}") from None
        if table.num_rows != len(lines):
            raise invalid(f"{len(lines)} lines are {table.num_rows} rows of csv")
        batch = table.combine_chunks().to_batches()[0]
        for name in self._dense:
            if name in known:
                place = batch.schema.get_field_index(name)
                batch = batch.set_column(place, name, _as_text(name, batch.column(place)))
        return self._model.batch_of(batch)

    def _read(
        self, text: bytes, names: list[str], delimiter: str, types: dict[str, pa.DataType]
    ) -> pa.Table:
        def bad_row(row: csv.InvalidRow) -> NoReturn:
            raise invalid(
                f"line {row.number}: {row.actual_columns} columns, and the header has "
                f"{row.expected_columns}: {names[:40]}"
            )

        found: list[csv.InvalidRow] = []

        def note(row: csv.InvalidRow) -> str:
            found.append(row)
            return "error"

        try:
            return csv.read_csv(
                pa.BufferReader(text),
                csv.ReadOptions(
                    use_threads=False,
                    column_names=names,
                    block_size=max(_LEAST_BLOCK, len(text) + 1),
                ),
                csv.ParseOptions(
                    delimiter=delimiter,
                    newlines_in_values=True,
                    ignore_empty_lines=False,
                    invalid_row_handler=note,
                ),
                csv.ConvertOptions(column_types=types, include_columns=list(types)),
            )
        except pa.ArrowException:
            if found:
                bad_row(found[0])
            raise

    def _columns(self, header: str | None) -> tuple[list[str], str]:
        """Names of the columns, in their order, and what divides them."""
        if header is not None:
            delimiter = max(DELIMITERS, key=header.count)
            names = next(python_csv.reader([header], delimiter=delimiter), [])
        elif self._header is None:
            raise invalid(
                "input 'lines': the model was trained by an earlier version, which did not store "
                "the order of the log's columns; give the log's first line as parameter 'header'"
            )
        else:
            names, delimiter = list(self._header), self._delimiter
        twice = [name for name in self._wanted if names.count(name) > 1]
        if twice:
            raise invalid(f"header: columns {twice[:8]} appear twice")
        return names, delimiter


def _as_text(name: str, column: pa.Array) -> pa.Array:
    """A dense column as text, which `batch_of` makes numbers of."""
    try:
        return column.cast(pa.string())
    except pa.ArrowException:
        raise invalid(f"column {name!r} holds bytes that are no text, and no number") from None


def _refuse_unclosed(lines: Sequence[bytes], delimiter: str) -> None:
    for number, line in enumerate(lines, 1):
        if ends_in_quote(line.decode("latin-1"), delimiter):
            raise invalid(
                f"line {number}: a quote is opened and never closed; a quote within a value is "
                "written twice, in a quoted value"
            )
