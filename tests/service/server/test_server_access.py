"""Tokens, TLS and where a server may listen.

Above it: pytest. Below it: hps.service.server.server over a shard of dicts; certificates by
openssl.
"""

import hashlib
import json
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

import hps
from hps.service.messages.addresses import is_loopback, split_address
from hps.service.server.auth import TokenFile
from hps.service.server.tls import TlsFiles
from hps.v1 import parameter_server_pb2 as pb
from hps.v1 import publishing_pb2
from tests.service.client.fake_shard import FakeShard
from tests.service.server.test_server_calls import pull, push
from tests.service.serving import Channel, Refused, serving

READER, WRITER, ADMIN, OLD = (f"{name}-secret-0123456789" for name in ("r", "w", "a", "o"))


def write_tokens(path: Path, entries: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"tokens": entries}))
    return path


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    digest = hashlib.sha256(WRITER.encode()).hexdigest()
    return write_tokens(
        tmp_path / "tokens.json",
        [
            {"name": "reader", "token": READER, "tables": {"ads": ["read"]}},
            {
                "name": "writer",
                "sha256": digest,
                "tables": {"ads": ["write"]},
                "clients": ["a", "trainer-*"],
            },
            {"name": "admin", "token": ADMIN, "tables": {"*": ["admin"]}},
            {"name": "old", "token": OLD, "tables": {"*": ["admin"]}, "expires": past},
        ],
    )


def users(request: pb.PullRequest | pb.PushRequest) -> Any:
    request.table = "users"
    return request


def other_client(request: pb.PushRequest) -> pb.PushRequest:
    request.id.client_id = "b"
    return request


STATS, CHECKPOINT = pb.StatsRequest(), pb.CheckpointRequest(tag="t")
DENIED = [
    (None, "Pull", pull([1]), "UNAUTHENTICATED", "no token"),
    ("wrong-secret-0123456789", "Pull", pull([1]), "UNAUTHENTICATED", "unknown token"),
    (READER[:-1], "Pull", pull([1]), "UNAUTHENTICATED", "unknown token"),
    ("", "Pull", pull([1]), "UNAUTHENTICATED", "unknown token"),
    ("x" * 5000, "Pull", pull([1]), "UNAUTHENTICATED", "unknown token"),
    (OLD, "Pull", pull([1]), "UNAUTHENTICATED", "expired"),
    (None, "Describe", pb.DescribeRequest(), "UNAUTHENTICATED", "no token"),
    (READER, "Push", push(1, [1]), "PERMISSION_DENIED", "lacks the right 'write' on table 'ads'"),
    (
        READER,
        "Pull",
        users(pull([1])),
        "PERMISSION_DENIED",
        "lacks the right 'read' on table 'users'",
    ),
    (WRITER, "Push", users(push(1, [1])), "PERMISSION_DENIED", "table 'users'"),
    (WRITER, "Push", other_client(push(1, [1])), "PERMISSION_DENIED", "act as client 'b'"),
    (WRITER, "Checkpoint", CHECKPOINT, "PERMISSION_DENIED", "lacks the right 'admin' on '*'"),
    (READER, "OpenSession", pb.OpenSessionRequest(client_id="a"), "PERMISSION_DENIED", "write"),
    (WRITER, "CreateTable", pb.CreateTableRequest(), "PERMISSION_DENIED", "admin"),
    (READER, "Flush", pb.FlushRequest(ack=pb.LOGGED), "PERMISSION_DENIED", "write"),
    (WRITER, "Restore", pb.RestoreRequest(prepare=True), "PERMISSION_DENIED", "admin"),
    (WRITER, "CheckpointState", pb.CheckpointStateRequest(), "PERMISSION_DENIED", "read"),
    (WRITER, "AdvancePeriod", pb.AdvancePeriodRequest(), "PERMISSION_DENIED", "admin"),
    (WRITER, "Statistics", pb.StatisticsRequest(table="users"), "PERMISSION_DENIED", "read"),
    (READER, "DeleteCheckpoint", pb.DeleteCheckpointRequest(), "PERMISSION_DENIED", "admin"),
    (WRITER, "MoveName", pb.MoveNameRequest(name="live"), "PERMISSION_DENIED", "admin"),
    (WRITER, "DescribePart", publishing_pb2.DescribePartRequest(), "PERMISSION_DENIED", "admin"),
    (WRITER, "PublishPart", publishing_pb2.PublishPartRequest(), "PERMISSION_DENIED", "admin"),
    (WRITER, "DropPart", publishing_pb2.DropPartRequest(), "PERMISSION_DENIED", "admin"),
    (None, "PublishPart", publishing_pb2.PublishPartRequest(), "UNAUTHENTICATED", "no token"),
]


