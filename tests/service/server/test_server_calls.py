"""The server's verbs end to end, in this process: arrays, statuses, order, deadlines, cancels.

Above it: pytest. Below it: hps.service.server.server over a shard of dicts.
"""

import errno
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

import hps
from hps.common.wire import decode
from hps.errors import ChangedError, FencedError, GapError, MismatchError
from hps.service.server.limits import ServerLimits
from hps.v1 import parameter_server_pb2 as pb
from tests.service.client.fake_shard import DIM, FakeShard
from tests.service.serving import Local, Refused, serving


@pytest.fixture
def shard() -> FakeShard:
    return FakeShard("ads", "users")


@pytest.fixture
def local(shard: FakeShard) -> Iterator[Local]:
    with serving(shard) as local:
        yield local


def pull(keys: list[int], **fields: Any) -> pb.PullRequest:
    return pb.PullRequest(table="ads", keys=np.array(keys, np.uint64).tobytes(), **fields)


def push(sequence: int, keys: list[int], value: float = 1.0, **fields: Any) -> pb.PushRequest:
    fields.setdefault("grads", np.full((len(keys), DIM), value, np.float32).tobytes())
    return pb.PushRequest(
        id=pb.Identity(client_id="a", incarnation=1, sequence=sequence),
        table="ads",
        keys=np.array(keys, np.uint64).tobytes(),
        **fields,
    )


def wait_for(is_true: Callable[[], object], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.005)


def is_empty(local: Local) -> bool:
    flight = local.server.front.admissions.in_flight()
    return not any(flight.values())


def test_rows_come_in_the_order_of_the_keys(local: Local) -> None:
    reply = local.channel.call("Pull", pull([7, 3, 7, 2**64 - 1]))
    rows = np.frombuffer(reply.rows, np.float32).reshape(-1, reply.dim)
    assert rows[:, 0].tolist() == [7, 3, 7, (2**64 - 1) % 1000] and reply.dim == DIM


def test_a_pull_of_no_keys_is_a_reply_of_no_rows(local: Local) -> None:
    reply = local.channel.call("Pull", pull([]))
    assert reply.rows == b"" and reply.dim == DIM


@pytest.mark.parametrize(("wire", "width"), [(pb.FLOAT16, 2), (pb.BFLOAT16, 2), (pb.INT8_ROW, 2)])
def test_rows_travel_in_the_format_that_is_asked_for(local: Local, wire: Any, width: int) -> None:
    reply = local.channel.call("Pull", pull([1, 2, 3], wire=wire))
    assert reply.wire == wire and len(reply.rows) == 3 * DIM * width  # int8: 4 for the scale and 4


def test_a_push_arrives_as_it_was_sent(local: Local, shard: FakeShard) -> None:
    reply = local.channel.call("Push", push(1, [5, 6], 0.5, lr=0.25, ack=pb.DURABLE, dim=DIM))
    assert reply.marks.applied == 1 and not reply.is_repeat and reply.sequence == 1
    ((identity, table, keys, grads, lr, terms),) = shard.pushed
    assert (identity.client_id, identity.incarnation, table, lr) == ("a", 1, "ads", 0.25)
    assert keys.tolist() == [5, 6] and grads.tolist() == [[0.5] * DIM] * 2
    # The deadline travels in a unit of its own, rounded up.
    assert terms.ack.name == "DURABLE" and 0 < terms.timeout <= 21
    assert local.channel.call("Push", push(1, [5, 6])).is_repeat
    assert len(shard.pushed) == 1


def test_a_push_without_a_learning_rate_takes_the_tables(local: Local, shard: FakeShard) -> None:
    local.channel.call(
        "Push", push(1, [5], wire=pb.FLOAT16, grads=np.ones(4, np.float16).tobytes())
    )
    assert shard.pushed[0][4] is None and shard.pushed[0][3].tolist() == [[1.0] * DIM]


def test_a_stream_of_pushes_is_applied_and_answered_in_order(
    local: Local, shard: FakeShard
) -> None:
    requests = [push(number, [number]) for number in range(1, 51)]
    replies = list(local.channel.stream("PushStream", requests))
    assert [reply.sequence for reply in replies] == list(range(1, 51))
    assert [pushed[0].sequence for pushed in shard.pushed] == list(range(1, 51))
    wait_for(lambda: is_empty(local))


