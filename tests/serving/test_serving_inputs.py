"""Tensors by the names of columns, and of keys, have the scores of `Model.predict`; what makes no
batch is refused by name.

Above it: pytest. Below it: hps.serving.inputs.
"""

from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import hps
from hps.service.messages.status import Refusal
from hps.serving.inputs import Inputs
from hps.serving.tensors import Tensor, of_raw, of_values
from hps.types import Batch
from tests.serving.conftest import Models

ROWS = 70  # more than are made value by value


def scored(model: hps.Model, inputs: list[Tensor], **parameters: Any) -> list[float]:
    found: list[float] = model.predict(Inputs(model, 4096).batch_of(inputs, parameters)).tolist()
    return found


def text(name: str, values: list[str], shape: list[int] | None = None) -> Tensor:
    return of_values(name, "BYTES", shape or [len(values)], values)


def whole(name: str, values: Any, shape: list[int] | None = None) -> Tensor:
    return of_values(name, "INT64", shape or [len(values)], [int(value) for value in values])


def floats(name: str, values: Any, shape: list[int] | None = None) -> Tensor:
    return of_values(name, "FP32", shape or [len(values)], [float(value) for value in values])


def criteo_columns(lines: list[str]) -> dict[str, list[str]]:
    parts = [line.split("\t") for line in lines]
    names = [f"I{number}" for number in range(1, 14)] + [f"C{number}" for number in range(1, 27)]
    return {name: [part[place] for part in parts] for place, name in enumerate(names, 1)}


@pytest.mark.parametrize("rows", [3, ROWS])
@pytest.mark.parametrize("dense", ["BYTES", "INT64", "FP32"])
def test_columns_of_criteo(models: Models, rows: int, dense: str) -> None:
    made, model = models("criteo")
    lines = made.lines()[:rows]
    expected = scored(model, [text("lines", lines)])
    inputs = []
    for name, values in criteo_columns(lines).items():
        if name.startswith("C") or dense == "BYTES":
            inputs.append(text(name, values, [rows, 1] if name == "C3" else None))
        else:
            make = whole if dense == "INT64" else floats
            inputs.append(make(name, values))
    assert scored(model, inputs) == expected and len(set(expected)) > 2


def test_columns_of_csv_where_some_are_missing(models: Models) -> None:
    for kind in ("csv", "csv, described"):
        _, model = models(kind)
        expected = scored(model, [text("lines", ["n1,0,,7,d1,e01", "n2,0,0.5,,d2,e02"])])
        inputs = [
            text("c", ["n1", "n2"]),
            floats("a", [float("nan"), 0.5]),
            text("b", ["7", ""]),
            text("e", ["e01", "e02"]),
        ]
        d = text("d", ["d1", "d2"])
        inputs += [d] if kind == "csv" else []
        assert scored(model, inputs) == expected
        # A whole row of the log: the label and what was left out are no inputs, and no errors.
        inputs += [whole("label", [0, 1]), *([] if kind == "csv" else [d])]
        assert scored(model, inputs) == expected


def test_what_training_has_left_out_alone_is_no_example(models: Models) -> None:
    _, model = models("csv, described")
    made = Inputs(model, 9)
    with pytest.raises(Refusal, match="input 'd': the model has no such column"):
        made.batch_of([text("d", ["d1"])], {})
    with pytest.raises(Refusal, match="input 'label': the model has no such column"):
        made.batch_of_values({"label": [1]})
    with pytest.raises(Refusal, match="input 'dd': the model has no such column"):
        made.batch_of_values({"d": ["d1"], "dd": ["d1"]})


def test_bags_are_of_one_length_or_ragged(models: Models) -> None:
    made, model = models("parquet")
    table = pq.read_table(made.log).slice(0, ROWS)
    columns = {name: table[name] for name in ("price", "shop", "seen")}
    expected = model.predict(table.combine_chunks().to_batches()[0]).tolist()
    bags = columns["seen"].to_pylist()
    price = of_values("price", "FP64", [ROWS], columns["price"].to_pylist())
    shop = text("shop", columns["shop"].to_pylist())
    flat = whole("seen", [key for bag in bags for key in bag])
    lengths = of_values("seen.lengths", "INT32", [ROWS], [len(bag) for bag in bags])
    assert scored(model, [price, shop, flat, lengths]) == expected
    # Two keys an example.
    pairs = whole("seen", range(2 * ROWS), [ROWS, 2])
    other = {**{name: column.to_pylist() for name, column in columns.items()}}
    other["seen"] = [[2 * row, 2 * row + 1] for row in range(ROWS)]
    assert scored(model, [price, shop, pairs]) == model.predict(other).tolist()