@pytest.mark.parametrize(("token", "method", "request_", "code", "words"), DENIED)
def test_without_the_right_token_nothing_happens(
    tokens: Path, token: str | None, method: str, request_: Any, code: str, words: str
) -> None:
    shard = FakeShard("ads", "users")
    with serving(shard, tokens=tokens) as local:
        refused = local.channel.refusal(method, request_, token=token)
        assert refused.code == code and words in refused.text
        assert refused.kind == ("AUTHENTICATION" if code == "UNAUTHENTICATED" else "PERMISSION")
        assert not shard.pushed
        assert "secret" not in local.lines.getvalue()


def test_each_token_gets_what_it_may(tokens: Path) -> None:
    shard = FakeShard("ads", "users")
    with serving(shard, tokens=tokens) as local:
        call = local.channel.call
        assert call("Pull", pull([1]), token=READER).dim == 4
        assert call("Pull", pull([1]), token=WRITER).dim == 4  # write includes read
        assert call("Push", push(1, [1]), token=WRITER).marks.applied == 1
        assert call("Push", users(push(2, [1])), token=ADMIN).marks.applied == 2
        tables = call("Describe", pb.DescribeRequest(), token=READER).tables
        assert [table.name for table in tables] == ["ads"]
        assert json.loads(call("Stats", STATS, token=READER).json)["tables"] == {"ads": {"rows": 1}}
        assert "users" in json.loads(call("Stats", STATS, token=ADMIN).json)["tables"]


def test_tokens_are_read_again_and_a_bad_file_leaves_the_old_ones(tokens: Path) -> None:
    with serving(FakeShard(), tokens=tokens) as local:
        tokens.write_text("{")
        local.server.reload()
        assert local.log("reload")[-1]["level"] == "error"
        assert local.channel.call("Pull", pull([1]), token=READER).dim == 4
        entry = {"name": "new", "token": "n-secret-0123456789", "tables": {"*": ["read"]}}
        write_tokens(tokens, [entry])
        local.server.reload()
        assert local.channel.call("Pull", pull([1]), token=entry["token"]).dim == 4
        assert local.channel.refusal("Pull", pull([1]), token=READER).code == "UNAUTHENTICATED"


def test_a_token_that_was_taken_away_ends_its_stream(tokens: Path) -> None:
    is_away = threading.Event()

    def requests() -> Iterator[pb.PushRequest]:
        yield push(1, [1])
        assert is_away.wait(60)
        yield push(2, [2])

    shard = FakeShard()
    with serving(shard, tokens=tokens) as local:
        replies = local.channel.stream("PushStream", requests(), token=WRITER)
        assert next(replies).sequence == 1
        write_tokens(tokens, [{"name": "new", "token": ADMIN, "tables": {"*": ["read"]}}])
        local.server.reload()
        is_away.set()
        with pytest.raises(grpc.RpcError) as caught:
            next(replies)
        assert Refused.of(caught.value).code == "UNAUTHENTICATED" and shard.mark == 1


BAD_ENTRIES: list[tuple[Any, str]] = [
    ({"name": "a", "token": "short", "tables": {"*": ["read"]}}, "16 or more"),
    ({"name": "a", "tables": {"*": ["read"]}}, "either"),
    ({"name": "a", "sha256": "zz" * 32, "tables": {"*": ["read"]}}, "64 hex"),
    ({"name": "a", "token": "a" * 20}, "tables"),
    ({"name": "a", "token": "a" * 20, "tables": {"ads": ["own"]}}, "own"),
    ({"name": "a", "token": "a" * 20, "tables": {"ads": [["read"]]}}, "rights"),
    ({"name": "a", "token": "a" * 20, "tables": {"*": ["read"]}, "expires": "soon"}, "ISO"),
    ({"name": "a", "token": "a" * 20, "tables": {"*": ["read"]}, "expires": "2030-01-01"}, "zone"),
    ({"name": "a", "token": "a" * 20, "tables": {"*": ["read"]}, "admin": True}, "'admin'"),
    ({"name": "a", "token": "a" * 20, "tables": {"*": ["read"]}, "clients": "a"}, "clients"),
    ({"token": "a" * 20}, "name"),
    ("a", "name"),
]


@pytest.mark.parametrize(("entry", "words"), BAD_ENTRIES)
def test_a_token_file_that_cannot_work_is_refused(tmp_path: Path, entry: Any, words: str) -> None:
    with pytest.raises(hps.ConfigError, match=words):
        TokenFile(write_tokens(tmp_path / "tokens.json", [entry]))


def test_tokens_that_stand_twice_are_refused(tmp_path: Path) -> None:
    entry = {"name": "a", "token": "a" * 20, "tables": {"*": ["read"]}}
    with pytest.raises(hps.ConfigError, match="same name"):
        TokenFile(write_tokens(tmp_path / "t.json", [entry, {**entry, "token": "b" * 20}]))
    with pytest.raises(hps.ConfigError, match="same token"):
        TokenFile(write_tokens(tmp_path / "t.json", [entry, {**entry, "name": "b"}]))


# TLS.