def test_the_first_refused_push_ends_its_stream(local: Local, shard: FakeShard) -> None:
    requests = [push(1, [1]), push(3, [3]), push(2, [2])]
    replies = local.channel.stream("PushStream", requests)
    assert next(replies).sequence == 1
    with pytest.raises(grpc.RpcError) as caught:
        next(replies)
    refused = Refused.of(caught.value)
    assert (refused.code, refused.kind, refused.detail.mark) == ("OUT_OF_RANGE", "GAP", 1)
    assert len(shard.pushed) == 1


STATUSES = [
    (hps.ConfigError("x"), "INVALID_ARGUMENT", "CONFIG", 0),
    (hps.CapacityError("x"), "RESOURCE_EXHAUSTED", "CAPACITY", 0),
    (hps.NonFiniteError("x"), "INVALID_ARGUMENT", "NON_FINITE", 0),
    (hps.CorruptionError("x"), "DATA_LOSS", "CORRUPTION", 0),
    (hps.StoreError(errno.ENOSPC, "x"), "RESOURCE_EXHAUSTED", "STORE", 1000),
    (hps.StoreError(errno.EIO, "x"), "UNAVAILABLE", "STORE", 0),
    (GapError("x", 9), "OUT_OF_RANGE", "GAP", 0),
    (FencedError("x"), "ABORTED", "FENCED", 0),
    (ChangedError("planted"), "ABORTED", "CONFIG", 0),
    (MismatchError("x"), "FAILED_PRECONDITION", "MISMATCH", 0),
    (TimeoutError("x"), "DEADLINE_EXCEEDED", "DEADLINE", 0),
    (MemoryError("x"), "RESOURCE_EXHAUSTED", "CAPACITY", 0),
    (ZeroDivisionError("secret"), "INTERNAL", "OTHER", 0),
]


@pytest.mark.parametrize(("error", "code", "kind", "retry"), STATUSES)
def test_each_error_has_its_status(
    local: Local, shard: FakeShard, error: Exception, code: str, kind: str, retry: int
) -> None:
    def fail(verb: str) -> None:
        raise error

    shard.before = fail
    refused = local.channel.refusal("Push", push(1, [1]))
    assert (refused.code, refused.kind, refused.detail.retry_after_ms) == (code, kind, retry)
    assert refused.detail.mark == getattr(error, "mark", 0)
    assert refused.text and "secret" not in refused.text
    if code == "INTERNAL":
        assert "ZeroDivisionError" in local.log("internal")[0]["trace"]
    shard.before = lambda verb: None
    assert local.channel.call("Push", push(1, [1])).marks.applied == 1
    wait_for(lambda: is_empty(local))


REFUSALS = [
    ("Pull", pull([1]).SerializeToString()[:-1], "INVALID_ARGUMENT", "within field 15"),
    ("Pull", pb.PullRequest(table="ads", keys=b"1234567"), "INVALID_ARGUMENT", "multiple of 8"),
    ("Pull", pb.PullRequest(table="gone", keys=bytes(8)), "NOT_FOUND", "no table 'gone'"),
    ("Pull", pull([1], dim=5), "FAILED_PRECONDITION", "dim 4, not 5"),
    ("Pull", pull([1], lineage="other"), "FAILED_PRECONDITION", "history"),
    ("Pull", pull([1], wire=17), "INVALID_ARGUMENT", "must be the number of a DType"),
    ("Pull", pull(list(range(101))), "RESOURCE_EXHAUSTED", "101 keys"),
    ("Push", push(1, [1, 2], grads=bytes(20)), "INVALID_ARGUMENT", "32 bytes, not 20"),
    ("Push", push(1, [1], ack=9), "INVALID_ARGUMENT", "ack=9"),
    ("Push", push(0, [1]), "INVALID_ARGUMENT", "sequence"),
    ("Push", push(1, [1], dim=3), "FAILED_PRECONDITION", "dim 4, not 3"),
    ("NumRows", b"\x0a\xff", "INVALID_ARGUMENT", "not a NumRowsRequest"),
    ("NumRows", b"\x82\x08\x80\x80\x04" + bytes(2**16), "INVALID_ARGUMENT", "65536 at most"),
    ("Flush", pb.FlushRequest(), "INVALID_ARGUMENT", "ack=0"),
]


@pytest.mark.parametrize(("method", "request_", "code", "words"), REFUSALS)
def test_bad_arguments_are_refused(method: str, request_: Any, code: str, words: str) -> None:
    shard = FakeShard()
    with serving(shard, limits=ServerLimits(keys=100)) as local:
        refused = local.channel.refusal(method, request_)
    assert refused.code == code and words in refused.text
    assert refused.detail.message == refused.text and not shard.pushed


