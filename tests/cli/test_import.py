"""`hps import`: the types it takes, what it says of the state, and that a refusal changes nothing.

Above it: pytest. Below it: hps/parameter_server/parquet.py, hps/cli/move_commands.py.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import hps
from hps.checkpoint.blobs import table_to_json
from hps.cli.main import main

DIM = 3
TABLE = hps.TableConfig(name="ads", dim=DIM, optimizer=hps.Adagrad(lr=0.1))
DESCRIBED = {"version": 1, "table": table_to_json(TABLE), "seed": 7}
FIXED = pa.list_(pa.float32(), DIM)
MANY = 150_000  # rows: three pieces, more than a cache of 4 MiB holds


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the rows 0 to 9, which have been trained."""
    path = tmp_path / "store"
    dram = hps.DramCacheConfig(bytes="4MiB")
    with hps.ParameterServer(hps.Config(path=path, tables=[TABLE], dram=dram)) as server:
        server.push("ads", np.arange(10, dtype=np.uint64), np.ones((10, DIM), np.float32))
    return path


def write(file: Path, keys: Any, weights: Any, **more: Any) -> Path:
    """A file that describes the table, with these columns."""
    table = pa.table({"key": keys, "weights": weights, **more})
    described = table.replace_schema_metadata({"hps": json.dumps(DESCRIBED)})
    pyarrow.parquet.write_table(described, file, row_group_size=50_000)
    return file


def fixed(values: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def lists(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    return pa.array(values.tolist(), kind)


def digest(path: Path) -> str:
    with hps.open(path) as server:
        return str(server.digest("ads"))


def segments(path: Path) -> dict[str, int]:
    return {str(file.relative_to(path)): file.stat().st_size for file in path.rglob("segment-*")}


def file_with_a_fault(file: Path, fault: str) -> Path:
    """Its last piece has a row that no store takes."""
    keys = np.arange(MANY, dtype=np.uint64)
    weights = np.ones((MANY, DIM), np.float32)
    if fault == "nan":
        weights[-2, 1] = np.nan
        return write(file, keys, fixed(weights))
    if fault == "length":
        short = weights.tolist()
        short[-2] = [1.0, 2.0]
        short[-1] = [1.0, 2.0, 3.0, 4.0]  # together as long as two good ones
        return write(file, keys, pa.array(short, pa.list_(pa.float32())))
    state = np.ones((MANY, DIM), np.float32)
    state[-2, 1] = -1.0
    return write(file, keys, fixed(weights), state=fixed(state))


FAULTS = {
    "nan": "key 149998: weight of column 1 is nan",
    "length": r"row 149998 \(the first is 0\), key 149998: 'weights' has 2 numbers, 3 are needed",
    "state": "key 149998: accumulator of column 1 is -1",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_refused_import_makes_no_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    file = file_with_a_fault(tmp_path / "rows.parquet", fault)
    assert main(["import", str(file), str(tmp_path / "new")]) == 1
    assert re.search(FAULTS[fault], capsys.readouterr().err)
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    assert main(["import", str(file), str(tmp_path / "empty")]) == 1
    assert not list((tmp_path / "empty").iterdir())


@pytest.mark.parametrize("fault", FAULTS)
def test_a_refused_import_assigns_no_row_to_a_store_that_is_there(
    store: Path, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces before the fault would go to the cache, and from there to segments."""
    file = file_with_a_fault(tmp_path / "rows.parquet", fault)
    before, listed = digest(store), segments(store)
    with monkeypatch.context() as patched:
        assigned: list[object] = []
        patched.setattr(hps.ParameterServer, "assign", lambda *given: assigned.append(given))
        assert main(["import", str(file), str(store), "--dram", "4MiB"]) == 1
        assert not assigned
    assert main(["import", str(file), str(store), "--dram", "4MiB"]) == 1
    assert digest(store) == before and segments(store) == listed


def test_an_import_says_that_the_optimizer_state_starts_anew(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, weights = np.arange(1200, dtype=np.uint64), np.ones((1200, DIM), np.float32)
    bare = write(tmp_path / "bare.parquet", keys, fixed(weights))
    full = write(tmp_path / "full.parquet", keys, fixed(weights), state=fixed(weights))
    said = f"optimizer state of 1,200 rows starts anew: {bare} has no column 'state'\n"
    for target in (store, tmp_path / "new"):
        assert main(["import", str(bare), str(target)]) == 0
        out = capsys.readouterr().out
        assert out == f"{target}: 1,200 rows into table 'ads'\n{said}"
    assert main(["import", str(full), str(store)]) == 0
    assert "anew" not in capsys.readouterr().out
    assert main(["import", str(full), str(store), "--no-state"]) == 0
    said = "optimizer state of 1,200 rows starts anew: --no-state\n"
    assert said in capsys.readouterr().out


def test_lists_and_signed_keys_import_as_fixed_lists_and_unsigned_keys(tmp_path: Path) -> None:
    keys = np.array([5, 2**63, 2**64 - 1], np.uint64)
    rows = np.arange(9, dtype=np.float32).reshape(3, DIM)
    digests = []
    kinds = [FIXED, pa.list_(pa.float32()), pa.large_list(pa.float32())]
    for number, kind in enumerate(kinds):
        for signed in (False, True):
            taken = keys.view(np.int64) if signed else keys
            name = f"{number}-{signed}"
            state = lists(rows + 1, kind)
            file = write(tmp_path / f"{name}.parquet", taken, lists(rows, kind), state=state)
            assert main(["import", str(file), str(tmp_path / name)]) == 0
            digests.append(digest(tmp_path / name))
    with hps.open(tmp_path / name) as server:
        np.testing.assert_array_equal(server.pull("ads", keys), rows)
    assert len(set(digests)) == 1


def test_other_types_are_refused_with_the_types_and_the_cast(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, rows = np.arange(2, dtype=np.uint64), np.ones((2, DIM), np.float32)
    good = fixed(rows)
    weights = r"fixed_size_list<float>\[3\] or list<float> of 3 \(float32\) is needed"
    refused: list[tuple[Any, Any, str]] = [
        (keys, fixed(rows.astype(np.float64)), rf"double.*{weights}.*cast.*float32\(\), 3\)"),
        (keys, lists(rows, pa.list_(pa.float64())), rf"double.*{weights}.*cast"),
        (keys, fixed(np.ones((2, 4), np.float32)), rf"\[4\].*{weights}"),
        (keys, pa.array([1.0, 2.0]), rf"is double.*{weights}"),
        (keys.astype(np.int32), good, r"'key' is int32; uint64 or int64 .* is needed.*cast"),
        (pa.array(["a", "b"]), good, "'key' is string; uint64 or int64"),
        (keys, pa.array([[1.0] * 3, None], pa.list_(pa.float32())), "'weights' holds nulls"),
        (keys, pa.array([[1.0] * 3, [1.0, None, 2.0]], pa.list_(pa.float32())), "holds nulls"),
    ]
    for given, column, message in refused:
        file = write(tmp_path / "rows.parquet", given, column)
        assert main(["import", str(file), str(tmp_path / "new")]) == 1
        error = capsys.readouterr().err
        assert re.search(message, error) and error.count("\n") == 1, (message, error)
        assert not (tmp_path / "new").exists()
    with pytest.raises(SystemExit):
        main(["import", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for kind in ("uint64 or int64", "fixed_size_list<float>", "list<float>", "float32"):
        assert kind in text, kind
