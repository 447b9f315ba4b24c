"""`hps lookup`: the key of a raw value is that of training, and the row what the store holds.

Above it: pytest. Below it: hps/cli/lookup.py, hps/train/raw_values.py,
hps/parameter_server/stored_row.py.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hps
from hps.cli.main import main
from hps.train import TrainOptions, train
from tests.logs import write_criteo

SMALL = {"dim": 2, "hidden": (4,), "batch_size": 64, "dram": "8MiB", "torch_threads": 1, "depth": 0}
ABSENT = "absent: no row is stored; it reads as its initial value"


def train_on(log: Path, store: Path, **changes: Any) -> Path:
    train(TrainOptions(**{"data": [log], "store": store, **SMALL, **changes}))
    return store


def looked_up(tmp_path: Path, *words: object) -> dict[str, Any]:
    out = tmp_path / "lookup.json"
    assert main(["lookup", *map(str, words), "--json", str(out)]) == 0
    figures: dict[str, Any] = json.loads(out.read_text())
    return figures


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    assert main(["lookup", *map(str, words)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("hps: error: ") and said.count("\n") == 1
    return said


def stored(store: Path, table: str = "features") -> dict[int, tuple[list[float], list[float]]]:
    """Key -> weights and state, of every row."""
    with hps.open(store) as server:
        return {
            int(key): (row.tolist(), state.tolist())
            for keys, rows, states in server.items(table, state=True)
            for key, row, state in zip(keys, rows, states, strict=True)
        }


@pytest.fixture(scope="module")
def criteo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A log with odd categories, and a store with its model."""
    folder = tmp_path_factory.mktemp("criteo")
    log = write_criteo(folder / "log", 200)
    lines = log.read_text().splitlines()
    odd = ["", "a=b", "==", "é", " 7 ", "7"]
    for place, value in enumerate(odd):
        columns = lines[place].split("\t")
        lines[place] = "\t".join([*columns[:14], value, *columns[15:]])
    log.write_text("".join(f"{line}\n" for line in lines))
    return log, train_on(log, folder / "store")


def test_every_value_of_a_log_leads_to_its_row(criteo: tuple[Path, Path], tmp_path: Path) -> None:
    log, store = criteo
    rows = stored(store)
    firsts = [line.split("\t")[14] for line in log.read_text().splitlines()]
    words = [f"C1={value}" for value in dict.fromkeys(firsts)]
    found = looked_up(tmp_path, store, *words)
    assert found["model"] == "deepfm" and found["checkpoint"] == "final"
    assert {row["value"] for row in found["rows"]} >= {"", "a=b", "==", "é", " 7 ", "7"}
    for row in found["rows"]:
        assert row["is_there"] and row["table"] == "features", row
        assert row["key"] == hps.key_of("C1", row["value"]) and row["other_keys"] == []
        weights, state = rows[row["key"]]
        assert [*row["embedding"], row["first_order"]] == weights and len(weights) == 3
        assert row["state"] == {"accumulator": state}


