"""Inputs: what the tensors of a request are, and the batch that they make.

Above it: scorer.py. Below it: lines.py; `Model.batch_of`, whose rules of raw columns are those of
training. A request has one of three kinds of inputs:

    lines          BYTES [B]: raw lines of the log
    columns        by the names of the log's columns, a tensor each
    keys           TABLE.keys for each table, and `dense`: what raw values become

A column is [B], a value an example; [B, n], n values an example; or ragged: [L] with an input
NAME.lengths [B]. Of libsvm and libffm an input NAME.weights of its shape has the values of indices.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hps.errors import DataError, HpsError
from hps.reader.config import WITH_COLUMNS
from hps.serving.lines import Lines
from hps.serving.refusals import invalid
from hps.serving.tensors import BYTES, Tensor, check_text
from hps.train.model import Model
from hps.types import Batch, Ids

LINES, DENSE, KEYS, LENGTHS, WEIGHTS = "lines", "dense", ".keys", ".lengths", ".weights"
_MAX_INPUTS = 4096
# Widest of the whole numbers that a column's key may be.
_INTEGERS = "iu"

Tensors = Mapping[str, Tensor]
Parameters = Mapping[str, Any]


class Inputs:
    """Makes batches of tensors; threads may share it.

    Args:
        model: that scores.
        max_rows: examples of a request, at most.
    """

    def __init__(self, model: Model, max_rows: int) -> None:
        self._model = model
        self._max_rows = max_rows
        self.lines: Lines | None = None
        self.features: list[str] = []
        self.dense: list[str] = []
        self._left_out: set[str] = set()
        if model.has_recipe:  # else keys alone can be sent
            self.lines = Lines(model)
            raw = model.recipe.raw_features.values()
            self.features = [name for names in raw for name in names]
            self.dense = _dense_names(model)
            self._left_out = _left_out(model) - {*self.features, *self.dense}
        self._columns = {*self.features, *self.dense}

    def batch_of(self, inputs: Sequence[Tensor], parameters: Parameters) -> Batch:
        """The batch of a request.

        Args:
            inputs: in any order.
            parameters: of the request; `header` names the columns of csv lines.

        Raises:
            Refusal, ConfigError, DataError: no inputs that make a batch; names the input and why.
        """
        given = {tensor.name: tensor for tensor in inputs}
        if not 0 < len(inputs) == len(given) <= _MAX_INPUTS:
            raise invalid(f"a request has 1 to {_MAX_INPUTS} inputs, each name once")
        if LINES in given and LINES not in self._columns:
            batch = self._batch_of_lines(given, parameters)
        elif any(name.endswith(KEYS) and name not in self._columns for name in given):
            batch = self._batch_of_keys(given)
        else:
            batch = self._batch_of_columns(given)
        return batch

    def batch_of_values(self, columns: Mapping[str, Sequence[Any]]) -> Batch:
        """The batch of columns of plain values, as JSON has them: null is missing."""
        used = {name: column for name, column in columns.items() if name in self._columns}
        unknown = [name for name in columns if name not in used and name not in self._left_out]
        if unknown or (columns and not used):
            raise self._no_column([*unknown, *columns][0])
        columns = used
        self._check_rows(len(next(iter(columns.values()), ())))
        for name, column in columns.items():
            for value in column:
                check_text(name, _items(value))
        return self._model.batch_of(columns)

    def _check_rows(self, count: int) -> None:
        if not 0 < count <= self._max_rows:
            raise invalid(f"a request has 1 to {self._max_rows:,} examples, and this one {count:,}")

    def _batch_of_lines(self, given: Tensors, parameters: Parameters) -> Batch:
        others = [name for name in given if name != LINES]
        if others:
            raise invalid(f"input {others[0][:80]!r} beside 'lines', which are whole examples")
        lines = given[LINES]
        if lines.datatype != BYTES or (len(lines.shape) == 2 and lines.shape[1] != 1):
            raise invalid(
                f"input 'lines' is {lines.datatype} {list(lines.shape)}; it is BYTES [B], a line "
                "of the log each"
            )
        self._check_rows(lines.rows)
        header = parameters.get("header")
        if header is not None and not isinstance(header, str):
            raise invalid(f"parameter 'header' is {header!r}; give the log's first line")
        if self.lines is None:
            raise self._no_column(LINES)
        try:
            return self.lines.batch_of(list(lines.elements), header)
        except DataError as error:
            raise invalid(f"input 'lines': {error}") from None

    # Columns.

    def _batch_of_columns(self, given: Tensors) -> Batch:
        columns: dict[str, Any] = {}
        used: set[str] = set()
        for name, tensor in given.items():
            if name in self._left_out:
                used.update((name, name + LENGTHS, name + WEIGHTS))
            if name not in self._columns:
                continue
            lengths, weights = given.get(name + LENGTHS), given.get(name + WEIGHTS)
            used.update((name, name + LENGTHS, name + WEIGHTS))
            columns[name] = self._column(tensor, lengths, weights)
        unused = [name for name in given if name not in used]
        if unused or not columns:
            raise self._no_column([*unused, *given][0])
        counts = {name: len(column) for name, column in columns.items()}
        if len(set(counts.values())) > 1:
            raise invalid(f"inputs of one request have one number of examples, not {counts}")
        self._check_rows(next(iter(counts.values())))
        return self._model.batch_of(columns)

    def _column(self, tensor: Tensor, lengths: Tensor | None, weights: Tensor | None) -> Any:
        """A column as `Model.predict` takes it."""
        values = _plain(tensor)
        name = tensor.name
        if weights is not None:
            if len(weights.elements) != len(values) or weights.datatype == BYTES:
                raise invalid(
                    f"input {(name + WEIGHTS)[:80]!r}: give a number for each value of {name!r}"
                )
            numbers = np.asarray(weights.elements).tolist()
            values = list(zip(_listed(values), numbers, strict=True))
        if lengths is not None:
            return _cut(name, _listed(values), lengths)
        if len(tensor.shape) == 2 and tensor.shape[1] != 1:
            rows, width = tensor.shape
            listed = _listed(values)
            return [listed[row * width : (row + 1) * width] for row in range(rows)]
        if weights is not None:
            return [[pair] for pair in values]
        if name in self.dense and getattr(values, "dtype", None) == np.float32:
            return values.astype(np.float64)  # what either is as a number
        return values

    def _no_column(self, name: str) -> HpsError | Exception:
        return invalid(
            f"input {name[:80]!r}: the model has no such column; it has dense {self.dense} and "
            f"features {self.features[:64]}; or send 'lines', or keys as "
            f"{[table + KEYS for table in self._model.features]}"
        )

    # Keys.

    def _batch_of_keys(self, given: Tensors) -> Batch:
        features = self._model.features
        num_dense = self._model.num_dense
        known = {name + end for name in features for end in (KEYS, LENGTHS, WEIGHTS)} | {DENSE}
        unknown = [name for name in given if name not in known]
        if unknown:
            raise invalid(f"input {unknown[0][:80]!r}: with keys a request has {sorted(known)}")
        tables, count = {}, -1
        for table, names in features.items():
            keys = given.get(table + KEYS)
            if keys is None or keys.datatype not in ("INT64", "UINT64"):
                raise invalid(f"input {table + KEYS!r} is missing, or not INT64 or UINT64")
            lengths = _lengths_of_keys(table, keys, given.get(table + LENGTHS), len(names))
            rows = keys.rows if lengths is None else len(lengths)
            if count not in (-1, rows):
                raise invalid(f"input {table + KEYS!r} has {rows} examples, others {count}")
            count = rows
            weights = given.get(table + WEIGHTS)
            if lengths is None and weights is None:
                tables[table] = _single_ids(keys, rows, len(names))
                continue
            if lengths is None:
                lengths = np.ones((rows, len(names)), np.int64)
            tables[table] = _ids(table, keys, lengths, weights)
        self._check_rows(count)
        dense = given.get(DENSE)
        if dense is None and num_dense:
            raise invalid(f"input 'dense' is missing; it is FP32 [B, {num_dense}]")
        values = np.zeros((count, 0), np.float32)
        if dense is not None:
            if dense.datatype != "FP32" or dense.shape != (count, num_dense):
                raise invalid(
                    f"input 'dense' is {dense.datatype} {list(dense.shape)}; it is FP32 "
                    f"{[count, num_dense]}"
                )
            values = np.array(dense.elements, np.float32).reshape(count, num_dense)
            if not np.isfinite(values).all():
                raise invalid("input 'dense' holds a number that is not finite")
        return Batch(tables, torch.from_numpy(values), torch.zeros(count))


def _left_out(model: Model) -> set[str]:
    """Columns of a log of named columns that training has read past, or not as inputs."""
    recipe = model.recipe
    config = recipe.reader_config()
    if config.format not in WITH_COLUMNS:
        return set()
    header, _ = recipe.csv_header()
    return {config.label, *filter(None, [config.weight]), *recipe.left_out, *(header or ())}


def _dense_names(model: Model) -> list[str]:
    """The log's dense columns, in their order."""
    config = model.recipe.reader_config()
    count = model.recipe.num_raw_dense
    if config.format == "criteo":
        return [f"I{number}" for number in range(1, count + 1)]
    if config.format == "slots":
        return [f"dense_feature {number}" for number in range(1, count + 1)]
    return list(config.dense_columns or ())


