"""Columns of one vocabulary and sequences with a target: their keys in every format, and what is
refused.

Above it: pytest. Below it: hps/features/, the readers, `hps.key_of`.
"""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hps
from hps.config import TableConfig
from hps.features import Column, Features
from hps.features.open import open_with_features
from hps.reader import Reader, ReaderConfig
from tests.features.feature_twin import bags_of

ITEMS = ["é", "b", "a b", "7"]
SEEN = [["b", "é", "b"], [], ["7", "a b", "b", "é"], ["x"]]


def read(log: Path, text: str, table: TableConfig | None = None, **config: Any) -> Reader:
    tables = [table or TableConfig(name="features", dim=4)]
    features = Features.from_toml(text, "my.toml")
    return open_with_features(log, tables=tables, config=ReaderConfig(**config), features=features)


def bags(reader: Reader) -> list[dict[str, list[int]]]:
    """Of each example of the log, by feature."""
    (names,) = reader.features.values()
    return [bag for batch in reader for bag in bags_of(batch, names)]


def write_lists(path: Path) -> Path:
    columns = {"label": [0, 1, 0, 1], "item": ITEMS, "other": ITEMS, "seen": SEEN}
    pq.write_table(pa.table(columns), path)
    return path


TARGET = '[columns.seen]\nkind = "sequence"\ntarget = "item"\n'


def test_a_sequence_has_the_keys_of_its_target(tmp_path: Path) -> None:
    found = bags(read(write_lists(tmp_path / "log.parquet"), TARGET))
    assert [bag["item"] for bag in found] == [[hps.key_of("item", one)] for one in ITEMS]
    assert [bag["other"] for bag in found] == [[hps.key_of("other", one)] for one in ITEMS]
    assert [bag["seen"] for bag in found] == [
        [hps.key_of("item", one) for one in seen] for seen in SEEN
    ]


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ('vocabulary = "item"', "item"),
        ('vocabulary = "anything: é"', "anything: é"),
        ('target = "item"\nvocabulary = "seen"', "seen"),
        ('target = "item"\nvocabulary = "other"', "other"),
        ('target = "item"\n[columns.item]\nkind = "categorical"\nvocabulary = "v"', "v"),
        ('target = "item"\n[columns.item]\nkind = "group"', "item"),
    ],
)
def test_a_vocabulary_is_the_name_that_values_are_hashed_with(
    tmp_path: Path, said: str, name: str
) -> None:
    reader = read(
        write_lists(tmp_path / "log.parquet"), f'[columns.seen]\nkind = "sequence"\n{said}\n'
    )
    assert [bag["seen"] for bag in bags(reader)] == [
        [hps.key_of(name, one) for one in seen] for seen in SEEN
    ]
    why = {use.name: use.why for use in reader.columns}
    is_own = name == "seen"
    assert why["seen"].startswith(
        "hashed with the feature" if is_own else f"hashed as values of {name!r}"
    )
    assert ("'item' attends to" in why["seen"]) == ("target" in said)


def test_cuts_folds_missing_values_and_crosses_go_with_a_vocabulary(tmp_path: Path) -> None:
    text = (
        TARGET
        + 'max_length = 2\nkeep = "last"\nhash_buckets = 100\nmissing = "key"\n'
        + '[columns.item]\nkind = "categorical"\nhash_buckets = 100\n'
        + '[crosses.both]\ncolumns = ["item", "seen"]\n'
    )
    found = bags(read(write_lists(tmp_path / "log.parquet"), text))

    def folded(value: str) -> int:
        return hps.key_of("item", hps.key_of("item", value) % 100)

    for bag, item, seen in zip(found, ITEMS, SEEN, strict=True):
        keys = [folded(one) for one in seen[-2:]] or [hps.key_of("item", "")]
        assert bag["item"] == [folded(item)] and bag["seen"] == keys
        pairs = [struct.pack("<2Q", folded(item), key) for key in keys]
        assert bag["both"] == [hps.key_of("both", pair) for pair in pairs]


def test_what_drops_empty_texts_knows_their_key(tmp_path: Path) -> None:
    columns = {"label": [0, 1], "item": ["a", "b"], "seen": [["", "a"], [""]]}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    found = bags(read(tmp_path / "log.parquet", TARGET + 'missing = "drop"\n'))
    assert [bag["seen"] for bag in found] == [[hps.key_of("item", "a")], []]


