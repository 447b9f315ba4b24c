"""Tables with rules over servers: as they are asked for on each shard, or refused by name."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.table_text import parse_table
from hps.errors import ConfigError, RemoteError
from hps.service.client.parameter_server import RemoteParameterServer
from hps.service.client.transport import GrpcTransport
from hps.service.messages.table_messages import from_message, to_message, without_rules
from hps.train.row_server import connect
from hps.v1 import parameter_server_pb2 as pb
from tests.service.client.client_lab import Service, service

ADS = hps.TableConfig(name="ads", dim=4, features=["a"], expiry=hps.Expiry(unseen=3))
USERS = hps.TableConfig(name="users", dim=4, features=["b"], statistics=True)
EVERYTHING = hps.TableConfig(
    name="all",
    dim=4,
    features=["c"],
    expiry=hps.Expiry(unseen=0, min_score=0.1, decay=1 / 3, nonclick=0.0, click=7.0),
    admission=hps.Admission(by="users", min_score=0.3),
    max_rows=2**40 + 1,
    max_bytes=2**62,
    dtype="bfloat16",
    rounding="nearest",
    negative_rate=0.125,
)
WIDE = replace(EVERYTHING, dtype="float32", rounding="stochastic")


def test_a_message_keeps_every_rule() -> None:
    rules: list[dict[str, Any]] = [
        {"expiry": hps.Expiry(unseen=5)},
        {"expiry": hps.Expiry(min_score=1e-30, nonclick=0.0)},
        {"admission": hps.Admission(count=2**24)},
        {"admission": hps.Admission(probability=0.1)},
        {"dtype": "bfloat16"},
        {"statistics": True},
        {"statistics": True, "negative_rate": 0.1},
    ]
    tables = [hps.TableConfig(name="t", dim=1, **fields) for fields in rules]
    for table in (*tables, EVERYTHING, WIDE):
        data = to_message(table).SerializeToString()
        assert from_message(pb.Table.FromString(data)) == table
    for bad, words in (
        (pb.Table(name="t", dim=1, expiry=pb.Expiry()), "unseen=, min_score= or both"),
        (pb.Table(name="t", dim=1, expiry=pb.Expiry(unseen=2**31)), r"Expiry\.unseen=2147483648"),
        (pb.Table(name="t", dim=1, admission=pb.Admission(count=0)), r"Admission\.count=0"),
        (pb.Table(name="t", dim=1, dtype="float16"), "dtype='float16' must be one of"),
        (pb.Table(name="t", dim=1, max_rows=5), "without expiry none dies"),
        (pb.Table(name="t", dim=1, negative_rate=0.5), "rows without statistics count none"),
        (pb.Table(name="t", dim=1, statistics=True, negative_rate=-1), "negative_rate=-1.0 must"),
    ):
        with pytest.raises(ConfigError, match=words):
            from_message(bad)


@pytest.mark.parametrize("count", [1, 3])
def test_every_shard_has_the_rules_that_were_asked_for(tmp_path: Path, count: int) -> None:
    with service(tmp_path, count, (ADS,)) as servers:
        with servers.client() as client:
            assert client.tables["ads"] == ADS
            client.create_table(USERS)
            assert client.create_table(EVERYTHING) and client.tables["all"] == EVERYTHING
        for shard in servers.shards:
            assert shard.tables == [ADS, USERS, EVERYTHING]
            assert not shard.create_table(EVERYTHING)


@pytest.mark.parametrize(
    "change",
    [
        {"expiry": hps.Expiry(unseen=1)},
        {"admission": None},
        {"admission": hps.Admission(count=3)},
        {"max_rows": 5},
        {"max_bytes": None},
        {"dtype": "float32"},
        {"rounding": "stochastic"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_table_that_is_there_with_other_rules_is_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    with service(tmp_path, 1, (USERS, EVERYTHING)) as servers, servers.client() as client:
        (name,) = change
        with pytest.raises(RemoteError, match=f"its {name} is .*, requested is"):
            client.create_table(replace(EVERYTHING, **change))
        assert client.tables["all"] == EVERYTHING


def test_a_table_that_cannot_be_beside_the_others_leaves_all_as_it_was(tmp_path: Path) -> None:
    by = hps.Admission(by="nobody", min_score=1.0)
    with service(tmp_path, 2, (ADS,)) as servers, servers.client() as client:
        with pytest.raises(ConfigError, match=r"'nobody'.* must name another table, one of"):
            client.create_table(hps.TableConfig(name="new", dim=2, features=["x"], admission=by))
        client.push("ads", np.arange(9), np.ones((9, 4), np.float32))
        assert client.num_rows("ads") == 9 and set(client.tables) == {"ads"}


def test_tables_are_made_beside_one_whose_keys_wait(tmp_path: Path) -> None:
    waiting = hps.TableConfig(name="w", dim=2, features=["w"], admission=hps.Admission(count=2))
    keys = np.arange(50, dtype=np.uint64)
    with service(tmp_path, 2, ()) as servers:
        with servers.client() as client:
            client.create_table(waiting)
            client.push("w", keys, np.ones((50, 2), np.float32))
            client.create_table(ADS)
            assert client.num_rows("w") == 0
            client.push("w", keys[:20], np.ones((20, 2), np.float32))
            assert client.num_rows("w") == 20
            digest = client.digest("w")
        for server, shard in zip(servers.servers, servers.shards, strict=True):
            server.stop()
            shard.close(checkpoint=False)
    with service(tmp_path, 2, ()) as servers, servers.client() as client:
        assert client.digest("w") == digest and set(client.tables) == {"w", "ads"}


class Older(GrpcTransport):
    """To servers that know nothing of rules."""

    def call(self, method: str, request: bytes, timeout: float) -> bytes:
        return _older(method, super().call(method, request, timeout))

    def start(self, method: str, request: bytes, timeout: float) -> Any:
        pending = super().start(method, request, timeout)
        reply = pending.reply
        pending.reply = lambda: _older(method, reply())
        return pending


def _older(method: str, reply: bytes) -> bytes:
    if method != "Describe":
        return reply
    described = pb.DescribeReply.FromString(reply)
    described.ClearField("has_rules")
    for table in described.tables:
        without_rules(table)
    return described.SerializeToString()


class OlderClient(RemoteParameterServer):
    _connect = Older


class HalfOlder(Older):
    """To servers of which one is as new as its client."""

    new = ""

    def call(self, method: str, request: bytes, timeout: float) -> bytes:
        reply = GrpcTransport.call(self, method, request, timeout)
        return reply if self.address == self.new else _older(method, reply)

    def start(self, method: str, request: bytes, timeout: float) -> Any:
        if self.address == self.new:
            return GrpcTransport.start(self, method, request, timeout)
        return super().start(method, request, timeout)


class HalfOlderClient(RemoteParameterServer):
    _connect = HalfOlder


def test_servers_may_be_changed_for_newer_ones_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile some tell the rules of a table and others do not."""
    with service(tmp_path, 2, (USERS, EVERYTHING)) as servers:
        monkeypatch.setattr(HalfOlder, "new", servers.addresses[0])
        with HalfOlderClient(servers.addresses) as client:
            table = client.tables["all"]
            assert (table.expiry, table.dtype, table.statistics) == (None, "float32", True)
            assert table.negative_rate == 1
            client.assign("all", np.arange(9), np.ones((9, 4), np.float32))
            assert client.num_rows("all") == 9