def _plain(tensor: Tensor) -> Any:
    """Values as `Model.predict` takes them: text where it is UTF-8, else bytes; numbers."""
    if tensor.datatype != BYTES:
        values = np.asarray(tensor.elements)
        if values.dtype.kind == "b":
            raise invalid(f"input {tensor.name[:80]!r} is BOOL; give text or numbers")
        return values if values.dtype.kind in _INTEGERS else values.astype(_float_of(values))
    elements = list(tensor.elements)
    if elements and isinstance(elements[0], str):
        return elements
    whole = b"\n".join(elements)
    try:
        if whole.count(b"\n") == len(elements) - 1:  # one call for all of them
            return whole.decode().split("\n")
        return [text.decode() for text in elements]
    except UnicodeDecodeError:
        return elements


def _float_of(values: NDArray[Any]) -> Any:
    return np.float32 if values.dtype == np.float16 else values.dtype


def _items(value: Any) -> list[Any]:
    """The texts of a value of JSON, which may be a bag."""
    if isinstance(value, dict):
        return [*value]
    return value if isinstance(value, list) else [value]


def _listed(values: Any) -> list[Any]:
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _whole_lengths(name: str, lengths: Tensor, total: int) -> NDArray[np.int64]:
    """Lengths of bags that make up `total` values."""
    if lengths.datatype == BYTES or np.asarray(lengths.elements).dtype.kind not in _INTEGERS:
        raise invalid(f"input {name!r} is {lengths.datatype}; lengths are INT32 or INT64")
    found = np.asarray(lengths.elements).astype(np.int64)
    if (found < 0).any() or (found > total).any() or int(found.sum()) != total:
        raise invalid(f"input {name!r}: its lengths are at least 0 and have the sum {total}")
    return found


