"""What `hps compact` and `hps checkpoints --delete` say of a store that is open, of a last
checkpoint, of a number that is no tag.

Above it: pytest. Below it: hps/cli/store_commands.py.
"""

import os
from pathlib import Path

import numpy as np
import pytest

import hps
from hps.cli.main import main
from tests.cli.test_store_commands import KEYS, TABLE, digest


@pytest.mark.parametrize("engine", ["segments", "rocksdb"])
def test_compact_says_who_has_the_store_open_also_where_it_has_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    path, ssd = tmp_path / "store", hps.SsdStoreConfig(engine=engine)
    with hps.ParameterServer(hps.Config(path=path, tables=[TABLE], ssd=ssd)):
        assert main(["compact", str(path)]) == 1
        told = f"{path}: the store is open for writing by process {os.getpid()} of host "
        assert told in capsys.readouterr().err
        assert main(["compact", str(path), "--dry-run"]) == 0
    assert main(["compact", str(path)]) == 0
    assert "nothing to free" in capsys.readouterr().out


def test_deleting_the_last_checkpoint_says_what_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, dram = tmp_path / "store", hps.DramCacheConfig(bytes="4MiB")
    with hps.ParameterServer(hps.Config(path=path, tables=[TABLE], dram=dram)) as server:
        server.push("ads", KEYS, np.ones((len(KEYS), 3), np.float32))
        server.checkpoint("day-1")
        server.checkpoint("day-2", model={"weight": 1}, reader={"position": 2})
    before = digest(path)
    assert main(["checkpoints", str(path), "--delete", "day-1"]) == 0
    assert "stay" not in capsys.readouterr().out
    assert main(["checkpoints", str(path), "--delete", "day-2"]) == 0
    text = capsys.readouterr().out
    assert "it was the last one: the current rows and their model stay\n" in text
    assert digest(path) == before
    with hps.open(path) as server:
        assert server.checkpoint_state() == ({"weight": 1}, {"position": 2})
    # So does the model after a compaction, which frees nothing then.
    capsys.readouterr()
    assert main(["compact", str(path)]) == 0
    assert "nothing to free" in capsys.readouterr().out

    other = tmp_path / "rows alone"
    with hps.ParameterServer(hps.Config(path=other, tables=[TABLE], dram=dram)) as server:
        server.push("ads", KEYS, np.ones((len(KEYS), 3), np.float32))
        server.checkpoint("only")
    assert main(["checkpoints", str(other), "--delete", "only"]) == 0
    assert "it was the last one: the current rows stay\n" in capsys.readouterr().out


@pytest.mark.parametrize("engine", ["segments", "rocksdb"])
def test_a_number_that_is_no_tag_is_told_as_the_id_it_may_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    path, ssd = tmp_path / "store", hps.SsdStoreConfig(engine=engine)
    with hps.ParameterServer(hps.Config(path=path, tables=[TABLE], ssd=ssd)) as server:
        server.push("ads", KEYS, np.ones((len(KEYS), 3), np.float32))
        server.checkpoint()
        (number,) = (one["id"] for one in server.checkpoints())
    assert main(["checkpoints", str(path), "--delete", str(number)]) == 1
    error = capsys.readouterr().err
    assert f"write --delete id:{number}" in error and "id as an int" not in error
    assert main(["checkpoints", str(path), "--delete", "77"]) == 1
    assert "write --delete" not in capsys.readouterr().err
    assert main(["checkpoints", str(path), "--delete", f"id:{number}"]) == 0