def make_certificates(folder: Path) -> None:
    """A root, and certificates of a server and a client under it, all of this machine's name."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(
        "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca"
    )
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name in ("server", "client"):
        openssl(
            "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"
        )
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-out", f"{name}.pem", "-days", "2", "-extfile", "names"),
        )
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days"),
            *("-1", "-CAcreateserial", "-out", f"expired-{name}.pem", "-extfile", "names"),
        )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


def credentials(folder: Path, client: bool = False) -> grpc.ChannelCredentials:
    root = (folder / "ca.pem").read_bytes()
    if not client:
        return grpc.ssl_channel_credentials(root)
    return grpc.ssl_channel_credentials(
        root, (folder / "client.key").read_bytes(), (folder / "client.pem").read_bytes()
    )


def server_files(folder: Path, client_ca: bool = False) -> TlsFiles:
    return TlsFiles(
        cert=folder / "server.pem",
        key=folder / "server.key",
        client_ca=folder / "ca.pem" if client_ca else None,
    )


def test_tls_serves_and_a_client_in_the_clear_is_not_answered(certificates: Path) -> None:
    with serving(FakeShard(), tls=server_files(certificates)) as local:
        channel = Channel(local.server.address, credentials(certificates))
        assert channel.call("Pull", pull([1])).dim == 4
        channel.close()
        assert local.channel.refusal("Pull", pull([1]), timeout=60).code == "UNAVAILABLE"


def test_with_mutual_tls_a_client_without_a_certificate_is_not_let_in(certificates: Path) -> None:
    with serving(FakeShard(), tls=server_files(certificates, client_ca=True)) as local:
        stranger = Channel(local.server.address, credentials(certificates))
        assert stranger.refusal("Pull", pull([1]), timeout=60).code == "UNAVAILABLE"
        stranger.close()
        known = Channel(local.server.address, credentials(certificates, client=True))
        assert known.call("Pull", pull([1])).dim == 4
        known.close()


def test_a_renewed_certificate_serves_new_connections(certificates: Path, tmp_path: Path) -> None:
    for path in certificates.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with serving(FakeShard(), tls=server_files(tmp_path)) as local:
        make_certificates(tmp_path)
        options = {"grpc.use_local_subchannel_pool": 1}
        before = Channel(local.server.address, credentials(tmp_path), **options)
        assert before.refusal("Pull", pull([1]), timeout=60).code == "UNAVAILABLE"
        before.close()
        local.server.reload()
        after = Channel(local.server.address, credentials(tmp_path), **options)
        assert after.call("Pull", pull([1])).dim == 4
        after.close()


def test_a_certificate_that_is_half_renewed_is_not_taken(
    certificates: Path, tmp_path: Path
) -> None:
    for path in certificates.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with serving(FakeShard(), tls=server_files(tmp_path)) as local:
        (tmp_path / "server.key").write_bytes((certificates / "client.key").read_bytes())
        local.server.reload()
        assert local.log("reload")[-1]["level"] == "error"
        options = {"grpc.use_local_subchannel_pool": 1}
        channel = Channel(local.server.address, credentials(tmp_path), **options)
        assert channel.call("Pull", pull([1])).dim == 4
        channel.close()


def test_certificates_that_cannot_be_used_are_refused(certificates: Path, tmp_path: Path) -> None:
    missing = TlsFiles(cert=tmp_path / "no.pem", key=certificates / "server.key")
    with (
        pytest.raises(hps.ConfigError, match=r"--tls-cert .*no\.pem"),
        serving(FakeShard(), tls=missing),
    ):
        pass
    swapped = TlsFiles(cert=certificates / "server.key", key=certificates / "server.key")
    with pytest.raises(hps.ConfigError, match="--tls-cert"), serving(FakeShard(), tls=swapped):
        pass


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_a_server_listens_beyond_this_machine_with_tls_only(host: str, certificates: Path) -> None:
    with (
        pytest.raises(hps.ConfigError, match="--allow-insecure"),
        serving(FakeShard(), listen=f"{host}:0"),
    ):
        pass
    with (
        pytest.raises(hps.ConfigError, match="--metrics"),
        serving(FakeShard(), metrics=f"{host}:0"),
    ):
        pass


def test_what_is_open_to_others_is_said_in_the_log(certificates: Path) -> None:
    with serving(FakeShard(), listen="0.0.0.0:0", allow_insecure=True) as local:
        assert local.log("insecure") and local.log("open")
    with serving(FakeShard(), listen="0.0.0.0:0", tls=server_files(certificates)) as local:
        assert not local.log("insecure") and local.log("open")


def test_addresses_are_split_and_looked_at() -> None:
    assert split_address("--listen", "localhost:80") == ("localhost", 80)
    assert is_loopback("localhost") and is_loopback("127.8.8.8") and not is_loopback("::")
    for bad in ("localhost", ":80", "::1:80", "a:b", "a:70000", "[::1]"):
        with pytest.raises(hps.ConfigError, match="HOST:PORT"):
            split_address("--listen", bad)


def test_a_port_that_is_taken_is_refused() -> None:
    with (
        serving(FakeShard()) as local,
        pytest.raises(hps.ConfigError, match="cannot listen"),
        serving(FakeShard(), listen=local.server.address),
    ):
        pass