def _cut(name: str, values: list[Any], lengths: Tensor) -> list[list[Any]]:
    ends = np.cumsum(_whole_lengths(name + LENGTHS, lengths, len(values))).tolist()
    return [values[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def _lengths_of_keys(
    table: str, keys: Tensor, lengths: Tensor | None, num_features: int
) -> NDArray[np.int64] | None:
    """How many keys each example has of each feature, int64 [B, F]; None: one."""
    name = table + KEYS
    if lengths is None:
        if len(keys.shape) == 1 and num_features == 1:
            return None
        if len(keys.shape) != 2 or keys.shape[1] != num_features:
            raise invalid(
                f"input {name!r} has shape {list(keys.shape)}; give [B, {num_features}], a key for "
                f"each feature, or [L] with {table + LENGTHS!r} [B, {num_features}]"
            )
        return None
    is_flat = num_features == 1 and len(lengths.shape) == 1
    if not is_flat and (len(lengths.shape) != 2 or lengths.shape[1] != num_features):
        raise invalid(
            f"input {table + LENGTHS!r} has shape {list(lengths.shape)}; it is [B, {num_features}]"
        )
    found = _whole_lengths(table + LENGTHS, lengths, len(keys.elements))
    return found.reshape(-1, num_features)


def _single_ids(keys: Tensor, rows: int, features: int) -> Ids:
    """Keys that came example by example, one of each feature."""
    by_example = np.asarray(keys.elements).view(np.int64).reshape(rows, features)
    by_feature = np.ascontiguousarray(by_example.T).reshape(-1)
    return Ids(torch.from_numpy(by_feature), torch.arange(rows * features + 1))


def _ids(table: str, keys: Tensor, lengths: NDArray[np.int64], weights: Tensor | None) -> Ids:
    """Keys that came example by example, feature by feature."""
    flat = np.asarray(keys.elements).view(np.int64)
    rows, features = lengths.shape
    offsets = np.zeros(rows * features + 1, np.int64)
    np.cumsum(lengths.T.reshape(-1), out=offsets[1:])
    bags = np.repeat(np.arange(rows * features), lengths.reshape(-1))
    bags = bags % features * rows + bags // features  # of an example, to one of a feature
    order = np.argsort(bags, kind="stable")
    found = None
    if weights is not None:
        if weights.datatype != "FP32" or len(weights.elements) != len(flat):
            raise invalid(f"input {table + WEIGHTS!r} is FP32, a number for each key")
        numbers = np.asarray(weights.elements, np.float32)
        if not np.isfinite(numbers).all():
            raise invalid(f"input {table + WEIGHTS!r} holds a number that is not finite")
        found = torch.from_numpy(numbers[order])
    return Ids(torch.from_numpy(flat[order]), torch.from_numpy(offsets), found)
