"""Calls about checkpoints through a server in this process, over a real shard: their sizes are
bounded, and the log names what was restored.

Above it: pytest. Below it: hps.service.server.server over tests/service/shard/shard_lab.py.
"""

from typing import Any

import pytest

import hps
from hps.checkpoint.blobs import MODEL
from hps.service.server.limits import ServerLimits
from hps.service.shard import core as shard_core
from hps.v1 import parameter_server_pb2 as pb
from tests.service.server.test_server_life import health
from tests.service.serving import serving
from tests.service.shard.shard_lab import ShardLab, hps_config
from tests.service.shard.shard_session import CLIENT, trained

SMALL = ServerLimits(message_bytes="64KiB")


def test_a_dense_side_beyond_the_limit_is_refused_before_it_is_read(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, _ = trained(lab, 1)
    shard.checkpoint("large", b"m" * 62_000, None, "g")
    shard.checkpoint("small", b"m" * 1000, b"{}", "g")
    extras, read = lab._stores[-1].extras, []

    def note(checkpoint: Any = None, names: Any = None) -> Any:
        read.append(names is None or MODEL in names)
        return extras(checkpoint, names)

    monkeypatch.setattr(lab._stores[-1], "extras", note)
    with serving(shard, limits=SMALL) as local:
        refused = local.channel.refusal("CheckpointState", pb.CheckpointStateRequest(tag="large"))
        assert (refused.code, refused.kind) == ("RESOURCE_EXHAUSTED", "CAPACITY")
        assert "62001 bytes" in refused.text and "--max-message" in refused.text
        assert not any(read)
        state = local.channel.call("CheckpointState", pb.CheckpointStateRequest(tag="small"))
        assert (len(state.model), state.reader, state.group) == (1000, b"{}", "g")


def test_a_checkpoint_of_very_many_sessions_is_answered_with_those_asked_for(
    lab: ShardLab,
) -> None:
    shard, session = trained(lab, 2)
    for number in range(700):
        shard.open_session(f"{number:064d}")
    with serving(shard, limits=SMALL) as local:
        asked = pb.CheckpointRequest(tag="one", clients=[CLIENT, "nobody"])
        marks = local.channel.call("Checkpoint", asked).sessions
        assert list(marks) == [CLIENT]
        assert (marks[CLIENT].incarnation, marks[CLIENT].sequence) == (session.incarnation, 2)
        reply = local.channel.call("Checkpoint", pb.CheckpointRequest(tag="all"))
        assert 400 < len(reply.sessions) < 700 and reply.ByteSize() < 2**16
        assert f"{699:064d}" in reply.sessions and f"{0:064d}" not in reply.sessions


def test_the_log_says_what_was_restored_by_tag_and_id(lab: ShardLab) -> None:
    shard, _ = trained(lab, 1)
    shard.checkpoint("day-1")
    number, _ = shard.checkpoint_named("day-1")
    with serving(shard) as local:
        local.channel.call("Restore", pb.RestoreRequest(tag=f"id:{number}", lineage="again"))
        (line,) = local.log("restore")
        assert (line["tag"], line["id"], line["lineage"]) == ("day-1", number, "again")
        local.channel.call("DeleteCheckpoint", pb.DeleteCheckpointRequest(tag=f"id:{number}"))
        assert local.log("checkpoint deleted")[0]["tag"] == "day-1"


def test_health_says_when_the_store_is_gone(lab: ShardLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.config = hps_config(lab.config, dram=hps.DramCacheConfig(bytes=40_000))
    shard, _ = trained(lab, 1)

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise hps.StoreError(24, "planted: too many open files")

    with serving(shard) as local:
        assert "NOT_SERVING" not in health(local)
        with monkeypatch.context() as patch:
            patch.setattr(shard_core, "ParameterServer", refuse)
            table = pb.Table(name="late", dim=4)
            local.channel.refusal("CreateTable", pb.CreateTableRequest(table=table))
        assert "NOT_SERVING" in health(local)
        refused = local.channel.refusal("Pull", pb.PullRequest(table="sgd", keys=bytes(8)))
        assert refused.code == "UNAVAILABLE" and "start the server again" in refused.text
