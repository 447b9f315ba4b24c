"""Periods and statistics over servers: each period begins once on every shard, whatever is lost.

Above it: pytest. Below it: `hps.RemoteParameterServer` over real shards and a transport with
faults.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import grpc
import numpy as np
import pytest
import torch

import hps
from hps.errors import ConfigError, RemoteError
from hps.parameter_server import logged
from hps.parameter_server.periods import Periods
from hps.service.client.errors import Failure
from hps.service.client.parameter_server import RemoteParameterServer
from hps.service.client.transport import GrpcTransport
from hps.service.server.server import Server, ServerOptions
from hps.service.shard.shard import Shard
from hps.v1 import parameter_server_pb2 as pb
from tests.service.client.client_lab import Service, service
from tests.service.serving import Channel

ADS = hps.TableConfig(name="ads", dim=4, features=["a"], statistics=True)
PLAIN = hps.TableConfig(name="plain", dim=4, features=["b"])
KEYS = np.arange(12, dtype=np.uint64)
ONES = np.ones((12, 4), np.float32)


@pytest.fixture(params=[1, 3])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    with service(tmp_path, request.param, (ADS, PLAIN)) as made:
        yield made


def counts(server: Any, keys: Any = KEYS) -> list[list[float]]:
    found = server.statistics("ads", keys)
    return [found[name].tolist() for name in ("show", "click", "last_period")]


def periods(servers: Service) -> list[int]:
    return [shard.period for shard in servers.shards]


def serve_again(servers: Service, number: int) -> None:
    """On the same address."""
    address = servers.servers[number].address
    servers.servers[number] = Server(
        servers.shards[number],
        ServerOptions(listen=address, drain_seconds=0.1),
        servers.servers[number].front._log,
    )


class Lossy(GrpcTransport):
    """Loses the first replies to a method, and does not tell the period if it is `old`.

    A shard that is `dying` goes when it is asked for AdvancePeriod, before it hears of it.
    """

    lost = 0
    old = dying = is_down = False

    lossy = "AdvancePeriod"  # whose replies are lost

    def _die(self, method: str) -> None:
        self.is_down |= self.dying and method == "AdvancePeriod"
        if self.is_down:
            raise Failure(grpc.StatusCode.UNAVAILABLE, None, "gone")

    def start(self, method: str, request: bytes, timeout: float) -> Any:
        try:
            self._die(method)
        except Failure as failure:
            return _Failed(failure)
        pending = super().start(method, request, timeout)
        if method == self.lossy and self.lost:
            self.lost -= 1
            return _Lost(pending)
        return _Aged(pending) if self.old and method == "Describe" else pending

    def call(self, method: str, request: bytes, timeout: float) -> bytes:
        self._die(method)
        reply = super().call(method, request, timeout)
        if method == self.lossy and self.lost:
            self.lost -= 1
            raise Failure(grpc.StatusCode.UNAVAILABLE, None, "lost")
        return _aged(reply) if self.old and method == "Describe" else reply


class _Failed:
    def __init__(self, failure: Failure) -> None:
        self._failure = failure

    def reply(self) -> bytes:
        raise self._failure

    def then(self, call: Any) -> None:
        call(False)


class _Lost:
    def __init__(self, pending: Any) -> None:
        self._pending = pending

    def reply(self) -> bytes:
        self._pending.reply()
        raise Failure(grpc.StatusCode.UNAVAILABLE, None, "lost")

    def then(self, call: Any) -> None:
        self._pending.then(lambda _: call(False))


class _Aged:
    def __init__(self, pending: Any) -> None:
        self._pending = pending

    def reply(self) -> bytes:
        return _aged(self._pending.reply())

    def then(self, call: Any) -> None:
        self._pending.then(call)


def _aged(reply: bytes) -> bytes:
    described = pb.DescribeReply.FromString(reply)
    described.ClearField("period")
    return described.SerializeToString()


class LossyClient(RemoteParameterServer):
    _connect = Lossy


def set_up(client: RemoteParameterServer, name: str, value: object) -> None:
    for session in client._connections.sessions:
        setattr(session.transport, name, value)


def test_a_period_begins_on_all_shards_and_only_goes_forward(servers: Service) -> None:
    with servers.client() as client:
        assert client.period == 0
        client.push("ads", KEYS, ONES)
        assert [client.advance_period(), client.advance_period(to=9)] == [1, 9]
        assert set(periods(servers)) == {9} and client.period == 9
        client.push("ads", KEYS[:3], ONES[:3])
        assert counts(client)[2] == [9] * 3 + [0] * 9
        for wrong in (9, 0):
            with pytest.raises(ConfigError, match=f"to={wrong}.* at period 9"):
                client.advance_period(to=wrong)
        for odd in (-1, 2**31, 2.5):
            with pytest.raises(ConfigError, match="advance_period: to"):
                client.advance_period(to=odd)  # type: ignore[arg-type]
        with hps.Pipeline([], client), pytest.raises(ConfigError, match="open pipeline"):
            client.advance_period()
        client.checkpoint("nine")
        client.advance_period()
        client.restore("nine")
        assert client.period == 9 and client.advance_period() == 10


def test_a_lost_reply_does_not_begin_a_period_twice(servers: Service) -> None:
    with LossyClient(servers.addresses, "trainer-0", deadline=30.0) as client:
        set_up(client, "lost", 1)
        assert client.advance_period() == 1
        assert set(periods(servers)) == {1}
        for session, shard in zip(client._connections.sessions, servers.shards, strict=True):
            assert vars(session.transport)["lost"] == 0
            found = shard.parts.store.history.sessions.get("trainer-0")
            assert found is not None and found.mark == 1
        assert client.advance_period() == 2


def test_no_shard_begins_a_period_while_one_does_not_answer(tmp_path: Path) -> None:
    with service(tmp_path, 2, (ADS,), drain_seconds=0.1) as servers:
        client = servers.client(deadline=2.0)
        servers.servers[1].stop()
        for _ in range(2):
            with pytest.raises(RemoteError, match=r"shards done: 0 .*nothing"):
                client.advance_period()
            assert periods(servers) == [0, 0]
        serve_again(servers, 1)
        assert client.advance_period() == 1 and periods(servers) == [1, 1]
        client.close()


def test_a_shard_that_goes_meanwhile_begins_the_period_when_it_is_back(tmp_path: Path) -> None:
    with service(tmp_path, 2, (ADS,)) as servers:
        client = LossyClient(servers.addresses, "trainer-0", deadline=0.4)  # ten of it to begin
        transport: Any = client._connections.sessions[1].transport
        transport.dying = True
        with pytest.raises(RemoteError, match=r"advance_period\(to=1\): .*done: 0 .*goes first"):
            client.advance_period()
        assert periods(servers) == [1, 0]
        transport.dying = transport.is_down = False
        assert client.period == 0
        client.push("ads", KEYS, ONES)  # before it goes what is open
        assert periods(servers) == [1, 1] and counts(client)[2] == [1] * 12
        assert client.advance_period() == 2
        client.close()


def test_another_client_brings_shards_to_one_period(tmp_path: Path) -> None:
    """After one that ended between two of them."""
    with service(tmp_path, 3, (ADS,)) as servers, servers.client("a") as client:
        client.push("ads", KEYS, ONES)
        session = servers.shards[0].open_session("b")
        identity = hps.update_log.Identity("b", session.incarnation, 1)
        servers.shards[0].advance_period(identity, 7)
        assert periods(servers) == [7, 0, 0] and client.period == 0
        assert client.advance_period(to=3) == 3
        assert periods(servers) == [7, 3, 3]  # one that is ahead stays
        assert client.advance_period() == 7 and client.period == 7
        assert client.advance_period() == 8


def test_labels_count_as_in_one_process(servers: Service, tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    config = hps.Config(path=tmp_path / "one", tables=[ADS, PLAIN])
    with hps.ParameterServer(config) as one, servers.client() as client:
        for number in range(6):
            # Distinct keys of a large push go whole to an only shard; others are summed before.
            size = 6000 if number % 2 else 300
            keys = generator.permutation(np.arange(size, dtype=np.uint64))
            if not number % 2:
                keys = KEYS[generator.integers(0, 12, size)]
            grads = generator.standard_normal((size, 4)).astype(np.float32)
            labels = generator.integers(0, 2, size).astype(np.float32) if number else None
            for server in (one, client):
                server.push("ads", keys, grads, labels=labels)
                server.push("plain", keys, grads, labels=labels)
            if number == 3:
                assert one.advance_period() == client.advance_period()
        every = np.arange(6001, dtype=np.uint64)
        assert counts(client, every) == counts(one, every)
        assert max(counts(one)[0]) > 64
        for table in ("ads", "plain"):
            assert client.digest(table) == one.digest(table)


def test_labels_that_are_no_clicks_are_refused_by_name(servers: Service) -> None:
    with servers.client() as client:
        for table in ("ads", "plain"):
            with pytest.raises(ConfigError, match=r"labels\[1\] is 0.5; clicks are counted"):
                client.push(table, KEYS[:2], ONES[:2], labels=np.array([0, 0.5], np.float32))
        assert client.num_rows("ads") == 0
        with pytest.raises(ConfigError, match="'plain' has no statistics"):
            client.statistics("plain", KEYS)
        with pytest.raises(ConfigError, match="'plain' has no statistics"):
            next(client.items("plain", statistics=True))


def test_rows_take_statistics_and_give_them_back(servers: Service) -> None:
    given = {
        "show": np.arange(12, dtype=np.float32),
        "click": np.arange(12, dtype=np.float32) / 4,
        "last_period": np.full(12, 3, np.int64),
    }
    with servers.client() as client:
        with pytest.raises(hps.HpsError, match="last_period is 3, and the store is at period 0"):
            client.assign("ads", KEYS, ONES, statistics=given)
        client.advance_period(to=4)
        client.assign("ads", KEYS, ONES, statistics=given)
        expected = [given[name].tolist() for name in ("show", "click", "last_period")]
        assert counts(client) == expected
        found: dict[int, tuple[Any, ...]] = {}
        for keys, rows, state, *counted in client.items("ads", 5, state=True, statistics=True):
            assert rows.shape == state.shape == (len(keys), 4)
            found |= zip(keys.tolist(), zip(*counted, strict=True), strict=True)
        assert [list(one) for one in zip(*map(found.get, range(12)), strict=True)] == expected
        assert all(len(piece) == 3 for piece in client.items("ads", statistics=False, state=True))
        told = client.statistics("ads", torch.tensor([5, 99, 5]))
        assert all(isinstance(part, torch.Tensor) for part in told.values())
        assert told["show"].tolist() == [5, 0, 5] and told["last_period"].tolist() == [3, -1, 3]
        assert told["dies_at"].tolist() == [-1, -1, -1]
        client.assign("ads", KEYS, ONES)  # which leaves the counts
        assert counts(client) == [*expected[:2], [4] * 12]


def test_an_erasure_whose_reply_was_lost_erases_once(servers: Service) -> None:
    with LossyClient(servers.addresses, "trainer-0") as client:
        client.push("ads", KEYS, ONES)
        client.advance_period()
        client.push("ads", KEYS[:5], ONES[:5])
        set_up(client, "lossy", "EraseWhere")
        set_up(client, "lost", 2)
        assert client.erase_where("ads", unseen_for=1) == 7
        assert all(session.transport.lost == 0 for session in client._connections.sessions)
        assert client.num_rows("ads") == 5
        with hps.Pipeline([], client), pytest.raises(ConfigError, match="1 open pipeline"):
            client.erase_where("ads", unseen_for=1)


_SLOW = ("EraseWhere", "AdvancePeriod")


class Counting(GrpcTransport):
    """Keeps the timeouts of changes that may take long; the first attempt does not come through if
    it is `deaf`."""

    deaf = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.timeouts: list[float] = []

    def start(self, method: str, request: bytes, timeout: float) -> Any:
        if method in _SLOW:
            self.timeouts.append(timeout)
            if self.deaf:
                self.deaf = False
                return _Failed(Failure(grpc.StatusCode.UNAVAILABLE, None, "gone"))
        return super().start(method, request, timeout)

    def call(self, method: str, request: bytes, timeout: float) -> bytes:
        if method in _SLOW:
            self.timeouts.append(timeout)
        return super().call(method, request, timeout)


class CountingClient(RemoteParameterServer):
    _connect = Counting


@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.parametrize("verb", ["erase_where", "advance_period"])
def test_what_goes_over_all_rows_may_take_longer_than_a_push(
    servers: Service, monkeypatch: pytest.MonkeyPatch, verb: str, deaf: bool
) -> None:
    where, name = (logged, "erase_rows") if verb == "erase_where" else (Periods, "begin")
    quickly = getattr(where, name)

    def slowly(*arguments: Any, **options: Any) -> Any:
        sleep(1.0)
        return quickly(*arguments, **options)

    monkeypatch.setattr(where, name, slowly)
    monkeypatch.setattr("hps.service.client.session._LEAST_ATTEMPT_SECONDS", 0.1)
    with CountingClient(servers.addresses, "trainer-0", deadline=0.9) as client:
        client.push("ads", KEYS, ONES)
        client.flush()
        set_up(client, "deaf", deaf)
        if verb == "erase_where":
            assert client.erase_where("ads", show_below=2) == 12
        else:
            assert client.advance_period() == 1 and set(periods(servers)) == {1}
        for session in client._connections.sessions:
            timeouts = vars(session.transport)["timeouts"]
            assert len(timeouts) == 1 + deaf and 1.0 < min(timeouts) <= max(timeouts) <= 9.0


def test_a_server_of_before_there_were_periods_is_told_of(servers: Service) -> None:
    with LossyClient(servers.addresses, "trainer-0") as client:
        set_up(client, "old", True)
        for verb in (
            lambda: client.period,
            client.advance_period,
            lambda: client.create_table(hps.TableConfig(name="more", dim=4, statistics=True)),
        ):
            with pytest.raises(ConfigError, match=r"shard 0.* has no periods or statistics"):
                verb()
        assert set(client.tables) == {"ads", "plain"}


def test_messages_say_what_keys_stand_for(tmp_path: Path) -> None:
    """Of clients without hps; and one that knows of no counts counts a show a key."""
    with service(tmp_path, 1, (ADS,)) as servers, servers.client() as client:
        channel = Channel(servers.addresses[0])
        opened = channel.call("OpenSession", pb.OpenSessionRequest(client_id="other"))
        keys = np.array([7, 8, 7], np.uint64).tobytes()

        def push(sequence: int, **fields: Any) -> pb.PushRequest:
            identity = pb.Identity(
                client_id="other", incarnation=opened.incarnation, sequence=sequence
            )
            return pb.PushRequest(
                id=identity, table="ads", keys=keys, grads=bytes(3 * 16), **fields
            )

        def words(*numbers: int) -> bytes:
            return np.array(numbers, np.uint32).tobytes()

        channel.call("Push", push(1))
        assert counts(client, KEYS[7:9])[:2] == [[2, 1], [0, 0]]
        channel.call("Push", push(2, shows=words(5, 1, 2), clicks=words(2, 1, 0)))
        assert counts(client, KEYS[7:9])[:2] == [[9, 2], [2, 1]]
        channel.call("Push", push(3, clicks=words(1, 0, 1)))
        assert counts(client, KEYS[7:9])[:2] == [[11, 3], [4, 1]]
        for fields, match in (
            ({"shows": words(1, 1)}, "shows has 2 numbers for 3 keys"),
            ({"shows": words(1, 0, 1)}, "is 0; needs 1 or more"),
            ({"shows": words(2**32 - 1, 1, 1)}, "4294967295 at most"),
            ({"clicks": words(0, 2, 0)}, "clicks.1. is 2.*labels must be 0 or 1"),
            ({"clicks": b"123"}, "clicks has 3 bytes"),
        ):
            refused = channel.refusal("Push", push(4, **fields))
            assert refused.code == "INVALID_ARGUMENT" and re.search(match, refused.text)
        assert counts(client, KEYS[7:9])[:2] == [[11, 3], [4, 1]]
        channel.close()


def test_rules_stay_while_a_log_waits(tmp_path: Path) -> None:
    table = hps.TableConfig(name="ads", dim=4, statistics=True)
    config = hps.Config(path=tmp_path / "store", tables=[table])
    shard = Shard(config)
    opened = shard.open_session("a")
    shard.push(hps.update_log.Identity("a", opened.incarnation, 1), "ads", KEYS, ONES)
    shard.close(checkpoint=False)
    mortal = replace(config, tables=[replace(table, expiry=hps.Expiry(unseen=3))])
    with pytest.raises(ConfigError, match=r"'ads': expiry=.*that are in the log"):
        hps.ParameterServer(mortal)
    with hps.ParameterServer(config) as server:
        server.checkpoint()
    with hps.ParameterServer(mortal) as server:
        server.advance_period()  # from here on they may
        server.advance_period(5)
        assert server.num_rows("ads") == 0
