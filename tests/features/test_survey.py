"""`hps features`: what it says of a log is true, and unedited it changes nothing.

Above it: pytest. Below it: hps/features/survey.py, hps/cli/features.py.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hps
from hps.cli.main import main
from hps.features.survey import LEAK, MISSING_LEAK, UNIQUE, survey
from hps.reader import ReaderConfig
from hps.train import TrainOptions, train
from tests.logs import write_criteo

SMALL = {"dim": 2, "hidden": (4,), "batch_size": 64, "dram": "8MiB", "torch_threads": 1, "depth": 0}
FLAGS: dict[str, list[str]] = {
    "criteo": [],
    "parquet": ["--label", "click", "--ignore", "at", "--dense-log"],
    "csv": ["--label", "click", "--dense-columns", "price", "age"],
    "libsvm": ["--hash-keys", "--shared-vocabulary"],
    "libffm": [],
    "slots": ["--dense-log"],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "parquet": {"label": "click", "ignore": ["at"], "dense_transform": "signed_log1p"},
    "csv": {"label": "click", "dense_columns": ["price", "age"]},
    "libsvm": {"hash_keys": True, "shared_vocabulary": True},
    "slots": {"dense_transform": "signed_log1p"},
}


def write(folder: Path, kind: str) -> Path:
    random = np.random.default_rng(0)
    log = folder / f"log.{kind}"
    keys = random.integers(0, 50, (300, 4)).tolist()
    if kind == "criteo":
        return write_criteo(log, 300)
    if kind == "parquet":
        table = {
            "click": random.integers(0, 2, 300),
            "app": [str(row[0]) if row[0] else None for row in keys],
            "seen it": [row[: row[1] % 4] for row in keys],
            "at": pa.array([0] * 300, pa.timestamp("s")),
            "price": [None if row[2] < 5 else row[2] / 7 for row in keys],
        }
        pq.write_table(pa.table(table), log)
        return log
    lines = {
        "csv": lambda row: f"{row[0] % 2},{row[1]},{row[2] / 8},v{row[3]}",
        "libsvm": lambda row: f"{row[0] % 2} {row[1]}:1 {row[2]}:2",
        "libffm": lambda row: f"{row[0] % 2} a:{row[1]}:1 b:{row[2]}:2 a:{row[3]}:1",
        "slots": lambda row: f"click:{row[0] % 2} dense_feature:{row[1] / 3} 7:{row[2]}",
    }[kind]
    head = "click,age,price,app\n" if kind == "csv" else ""
    log.write_text(head + "".join(f"{lines(row)}\n" for row in keys))
    return log


@pytest.mark.parametrize("kind", FLAGS)
def test_a_file_that_nobody_edits_changes_no_bit(tmp_path: Path, kind: str) -> None:
    log, file = write(tmp_path, kind), tmp_path / "features.toml"
    flags = ["--format", kind, *FLAGS[kind]]
    assert main(["features", str(log), "--out", str(file), *flags]) == 0
    options = {**SMALL, "data": [log], "test": [log], "format": kind, **OPTIONS.get(kind, {})}
    plain = train(TrainOptions(store=tmp_path / "plain", **options))
    described = train(TrainOptions(store=tmp_path / "described", features=file, **options))
    assert plain["digests"] == described["digests"]
    assert plain["test_logloss"] == described["test_logloss"]
    assert plain["columns"] == described["columns"]
    kinds = {column.name: column.kind for column in hps.Features.load(file).columns}
    expected = {"feature": "categorical"}
    for column in plain["columns"]:
        found = kinds[column["name"]]
        assert found in (expected.get(column["kind"], column["kind"]), "sequence"), column
    assert len(kinds) == len(plain["columns"])


def test_figures_are_those_of_the_first_examples(tmp_path: Path) -> None:
    log = tmp_path / "log.parquet"
    random = np.random.default_rng(1)
    label = random.integers(0, 2, 2000)
    told = [f"v{click}" for click in label]
    noise = random.integers(0, 2, 2000)
    table = {
        "label": [*label, *[0] * 100],
        "tells": [*told, *["late"] * 100],
        "noise": [*noise, *[9] * 100],
        "list": [*([[1, 2, 3], [], None, [4]] * 500), *[[7]] * 100],
        "x": pa.array([*(label * 2.0 - 1), *[50.0] * 100]),
        "holes": pa.array([*([1.0, 3.0, None, None] * 500), *[9.0] * 100]),
        "same": pa.array([0.1] * 2100),
    }
    pq.write_table(pa.table(table), log)
    found = survey(log, ReaderConfig(), 2000)
    assert (found.examples, found.clicks, found.format) == (2000, int(label.sum()), "parquet")
    figures = {column.name: column.figures for column in found.columns}
    kinds = {column.name: column.said["kind"] for column in found.columns}
    assert kinds == {
        "label": "label",
        "tells": "categorical",
        "noise": "categorical",
        "list": "sequence",
        "x": "dense",
        "holes": "dense",
        "same": "dense",
    }
    assert figures["tells"] == {"keys": 2, "missing": 0, "auc": 1.0}
    assert figures["noise"]["keys"] == 2 and abs(figures["noise"]["auc"] - 0.5) < 0.05
    assert figures["list"]["keys"] == 4 and figures["list"]["missing"] == 0.5
    assert figures["list"]["mean_length"] == 1.0
    assert figures["x"]["correlation"] == pytest.approx(1) and figures["x"]["max"] == 1
    holes = {"missing": 0.5, "mean": 2, "std": 1, "min": 1, "max": 3}
    assert {name: figures["holes"][name] for name in holes} == holes
    assert "correlation" not in figures["same"]
    assert figures["x"]["auc"] == 1 and found.leaks == ["tells", "x"]
    text = found.to_toml()
    assert f"# 2 distinct keys, 0.0% missing, AUC alone 1.000\n# {LEAK}\n" in text
    assert text.count(LEAK) == 2
    assert "# 50.0% missing, mean 2, standard deviation 1, from 1 to 3, AUC alone" in text
    assert len(hps.Features.from_toml(text).columns) == 7


def test_numbers_of_criteo_are_told_as_the_log_has_them(tmp_path: Path) -> None:
    log = tmp_path / "log"
    numbers = ["0", "100", "", "-3"]
    lines = (
        f"{row % 2}\t{numbers[row % 4]}" + "\t7" * 12 + f"\t{'ab'[row % 2] * (row % 4 > 0)}" * 26
        for row in range(40)
    )
    log.write_text("".join(f"{line}\n" for line in lines))
    found = {column.name: column for column in survey(log, ReaderConfig()).columns}
    assert found["I1"].said == {"kind": "dense", "log": True}
    told = found["I1"].figures
    assert (told["min"], told["max"], told["missing"]) == (-3, 100, 0.25)
    assert told["mean"] == pytest.approx(97 / 3)
    assert found["C1"].figures["missing"] == 0.25 and found["C1"].figures["keys"] == 3


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, file, out = write(tmp_path, "csv"), tmp_path / "features.toml", tmp_path / "out.json"
    words = ["features", str(log), "--label", "click", "--examples", "100"]
    assert main([*words, "--out", str(file), "--json", str(out)]) == 0
    assert "4 columns of" in capsys.readouterr().out
    figures = json.loads(out.read_text())
    assert figures["examples"] == 100 and len(figures["columns"]) == 4
    file.write_text(f"{file.read_text()}# mine\n")
    assert main([*words, "--out", str(file)]) == 1
    assert "it exists, and may have been edited" in capsys.readouterr().err
    assert file.read_text().endswith("# mine\n")
    assert main([*words, "--out", "-"]) == 0
    assert capsys.readouterr().out + "# mine\n" == file.read_text()
    assert main([*words, "--out", "-", "--json", "-"]) == 1
    assert "both take standard output" in capsys.readouterr().err
    assert main([*words, "--out", str(tmp_path / "no" / "file")]) == 1
    assert "--out" in capsys.readouterr().err


def test_columns_of_which_nothing_is_made_are_ignored_with_the_reason(tmp_path: Path) -> None:
    log, file = tmp_path / "log.parquet", tmp_path / "features.toml"
    table = {
        "label": [row % 2 for row in range(60)],
        "at": pa.array([0] * 60, pa.timestamp("s")),
        "app": [row % 7 for row in range(60)],
        "nested": pa.array([{"a": 1}] * 60),
        "day": pa.array([0] * 60, pa.date32()),
    }
    pq.write_table(pa.table(table), log)
    assert main(["features", str(log), "--out", str(file), "--ignore", "day"]) == 0
    text = file.read_text()
    told = "# of a type that is not read, {}: write it as whole numbers, floats or text to use it\n"
    ignored = 'kind = "ignored"\n'
    assert f"[columns.at]\n{told.format('timestamp[ms]')}{ignored}" in text
    assert f"[columns.nested]\n{told.format('struct<a: int64>')}{ignored}" in text
    assert f"[columns.day]\n{ignored}" in text
    described = train(TrainOptions(data=[log], store=tmp_path / "store", features=file, **SMALL))
    kinds = {column["name"]: column["kind"] for column in described["columns"]}
    assert kinds["at"] == kinds["nested"] == kinds["day"] == "ignored"


def test_numbers_that_begin_with_zero_are_pointed_out(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    rows = [f"{row % 2},{row:05d},{row},0.{row}\n" for row in range(60)]
    log.write_text("".join(["label,zip,age,x\n", *rows]))
    found = survey(log, ReaderConfig())
    notes = {column.name: column.note for column in found.columns}
    assert "some numbers begin with 0: read as text" in notes.pop("zip")
    assert set(notes.values()) == {""}
    assert "[columns.zip]\n# 60 distinct keys, 0.0% missing" in found.to_toml()
    assert "\n# some numbers begin with 0: read as text" in found.to_toml()


def test_whole_numbers_that_end_in_point_zero_are_pointed_out(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    rows = [f"{row % 2},{row}.0,{row}.5,{row}\n" for row in range(60)]
    log.write_text("".join(["label,user,price,age\n", *rows, "1,,,\n"]))
    found = survey(log, ReaderConfig())
    warnings = {column.name: column.warning for column in found.columns}
    assert "as pandas writes whole numbers beside missing ones" in warnings.pop("user")
    assert "pandas" not in "".join(warnings.values())


def test_bad_lines_and_empty_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write(tmp_path, "csv")
    log.write_text(f"{log.read_text()}7,1,2,v\n")
    words = ["features", str(log), "--label", "click", "--out", "-"]
    assert main(words) == 1
    assert "label 7.0" in capsys.readouterr().err
    assert main([*words, "--on-error", "skip"]) == 0
    assert "first 300 examples" in capsys.readouterr().out
    empty = tmp_path / "empty.csv"
    empty.write_text("click,a\n")
    assert main(["features", str(empty), "--label", "click", "--out", "-"]) == 1
    assert "no example to look at" in capsys.readouterr().err


def test_what_is_there_for_clicks_alone_and_numbers_of_lines_are_pointed_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An id that only clicks have tells the label, though none of its keys comes again."""
    random = np.random.default_rng(5)
    count = 1200
    label = random.random(count) < 0.3
    table = {
        "label": label,
        "order": [f"o{row}" if click else None for row, click in enumerate(label)],
        "paid": [float(row % 7) if click else None for row, click in enumerate(label)],
        "line": np.arange(count),
        "query": [f"q{row}" if row % 3 else f"q{row % 5}" for row in range(count)],
        "seldom": [7 if draw < 0.1 else None for draw in random.random(count)],
    }
    log, file = tmp_path / "log.parquet", tmp_path / "features.toml"
    pq.write_table(pa.table(table), log)
    found = survey(log, ReaderConfig())
    assert found.warnings() == {
        "order": MISSING_LEAK,
        "paid": MISSING_LEAK,
        "line": UNIQUE,
    }
    figures = {column.name: column.figures for column in found.columns}
    assert figures["order"]["missing_auc"] == figures["paid"]["missing_auc"] == 1
    assert abs(figures["seldom"]["missing_auc"] - 0.5) < 0.05
    assert "missing_auc" not in figures["line"]
    assert main(["features", str(log), "--out", str(file)]) == 0
    said = capsys.readouterr().err
    assert f"column 'order': {MISSING_LEAK}\n" in said and f"column 'line': {UNIQUE}\n" in said
    assert f"# {UNIQUE}\nkind" in file.read_text()
    assert survey(log, ReaderConfig(), 900).warnings() == {}  # too few to say
