"""What a checkpoint's group may be: one that a stranger wrote breaks no client's list.

Above it: pytest. Below it: hps.RemoteParameterServer over real shards and servers.
"""

from pathlib import Path

import numpy as np
import pytest

from hps.v1 import parameter_server_pb2 as pb
from tests.service.client.client_lab import service
from tests.service.serving import Channel

DEEP = "[" * 30_000 + "]" * 30_000
STRANGE = (DEEP, '{"cut":' * 8000 + "1" + "}" * 8000, '["cut"]', '{"cut": [1]}', "cut-", "[", '"')


def test_a_group_that_is_nested_deeply_is_refused(tmp_path: Path) -> None:
    with service(tmp_path, count=1) as made:
        channel = Channel(made.addresses[0])
        for deep in STRANGE[:2]:
            refused = channel.refusal("Checkpoint", pb.CheckpointRequest(tag="x", group=deep))
            assert (refused.code, refused.kind) == ("INVALID_ARGUMENT", "CONFIG")
            assert "group nests JSON more than 64 levels deep" in refused.text
        assert "x" not in [info["tag"] for info in made.shards[0].checkpoints()]
        channel.close()


@pytest.mark.parametrize("count", [1, 2])
def test_a_group_that_an_older_server_took_breaks_no_list_of_checkpoints(
    tmp_path: Path, count: int
) -> None:
    with service(tmp_path, count=count) as made, made.client() as client:
        client.push("ads", np.arange(100), np.ones((100, 8), np.float32))
        client.checkpoint("day-1")
        for shard in made.shards:
            for number, group in enumerate(STRANGE):
                shard.checkpoint(f"strange-{number}", group=group)
        assert "day-1" in [info["tag"] for info in client.checkpoints()]
        client.checkpoint("day-2")
        client.restore("day-1")
