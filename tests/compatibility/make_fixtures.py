"""Makes tests/compatibility/fixtures/VERSION: what this version of hps writes, and what is in it.

Run `python -m tests.compatibility.make_fixtures` once for a version that is released, and keep the
folders of older ones: every later version must read them (test_older_versions.py).
"""

import json
import shutil
import signal
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

import hps
from hps.cli.main import main
from hps.common.version import __version__
from tests.compatibility.made import (
    FIXTURES,
    KEYS,
    SERVED,
    TABLES,
    config,
    contents,
    gradients,
    scores,
    write_log,
)
from tests.compatibility.proto import present
from tests.service.serving import process

TRAIN = ["--format", "csv", "--label", "label", "--dense-columns", "age", "--model", "fm"]
TRAIN += ["--dim", "2", "--batch-size", "40", "--dram", "4MiB", "--seed", "5", "--quiet"]


def make_store(folder: Path) -> dict[str, Any]:
    """Rows of three kinds of tables, of two checkpoints and two periods."""
    told = {}
    with hps.ParameterServer(config(folder)) as server:
        for number, tag in enumerate(("day-1", "day-2"), 1):
            for table in TABLES:
                server.push(
                    table.name, KEYS[number - 1 :], gradients(table.dim, number)[number - 1 :]
                )
            server.checkpoint(tag=tag, reader={"at": number * 10})
            told[tag] = contents(server, [table.name for table in TABLES])
            server.advance_period()
    return told


def make_log(folder: Path) -> dict[str, Any]:
    """A shard that was killed: its changes are in its update log alone."""
    with process(folder, "--table", SERVED) as served:
        with hps.RemoteParameterServer([served.address]) as client:
            for number in (1, 2, 3):
                client.push("served", KEYS, gradients(4, number))
            client.flush_all(durable=True)
            told = contents(client, ["served"])
        served.stop(signal.SIGKILL)
    for path in (folder / "log").iterdir():
        if path.name.startswith("spare"):
            path.unlink()
        elif path.name.startswith("log-"):  # what it had reserved is zeros
            data = path.read_bytes().rstrip(b"\0")
            path.write_bytes(data + bytes(-len(data) % 8))
    return told


def make_model(folder: Path, log: Path) -> dict[str, Any]:
    """A trained model: in its store, as a base and a delta, as plain files."""
    store, published = folder / "model", folder / "published"
    assert main(["train", str(log), "--store", str(store), *TRAIN, "--tag", "first"]) == 0
    assert main(["publish", str(store), str(published), "--quiet"]) == 0
    more = ["--resume", "--new-data", "--tag", "second"]
    assert main(["train", str(log), "--store", str(store), *TRAIN, *more]) == 0
    assert main(["publish", str(store), str(published), "--kind", "delta", "--quiet"]) == 0
    assert main(["export", str(store), str(folder / "exported"), "--model", "--quiet"]) == 0
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "scores.npy"
        return {
            "first": scores(log, out, "--store", str(store), "--checkpoint", "first"),
            "second": scores(log, out, "--store", str(store)),
            "published": scores(log, out, "--model", str(published)),
        }


def make() -> None:
    """Writes the folder of this version."""
    folder = FIXTURES / __version__
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with chdir(folder):  # a model keeps the paths of its options: here they are short
        write_log(Path("log.csv"))
        told = {"store": make_store(Path("store")), "log": make_log(Path("shard").resolve())}
        told |= make_model(Path(), Path("log.csv"))
        Path("expected.json").write_text(json.dumps(told) + "\n")
    (folder / "proto.binpb").write_bytes(present().SerializeToString(deterministic=True))
    (folder / "shard.stderr").unlink()
    for path in [*folder.rglob("LOCK"), *folder.rglob("*.lock")]:
        path.unlink()


if __name__ == "__main__":
    make()
