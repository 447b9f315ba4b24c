"""One rule for tags and ids of checkpoints: in Python, on the command line, over the wire, in every
engine, of one store, of ranks and of shards.

Above it: pytest. Below it: hps/checkpoint/names.py and all that take a checkpoint's name.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.checkpoint.names import (
    AUTOMATIC,
    COMPACTED,
    check_tag,
    find_named,
    parse_name,
    text_of,
)
from hps.cli.main import main
from hps.service.shard.location import StoreLocation
from hps.service.shard.shard import Shard
from hps.ssd_store import engine_of
from hps.ssd_store.cluster.catalog import Catalog, ClusterCheckpoint, PartSize
from hps.ssd_store.promoted import Promotions
from hps.v1 import parameter_server_pb2 as pb
from tests.service.client.client_lab import service
from tests.service.serving import Channel

TABLE = hps.TableConfig(name="ads", dim=4)
TAGS = ("3", "day-1", "20261122")  # with ids 1, 2, 3
NOT_NAMES = ("", 0, -1, True, 1.0, b"day-1", 2**64, object())


def config(path: Path, engine: str = "segments") -> hps.Config:
    dram, ssd = hps.DramCacheConfig(bytes="4MiB"), hps.SsdStoreConfig(engine=engine)
    return hps.Config(path=path, tables=[TABLE], dram=dram, ssd=ssd)


def fill(server: Any) -> None:
    """A checkpoint of 1, 2, 3 rows for each tag."""
    for rows, tag in enumerate(TAGS, 1):
        server.pull("ads", np.arange(rows, dtype=np.uint64), create=True)
        server.checkpoint(tag)


@pytest.fixture(params=["segments", "rocksdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "rocksdb":
        pytest.importorskip("rocksdict")
    path = tmp_path / "store"
    with hps.ParameterServer(config(path, request.param)) as server:
        fill(server)
    return path


def test_a_text_is_a_tag_and_a_number_an_id_wherever_a_store_is_asked(store: Path) -> None:
    for name, rows in (("3", 1), ("day-1", 2), (2, 2), (3, 3), ("20261122", 3)):
        with hps.open(store, checkpoint=name) as reader:
            assert reader.num_rows("ads") == rows, name
    with hps.open(store, read_only=False) as server:
        for name, rows in (("3", 1), (3, 3), (1, 1), ("20261122", 3)):
            server.restore(name)
            assert server.num_rows("ads") == rows, name
        assert server.delete_checkpoint("3") == []
        assert [one["id"] for one in server.checkpoints()] == [2, 3]
        for verb in (server.restore, server.checkpoint_state, server.delete_checkpoint):
            with pytest.raises(
                hps.ConfigError, match=r"no checkpoint '3'; kept are: id:2 \('day-1'"
            ):
                verb("3")
        assert server.num_rows("ads") == 3


def test_what_is_no_name_is_refused_by_every_verb(store: Path) -> None:
    with hps.open(store, read_only=False) as server:
        for name in NOT_NAMES:
            for verb in (server.restore, server.checkpoint_state, server.delete_checkpoint):
                with pytest.raises(hps.ConfigError, match="checkpoint="):
                    verb(name)  # type: ignore[operator]
        assert len(server.checkpoints()) == 3 and server.num_rows("ads") == 3
    for name in NOT_NAMES:
        with pytest.raises(hps.ConfigError, match="checkpoint="):
            hps.open(store, checkpoint=name)  # type: ignore[arg-type]


def test_evaluation_names_an_id_as_the_command_line_takes_it(
    tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.csv"
    log.write_text("")
    assert main(["evaluate", str(log), "--store", str(store), "--checkpoint", "id:2"]) == 1
    assert "checkpoint 'id:2' holds no model" in capsys.readouterr().err


def test_the_error_lists_the_newest_and_says_how_an_id_is_written(
    tmp_path: Path, store: Path
) -> None:
    with hps.open(store, read_only=False) as server:
        for number in range(30):
            server.checkpoint(f"t{number}")
        with pytest.raises(hps.ConfigError) as refused:
            server.restore("id:3")
    said = str(refused.value)
    assert (
        "'id:3'; kept are: 13 older ones, id:14 ('t10'), " in said and "id:33 ('t29'); a " in said
    )
    assert said.endswith("give an id as an int, and where all is text as id:3")
    with pytest.raises(hps.ConfigError) as other:  # the same words, whoever says them
        tags = [*TAGS, *(f"t{number}" for number in range(30))]
        names = [(tag, number) for number, tag in enumerate(tags, 1)]
        find_named(str(store), names, "id:3", lambda one: one)
    assert str(other.value) == said


@pytest.mark.parametrize(
    "text", ["id:", "id:0", "id:x", "id:-1", "id:٣", "id:1.0", f"id:{10**18}", ""]
)
def test_a_text_that_begins_as_an_id_and_is_none_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(hps.ConfigError, match="names no checkpoint: give a tag, or an id as id:3"):
        parse_name(text)
    with pytest.raises(SystemExit):
        main(["checkpoints", str(tmp_path), f"--delete={text}"])
    assert "argument --delete: " in capsys.readouterr().err


def test_texts_and_names_go_there_and_back() -> None:
    for name in ("3", 3, "day-1", "20261122", 10**17, "id", "٣"):
        assert parse_name(text_of(name)) == name


def test_the_command_line_addresses_tags_of_digits_and_ids(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows(name: str) -> int:
        assert main(["stats", str(store), "--checkpoint", name, "--json", "-"]) == 0
        return int(json.loads(capsys.readouterr().out)["tables"]["ads"]["rows"])

    assert [rows(name) for name in ("3", "id:3", "20261122", "id:1")] == [1, 3, 3, 1]
    assert main(["checkpoints", str(store)]) == 0
    assert "20261122             id 3, " in capsys.readouterr().out
    if engine_of(store) == "segments":
        assert main(["clone", str(store), str(tmp_path / "clone"), "--checkpoint", "3"]) == 0
        with hps.open(tmp_path / "clone") as clone:
            assert clone.num_rows("ads") == 1
    assert main(["reshard", str(store), str(tmp_path / "new"), "--plain", "--checkpoint", "3"]) == 0
    with hps.open(tmp_path / "new") as made:
        assert made.num_rows("ads") == 1
    capsys.readouterr()
    assert main(["checkpoints", str(store), "--delete", "20261122"]) == 0
    assert "deleted 20261122" in capsys.readouterr().out
    # What is gone is not taken for an id, however well it would fit.
    assert main(["checkpoints", str(store), "--delete", "2"]) == 1
    assert "no checkpoint has the tag '2'; to delete" in capsys.readouterr().err
    assert main(["checkpoints", str(store), "--delete", "id:2"]) == 0
    assert "deleted id:2" in capsys.readouterr().out


def test_ranks_find_a_checkpoint_by_the_same_rule(tmp_path: Path) -> None:
    checkpoints = tuple(
        ClusterCheckpoint(
            id=number, name="0" * 32, tag=tag, created=0.0, generation="g", parts=(PartSize(1, 1),)
        )
        for number, tag in enumerate(TAGS, 1)
    )
    catalog = replace(Catalog.begin("c"), checkpoints=checkpoints)
    for name, number in (("3", 1), (3, 3), ("20261122", 3), (1, 1)):
        assert catalog.find(tmp_path, name, Promotions()).id == number
    with pytest.raises(
        hps.ConfigError, match=r"no checkpoint '2'; kept are: id:1 \('3'\), id:2 .*id:3"
    ):
        catalog.find(tmp_path, "2", Promotions())
    with pytest.raises(hps.ConfigError, match="have taken no checkpoint"):
        catalog.find(tmp_path, None, Promotions())
    for name in NOT_NAMES:
        with pytest.raises(hps.ConfigError, match="checkpoint="):
            catalog.find(tmp_path, name, Promotions())  # type: ignore[arg-type]


def test_a_request_names_a_checkpoint_as_the_command_line_does(tmp_path: Path) -> None:
    with service(tmp_path, count=1) as made, made.client() as client:
        channel, shard = Channel(made.addresses[0]), made.shards[0]
        for rows, tag in enumerate(TAGS, 1):
            client.pull("ads", np.arange(rows, dtype=np.uint64), create=True)
            client.checkpoint(tag)
        by_tag = {one["tag"]: one["id"] for one in shard.checkpoints()}
        other = by_tag["20261122"]
        for text, rows in (("3", 1), (f"id:{other}", 3), ("20261122", 3), ("3", 1)):
            channel.call("Restore", pb.RestoreRequest(tag=text))
            assert shard.num_rows("ads") == rows
        for text, said in ((str(other), "a string is a tag"), ("id:x", "names no checkpoint")):
            for method, request in (
                ("Restore", pb.RestoreRequest(tag=text)),
                ("DeleteCheckpoint", pb.DeleteCheckpointRequest(tag=text)),
                ("CheckpointState", pb.CheckpointStateRequest(tag=text)),
            ):
                refused = channel.refusal(method, request)
                assert refused.code == "INVALID_ARGUMENT" and said in refused.text
        channel.call("DeleteCheckpoint", pb.DeleteCheckpointRequest(tag="3"))
        assert set(by_tag) - {one["tag"] for one in shard.checkpoints()} == {"3"}
        channel.close()


@pytest.mark.parametrize("count", [1, 2])
def test_a_client_of_shards_names_checkpoints_by_the_same_rule(tmp_path: Path, count: int) -> None:
    with service(tmp_path, count=count) as made, made.client() as client:
        for rows, tag in ((10, "77"), (20, "day-1"), (30, None)):
            client.pull("ads", np.arange(rows, dtype=np.uint64), create=True)
            client.checkpoint(tag)
        ids = {one["tag"]: one["id"] for one in client.checkpoints()}
        for name, rows in (("77", 10), (ids["day-1"], 20), (ids[None], 30), ("77", 10)):
            client.restore(name)
            assert client.num_rows("ads") == rows
        own = [
            info.tag
            for info in client._checkpoints.parts.listed()[0]
            if info.tag.startswith("cut-")
        ]
        for name in (str(ids["day-1"]), 999, *own, *NOT_NAMES):
            with pytest.raises(hps.ConfigError):
                client.restore(name)
            with pytest.raises(hps.ConfigError):
                client.delete_checkpoint(name)
        assert client.num_rows("ads") == 10 and len(client.checkpoints()) == 3
        client.delete_checkpoint("77")
        assert [one["tag"] for one in client.checkpoints()] == ["day-1", None]


RESERVED = (AUTOMATIC, COMPACTED, f"cut-{'0a' * 16}", "id:3", "#3", ".x")


def test_no_user_takes_a_tag_of_hps_itself(tmp_path: Path) -> None:
    for tag in RESERVED:
        with pytest.raises(hps.ConfigError, match="tag="):
            check_tag(tag)
    with hps.ParameterServer(config(tmp_path / "store")) as server:
        for tag in RESERVED:
            with pytest.raises(hps.ConfigError, match="tag="):
                server.checkpoint(tag)
        for tag in ("compacted", "last", "final", "cut-1"):
            server.checkpoint(tag)
    with service(tmp_path / "served", count=1) as made, made.client() as client:
        channel = Channel(made.addresses[0])
        for tag in RESERVED:
            with pytest.raises(hps.ConfigError, match="tag="):
                client.checkpoint(tag)
            if not tag.startswith("cut-"):  # which is how clients name parts
                refused = channel.refusal("Checkpoint", pb.CheckpointRequest(tag=tag))
                assert refused.code == "INVALID_ARGUMENT" and "tag=" in refused.text
        channel.close()


def test_a_compaction_leaves_a_users_own_checkpoint_of_any_tag(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with hps.ParameterServer(config(path)) as server:
        for rows, tag in ((100, "compacted"), (200, "day-2")):
            keys = np.arange(rows, dtype=np.uint64)
            server.pull("ads", keys, create=True)
            server.push("ads", keys, np.ones((rows, 4), np.float32))
            server.checkpoint(tag, reader={"position": "x" * 20_000})
        server.delete_checkpoint("day-2")
    for _ in range(2):
        assert main(["compact", str(path)]) == 0
    with hps.open(path) as reader:
        listed = [(one["tag"], one["rows"]) for one in reader.checkpoints()]
    assert listed == [("compacted", 100), (COMPACTED, 200)]
    with hps.open(path, checkpoint="compacted") as reader:
        assert reader.num_rows("ads") == 100
    assert main(["checkpoints", str(path), "--delete", COMPACTED]) == 0


def test_a_server_leaves_a_users_own_checkpoint_called_automatic(tmp_path: Path) -> None:
    """It was a legal tag of a store that nobody served."""
    path = tmp_path / "store"
    with hps.ParameterServer(config(path)) as server:
        server.pull("ads", np.arange(5), create=True)
        server.parts.checkpoints.save(AUTOMATIC, {})
    with pytest.raises(hps.ConfigError, match=r"has a checkpoint 'automatic', whose place"):
        Shard(StoreLocation(path=path))
    with hps.open(path, checkpoint=AUTOMATIC) as reader:
        assert reader.num_rows("ads") == 5
    assert main(["checkpoints", str(path), "--delete", AUTOMATIC]) == 0
    shard = Shard(StoreLocation(path=path))
    shard.create_table(hps.TableConfig(name="late", dim=4, features=["late"]))
    shard.close()
    Shard(StoreLocation(path=path)).close()
    with hps.open(path) as reader:
        assert AUTOMATIC in [one["tag"] for one in reader.checkpoints()]
