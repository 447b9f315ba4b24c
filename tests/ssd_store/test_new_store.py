"""A folder with files of somebody else is not taken for a new store, and nothing is written there.

Above it: pytest. Below it: hps/ssd_store/new_store.py, by `hps train`, `hps serve`, `hps import`.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hps
from hps.cli.main import main
from tests.logs import write_criteo

SMALL = ["--dim", "4", "--hidden", "8", "--batch-size", "100", "--threads", "1", "--dram", "4MiB"]


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A folder with a file of the user's."""
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "holiday.jpg").write_bytes(b"x")
    return folder


def export(tmp_path: Path) -> Path:
    """A parquet file that describes its table."""
    path, file = tmp_path / "other", tmp_path / "rows.parquet"
    config = hps.Config(path=path, tables=[hps.TableConfig(name="ads", dim=4)])
    with hps.ParameterServer(config) as server:
        server.pull("ads", np.arange(100), create=True)
    assert main(["export", str(path), str(file)]) == 0
    return file


def words_of(command: str, tmp_path: Path, store: Path) -> list[str]:
    if command == "train":
        log = write_criteo(tmp_path / "log.tsv", 300)
        return ["train", str(log), "--store", str(store), *SMALL]
    if command == "serve":
        table = ["--table", "name=ads,dim=4", "--listen", "127.0.0.1:0"]
        return ["serve", "--store", str(store), "--dram", "4MiB", *table]
    return ["import", str(export(tmp_path)), str(store), "--dram", "4MiB"]


@pytest.mark.parametrize("command", ["train", "serve", "import"])
def test_a_folder_with_other_files_is_refused_and_left_as_it_is(
    tmp_path: Path, foreign: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = words_of(command, tmp_path, foreign)
    capsys.readouterr()
    if command == "serve":  # a process of its own, which can be ended if it serves
        asked = [sys.executable, "-m", "hps", *words]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)
        status, error = done.returncode, done.stderr
    else:
        status, error = main(words), capsys.readouterr().err
    assert status == 1
    assert f"{foreign}: a new store needs a folder that is new or empty" in error
    assert "'holiday.jpg'" in error and "give another folder" in error
    assert [one.name for one in foreign.iterdir()] == ["holiday.jpg"]


@pytest.mark.parametrize("command", ["train", "import"])
def test_what_a_killed_first_run_has_left_is_gone_on_from(tmp_path: Path, command: str) -> None:
    store = tmp_path / "store"
    (store / "pins").mkdir(parents=True)
    (store / "lost+found").mkdir()
    (store / "LOCK").write_text("1 host")
    (store / "CURRENT.new").write_bytes(b"")
    (store / "MANIFEST-000000000001").write_bytes(b"torn")
    assert main(words_of(command, tmp_path, store)) == 0
    with hps.open(store) as server:
        assert sum(server.num_rows(name) for name in server.tables) > 0


def test_a_store_may_have_other_files_beside_its_own_later(tmp_path: Path) -> None:
    store = tmp_path / "store"
    words = words_of("train", tmp_path, store)
    assert main(words) == 0
    (store / "notes.txt").write_text("mine")
    assert main([*words, "--resume"]) == 0