def of_slots(path: Path) -> None:
    path.write_text("label:1 item:7 seen:9 seen:7\nlabel:0 item:8\n")


def of_libffm(path: Path) -> None:
    path.write_text("1 item:7:1 seen:9:2.5 seen:7:1\n0 item:8:1\n")


def of_csv(path: Path) -> None:
    path.write_text("label,item,seen\n1,7,9\n0,8,\n")


def of_parquet(path: Path) -> None:
    seen = pa.array([[9, 7], None], pa.list_(pa.uint8()))
    pq.write_table(pa.table({"label": [1, 0], "item": [7, 8], "seen": seen}), path)


@pytest.mark.parametrize(
    ("write", "config"),
    [
        (of_slots, {"format": "slots", "hash_keys": True}),
        (of_slots, {"format": "slots"}),
        (of_libffm, {"format": "libffm", "hash_keys": True}),
        (of_libffm, {"format": "libffm"}),
        (of_csv, {"format": "csv"}),
        (of_parquet, {"format": "parquet"}),
        (of_parquet, {"format": "parquet", "hash_keys": False}),
    ],
)
@pytest.mark.parametrize("is_shared", [False, True])
def test_equal_values_are_one_key_in_every_format(
    tmp_path: Path, write: Callable[[Path], None], config: dict[str, Any], is_shared: bool
) -> None:
    write(tmp_path / "log")
    table = TableConfig(name="features", dim=4, shared_vocabulary=is_shared)
    reader = read(tmp_path / "log", TARGET, table, **config)
    found = bags(reader)
    is_raw = reader.config.key_rule == "raw"

    def key(value: int) -> int:
        return value if is_raw else hps.key_of(None if is_shared else "item", value)

    assert [bag["item"] for bag in found] == [[key(7)], [key(8)]]
    assert found[0]["seen"] == [key(9), key(7)][: 1 if write is of_csv else 2]
    assert found[1]["seen"] == []
    if is_raw:
        why = {use.name: use.why for use in reader.columns}
        assert why["seen"].startswith("numbers are keys as they stand")


def test_columns_of_criteo_share_a_vocabulary(tmp_path: Path) -> None:
    line = "1\t" + "\t".join(["1"] * 13) + "\t" + "\t".join(["é", "b", *["c"] * 24])
    (tmp_path / "log").write_text(f"{line}\n" * 3)
    text = '[columns.C2]\nkind = "sequence"\ntarget = "C1"\n'
    found = bags(read(tmp_path / "log", text, format="criteo"))
    assert found[0]["C1"] == [hps.key_of("C1", "é")] and found[0]["C2"] == [hps.key_of("C1", "b")]
    assert found[0]["C3"] == [hps.key_of("C3", "c")]


SEQUENCE = '[columns.seen]\nkind = "sequence"\n'
# (text, line that is named, words of the message)
REFUSED = [
    (f"{SEQUENCE}target = 3", 3, "columns.seen.target: 3 must be a name"),
    (f"{SEQUENCE}target = ''", 3, "'' must be a name"),
    (f"{SEQUENCE}vocabulary = ['a']", 3, r"columns.seen.vocabulary: \['a'\] must be a name"),
    ("[columns.a]\nkind='categorical'\ntarget='b'", 3, "belongs to kind sequence"),
    ("[columns.a]\nkind='dense'\nvocabulary='b'", 3, "to kind categorical and sequence"),
    (f"{SEQUENCE}target = 'seen'", 3, "a sequence cannot be its own target"),
    (f"{SEQUENCE}target='a'\n[columns.a]\nkind='sequence'", 3, "'a' is a sequence itself"),
    (f"{SEQUENCE}target='a'\n[columns.a]\nkind='ignored'", 3, "'a' is left out and no feature"),
    (f"{SEQUENCE}target='a'\n[columns.a]\nkind='dense'\nbuckets=3", 3, "of kind 'dense' and no"),
    (f"{SEQUENCE}target='a'\n[columns.a]\nkind='label'", 3, "'a' is of kind 'label'"),
    (f"{SEQUENCE}target='x'\n[crosses.x]\ncolumns=['a', 'b']", 3, "'x' is a cross; name the"),
    (f"{SEQUENCE}vocabulary='x'\n[crosses.x]\ncolumns=['a', 'b']", 3, "'x' is a cross, whose"),
    (
        f"{SEQUENCE}vocabulary='a'\n[columns.a]\nkind='dense'",
        3,
        "'dense', whose values are no keys",
    ),
    (
        f"{SEQUENCE}vocabulary='a'\n[columns.a]\nkind='categorical'\nvocabulary='b'",
        3,
        "column 'a' has the vocabulary of 'b' itself; give 'b' here",
    ),
    (
        f"{SEQUENCE}vocabulary='a'\n[columns.a]\nkind='sequence'\ntarget='b'",
        3,
        "column 'a' has the vocabulary of 'b' itself",
    ),
    (
        f"{SEQUENCE}target='a'\nhash_buckets=9",
        4,
        "9, but there are none of column 'a', which has the same vocabulary",
    ),
    (
        f"{SEQUENCE}target='a'\n[columns.a]\nkind='categorical'\nhash_buckets=9",
        1,
        "columns.seen.hash_buckets: there are none, but 9 of column 'a'",
    ),
    (
        f"{SEQUENCE}vocabulary='v'\nhash_buckets=9\n"
        "[columns.a]\nkind='categorical'\nvocabulary='v'\nhash_buckets=8",
        4,
        "9, but 8 of column 'a'",
    ),
]


