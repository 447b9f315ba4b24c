"""Columns whose text holds several values: the keys of each part in every way a value is given,
and what is refused.

Above it: pytest. Below it: hps/features/, the readers, hps/train/few_rows.py.
"""

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hps
from hps.features import Features
from hps.features.survey import survey
from hps.reader import Reader, ReaderConfig, open_reader
from hps.reader.columns import split_values
from hps.train import TrainOptions, train
from hps.train.progress import Progress
from tests.features.test_vocabularies import bags, read

TEXTS = ["b|é|b", "", "7||a b|b", "x", "|"]
PARTS = [["b", "é", "b"], [], ["7", "a b", "b"], ["x"], []]
DIVIDED = '[columns.seen]\nkind = "sequence"\nseparator = "|"\n'
LABELS = [0, 1, 0, 1, 1]


def write_csv(path: Path, texts: list[str] = TEXTS) -> Path:
    lines = [f"{label},i,{text}\n" for label, text in zip(LABELS, texts, strict=True)]
    path.write_text("label,item,seen\n" + "".join(lines))
    return path


def write_parquet(path: Path, kind: pa.DataType) -> Path:
    texts = pa.array([*TEXTS[:-1], None]).cast(kind)
    columns = {"label": pa.array(LABELS), "item": pa.array(["i"] * 5), "seen": texts}
    pq.write_table(pa.table(columns), path)
    return path


def keys(reader: Reader) -> list[list[int]]:
    return [bag["seen"] for bag in bags(reader)]


EXPECTED = [[hps.key_of("seen", part) for part in parts] for parts in PARTS]


def test_each_part_of_a_csv_text_is_a_key(tmp_path: Path) -> None:
    assert keys(read(write_csv(tmp_path / "log.csv"), DIVIDED)) == EXPECTED


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_so_it_is_in_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    assert keys(read(write_parquet(tmp_path / "log.parquet", kind), DIVIDED)) == EXPECTED


def test_numbers_of_csv_are_texts_that_may_be_divided(tmp_path: Path) -> None:
    log = write_csv(tmp_path / "log.csv", ["1.5", "2", "3;4", "", "5"])
    found = keys(read(log, DIVIDED.replace("|", ";")))
    parts = [["1.5"], ["2"], ["3", "4"], [], ["5"]]
    assert found == [[hps.key_of("seen", part) for part in one] for one in parts]


def test_a_reader_divides_a_column_of_floats_too(tmp_path: Path) -> None:
    log = write_csv(tmp_path / "log.csv", ["1.5", "2.5", "3.5", "", "5.5"])
    tables = [hps.TableConfig(name="features", dim=4)]
    reader = open_reader(log, tables=tables, config=ReaderConfig(separators={"seen": "."}))
    assert keys(reader)[0] == [hps.key_of("seen", part) for part in ("1", "5")]


def test_a_separator_may_be_several_characters(tmp_path: Path) -> None:
    log = write_csv(tmp_path / "log.csv", ["a::b:c", "::", ":::d", "e::", "f"])
    parts = [["a", "b:c"], [], [":d"], ["e"], ["f"]]
    found = keys(read(log, DIVIDED.replace('"|"', '"::"')))
    assert found == [[hps.key_of("seen", part) for part in one] for one in parts]


def test_rules_of_sequences_hold_for_the_parts(tmp_path: Path) -> None:
    more = DIVIDED + 'max_length = 2\nkeep = "last"\nmissing = "key"\nvocabulary = "item"\n'
    found = keys(read(write_csv(tmp_path / "log.csv"), more))
    parts = [["é", "b"], [""], ["a b", "b"], ["x"], [""]]
    assert found == [[hps.key_of("item", part) for part in one] for one in parts]


def test_slices_and_lists_are_split_as_they_are() -> None:
    column = pa.array(["z|z", None, "a|b", "c"])
    assert split_values(column.slice(1), "|").to_pylist() == [[], ["a", "b"], ["c"]]
    assert split_values(column.slice(4), "|").to_pylist() == []
    lists = pa.array([["a|b"], None])
    assert split_values(lists, "|") is lists


def train_on(path: Path, store: Path, text: str | None) -> str:
    described = None if text is None else Features.from_toml(text)
    said = StringIO()
    options = TrainOptions(
        data=[path], store=store, model="lr", batch_size=64, dram="16MiB", features=described
    )
    train(options, Progress(0, said))
    return said.getvalue()


def write_many(path: Path) -> Path:
    random = np.random.default_rng(5)
    lines = []
    for row in range(400):
        seen = "|".join(f"v{value}" for value in random.integers(0, 12, row % 4))
        lines.append(f"{row % 2},i{row % 7},{seen}\n")
    path.write_text("label,item,seen\n" + "".join(lines))
    return path


