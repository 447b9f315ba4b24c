"""A run with --resume-from that is refused leaves rows and checkpoints where they were.

Above it: pytest. Below it: `hps train` over a store and over servers.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.service.client.options import ClientConfig
from hps.train.row_server import connect
from tests.logs import write_criteo
from tests.service.client.client_lab import service

SMALL = ["--dim", "4", "--hidden", "8", "--batch-size", "100", "--threads", "1"]

REFUSALS = {
    "DATA has no example": ["empty.tsv", "--new-data"],
    "24 categories": ["log.tsv", "--test", "narrow.tsv"],
    "dropout=0.0, this run asks for 0.5": ["log.tsv", "--dropout", "0.5"],
    "with accumulate=1": ["log.tsv", "--accumulate", "2"],
    "'log.tsv' of": ["other.tsv"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: logs, among them some that cannot be gone on with."""
    monkeypatch.chdir(tmp_path)
    log = write_criteo(tmp_path / "log.tsv", 1000)
    lines = log.read_text().splitlines()
    (tmp_path / "empty.tsv").write_text("")
    (tmp_path / "narrow.tsv").write_text("\n".join(line.rsplit("\t", 2)[0] for line in lines))
    write_criteo(tmp_path / "other.tsv", 700, seed=1)
    return tmp_path


def state_of(store: str) -> tuple[Any, ...]:
    """The current checkpoint and the rows there."""
    with hps.open(store) as server:
        current = [one["id"] for one in server.checkpoints() if one["current"]]
        return current, server.digest("features"), server.checkpoint_state()[1]


def test_a_refused_resume_has_not_gone_back(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--store", "store", "--dram", "4MiB", *SMALL]
    assert main(["train", "log.tsv", *where, "--limit", "600", "--checkpoint-every", "2"]) == 0
    with hps.open("store") as server:
        named = server.checkpoints()[0]
    assert named["tag"] is None and not named["current"]
    before = state_of("store")
    for reason, words in REFUSALS.items():
        capsys.readouterr()
        assert main(["train", *words, *where, "--resume-from", f"id:{named['id']}"]) == 1
        assert reason in capsys.readouterr().err
        assert state_of("store") == before, reason
    assert main(["train", "log.tsv", *where, "--resume-from", f"id:{named['id']}"]) == 0


def test_a_refused_resume_leaves_the_servers_what_clients_pushed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with service(folder, 1, tables=()) as servers:
        where = ["--server", ",".join(servers.addresses), *SMALL]
        assert main(["train", "log.tsv", *where]) == 0
        keys = np.array([7, 8], np.uint64)
        remote = ClientConfig(addresses=servers.addresses, client_id="client")
        with connect(remote) as client:
            client.push("features", keys, np.full((2, 5), 3.0, np.float32))
        for reason, words in REFUSALS.items():
            capsys.readouterr()
            assert main(["train", *words, *where, "--resume-from", "final"]) == 1
            assert reason in capsys.readouterr().err
            with connect(remote) as client:
                assert client.contains("features", keys).all(), reason


def test_a_named_checkpoint_has_to_be_there_also_with_resume_if_any(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "log.tsv", "--dram", "4MiB", *SMALL, "--resume-if-any"]
    words += ["--resume-from", "final"]
    assert main([*words, "--store", "store"]) == 1
    error = capsys.readouterr().err
    assert "there is no store in 'store'" in error and "--resume-from" in error
    assert not Path("store").exists()
    with service(folder, 1, tables=()) as servers:
        del words[words.index("--dram") : words.index("--dram") + 2]
        assert main([*words, "--server", ",".join(servers.addresses)]) == 1
        assert "'final'" in capsys.readouterr().err
        assert not servers.shards[0].tables
