"""What each version of hps wrote is read by this one, with the values that it had.

Above it: pytest. Below it: fixtures/VERSION, made by make_fixtures.py with that version.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.common.version import __version__
from tests.compatibility.made import (
    FIXTURES,
    KEYS,
    TABLES,
    config,
    contents,
    gradients,
    scores,
    write_log,
)
from tests.service.serving import process

NAMES = [table.name for table in TABLES]
VERSIONS = sorted(path.name for path in FIXTURES.iterdir())


@pytest.fixture(params=VERSIONS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What a version wrote, where it may be changed."""
    path = tmp_path / "written"
    shutil.copytree(FIXTURES / request.param, path)
    return path


def expected(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "expected.json").read_text())
    return told


def test_this_version_has_a_fixture() -> None:
    """A release keeps what it writes: python -m tests.compatibility.make_fixtures."""
    assert __version__ in VERSIONS


def test_a_store_reads_as_it_was_written(folder: Path) -> None:
    told = expected(folder)["store"]
    assert told["day-1"] != told["day-2"]
    for number, tag in enumerate(("day-1", "day-2"), 1):
        with hps.open(folder / "store", read_only=True, checkpoint=tag) as reader:
            assert contents(reader, NAMES) == told[tag]
            assert reader.checkpoint_state()[1] == {"at": 10 * number}
    assert main(["verify", str(folder / "store"), "--quiet"]) == 0


def test_a_store_goes_on(folder: Path) -> None:
    told = expected(folder)["store"]
    with hps.ParameterServer(config(folder / "store")) as server:
        assert contents(server, NAMES) == told["day-2"]
        server.push("ads", KEYS, gradients(4, 3))
        server.checkpoint(tag="day-3")
        server.restore("day-1")
        assert contents(server, NAMES) == told["day-1"]
        server.restore("day-3")
        assert contents(server, NAMES)["ads"] != told["day-2"]["ads"]


def test_a_log_is_replayed(folder: Path) -> None:
    told = expected(folder)["log"]
    assert (folder / "shard" / "log").is_dir()
    with process(folder / "shard") as served, hps.RemoteParameterServer([served.address]) as client:
        assert contents(client, ["served"]) == told
        client.push("served", KEYS, gradients(4, 4))
        assert contents(client, ["served"]) != told


def test_a_model_scores_as_it_did(folder: Path, tmp_path: Path) -> None:
    told, log, out = expected(folder), folder / "log.csv", tmp_path / "scores.npy"
    store = str(folder / "model")
    assert told["first"] != told["second"] and told["second"] == told["published"]
    for where, name in (
        (("--store", store, "--checkpoint", "first"), "first"),
        (("--store", store), "second"),
    ):
        np.testing.assert_allclose(scores(log, out, *where), told[name], rtol=1e-5)


def test_published_versions_score_as_they_did(folder: Path, tmp_path: Path) -> None:
    told, log, out = expected(folder), folder / "log.csv", tmp_path / "scores.npy"
    published = str(folder / "published")
    for where, name in ((("--version", "1"), "first"), ((), "published")):
        found = scores(log, out, "--model", published, *where)
        np.testing.assert_allclose(found, told[name], rtol=1e-5)


def test_an_export_becomes_a_store_that_scores_and_trains(folder: Path, tmp_path: Path) -> None:
    log, out, store = folder / "log.csv", tmp_path / "scores.npy", str(tmp_path / "made")
    assert main(["import", str(folder / "exported"), store, "--quiet"]) == 0
    found = scores(log, out, "--store", store)
    np.testing.assert_allclose(found, expected(folder)["second"], rtol=1e-5)
    words = [
        "--resume",
        "--new-data",
        "--tag",
        "more",
        "--quiet",
        "--format",
        "csv",
        "--model",
        "fm",
    ]
    words += ["--label", "label", "--dense-columns", "age", "--dim", "2", "--batch-size", "40"]
    assert main(["train", str(log), "--store", store, *words]) == 0


def test_the_log_of_the_fixtures_is_what_this_code_would_write(
    folder: Path, tmp_path: Path
) -> None:
    write_log(tmp_path / "log.csv")
    assert (tmp_path / "log.csv").read_bytes() == (folder / "log.csv").read_bytes()
