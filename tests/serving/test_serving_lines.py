"""The log's own lines, sent to the server, have the scores of `hps predict`, bit for bit.

Above it: pytest. Below it: hps.serving.server in this process; `hps predict`.
"""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

import hps
from hps.service.messages.status import Refusal
from hps.serving.lines import Lines
from tests.serving.conftest import Models
from tests.serving.logs_of_kinds import KINDS, ROWS
from tests.serving.serving_lab import bytes_input, predicted, serving

TEXT = [kind for kind in KINDS if kind != "parquet"]


@pytest.mark.parametrize("kind", TEXT)
def test_the_logs_own_lines_have_the_scores_of_predict(
    models: Models, tmp_path: Path, kind: str
) -> None:
    made, model = models(kind)
    expected = predicted(made.store, made.log, tmp_path / "scores.npy")
    with serving(model) as local:
        status, reply = local.infer(bytes_input("lines", made.lines()))
        assert status == 200, reply
        (output,) = reply["outputs"]
        assert len(expected) == ROWS and output["data"] == expected
        assert (output["name"], output["datatype"]) == ("probability", "FP32")
        assert output["shape"] == [ROWS] and reply["model_version"] == "final"
        assert len(set(expected)) > 10  # the features tell
        few = bytes_input("lines", [f"{line}\r\n" for line in made.lines()[:3]], [3, 1])
        _, reply = local.infer(few)
        assert np.allclose(reply["outputs"][0]["data"], expected[:3], rtol=1e-5)


BAD = [
    ("criteo", "1\t2", "line 2: .*columns"),
    ("criteo", "", "line 2 is empty"),
    ("criteo", " \t ", "line 2 is empty"),
    ("criteo", "{0}\n{0}", "line 2 holds a line end"),
    ("csv", "n1,0,0.5", r"line 2: 3 columns, and the header has 6: \['c', 'label'"),
    ("csv", "n1,0,cheap,7,d1,e1", r"row 2.*column 'a' holds 'cheap', which is no number"),
    ("csv", 'n1,0,0.5,7,d1,"e1', "line 2: a quote is opened and never closed"),
    ("csv", "\xff,0,0.5,7,d1,e1", ""),
    ("libsvm", "0 1:x", "line 2"),
    ("libsvm", "# nothing", "line 2|hold 1 examples"),
    ("libffm", "0 1:1", "line 2"),
    ("slots", "0:1 x", "line 2"),
]


@pytest.mark.parametrize(("kind", "line", "says"), BAD)
def test_a_bad_line_is_named(models: Models, kind: str, line: str, says: str) -> None:
    made, model = models(kind)
    first = made.lines()[0]
    reader = Lines(model)
    if not says:  # any bytes are a value
        assert len(reader.batch_of([first, line.encode("latin-1")])) == 2
        return
    with pytest.raises((Refusal, hps.HpsError), match=says):
        reader.batch_of([first, line.format(first)])


def test_csv_may_come_with_a_header_of_its_own(models: Models) -> None:
    made, model = models("csv")
    with serving(model) as local:
        _, reply = local.infer(bytes_input("lines", made.lines()[:20]))
        expected = reply["outputs"][0]["data"]
        # The same values in another order of columns, another delimiter, without a label.
        names = made.log.read_text().splitlines()[0].split(",")
        rows = [dict(zip(names, row, strict=True)) for row in csv.reader(made.lines()[:20])]
        order = ["e", "a", "d", "b", "c"]
        lines = [";".join(row[name] for name in order) for row in rows]
        parameters = {"header": ";".join(order)}
        _, reply = local.infer(bytes_input("lines", lines), parameters=parameters)
        assert reply["outputs"][0]["data"] == expected
        for header, says in (
            ("e;a;d;b", "5 columns, and the header has 4"),
            ("e;a;d;b;x", r"columns \['c'\] are missing|'c'"),
            ("e;a;d;c;c", r"columns \['c'\] appear twice"),
            (7, "parameter 'header' is 7"),
        ):
            given = bytes_input("lines", lines)
            status, reply = local.infer(given, parameters={"header": header})
            assert status == 400
            assert re.search(says, reply["error"]), reply


def test_lines_of_a_log_without_lines_are_refused(models: Models) -> None:
    _, model = models("parquet")
    with pytest.raises(Refusal, match="trained on parquet, which has no lines; send its columns"):
        Lines(model).batch_of(["x"])
    _, criteo = models("criteo")
    with pytest.raises(Refusal, match="'header' is of csv; the model was trained on criteo"):
        Lines(criteo).batch_of(["x"], "a,b")


def test_a_model_of_an_earlier_version_asks_for_the_header(models: Models) -> None:
    made, model = models("csv")
    stored = dict(model.recipe.reader)
    header = model.recipe.reader.pop("header")
    try:
        assert header == {"columns": ["c", "label", "a", "b", "d", "e"], "delimiter": ","}
        with pytest.raises(Refusal, match=r"earlier version.*parameter 'header'"):
            Lines(model).batch_of(made.lines()[:1])
        assert len(Lines(model).batch_of(made.lines()[:1], "c,label,a,b,d,e")) == 1
    finally:
        model.recipe.reader.update(stored)
