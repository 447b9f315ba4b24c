"""By which rule raw values became keys and dense values: kept, compared, refused by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reader_twin import LINES, key_twin, tables_of

import hps
from hps.reader import ReaderConfig, open_reader
from hps.reader.column_use import format_columns

TABLES = [hps.TableConfig(name="t0", dim=2)]


def write_parquet(path: Path, **columns: Any) -> Path:
    same = [[3, 5], [3, 5], [3, 5]]
    table = {"label": [0, 1], **dict(zip(("app", "os", "hours"), same, strict=True)), **columns}
    pq.write_table(pa.table(table), path)
    return path


def open_log(path: Path, tables: Any = TABLES, **options: Any) -> Any:
    return open_reader(path, tables=tables, config=ReaderConfig(**options))


def store_position(path: Path, state: dict[str, Any], model: Any = None) -> None:
    """A store whose newest checkpoint holds a position, as a loop of one's own leaves it."""
    with hps.ParameterServer(hps.Config(path=path, tables=TABLES)) as server:
        server.push("t0", np.array([1]), np.ones((1, 2), np.float32))
        server.checkpoint(reader=state, model=model)
        server.push(
            "t0", np.array([1]), np.ones((1, 2), np.float32)
        )  # a newer one without a position is left on closing


def without(state: dict[str, Any], *names: str) -> dict[str, Any]:
    return {
        name: value for name, value in json.loads(json.dumps(state)).items() if name not in names
    }


def test_equal_integers_of_different_columns_are_different_keys(tmp_path: Path) -> None:
    log = write_parquet(tmp_path / "log", hours=[[1, 3], [3]])
    keys = next(open_log(log)).features["t0"].keys_L.tolist()
    assert len(set(keys)) == 6
    assert [key % 2**64 for key in keys[:2]] == [key_twin("app", "3"), key_twin("app", "5")]
    assert [key % 2**64 for key in keys[4:]] == [key_twin("hours", text) for text in "133"]
    raw = next(open_log(log, hash_keys=False)).features["t0"].keys_L.tolist()
    assert raw == [3, 5, 3, 5, 1, 3, 3]
    shared = next(open_log(log, tables_of(None, shared=True))).features["t0"].keys_L.tolist()
    assert shared[0] == shared[2] == shared[5] and len(set(shared)) == 3