@pytest.mark.parametrize(("text", "line", "words"), REFUSED)
def test_what_is_wrong_is_named_with_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(hps.ConfigError, match=words) as refused:
        Features.from_toml(text, "my.toml")
    assert str(refused.value).startswith(f"my.toml, line {line}: columns.")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{SEQUENCE}target = 'no'", "columns.seen.target: 'no' is no column of the log"),
        (f"{SEQUENCE}target = 'price'", "columns.seen.target: 'price' is a dense column"),
        (f"{SEQUENCE}vocabulary = 'price'", "columns.seen.vocabulary: 'price' is a dense column"),
        (f"{SEQUENCE}target = 'lists'", r"'lists' holds lists \(list.*\): it is a sequence itself"),
        (f"{SEQUENCE}vocabulary = 'item'\nhash_buckets = 3", "there are none of column 'item'"),
    ],
)
def test_what_only_the_log_tells_is_refused(tmp_path: Path, text: str, words: str) -> None:
    columns = {"label": [0, 1], "item": ["a", "b"], "seen": [["a"], []]}
    table = pa.table({**columns, "lists": columns["seen"], "price": [0.5, 1.5]})
    pq.write_table(table, tmp_path / "log.parquet")
    with pytest.raises(hps.ConfigError, match=f"my.toml, line [34]: .*{words}"):
        read(tmp_path / "log.parquet", text)


def test_numbers_and_text_are_one_vocabulary_only_where_both_are_hashed(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"label": [0], "item": [7], "seen": [["7", "8"]]}), tmp_path / "log.parquet"
    )
    (bag,) = bags(read(tmp_path / "log.parquet", TARGET))
    assert bag["item"][0] == bag["seen"][0] == hps.key_of("item", 7)
    with pytest.raises(hps.ConfigError, match=r"columns.seen: .* of type string, .*int64"):
        read(tmp_path / "log.parquet", TARGET, hash_keys=False)


def test_a_position_is_not_taken_up_with_another_vocabulary(tmp_path: Path) -> None:
    log = write_lists(tmp_path / "log.parquet")
    reader = read(log, TARGET, batch_size=2)
    next(reader)
    again = read(log, TARGET, batch_size=2)
    again.load_state_dict(reader.state_dict())
    assert bags(again) == bags(reader)
    with pytest.raises(hps.ConfigError, match="with the transform"):
        read(log, SEQUENCE, batch_size=2).load_state_dict(reader.state_dict())


def test_descriptions_keep_targets_and_vocabularies() -> None:
    described = Features.from_toml(
        TARGET + '[columns.item]\nkind = "categorical"\nvocabulary = "v é"\n'
    )
    assert Features.from_toml(described.to_toml()) == described
    assert described.targets == {"seen": "item"}
    assert described.vocabularies == {"seen": "v é", "item": "v é"}
    assert Features(columns=[Column(name="a", kind="sequence")]).vocabularies == {}


@pytest.mark.parametrize("wrong", ["item", {"a": ""}, {"a": 3}, {"": "a"}, {3: "a"}])
def test_a_reader_refuses_what_are_no_vocabularies(wrong: Any) -> None:
    with pytest.raises(hps.ConfigError, match=r"vocabularies=.* must be a dict of features"):
        ReaderConfig(vocabularies=wrong)