def test_indices_have_values(models: Models) -> None:
    made, model = models("libffm")
    lines = made.lines()[:ROWS]
    expected = scored(model, [text("lines", lines)])
    parts = [[token.split(":") for token in line.split()[1:]] for line in lines]
    user = whole("user", [part[0][1] for part in parts])
    ads = whole("ad", [token[1] for part in parts for token in part[1:]], [ROWS, 2])
    weights = floats("ad.weights", [token[2] for part in parts for token in part[1:]], [ROWS, 2])
    assert scored(model, [user, ads, weights]) == expected
    ragged = whole("ad", np.asarray(ads.elements))
    lengths = whole("ad.lengths", [2] * ROWS)
    flat = floats("ad.weights", np.asarray(weights.elements))
    assert scored(model, [user, ragged, lengths, flat]) == expected
    assert scored(model, [user, ads]) != expected  # each is 1 where none is given


def keys_of(batch: Batch, table: str, features: int) -> tuple[Any, Any]:
    """(lengths [B, F], keys) of a batch, example by example, feature by feature."""
    ids = batch.features[table]
    rows = len(batch)
    ends = ids.offsets.tolist()
    bags = [ids.keys_L[a:b].tolist() for a, b in zip(ends, ends[1:], strict=False)]  # noqa: RUF007
    ordered = [bags[feature * rows + row] for row in range(rows) for feature in range(features)]
    lengths = np.array([len(bag) for bag in ordered]).reshape(rows, features)
    return lengths, [key for bag in ordered for key in bag]


@pytest.mark.parametrize("kind", ["criteo", "parquet", "libffm"])
def test_keys_are_what_raw_values_become(models: Models, kind: str) -> None:
    made, model = models(kind)
    (batch,) = model.open_reader([made.log], batch_size=4096)
    expected = model.predict(batch).tolist()
    (table,) = model.features
    width = len(model.features[table])
    lengths, keys = keys_of(batch, table, width)
    rows, num_dense = len(batch), batch.dense.shape[1]
    inputs = []
    if kind == "criteo":
        unsigned = [key % 2**64 for key in keys]
        inputs.append(of_values(f"{table}.keys", "UINT64", [rows, width], unsigned))
    else:
        inputs.append(whole(f"{table}.keys", keys))
        flat = lengths.reshape(-1)
        inputs.append(whole(f"{table}.lengths", flat, [rows, width]))
    if num_dense:
        inputs.append(floats("dense", batch.dense.reshape(-1), [rows, num_dense]))
    if kind == "libffm":
        ids = batch.features[table]
        assert ids.weights_L is not None
        # The weights in the order of the keys, by way of a batch whose keys are their places.
        places = torch.arange(len(ids.keys_L))
        placed = Batch({table: hps.Ids(places, ids.offsets)}, batch.dense, batch.labels)
        order = keys_of(placed, table, width)[1]
        inputs.append(floats(f"{table}.weights", ids.weights_L[order]))
    made_batch = Inputs(model, 4096).batch_of(inputs, {})
    assert torch.equal(made_batch.features[table].keys_L, batch.features[table].keys_L)
    assert torch.equal(made_batch.features[table].offsets, batch.features[table].offsets)
    assert model.predict(made_batch).tolist() == expected


C1 = [text(f"C{number}", ["x", "y"]) for number in range(2, 27)]
DENSE = [whole(f"I{number}", [1, 2]) for number in range(1, 14)]
KEYS = whole("features.keys", range(52), [2, 26])
REFUSED = [
    ("criteo", [], {}, "1 to 4096 inputs"),
    ("criteo", [text("C1", ["x"]), text("C1", ["x"])], {}, "each name once"),
    ("criteo", [text("nix", ["x"])], {}, "input 'nix': the model has no such column; it has dense"),
    ("criteo", [*C1, *DENSE], {}, r"columns \['C1'\] are missing"),
    ("criteo", [*C1, *DENSE, text("C1", ["x"])], {}, "one number of examples, not {.*'C1': 1"),
    ("criteo", [*C1, *DENSE, text("C1", ["x", "y"]), text("z", ["x"])], {}, "input 'z'"),
    ("criteo", [*C1, *DENSE[1:], text("C1", ["x", "y"]), text("I1", ["a", "2"])], {}, "I1.*'a'"),
    ("criteo", [text("lines", ["x"]), text("C1", ["x"])], {}, "input 'C1' beside 'lines'"),
    ("criteo", [whole("lines", [1])], {}, r"'lines' is INT64 \[1\]; it is BYTES \[B\]"),
    ("criteo", [text("lines", ["x", "y"], [1, 2])], {}, r"BYTES \[1, 2\]; it is BYTES \[B\]"),
    ("criteo", [text("lines", [], [0])], {}, "1 to 9 examples, and this one 0"),
    ("criteo", [text("lines", ["x"] * 10)], {}, "1 to 9 examples, and this one 10"),
    ("criteo", [text("lines", ["x"])], {}, "input 'lines': line 1"),
    ("criteo", [of_values("C1", "BOOL", [1], [True])], {}, "'C1' is BOOL; give text or numbers"),
    ("criteo", [KEYS], {}, r"input 'dense' is missing; it is FP32 \[B, 13\]"),
    ("criteo", [KEYS, floats("dense", [1] * 26, [13, 2])], {}, r"\[13, 2\]; it is FP32 \[2, 13\]"),
    ("criteo", [KEYS, floats("dense", [np.inf] * 26, [2, 13])], {}, "'dense' holds .* not finite"),
    ("criteo", [KEYS, text("C1", ["x", "y"])], {}, "input 'C1': with keys a request has"),
    ("criteo", [whole("features.keys", range(3))], {}, r"shape \[3\]; give \[B, 26\]"),
    ("criteo", [floats("features.keys", range(26), [1, 26])], {}, "not INT64 or UINT64"),
    (
        "criteo",
        [whole("features.keys", range(3)), whole("features.lengths", [1, 1])],
        {},
        r"'features.lengths' has shape \[2\]; it is \[B, 26\]",
    ),
    (
        "criteo",
        [whole("features.keys", range(3)), whole("features.lengths", [1] * 26, [1, 26])],
        {},
        "lengths are at least 0 and have the sum 3",
    ),
    ("parquet", [whole("seen", [1, 2]), floats("seen.lengths", [2])], {}, "lengths are INT32"),
    ("parquet", [whole("seen", [1, 2]), whole("seen.lengths", [3, -1])], {}, "the sum 2"),
    ("parquet", [whole("seen", [1, 2]), whole("seen.lengths", [2**62] * 4)], {}, "the sum 2"),
    ("parquet", [whole("seen.lengths", [1])], {}, "input 'seen.lengths'"),
    ("libffm", [whole("ad", [1, 2]), floats("ad.weights", [1])], {}, "a number for each value"),
    ("libffm", [whole("ad", [1]), floats("ad.weights", [np.inf]), whole("user", [1])], {}, "ad"),
]