def test_an_absent_row_is_said_to_be_absent(
    criteo: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, store = criteo
    found = looked_up(tmp_path, store, "C1=no such value", "C2=a=b")
    for row in found["rows"]:
        assert not row["is_there"]
        assert row["embedding"] is None and row["first_order"] is None and row["state"] is None
    text = capsys.readouterr().out
    key = hps.key_of("C1", "no such value")
    assert f"C1=no such value: key {key} (hashed with its feature) of table 'features'" in text
    assert text.count(ABSENT) == 2 and "embedding" not in text
    with hps.open(store) as server:
        assert server.num_rows("features") == len(stored(store)), "a look creates nothing"


def test_values_and_state_are_printed(
    criteo: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, store = criteo
    assert main(["lookup", str(store), "C1=é\n", "C1=é"]) == 0
    text = capsys.readouterr().out
    (one, two, first_order), _ = stored(store)[hps.key_of("C1", "é")]
    assert "C1=é\\n: key " in text
    assert f"\n  embedding: {one:.7g} {two:.7g}\n  first-order weight: {first_order:.7g}\n" in text
    assert "\n  optimizer's accumulator: " in text


def test_words_may_stand_before_and_after_flags(criteo: tuple[Path, Path], tmp_path: Path) -> None:
    _, store = criteo
    key = hps.key_of("C1", "é")
    for words in (
        [store, "--tag", "final", "C1=é"],
        [store, "C1=é", "--checkpoint", "final", "--table", "features"],
        ["--tag", "final", store, "C1=é", "--key", "5"],
        [store, "--key", "5", "C1=é"],
        [store, "--key", key],
    ):
        found = looked_up(tmp_path, *words)
        assert key in [row["key"] for row in found["rows"]], words
        assert len(found["rows"]) == 1 + ("5" in words)
        assert all(row["is_there"] == (row["key"] == key) for row in found["rows"])
    assert found["rows"][0]["first_order"] is not None and found["model"] == "deepfm"


def test_what_cannot_be_looked_up_is_refused_by_name(
    criteo: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, store = criteo
    said = refusal(capsys, store, "C27=x")
    assert "no feature 'C27'; the nearest is 'C" in said and "C1, C2, C3" in said and "C26" in said
    assert "no feature ''" in refusal(capsys, store, "=x")
    assert "'C1' must be FEATURE=VALUE" in refusal(capsys, store, "C1")
    assert "'I3' is a dense column" in refusal(capsys, store, "I3=1")
    said = refusal(capsys, store, "C1=x", "--table", "ads")
    assert "--table ads: the rows of feature 'C1' lie in table 'features'" in said
    assert "'ads'" in refusal(capsys, store, "--key", "1", "--table", "ads")
    assert "there is no checkpoint 'day-9'" in refusal(capsys, store, "C1=x", "--tag", "day-9")
    assert "no store here" in refusal(capsys, tmp_path / "no", "C1=x")
    assert "no store here" in refusal(capsys, tmp_path, "--key", "1")
    for words in ([], ["--key", "-1"], ["--key", "x"], ["--key", str(2**64)], ["C1=x", "--key="]):
        with pytest.raises(SystemExit) as ended:
            main(["lookup", str(store), *words])
        assert ended.value.code == 2
    assert "required: FEATURE=VALUE" in capsys.readouterr().err


def test_a_store_without_a_model_is_asked_by_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store"
    tables = [
        hps.TableConfig(name="ads", dim=2, optimizer=hps.Adam(lr=0.1)),
        hps.TableConfig(name="users", dim=1, optimizer=hps.RowWiseAdagrad(lr=0.1), features=[]),
    ]
    keys = np.array([0, 2**63, 2**64 - 1], np.uint64)
    with hps.ParameterServer(hps.Config(path=path, tables=tables)) as server:
        server.push("ads", keys, np.ones((3, 2), np.float32))
        server.push("users", keys[:1], np.ones((1, 1), np.float32))
        server.checkpoint("day-1")
        server.push("ads", keys, np.ones((3, 2), np.float32))
    said = refusal(capsys, path, "--key", "0")
    assert "has 2 tables (ads, users): name that of --key with --table" in said
    assert "no model" in refusal(capsys, path, "C1=x")
    words = [word for key in keys.tolist() for word in ("--key", key)]
    for tag in ("day-1", "last"):
        found = looked_up(tmp_path, path, *words, "--table", "ads", "--tag", tag)
        assert found["model"] is None and [row["key"] for row in found["rows"]] == keys.tolist()
        with hps.open(path, checkpoint=tag) as server:
            rows = {int(k): (r, s) for ks, rs, ss in server.items("ads", state=True)
                    for k, r, s in zip(ks, rs, ss, strict=True)}  # fmt: skip
        for row in found["rows"]:
            weights, state = rows[row["key"]]
            assert row["embedding"] == weights.tolist() and row["first_order"] is None
            parts = row["state"]
            assert list(parts) == ["1 - beta1^t", "1 - beta2^t", "first moment", "second moment"]
            assert [one for part in parts.values() for one in part] == state.tolist()
    assert not looked_up(tmp_path, path, "--key", 1, "--table", "users")["rows"][0]["is_there"]
    found = looked_up(tmp_path, path, "--key", 0, "--table", "users")["rows"][0]
    assert found["is_there"] and len(found["state"]["accumulator"]) == 1


def test_a_store_without_a_model_needs_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with hps.ParameterServer(
        hps.Config(path=path, tables=[hps.TableConfig(name="ads", dim=2)])
    ) as server:
        server.push("ads", np.arange(3, dtype=np.uint64), np.ones((3, 2), np.float32))
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from hps.cli.main import main\n"
        f"sys.exit(main(['lookup', {str(path)!r}, '--key', '2']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "embedding: " in done.stdout, done.stderr


def test_a_shared_vocabulary_has_one_key_for_all_features(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_criteo(tmp_path / "log", 100)
    store = train_on(log, tmp_path / "store", shared_vocabulary=True, model="dcn_v2")
    value = log.read_text().split("\t")[14]
    first, second = looked_up(tmp_path, store, f"C1={value}", f"C9={value}")["rows"]
    assert first["key"] == second["key"] == hps.key_of(None, value) and first["is_there"]
    assert first["embedding"] == second["embedding"] and first["first_order"] is None
    assert len(first["embedding"]) == 2
    text = capsys.readouterr().out
    assert "(hashed without its feature: a shared vocabulary)" in text and "first" not in text


@pytest.mark.parametrize("hash_keys", [True, False])
def test_columns_of_parquet(
    tmp_path: Path, hash_keys: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.parquet"
    columns = {
        "label": [0, 1] * 30,
        "a=b": [-1, 2**62, 7] * 20,
        "big": pa.array([2**64 - 1, 1, 2] * 20, pa.uint64()),
        "text": ["7", "x", ""] * 20,
        "bag": [["x"], [], None] * 20,
    }
    pq.write_table(pa.table(columns), log)
    store = train_on(log, tmp_path / "store", hash_keys=hash_keys)
    words = ["a=b=-1", f"a=b={2**62}", "a=b=7", f"big={2**64 - 1}", "text=7", "text=x", "text="]
    found = looked_up(tmp_path, store, *words, "bag=x", "a=b=8")["rows"]
    assert [row["is_there"] for row in found] == [True] * 8 + [False]
    raw = [2**64 - 1, 2**62, 7, 2**64 - 1]
    hashed = [hps.key_of(row["feature"], row["value"]) for row in found]
    assert [row["feature"] for row in found[:3]] == ["a=b"] * 3
    assert [row["key"] for row in found[4:8]] == hashed[4:8], "text is hashed by any rule"
    assert [row["key"] for row in found[:4]] == (hashed[:4] if hash_keys else raw)
    assert found[8]["key"] == (hashed[8] if hash_keys else 8)
    text = capsys.readouterr().out
    assert ("it would be key" in text) == (not hash_keys)
    if not hash_keys:
        assert found[8]["other_keys"] == [
            {"key": hashed[8], "rule": "hashed with its feature"},
        ]
        assert found[4]["other_keys"] == [{"key": 7, "rule": "the number as it is"}]


@pytest.mark.parametrize("hash_keys", [None, True])
def test_keys_of_libsvm(
    tmp_path: Path, hash_keys: bool | None, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_text(f"1 7:1 {2**64 - 1}:1\n0 007:1\n" * 20)
    store = train_on(log, tmp_path / "store", hash_keys=hash_keys)
    words = ["index=7", "index=007", f"index={2**64 - 1}", "index=8"]
    found = looked_up(tmp_path, store, *words)["rows"]
    assert [row["is_there"] for row in found] == [True, True, True, False]
    if hash_keys:
        assert found[0]["key"] != found[1]["key"] == hps.key_of("index", "007")
    else:
        assert [row["key"] for row in found] == [7, 7, 2**64 - 1, 8]
        for wrong in ("x", "-1", str(2**64), "7.0", "", "٧", "1" * 5000, " 7"):
            said = refusal(capsys, store, f"index={wrong}")
            assert "no whole number from 0 to 2^64 - 1" in said or "empty value" in said, wrong


def test_values_of_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.csv"
    log.write_text("label,app,age\n" + '0,007,1.5\n1,"a,b",2.5\n0,,3.5\n' * 20)
    store = train_on(log, tmp_path / "store")
    found = looked_up(tmp_path, store, "app=007", "app=a,b", "app=7")["rows"]
    assert [row["is_there"] for row in found] == [True, True, False]
    assert "an empty value of a csv log has no key" in refusal(capsys, store, "app=")
    assert "'age' is a dense column" in refusal(capsys, store, "age=1.5")


def test_beside_a_training_and_of_several_ranks(
    criteo: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, store = criteo
    (alone,) = looked_up(tmp_path, store, "C1=é")["rows"]
    assert main(["reshard", str(store), str(tmp_path / "cluster"), "--ranks", "3"]) == 0
    found = looked_up(tmp_path, tmp_path / "cluster", "C1=é", "C1=no", "--key", alone["key"])
    assert found["rows"][0] == alone and not found["rows"][1]["is_there"]
    assert found["rows"][2]["embedding"] == alone["embedding"]
    with hps.open(store, read_only=False) as server:
        key = np.array([alone["key"]], np.uint64)
        server.push("features", key, np.ones((1, 3), np.float32))
        (again,) = looked_up(tmp_path, store, "C1=é")["rows"]
        assert again == alone, "what is stored is that of the checkpoint"
        server.restore("final")


def test_a_store_of_the_rocksdb_engine(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    log = write_criteo(tmp_path / "log", 100)
    store = train_on(log, tmp_path / "store", engine="rocksdb", optimizer="ftrl")
    value = log.read_text().split("\t")[14]
    found = looked_up(tmp_path, store, f"C1={value}", "C1=no")["rows"]
    weights, state = stored(store)[found[0]["key"]]
    assert [*found[0]["embedding"], found[0]["first_order"]] == weights
    assert found[0]["state"] == {"z": state[:3], "n": state[3:]}
    assert not found[1]["is_there"]


def test_a_text_of_several_values_is_refused_with_its_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, said = tmp_path / "log.csv", tmp_path / "seen.toml"
    log.write_text("label,seen\n" + "0,a|b\n1,b\n" * 40)
    said.write_text('[columns.seen]\nkind = "sequence"\nseparator = "|"\n')
    store = train_on(log, tmp_path / "store", features=said)
    refused = refusal(capsys, store, "seen=a|b")
    assert "divides texts of 'seen' by '|'" in refused
    assert "give each by itself: 'seen=a' 'seen=b'" in refused
    assert "give a value" in refusal(capsys, store, "seen=|")
    found = looked_up(tmp_path, store, "seen=a", "seen=b")
    assert [row["is_there"] for row in found["rows"]] == [True, True]