def test_a_server_that_would_pass_over_the_rules_is_not_asked(tmp_path: Path) -> None:
    died = replace(ADS, name="died")
    with service(tmp_path, 2, (USERS, died)) as servers, OlderClient(servers.addresses) as client:
        for table in (
            ADS,
            hps.TableConfig(name="n", dim=1, dtype="bfloat16"),
            hps.TableConfig(name="w", dim=1, admission=hps.Admission(probability=0.5)),
        ):
            words = f"create_table.'{table.name}'.*shard 0.* makes no tables with expiry"
            with pytest.raises(ConfigError, match=words):
                client.create_table(table)
        assert client.create_table(hps.TableConfig(name="plain", dim=1, features=[]))
        assert set(client.tables) == {"users", "died", "plain"}
        with pytest.raises(ConfigError, match=r"shard 0.* erases no rows by what"):
            client.erase_where("users", unseen_for=1)
        with pytest.raises(ConfigError, match=r"shard 0.* erases no rows by what"):
            client.erase_where("died", score_below=1.0)  # whose expiry it does not tell


def test_a_server_that_would_pass_over_a_rate_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rateless(method: str, reply: bytes) -> bytes:
        if method != "Describe":
            return reply
        described = pb.DescribeReply.FromString(reply)
        described.ClearField("has_rates")
        return described.SerializeToString()

    sampled = replace(USERS, negative_rate=0.5)
    with service(tmp_path, 2, (sampled,)) as servers:
        monkeypatch.setattr(sys.modules[__name__], "_older", rateless)
        monkeypatch.setattr(HalfOlder, "new", servers.addresses[0])
        with HalfOlderClient(servers.addresses) as client:
            assert client.tables == {"users": USERS}  # one of them does not tell
            with pytest.raises(ConfigError, match=r"shard 1.* makes no tables with negative_rate"):
                client.create_table(replace(sampled, name="ads"))
            assert client.create_table(replace(ADS, features=[]))
        with servers.client() as client:
            assert client.tables["users"] == sampled


