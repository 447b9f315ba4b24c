"""What docs/clients.md shows to clients in other languages is so.

Above it: pytest. Below it: docs/clients.md, a real shard.
"""

import json
import re
from pathlib import Path

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, json_format
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import hps
from hps import _C
from hps.common.sharding import ShardMap
from hps.v1 import parameter_server_pb2 as pb
from tests.service.client.client_lab import service
from tests.service.serving import ROOT

TEXT = (ROOT / "docs/clients.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.S)


def test_python_with_hps_runs(tmp_path: Path) -> None:
    with service(tmp_path, 1, tables=()) as servers:
        code = EXAMPLES[0].replace("127.0.0.1:50051", servers.addresses[0])
        exec(compile(code, "docs/clients.md", "exec"), {})
        assert servers.shards[0].num_rows("ads") == 2


def test_client_without_hps_runs_and_its_push_is_that_of_hps(tmp_path: Path) -> None:
    with service(tmp_path, 1) as servers:
        names = {"ADDRESS": servers.addresses[0]}
        exec(compile(EXAMPLES[1], "docs/clients.md", "exec"), names)
        with servers.client() as client:
            keys = np.array([7, 2**64 - 1], np.uint64)
            rows = client.pull("ads", keys)
            assert tuple(rows.reshape(-1).tolist()) == names["rows"]
            dim, table = rows.shape[1], client.tables["ads"]
            digest = client.digest("ads")
    with hps.ParameterServer(hps.Config(path=tmp_path / "local", tables=[table])) as local:
        local.push("ads", keys, np.ones((2, dim), np.float32))
        assert local.digest("ads") == digest


def test_what_grpcurl_does_gives_rows(tmp_path: Path) -> None:
    """Its two steps: the service's description by reflection, then JSON to a message and back."""
    (body,) = re.findall(r"grpcurl -plaintext -d '(.*?)'", TEXT)
    with service(tmp_path, 1) as servers, grpc.insecure_channel(servers.addresses[0]) as channel:
        asked = reflection_pb2.ServerReflectionRequest(
            file_containing_symbol="hps.v1.ParameterServer"
        )
        answers = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([asked]), timeout=60
        )
        (answer,) = answers
        file = descriptor_pb2.FileDescriptorProto.FromString(
            answer.file_descriptor_response.file_descriptor_proto[0]
        )
        assert "Pull" in [method.name for method in file.service[0].method]
        request = json_format.Parse(body, pb.PullRequest())
        pull = channel.unary_unary("/hps.v1.ParameterServer/Pull")
        reply = pb.PullReply.FromString(pull(request.SerializeToString(), timeout=60))
        assert request.keys == (7).to_bytes(8, "little")
        assert len(json.loads(json_format.MessageToJson(reply))["rows"]) == 44  # 32 bytes, base64


def test_table_of_owners_is_right() -> None:
    lines = re.findall(r"^\| (\S+(?: - 1)?) \| `(\w{16})` \| (\d+) \| (\d) \| (\d) \|$", TEXT, re.M)
    assert len(lines) == 4
    for name, digest, virtual, of_2, of_3 in lines:
        key = 2**64 - 1 if "2^64" in name else int(name)
        hashed = _C.xxh64(key.to_bytes(8, "little"))
        assert f"{hashed:016x}" == digest and hashed % 4096 == int(virtual)
        array = np.array([key], np.uint64)
        for count, index in ((2, int(of_2)), (3, int(of_3))):
            assert [len(part) for part in ShardMap(count).split(array)].index(1) == index