@pytest.mark.parametrize(("kind", "inputs", "parameters", "says"), REFUSED)
def test_what_makes_no_batch_is_refused_by_name(
    models: Models, kind: str, inputs: list[Tensor], parameters: dict[str, Any], says: str
) -> None:
    _, model = models(kind)
    with pytest.raises((Refusal, hps.ConfigError, hps.errors.DataError), match=says):
        Inputs(model, 9).batch_of(inputs, parameters)


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "says"),
    [
        ("INT64", [2], b"1234567", r"has 7 bytes; \[2\] of INT64 has 16"),
        ("BF16", [1], b"12", "datatype 'BF16' is not one of"),
        ("INT64", [], b"", r"has shape \[\]; give \[B\] or \[B, n\]"),
        ("INT64", [1, 1, 1], b"12345678", "give"),
        ("INT64", [-1], b"", "no tensor has that many"),
        ("INT64", [2**40, 2**40], b"", "no tensor has that many"),
        ("BYTES", [2], b"\2\0\0\0ab\3\0\0\0ab", "element 1 does not end within its bytes"),
        ("BYTES", [2], b"\2\0\0\0ab\3", "element 1 does not end"),
        ("BYTES", [2], b"\2\0\0\0ab", "has 1 elements; its shape has 2"),
        ("BYTES", [1], b"\xff\xff\xff\xffab", "element 0 does not end"),
        ("BYTES", [1], b"", "has 0 elements; its shape has 1"),
    ],
)
def test_bytes_that_are_no_tensor_are_refused(
    datatype: str, shape: list[int], data: bytes, says: str
) -> None:
    with pytest.raises(Refusal, match=says):
        of_raw("x", datatype, shape, data)


@pytest.mark.parametrize(
    ("datatype", "values", "says"),
    [
        ("INT64", [1], "has 1 values; its shape"),
        ("INT64", [1, "2"], "'2' is no INT64"),
        ("INT64", [1, True], "True is no INT64"),
        ("INT64", [1, 2**63], "beyond what INT64 holds"),
        ("UINT8", [1, -1], "beyond what UINT8 holds"),
        ("FP32", [1.5, None], "None is no FP32"),
        ("BOOL", [1, 0], "1 is no BOOL"),
        ("BYTES", ["a", 7], "7 is no text"),
    ],
)
def test_values_that_are_no_tensor_are_refused(datatype: str, values: Any, says: str) -> None:
    with pytest.raises(Refusal, match=says):
        of_values("x", datatype, [2], values)


@pytest.mark.parametrize("texts", [[b"a\0", b"b\0"], [b"", b""], [b"a", b"bc"], [b"abc"], []])
def test_texts_are_read_as_they_were_written(texts: list[bytes]) -> None:
    data = b"".join(len(one).to_bytes(4, "little") + one for one in texts)
    assert of_raw("x", "BYTES", [len(texts)], data).elements == texts


def test_bytes_that_are_no_text_are_values_all_the_same(models: Models) -> None:
    _, model = models("csv")
    line = b"\xff,0,0.5,7,d1,e1"
    data = len(line).to_bytes(4, "little") + line
    expected = scored(model, [of_raw("lines", "BYTES", [1], data)])
    inputs = [of_raw("c", "BYTES", [1], b"\1\0\0\0\xff"), floats("a", [0.5]), whole("b", [7])]
    inputs += [text("d", ["d1"]), text("e", ["e1"])]
    assert scored(model, inputs) == expected