def test_other_formats_take_numbers_as_they_did(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for kind, rule in (
        ("libsvm", "raw"),
        ("libffm", "raw"),
        ("slots", "raw"),
        ("criteo", "hashed"),
    ):
        log.write_text("\n".join(LINES[kind]))
        assert open_log(log, format=kind).state_dict()["keys"] == rule
    with pytest.raises(hps.ConfigError, match=r"hash_keys=False \(--raw-keys\): .* criteo"):
        open_log(log, format="criteo", hash_keys=False)


def test_a_position_of_another_rule_is_refused_by_name(tmp_path: Path) -> None:
    log = write_parquet(tmp_path / "log")
    raw = open_log(log, hash_keys=False).state_dict()
    reader = open_log(log)
    with pytest.raises(hps.ConfigError, match=r"says 'raw'.* has 'hashed'.*hash_keys=False"):
        reader.load_state_dict(raw)
    before = without(raw, "keys", "dense_transform", "dense_columns")
    with pytest.raises(hps.ConfigError, match=r"unless hash_keys was given.*hash_keys=False"):
        reader.load_state_dict(before)
    for state in (raw, before):
        open_log(log, hash_keys=False).load_state_dict(state)
    open_log(log, hash_keys=True).load_state_dict(before)


@pytest.mark.parametrize("version", ["now", "before", "before, with a recipe"])
def test_a_reader_over_a_store_of_another_rule_is_refused_unless_it_says_its_own(
    tmp_path: Path, version: str
) -> None:
    log = write_parquet(tmp_path / "log")
    state, model = open_log(log, hash_keys=False).state_dict(), None
    if version != "now":
        state = without(state, "keys", "dense_transform", "dense_columns")
    if version == "before, with a recipe":
        model = {"recipe": {"reader": {"format": "parquet", "hash_keys": False}}}
    store_position(tmp_path / "store", state, model)
    with hps.ParameterServer(hps.Config(path=tmp_path / "store", tables=TABLES)) as server:
        with pytest.raises(hps.ConfigError, match=r"hash_keys=False \(--raw-keys\)"):
            hps.Pipeline(open_log(log), server)
        with pytest.raises(hps.ConfigError, match=r"hash_keys=False \(--raw-keys\)"):
            open_reader(log, tables=TABLES, config=ReaderConfig(), server=server)
        for said in (False, True):
            hps.Pipeline(open_log(log, hash_keys=said), server)
        other = [hps.TableConfig(name="other", dim=2)]
        hps.Pipeline(open_log(log, other), server)  # these rows are nobody's yet
        hps.Pipeline([], server)


def test_a_store_of_the_same_rule_is_read_without_a_word(tmp_path: Path) -> None:
    log = write_parquet(tmp_path / "log")
    store_position(tmp_path / "store", open_log(log).state_dict())
    hashed = {"recipe": {"reader": {"format": "parquet", "hash_keys": True}}}
    store_position(tmp_path / "old", without(open_log(log).state_dict(), "keys"), hashed)
    for store in ("store", "old"):
        with hps.ParameterServer(hps.Config(path=tmp_path / store, tables=TABLES)) as server:
            hps.Pipeline(open_log(log), server)


def test_dense_values_go_on_as_the_position_has_them(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(LINES["criteo"]))
    now = open_log(log, format="criteo", batch_size=5)
    first, second = next(now), next(now)
    assert (second.dense == -0.5).any()
    before = without(first.position, "keys", "dense_transform")
    old = open_log(log, format="criteo", batch_size=5)
    old.load_state_dict(before)
    again = next(old)
    assert again.dense.min() == 0 and again.position["dense_transform"] == "log1p"
    with pytest.raises(hps.ConfigError, match="read as 'log1p', this reader has"):
        said = open_log(log, format="criteo", dense_transform="signed_log1p")
        said.load_state_dict(before)
    store_position(tmp_path / "store", before)
    with hps.ParameterServer(hps.Config(path=tmp_path / "store", tables=TABLES)) as server:
        with pytest.raises(hps.ConfigError, match=r"dense_transform='log1p'\) goes on as before"):
            hps.Pipeline(open_log(log, format="criteo"), server)
        hps.Pipeline(open_log(log, format="criteo", dense_transform="log1p"), server)
        hps.Pipeline(old, server)


def test_columns_that_nothing_can_be_made_of_are_refused_by_name(tmp_path: Path) -> None:
    odd = {
        "at": pa.array([0, 1], pa.timestamp("s")),
        "day": pa.array([0, 1], pa.date32()),
        "took": pa.array([0, 1], pa.duration("s")),
        "nested": pa.array([{"a": 1}, {"a": 2}]),
        "vector": pa.array([[0.5], [1.5]]),
        "nothing": pa.array([None, None]),
    }
    log = write_parquet(tmp_path / "log", **odd)
    for name in odd:
        others = [other for other in odd if other != name]
        with pytest.raises(hps.ConfigError, match=f"'{name}' .*--ignore {name}\\)"):
            open_log(log, ignore=others)
    reader = open_log(log, ignore=list(odd))
    assert reader.features == {"t0": ("app", "os", "hours")}
    assert open_log(log, tables_of(["os"])).features == {"t0": ("os",)}
    with pytest.raises(hps.ConfigError, match=r"--ignore\): .* has no columns \['ad'\]"):
        open_log(log, ignore=["ad"])
    with pytest.raises(hps.ConfigError, match="names 'label', the column of labels"):
        open_log(log, ignore=["label"])


def test_every_column_says_what_is_made_of_it(tmp_path: Path) -> None:
    log = write_parquet(
        tmp_path / "log",
        paid=[True, False],
        price=[0.5, None],
        city=["a", "b"],
        at=pa.array([0, 1], pa.timestamp("s")),
    )
    tables = tables_of(["app", "paid", "city"])
    uses = open_log(log, tables, hash_keys=False).columns
    told = {use.name: (use.kind, use.why, use.table) for use in uses}
    raw = ("feature", "numbers are keys as they stand", "t0")
    assert told == {
        "label": ("label", "0, 1 or -1", None),
        "app": raw,
        "paid": raw,
        "city": ("feature", "hashed with the feature", "t0"),
        "price": ("dense", "as it stands; null is 0", None),
        "os": ("ignored", "no table has this feature", None),
        "hours": ("ignored", "no table has this feature", None),
        "at": ("ignored", "of a type that is not read", None),
    }
    assert format_columns(uses)[-1] == (
        "columns: 1 ignored (of a type that is not read): at (timestamp[ms])"
    )
    dense = next(open_log(log, tables, dense_transform="signed_log1p")).dense[:, 0].tolist()
    assert dense == pytest.approx([0.4054651, -0.5])  # null is told from 0


def test_columns_of_text_formats_are_told_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    kinds = {}
    for kind in ("criteo", "libsvm", "libffm", "slots"):
        log.write_text("\n".join(LINES[kind]))
        uses = open_log(log, format=kind).columns
        kinds[kind] = [
            sum(use.kind == one for use in uses) for one in ("label", "dense", "feature")
        ]
    assert kinds == {
        "criteo": [1, 13, 26],
        "libsvm": [1, 0, 1],
        "libffm": [1, 0, 4],
        "slots": [1, 0, 5],
    }
    log.write_text("\n".join(LINES["criteo"]))
    uses = open_log(log, tables_of(["C2"]), format="criteo").columns
    assert sum(use.kind == "ignored" for use in uses) == 25


def test_dense_columns_are_read_by_name_in_their_order(tmp_path: Path) -> None:
    first = write_parquet(tmp_path / "first", a=[1.0, 2.0], b=[3.0, 4.0])
    other = write_parquet(tmp_path / "other", b=[3.0, 4.0], a=[1.0, 2.0], c=[5.0, 6.0])
    names = open_log(first).dense_columns
    assert names == ["a", "b"]
    reader = open_log(other, tables_of(["app"]), dense_columns=names)
    assert next(reader).dense.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    with pytest.raises(hps.ConfigError, match=r"no columns of numbers \['z'\]"):
        open_log(first, dense_columns=["a", "z"])
    counts = open_log(first, dense_columns=["a", "app"])  # a count that is to be a number
    assert next(counts).dense.tolist() == [[1.0, 3.0], [2.0, 5.0]]
    assert counts.features == {"t0": ("os", "hours")}