def test_a_model_scores_text_and_lists_alike(tmp_path: Path) -> None:
    train_on(write_many(tmp_path / "log.csv"), tmp_path / "store", DIVIDED)
    texts = ["v1|v2", "", "v3||v3|new", "v4"]
    lists = [["v1", "v2"], [], ["v3", "v3", "new"], ["v4"]]
    with hps.Model.load(tmp_path / "store") as model:
        few = model.predict({"item": ["i1"] * 4, "seen": texts}).numpy()
        as_lists = model.predict({"item": ["i1"] * 4, "seen": lists}).numpy()
        many = model.predict({"item": ["i1"] * 400, "seen": texts * 100}).numpy()
        arrow = model.predict(pa.record_batch({"item": ["i1"] * 4, "seen": texts})).numpy()
        wrong = model.predict({"item": ["i1"] * 4, "seen": ["v1", "", "v3", "v4"]}).numpy()
    assert few.tolist() == as_lists.tolist() == arrow.tolist() == many[-4:].tolist()
    assert few[0] != wrong[0] and few[2] != wrong[2] and few[3] == wrong[3]


def test_text_that_looks_divided_is_pointed_out(tmp_path: Path) -> None:
    log = write_many(tmp_path / "log.csv")
    warning = "many texts of column 'seen' hold '|'"
    assert warning in train_on(log, tmp_path / "plain", None)
    assert warning not in train_on(log, tmp_path / "divided", DIVIDED)
    toml = survey(log, ReaderConfig()).to_toml()
    assert "separator = '|'" in toml and toml.count("separator") == 1


def test_what_is_described_as_a_sequence_is_pointed_out_once(tmp_path: Path) -> None:
    log = write_many(tmp_path / "log.csv")
    said = train_on(log, tmp_path / "store", '[columns.seen]\nkind = "sequence"\n')
    assert "column 'seen' is described as a sequence" in said and "many texts" not in said


def test_a_survey_warns_of_texts(tmp_path: Path) -> None:
    warnings = survey(write_many(tmp_path / "log.csv"), ReaderConfig()).warnings()
    assert list(warnings) == ["seen"] and "separator = '|'" in warnings["seen"]


def test_text_with_a_stray_bar_is_not(tmp_path: Path) -> None:
    stray = ["a|b", "b|a", "a|a|b", "b|b"]
    lines = [f"{row % 2},i{row},{stray[row] if row < 4 else f'c{row}'}\n" for row in range(400)]
    log = tmp_path / "log.csv"
    log.write_text("label,item,seen\n" + "".join(lines))
    assert "many texts" not in train_on(log, tmp_path / "store", None)


@pytest.mark.parametrize("time", ["", " 10:30", "T07:00:00Z"])
def test_dates_are_pointed_out(tmp_path: Path, time: str) -> None:
    lines = [f"{row % 2},2026-11-{row % 28 + 1:02}{time},{row % 5}-11-28\n" for row in range(400)]
    log = tmp_path / "log.csv"
    log.write_text("label,day,code\n" + "".join(lines))
    said = train_on(log, tmp_path / "store", None)
    assert "texts of column 'day' are dates" in said and "'code' are dates" not in said
    toml = survey(log, ReaderConfig()).to_toml()
    assert toml.count("# dates: later ones") == 1


def test_a_position_remembers_what_divides(tmp_path: Path) -> None:
    log = write_csv(tmp_path / "log.csv")
    state = read(log, DIVIDED, batch_size=2).state_dict()
    reader = read(log, DIVIDED, batch_size=2)
    reader.load_state_dict(state)
    plain = read(log, DIVIDED.replace("|", ";"), batch_size=2)
    with pytest.raises(hps.ConfigError, match=r"column 'seen' is divided by '\|'.* gives it ';'"):
        plain.load_state_dict(state)


def of_criteo(path: Path) -> Any:
    path.write_text("\t".join(["1"] + ["1"] * 13 + ["a"] * 26) + "\n")
    return read(path, '[columns.C1]\nkind = "sequence"\nseparator = "|"\n', format="criteo")


def of_lists(path: Path) -> Any:
    pq.write_table(pa.table({"label": [0, 1], "seen": [["a"], ["b"]]}), path)
    return read(path, DIVIDED)


def of_groups(path: Path) -> Any:
    return read(write_csv(path), DIVIDED, group="seen", format="csv")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (of_criteo, r"my.toml, line 3: columns.C1.separator: columns of parquet and csv have one"),
        (of_lists, r"my.toml, line 3: columns.seen.separator: .* only text is divided"),
        (of_groups, r"divides the values of 'seen', the column of groups"),
        (lambda path: read(write_csv(path), DIVIDED.replace('"|"', '""')), "1 to 16 characters"),
        (
            lambda path: read(write_csv(path), DIVIDED.replace("sequence", "categorical")),
            "it belongs to kind sequence",
        ),
        (
            lambda path: read(write_csv(path), DIVIDED, separators={"seen": ";"}, format="csv"),
            r"the config has .* leave one of the two out",
        ),
        (lambda path: ReaderConfig(format="csv", separators={"seen": ""}), "must be a dict"),
        (lambda path: ReaderConfig(format="slots", separators={"1": "|"}), "only parquet and csv"),
    ],
)
def test_wrong_uses_are_refused(tmp_path: Path, make: Callable[[Path], Any], message: str) -> None:
    with pytest.raises(hps.ConfigError, match=message):
        make(tmp_path / "log")