def test_a_run_makes_its_tables_and_takes_those_that_are_there(tmp_path: Path) -> None:
    def asked(servers: Service, table: hps.TableConfig, **how: bool) -> hps.TableConfig:
        config = servers.client().config
        with connect(config, [table], **how) as server:
            return server.tables["ads"]

    plain = replace(ADS, expiry=None)  # with statistics, and no flag for rules
    with service(tmp_path, 2, ()) as servers:
        assert asked(servers, ADS) == ADS
        assert asked(servers, ADS) == ADS
        assert asked(servers, plain) == ADS
        with pytest.raises(ConfigError, match=r"its expiry is .* as the flags ask for"):
            asked(servers, replace(ADS, expiry=hps.Expiry(unseen=9)))
        sampled = replace(ADS, negative_rate=0.5)
        with pytest.raises(ConfigError, match=r"its negative_rate is 1.0, not 0.5 as the flags"):
            asked(servers, sampled)
        assert asked(servers, sampled, keeps_rate=True) == ADS  # as an older hps made it


def test_a_run_whose_table_is_refused_lets_the_servers_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[RemoteParameterServer] = []
    of = RemoteParameterServer.of

    def keep(config: Any) -> RemoteParameterServer:
        made.append(of(config))
        return made[-1]

    monkeypatch.setattr(RemoteParameterServer, "of", keep)
    by = hps.Admission(by="nobody", min_score=1.0)
    orphan = hps.TableConfig(name="new", dim=2, features=["x"], admission=by)
    with service(tmp_path, 2, (ADS,)) as servers:
        config = servers.client().config
        for table in (orphan, replace(ADS, dim=8)):
            with pytest.raises(ConfigError, match=r"'nobody'|its dim is 4"):
                connect(config, [table])
            assert not made.pop()._connections.is_open


def test_a_table_that_another_one_admits_is_made_first(tmp_path: Path) -> None:
    vectors = replace(EVERYTHING, name="a")
    with (
        service(tmp_path, 2, ()) as servers,
        connect(servers.client().config, [vectors, USERS]) as server,
    ):
        assert server.tables == {"users": USERS, "a": vectors}


def test_one_flag_tells_the_rules(tmp_path: Path) -> None:
    text = (
        "name=all,dim=4,features=c,expire-unseen=0,expire-below=0.1,expire-decay=0.5,"
        "expire-nonclick=0,expire-click=7,admit-by=users,admit-score=0.3,max-rows=12,"
        "max-bytes=4GiB,row-dtype=bfloat16,rounding=nearest,negative-rate=0.125"
    )
    expiry = hps.Expiry(unseen=0, min_score=0.1, decay=0.5, nonclick=0.0, click=7.0)
    bounds = {"max_rows": 12, "max_bytes": 2**32}
    assert parse_table(text) == replace(EVERYTHING, expiry=expiry, **bounds)
    for rule, admission in (
        ("admit-count=10", hps.Admission(count=10)),
        ("admit-probability=0.5", hps.Admission(probability=0.5)),
    ):
        assert parse_table(f"name=a,dim=1,{rule}").admission == admission
    for rule, words in (
        ("expire-decay=0.5", "unseen=, min_score= or both"),
        ("expire-unseen=1.5", r"Expiry\.unseen=1\.5"),
        ("expire-unseen=x", "'x' is not a number"),
        ("admit-by=users", "by= and min_score= go together"),
        ("admit-count=0", r"Admission\.count=0"),
        ("max-rows=5", "without expiry none dies"),
        ("row-dtype=float16", "dtype='float16' must be one of"),
    ):
        with pytest.raises(ConfigError, match=words):
            parse_table(f"name=a,dim=1,{rule}")
