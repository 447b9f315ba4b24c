"""Lines: raw lines of a log as a batch, read by the code that reads the log in training.

Above it: inputs.py. Below it: hps/reader/text_lines.py and the native parser, for text; for csv
csv_lines.py. A line is what is in the log, with its label or, where the format allows, without.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hps import _C
from hps.errors import DataError
from hps.models.sequences import check_targets
from hps.reader.discover import most_common
from hps.reader.raw_lines import FORMATS as TOKENS
from hps.reader.schema import make_schema
from hps.reader.text_lines import TextLines
from hps.serving.csv_lines import CsvLines
from hps.serving.refusals import invalid
from hps.train.model import Model
from hps.types import Batch

_TEXT = (*TOKENS, "criteo")


class Lines:
    """Makes batches of lines; threads may share it.

    Args:
        model: whose log they are like.
    """

    def __init__(self, model: Model) -> None:
        recipe = model.recipe
        self._model = model
        # As `hps predict` reads a log.
        config = replace(
            recipe.reader_config(), on_error="raise", needs_labels=False, weight=None, group=None
        )
        self._format = config.format or ""
        self._csv = CsvLines(model) if self._format == "csv" else None
        self._text = TextLines(config)
        self._schema = make_schema(
            recipe.raw_tables(model.server.tables.values()),
            None,
            recipe.num_raw_dense,
            config.vocabularies,
        )
        self._transform = recipe.make_transform()
        self._natives: dict[int, _C.TextSchema] = {}  # by the categories of a line of criteo

    @property
    def are_read(self) -> bool:
        """Whether the model's log has lines that can be sent: its format is text."""
        return self._format in _TEXT or self._csv is not None

    def batch_of(self, given: Sequence[bytes | str], header: str | None = None) -> Batch:
        """The batch of lines, one an example.

        Args:
            given: without their ends, or with them; text is UTF-8.
            header: of csv the names of the columns of these lines, as a log's first line has them;
                None takes those of the log that the model was trained on.

        Raises:
            Refusal: the model's log has no lines; a line that is empty or several.
            DataError: a line that training would have refused; names it, from 1.
        """
        if not self.are_read:
            raise invalid(
                f"input 'lines': the model was trained on {self._format}, which has no lines; send "
                "its columns by their names"
            )
        if header is not None and self._csv is None:
            raise invalid(
                f"parameter 'header' is of csv; the model was trained on {self._format}, whose "
                "lines need none"
            )
        lines = [_one_line(line, number) for number, line in enumerate(given, 1)]
        if self._csv is not None:
            return self._csv.batch_of(lines, header)
        return self._batch_of_text(lines)

    def _batch_of_text(self, lines: list[bytes]) -> Batch:
        parser = _C.TextParser(self._native(lines), _C.ThreadPool(1))
        parser.start_file(0, 0, 0)
        text = b"".join(b"%b\n" % line for line in lines)
        parser.feed(np.frombuffer(text, np.uint8), True)
        if parser.error is not None:
            _, number, reason = parser.error
            raise DataError(f"line {number}: {reason.decode('ascii', 'backslashreplace')}")
        count = len(lines)
        if parser.num_ready != count:
            raise invalid(
                f"{count} lines hold {parser.num_ready} examples; send lines of examples alone"
            )
        raw = self._text.batch_of(parser.take(count, 0, count), self._schema, count)
        batch = raw if self._transform is None else self._transform(raw)
        if self._model.sequences:
            check_targets(batch, self._model.sequences, self._model.features)
        return batch

    def _native(self, lines: list[bytes]) -> _C.TextSchema:
        """The parser's rules; of criteo for lines of so many columns as most of these have, as the
        reader of a log has it."""
        num_categories = 0
        if self._format == "criteo":
            num_tabs = most_common(lines, lambda line: line.count(b"\t")) or 0
            columns = (column for table in self._schema.tables.values() for column in table)
            least = max(int(column.name[1:]) for column in columns)
            num_categories = max(least, num_tabs - self._schema.num_dense)
        native = self._natives.get(num_categories)
        if native is None:
            native = self._text.native(self._schema, self._schema.num_dense, num_categories)
            if len(self._natives) < 16:  # a client chooses the number
                self._natives[num_categories] = native
        return native


def _one_line(line: bytes | str, number: int) -> bytes:
    """The bytes of a line without its end.

    Raises:
        Refusal: it is empty, or more than one.
    """
    text = line.encode("utf-8", "surrogateescape") if isinstance(line, str) else line
    text = text.removesuffix(b"\n").removesuffix(b"\r")
    if not text.strip():
        raise invalid(f"line {number} is empty; send a line for each example")
    if b"\n" in text:
        raise invalid(f"line {number} holds a line end; each element is one line of the log")
    return text
