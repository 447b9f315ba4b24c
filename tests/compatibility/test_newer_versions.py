"""What a later version of hps wrote is refused by name, and nothing of it is changed.

Above it: pytest. Below it: newer.py. Published versions and exports of models:
tests/publish/test_published_damage.py, tests/train/test_portable.py.
"""

import hashlib
from pathlib import Path

import numpy as np
import pytest

import hps
from hps import _C
from hps.cli.main import main
from tests.compatibility.newer import raise_log_file, raise_log_mark, raise_store


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "LOCK"
    }


def made_store(path: Path) -> hps.Config:
    config = hps.Config(path=path, tables=[hps.TableConfig(name="ads", dim=4)])
    with hps.ParameterServer(config) as server:
        server.push("ads", np.arange(9, dtype=np.uint64), np.ones((9, 4), np.float32))
        server.checkpoint(tag="day-1")
    return config


def test_a_store_of_a_later_version_is_refused_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = made_store(tmp_path / "store")
    raise_store(tmp_path / "store", 5)
    before = contents(tmp_path)
    wanted = "format version 5, and this hps reads 1 to 4: a later version of hps wrote it"
    with pytest.raises(hps.ConfigError, match=wanted):
        hps.ParameterServer(config)
    with pytest.raises(hps.ConfigError, match=wanted):
        hps.open(tmp_path / "store", read_only=True)
    for command in (["stats"], ["models"], ["verify"], ["checkpoints"]):
        assert main([*command, str(tmp_path / "store")]) == 1
        said = capsys.readouterr()
        assert wanted in said.err + said.out, command
    assert contents(tmp_path) == before


def test_a_store_of_no_known_version_is_damage(tmp_path: Path) -> None:
    config = made_store(tmp_path / "store")
    raise_store(tmp_path / "store", 0)
    with pytest.raises(hps.CorruptionError, match="not a store of format versions 1 to 4"):
        hps.ParameterServer(config)


@pytest.mark.parametrize("part", ["mark", "file"])
def test_a_log_of_a_later_version_is_refused_and_left_as_it_is(part: str, tmp_path: Path) -> None:
    log = _C.UpdateLog.open(str(tmp_path), 7, 1, 0)
    log.append([b"a change that was acknowledged"])
    log.close()
    if part == "mark":
        raise_log_mark(tmp_path, 2)
    else:
        raise_log_file(next(tmp_path.glob("log-*")), 2)
    before = contents(tmp_path)
    wanted = "format version 2, and this hps reads 1: a later version of hps wrote it"
    with pytest.raises(hps.ConfigError, match=wanted):
        _C.UpdateLog.open(str(tmp_path), 7, 1, 0)
    assert contents(tmp_path) == before