def test_an_unknown_method_is_unimplemented(local: Local) -> None:
    assert local.channel.refusal("/hps.v1.ParameterServer/Nothing", b"").code == "UNIMPLEMENTED"


def test_a_push_whose_deadline_passed_while_it_queued_takes_no_effect(
    local: Local, shard: FakeShard
) -> None:
    local.channel.call("Pull", pull([1]))
    go_on = threading.Event()
    threads = local.server.front.threads
    for _ in range(threads._max_workers):
        threads.submit(go_on.wait, 20)
    late = local.channel.start("Push", push(1, [1]), timeout=0.2)
    assert late.code().name == "DEADLINE_EXCEEDED"
    go_on.set()
    assert local.channel.call("Pull", pull([1])).dim == DIM  # it came after the push, and is done
    wait_for(lambda: is_empty(local))
    assert not shard.pushed


def test_a_push_whose_deadline_passes_on_its_way_to_the_shard_takes_no_effect(
    local: Local, shard: FakeShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*arguments: Any) -> Any:
        time.sleep(0.4)
        return decode(*arguments)

    monkeypatch.setattr("hps.service.server.row_handlers.decode", slow)
    late = local.channel.start("Push", push(1, [1]), timeout=0.2)
    assert late.code().name == "DEADLINE_EXCEEDED"
    wait_for(lambda: is_empty(local))
    assert not shard.pushed


def test_a_call_without_a_deadline_gets_the_servers(shard: FakeShard) -> None:
    with serving(shard, limits=ServerLimits(deadline_seconds=7.0)) as local:
        local.channel.call("Push", push(1, [1]), timeout=None)
    assert 5 < shard.pushed[0][5].timeout <= 7


def test_a_push_stream_that_moves_outlives_the_deadline_of_a_call(shard: FakeShard) -> None:
    def requests() -> Iterator[pb.PushRequest]:
        for sequence in range(1, 6):
            time.sleep(0.6)
            yield push(sequence, [1])

    with serving(shard, limits=ServerLimits(deadline_seconds=2.4)) as local:
        replies = list(local.channel.stream("PushStream", requests(), timeout=None))
    assert [reply.sequence for reply in replies] == [1, 2, 3, 4, 5]
    assert all(pushed[5].timeout <= 2.4 for pushed in shard.pushed)


def test_a_cancelled_call_leaves_nothing(local: Local, shard: FakeShard) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def hold(verb: str) -> None:
        entered.set()
        assert go_on.wait(60)

    shard.before = hold
    call = local.channel.start("Pull", pull([1]))
    assert entered.wait(60)
    call.cancel()
    flight = local.server.front.admissions.in_flight()
    assert flight["requests"] == 1 and flight["bytes"] > 0  # its memory is still held
    go_on.set()
    wait_for(lambda: is_empty(local))


def test_a_request_that_never_arrives_is_ended(shard: FakeShard) -> None:
    with serving(shard, limits=ServerLimits(deadline_seconds=1.5)) as local:
        never = threading.Event()

        def requests() -> Iterator[pb.PushRequest]:
            never.wait(60)
            yield push(1, [1])

        replies = local.channel.stream("PushStream", requests(), timeout=None)
        wait_for(lambda: not is_empty(local))
        with pytest.raises(grpc.RpcError) as caught:
            next(replies)
        assert Refused.of(caught.value).code == "CANCELLED"
        never.set()
        wait_for(lambda: is_empty(local))


def test_items_come_in_pieces(local: Local) -> None:
    local.channel.call("Push", push(1, list(range(10))))
    pieces = list(local.channel.stream("Items", pb.ItemsRequest(table="ads", batch=4)))
    assert [len(piece.keys) // 8 for piece in pieces] == [4, 4, 2]
    keys = np.concatenate([np.frombuffer(piece.keys, np.uint64) for piece in pieces])
    assert keys.tolist() == list(range(10)) and pieces[0].dim == DIM
    assert local.channel.call("NumRows", pb.NumRowsRequest(table="ads")).num_rows == 10
    wait_for(lambda: is_empty(local))


def test_calls_are_logged_without_rows_and_tokens(local: Local) -> None:
    local.channel.call("Pull", pull([1]), token="a-very-secret-token")
    wait_for(lambda: local.log("call"))
    (line,) = local.log("call")
    assert line["method"] == "Pull" and line["status"] == "OK" and line["reply_bytes"] >= 16
    assert "secret" not in local.lines.getvalue()
