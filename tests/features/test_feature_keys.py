"""`hps lookup` of a model with a features file: the key of a value is that of its batches.

Above it: pytest. Below it: hps/train/raw_values.py, hps/features/transform.py.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.cli.main import main
from hps.train import TrainOptions, train
from tests.logs import write_criteo

FEATURES = """
[columns.clicked]
kind = "label"
[columns.site]
kind = "categorical"
hash_buckets = 3
missing = "key"
[columns.app]
kind = "categorical"
missing = "drop"
[columns.price]
kind = "dense"
missing = 7
log = true
clip = [1, 100]
buckets = [5, 10, 20.5]
keep = true
[columns.age]
kind = "dense"
buckets = 3
[columns.depth]
kind = "dense"
[crosses.both]
columns = ["site", "age"]
"""
SITES = ["é b", "b", "c", "", "007", "a=b"]
PRICES = ["4.99", "5", "", "20.5", "1e30", "-3"]
AGES = ["18", "", "25", "33.0", "70", "33"]
DEPTHS = ["1.5", "2.5", "", "0", "1", "9"]


def columns_of(place: int) -> dict[str, str]:
    """Row `place` of the log, whose columns go round at different speeds."""
    return {
        "site": SITES[place % 6],
        "app": ["x", "y"][place % 2],
        "plain": str(place % 5),
        "price": PRICES[place // 2 % 6],
        "age": AGES[place // 3 % 6],
        "depth": DEPTHS[place // 5 % 6],
    }


ROWS = 72


@pytest.fixture(scope="module", params=[None, "signed_log1p"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lookup")
    lines = [",".join(["clicked", *columns_of(0)])]
    lines += [",".join([str(n % 2), *columns_of(n).values()]) for n in range(ROWS)]
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    (folder / "features.toml").write_text(FEATURES)
    options = TrainOptions(
        data=[folder / "log.csv"],
        store=folder / "store",
        features=hps.Features.load(folder / "features.toml"),
        dense_transform=request.param,
        dim=2,
        hidden=(4,),
        batch_size=16,
        dram="8MiB",
        depth=0,
    )
    train(options)
    return folder / "store"


def looked_up(store: Path, out: Path, *words: str) -> list[dict[str, Any]]:
    assert main(["lookup", str(store), *words, "--json", str(out)]) == 0
    rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"]
    return rows


def test_each_value_of_the_log_has_the_key_of_its_batch(store: Path, tmp_path: Path) -> None:
    with hps.Model.load(store) as model:
        names = model.recipe.features["features"]
        (batch,) = model.open_reader([store.parent / "log.csv"], batch_size=ROWS)
    ids = batch.features["features"]
    wanted, words = [], []
    for feature, name in enumerate(names[:-1]):
        for place in range(ROWS):
            first, last = ids.offsets[feature * ROWS + place : feature * ROWS + place + 2].tolist()
            assert last - first == 1
            wanted.append(int(ids.keys_L[first]) % 2**64)
            words.append(f"{name}={columns_of(place)[name]}")
    assert sorted(names) == ["age", "app", "both", "plain", "price", "site"]
    found = looked_up(store, tmp_path / "out", *words)
    assert [row["key"] for row in found] == wanted
    assert all(row["is_there"] for row in found)


def test_rules_are_said_in_words(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["site=no such", "site=", "price=", "price=5", "age=", "age=1e9", "plain=1"]
    rows = looked_up(store, tmp_path / "out", *words)
    assert [row["rule"] for row in rows] == [
        "hashed with its feature, folded into 3 keys",
        "that of a missing value",
        "bucket 1, hashed with its feature",
        "bucket 1, hashed with its feature",
        "bucket missing, hashed with its feature",
        "bucket 2, hashed with its feature",
        "hashed with its feature",
    ]
    assert rows[0]["key"] in [hps.key_of("site", number) for number in range(3)]
    assert rows[1]["key"] == hps.key_of("site", "")
    assert rows[4]["key"] == hps.key_of("age", "missing")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("both=x", "'both' is the cross of site and age: a log has no value of it"),
        ("price=x", "price=x: the model has buckets of 'price', which are of finite numbers"),
        ("price=NAN", "which are of finite numbers"),
        ("age=inf", "which are of finite numbers"),
        ("app=", "drops what is missing"),
        ("plain=", "an empty value of a csv log has no key"),
        ("depth=1", "'depth' is a dense column of the model: it has no rows"),
        ("clicked=1", "the model has no feature 'clicked'"),
    ],
)
def test_what_has_no_key_is_refused(
    store: Path, word: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lookup", str(store), word]) == 1
    assert said in capsys.readouterr().err


def test_buckets_of_criteo_are_of_its_whole_numbers(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log", 200)
    text = '[columns.I2]\nkind = "dense"\nbuckets = [1, 3, 10]\n'
    (tmp_path / "features.toml").write_text(text)
    train(
        TrainOptions(
            data=[log],
            store=tmp_path / "store",
            features=hps.Features.load(tmp_path / "features.toml"),
            dim=2,
            hidden=(4,),
            dram="8MiB",
            depth=0,
        )
    )
    words = ["I2=", "I2=-5", "I2=0", "I2=1", "I2=2", "I2=3", "I2=10", "I2=99999"]
    rows = looked_up(tmp_path / "store", tmp_path / "out", *words)
    names: list[str | int] = ["missing", 0, 0, 1, 1, 2, 3, 3]
    assert [row["key"] for row in rows] == [hps.key_of("I2", name) for name in names]
    values = {line.split("\t")[2] for line in log.read_text().splitlines()}
    found = looked_up(tmp_path / "store", tmp_path / "out", *(f"I2={one}" for one in values))
    assert {row["is_there"] for row in found} == {True}
