"""What exceeds a server's limits is refused at once, with a hint, and leaves room for the others.

Above it: pytest. Below it: hps.service.server.server over a shard of dicts.
"""

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

import hps
from hps.service.server.limits import ServerLimits
from hps.v1 import parameter_server_pb2 as pb
from tests.service.client.fake_shard import DIM, FakeShard
from tests.service.server.test_server_calls import is_empty, pull, push, wait_for
from tests.service.serving import Channel, Refused, serving


class HeldShard(FakeShard):
    """Pulls wait until they are told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.entered = threading.Semaphore(0)
        self.before = self._hold

    def _hold(self, verb: str) -> None:
        self.entered.release()
        assert self.go_on.wait(60)

    def wait_entered(self, count: int) -> None:
        for _ in range(count):
            assert self.entered.acquire(timeout=60)


def test_requests_beyond_a_clients_limit_are_refused_with_a_hint() -> None:
    shard = HeldShard()
    with serving(shard, limits=ServerLimits(client_requests=3)) as local:
        calls = [local.channel.start("Pull", pull([1])) for _ in range(3)]
        shard.wait_entered(3)
        refused = local.channel.refusal("Pull", pull([1]))
        assert (refused.code, refused.kind) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        assert refused.detail.retry_after_ms > 0 and "3 calls in flight" in refused.text
        other = Channel(local.server.address, **{"grpc.use_local_subchannel_pool": 1})
        held = other.start("Pull", pull([1]))  # another client has room
        shard.wait_entered(1)
        shard.go_on.set()
        assert [call.result().dim for call in [*calls, held]] == [DIM] * 4
        assert local.channel.call("Pull", pull([1])).dim == DIM
        other.close()


def test_requests_beyond_the_servers_limit_are_refused_at_once() -> None:
    shard = HeldShard()
    with serving(shard, limits=ServerLimits(requests=4)) as local:
        calls = [local.channel.start("Pull", pull([1])) for _ in range(4)]
        shard.wait_entered(4)
        for _ in range(20):
            refused = local.channel.refusal("Pull", pull([1]), timeout=60)
            assert refused.kind == "OVERLOADED" and "the most there may be" in refused.text
        shard.go_on.set()
        assert [call.result().dim for call in calls] == [DIM] * 4


def test_bytes_in_flight_are_bounded_and_given_back() -> None:
    shard = HeldShard()
    shard.tables = [hps.TableConfig(name="ads", dim=DIM)]
    limits = ServerLimits(message_bytes="64KiB", client_bytes="128KiB", flight_bytes="1MiB")
    keys = list(range(2500))  # 20,000 bytes there, 40,000 back
    with serving(shard, limits=limits) as local:
        calls = [local.channel.start("Pull", pull(keys)) for _ in range(2)]
        shard.wait_entered(2)
        refused = local.channel.refusal("Pull", pull(keys))
        assert refused.kind == "OVERLOADED" and "bytes in flight" in refused.text
        shard.go_on.set()
        assert all(len(call.result().rows) == 40_000 for call in calls)
        wait_for(lambda: is_empty(local))
        assert len(local.channel.call("Pull", pull(keys)).rows) == 40_000


def test_a_reply_beyond_the_limit_is_refused_before_it_is_made() -> None:
    shard = FakeShard()
    shard.tables = [hps.TableConfig(name="ads", dim=4096)]

    def must_not_pull(verb: str) -> None:
        raise AssertionError(verb)

    shard.before = must_not_pull
    with serving(shard) as local:
        refused = local.channel.refusal("Pull", pull(list(range(5000))))
    assert (refused.code, refused.kind) == ("RESOURCE_EXHAUSTED", "CAPACITY")
    assert refused.detail.retry_after_ms == 0 and "ask for fewer keys" in refused.text


def test_a_message_beyond_the_limit_is_refused() -> None:
    with serving(FakeShard(), limits=ServerLimits(message_bytes="64KiB")) as local:
        refused = local.channel.refusal("Push", push(1, list(range(10_000))))
        assert refused.code == "RESOURCE_EXHAUSTED"
        wait_for(lambda: is_empty(local))


def test_a_message_that_unpacks_to_more_than_it_is_is_refused() -> None:
    with serving(FakeShard()) as local:
        bomb = pb.PullRequest(table="ads", keys=bytes(8), padding=[bytes(2**20)])
        refused = local.channel.refusal("Pull", bomb, compression=grpc.Compression.Gzip)
        assert refused.code == "UNIMPLEMENTED"
        assert local.channel.call("Pull", pull([1])).dim == DIM


def test_push_streams_beyond_the_limit_are_refused() -> None:
    never = threading.Event()

    def idle() -> Iterator[pb.PushRequest]:
        yield push(1, [1])
        never.wait(60)

    with serving(FakeShard(), limits=ServerLimits(streams=2)) as local:
        streams = [local.channel.stream("PushStream", idle()) for _ in range(2)]
        assert [next(stream).marks.applied for stream in streams] == [1, 1]
        with pytest.raises(grpc.RpcError) as caught:
            next(local.channel.stream("PushStream", idle()))
        assert Refused.of(caught.value).kind == "OVERLOADED"
        never.set()
        assert [list(stream) for stream in streams] == [[], []]
        wait_for(lambda: is_empty(local))
        assert next(local.channel.stream("PushStream", [push(2, [1])])).sequence == 2


def test_a_reply_that_nobody_reads_is_held_no_longer_than_the_deadline() -> None:
    shard = FakeShard()
    limits = ServerLimits(message_bytes="8MiB", deadline_seconds=2)
    with serving(shard, limits=limits) as local:
        shard.pull = lambda table, keys, out, timeout: None  # type: ignore[method-assign]
        request = pb.PullRequest(table="ads", keys=bytes(2**21))  # 4 MiB come back
        method = local.channel.channel.stream_stream("/hps.v1.ParameterServer/Pull")
        unread = method(iter([request.SerializeToString()]))
        wait_for(lambda: local.log("call"))
        assert local.log("call")[0]["status"] == "OK"
        assert (
            local.server.front.admissions.in_flight()["bytes"] > 4 * 2**20
        )  # the reply lies there
        wait_for(lambda: is_empty(local))
        unread.cancel()


LIMITS: list[tuple[dict[str, Any], str]] = [
    ({"message_bytes": "1KiB"}, "message_bytes"),
    ({"keys": 0}, "keys"),
    ({"flight_bytes": "33MiB"}, "must fit"),
    ({"deadline_seconds": 0}, "deadline_seconds"),
]


@pytest.mark.parametrize(("fields", "words"), LIMITS)
def test_limits_that_cannot_work_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(hps.ConfigError, match=words):
        ServerLimits(**fields)


def test_describe_tells_the_limits_and_the_seed() -> None:
    shard = FakeShard()
    shard.seed = 2**63 + 7
    with serving(shard, limits=ServerLimits(keys=1234, message_bytes="1MiB")) as local:
        reply = local.channel.call("Describe", pb.DescribeRequest())
    assert reply.seed == 2**63 + 7
    assert reply.limits.max_keys == 1234 and reply.limits.max_message_bytes == 2**20
    assert reply.shard_map.count == 1 and [table.name for table in reply.tables] == ["ads"]
    assert reply.tables[0].optimizer.kind == "adagrad"
