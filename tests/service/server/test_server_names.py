"""A caller sees the names of tables that it has a right on, and of no other: in no reply, error or
figure.

Above it: pytest. Below it: hps.service.server.server over a real shard with three tables.
"""

import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import hps
from hps.reader.schema import check_tables
from hps.v1 import parameter_server_pb2 as pb
from hps.v1 import publishing_pb2
from tests.service.client.client_lab import Service, service
from tests.service.server.test_server_access import ADMIN, READER, write_tokens
from tests.service.serving import OF_PUBLISHING, REPLIES, SERVICE_NAME, Channel

HIDDEN = ("alpha-secret", "beta-secret")
NAMES = (*HIDDEN, "mine")
TABLES = [hps.TableConfig(name=name, dim=8) for name in NAMES]
KEYS = np.arange(4, dtype=np.uint64).tobytes()


@dataclass
class Lab:
    """A server, a channel with the right on one table, and all that came back."""

    made: Service
    channel: Channel
    metrics: int
    seen: list[str] = field(default_factory=list)

    def ask(self, method: str, request: Any = b"", token: str = READER) -> str:
        """One call; the reply or error as text, which is kept."""
        data = request if isinstance(request, bytes) else request.SerializeToString()
        call = self.channel.channel.stream_stream(f"/{SERVICE_NAME}/{method}")
        metadata = [("authorization", f"Bearer {token}")]
        said = []
        try:
            said += [repr(part) for part in call(iter([data]), metadata=metadata, timeout=60)]
        except grpc.RpcError as error:
            said += [str(error.code()), str(error.details()), repr(error.trailing_metadata())]
        if token == READER:
            self.seen += said
        return " ".join(said)

    def figures(self, token: str = READER) -> str:
        request = urllib.request.Request(f"http://127.0.0.1:{self.metrics}/metrics")
        request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
        if token == READER:
            self.seen.append(text)
        return str(text)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    tokens = write_tokens(
        tmp_path / "tokens.json",
        [
            {"name": "one", "token": READER, "tables": {"mine": ["admin"], "new": ["admin"]}},
            {"name": "all", "token": ADMIN, "tables": {"*": ["admin"]}},
        ],
    )
    options: Any = {"tokens": tokens, "metrics": "127.0.0.1:0"}
    with service(tmp_path, count=1, tables=TABLES, **options) as made:
        for name in NAMES:
            made.shards[0].checkpoint(f"of-{NAMES.index(name)}")
        channel = Channel(made.addresses[0])
        yield Lab(made, channel, made.servers[0].front.metrics_port)
        channel.close()


def test_no_reply_error_or_figure_names_a_table_that_the_caller_may_not_see(lab: Lab) -> None:
    identity = pb.Identity(client_id="a", incarnation=1, sequence=1)
    for method in REPLIES:
        messages = publishing_pb2 if method in OF_PUBLISHING else pb
        kind = getattr(messages, f"{'Push' if method == 'PushStream' else method}Request")
        fields = {one.name for one in kind.DESCRIPTOR.fields}
        for table in ("mine", "none", "new", ""):
            given: dict[str, Any] = {"id": identity} if "id" in fields else {}
            if "table" in fields and method != "CreateTable":
                given["table"] = table
            if "keys" in fields:
                given["keys"] = KEYS
            if "tag" in fields:
                given["tag"] = "of-7"
            if "client_id" in fields:
                given["client_id"] = "a"
            lab.ask(method, kind(**given))
        lab.ask(method, b"\xff" * 9)
    assert "hps_table_rows" in lab.figures()
    assert len(lab.seen) > 100
    for text in lab.seen:
        assert not any(name in text for name in HIDDEN), text
    # They are there for who may see them.
    for text in (
        lab.figures(ADMIN),
        lab.ask("Describe", token=ADMIN),
        lab.ask("Stats", token=ADMIN),
        lab.ask("ListTables", token=ADMIN),
    ):
        assert all(name in text for name in NAMES)


def test_a_table_that_does_not_fit_beside_others_is_refused_without_their_names(lab: Lab) -> None:
    for table in (
        pb.Table(name="new", dim=4096, share=1e12),
        pb.Table(name="new", dim=4, share=1e12),
        pb.Table(name="mine", dim=9),
    ):
        said = lab.ask("CreateTable", pb.CreateTableRequest(table=table))
        assert "StatusCode.INVALID" in said or "StatusCode.FAILED_PRECONDITION" in said, said
        assert not any(name in said for name in HIDDEN), said
    assert "create_table('new'): it does not fit beside" in " ".join(lab.seen)
    table = pb.Table(name="new", dim=4, share=1e12)
    said = lab.ask("CreateTable", pb.CreateTableRequest(table=table), token=ADMIN)
    assert any(name in said for name in NAMES), said


def test_several_tables_without_features_are_legal_where_no_reader_is_used(lab: Lab) -> None:
    said = lab.ask("CreateTable", pb.CreateTableRequest(table=pb.Table(name="new", dim=4)))
    assert "StatusCode" not in said
    assert [table.features for table in lab.made.shards[0].tables] == [None] * 4
    for tables in (TABLES, lab.made.shards[0].tables):
        with pytest.raises(hps.ConfigError, match="a reader cannot divide a log's features over"):
            check_tables(tables)


def test_a_store_opens_again_with_several_tables_without_features(tmp_path: Path) -> None:
    with hps.ParameterServer(hps.Config(path=tmp_path, tables=TABLES)) as server:
        server.pull("mine", np.arange(5), create=True)
    with hps.open(tmp_path) as reader:
        assert list(reader.tables) == list(NAMES)
        assert [table.features for table in reader.tables.values()] == [None] * 3


def test_why_a_store_has_failed_is_told_to_those_who_may_see_all_tables(lab: Lab) -> None:
    session = pb.OpenSessionReply.FromString(
        eval(lab.ask("OpenSession", pb.OpenSessionRequest(client_id="a")))
    )
    store = lab.made.shards[0].parts.store
    store.change_failure = "planted: table 'alpha-secret' could not be written"
    identity = pb.Identity(client_id="a", incarnation=session.incarnation, sequence=1)
    push = pb.PushRequest(id=identity, table="mine", keys=KEYS, grads=bytes(4 * 8 * 4))
    assert "the store or its log has failed; the server's log" in lab.ask("Push", push)
    assert "the store or its log has failed" in lab.ask("Stats")
    assert "could not be written" in lab.ask("Push", push, token=ADMIN)
    assert "could not be written" in lab.ask("Stats", token=ADMIN)
    assert not any(name in text for name in HIDDEN for text in lab.seen)
    store.change_failure = "planted: no table's name"
    assert "planted: no table" in lab.ask("Push", push)
