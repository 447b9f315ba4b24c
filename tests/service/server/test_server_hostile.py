"""Recipe Q1: malformed and hostile requests get a typed status; no crash, and memory stays bounded.

Above it: pytest. Below it: `hps serve` as a process, over a real store and log.
"""

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from hps.v1 import parameter_server_pb2 as pb
from hps.v1 import publishing_pb2
from tests.service.serving import REPLIES, SERVICE_NAME, Channel, Process, Refused, process
from tests.torture.scratch import scratch_folder

DIM = 4
MAX_MESSAGE = 4 * 2**20
MAX_REQUESTS = 8
WIDE = "name=wide,dim=64,features=none"
FLIGHT = 32 * 2**20
# What docs/service.md promises, besides what the process had when it started.
ALLOWED_BYTES = FLIGHT + 3 * MAX_MESSAGE * MAX_REQUESTS
TYPED = {
    "OK",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "RESOURCE_EXHAUSTED",
    "OUT_OF_RANGE",
    "ABORTED",
    "FAILED_PRECONDITION",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
}
STREAMS = {"PushStream", "Items"}


class Target:
    """A server under attack, and what it answered."""

    def __init__(self, server: Process) -> None:
        self.server = server
        self.channel = Channel(server.address)
        self.at_start = server.peak_bytes()
        self.most = self.at_start
        self.answers: Counter[str] = Counter()

    def attack(self, method: str, request: bytes, **how: Any) -> str:
        """Sends one request; returns the status, which must be typed."""
        code = "OK"
        try:
            if method in STREAMS:
                requests = iter([request]) if method == "PushStream" else request
                channel = self.channel.channel
                kind = channel.stream_stream if method == "PushStream" else channel.unary_stream
                list(kind(f"/{SERVICE_NAME}/{method}")(requests, timeout=60, **how))
            else:
                self.channel.call(method, request, **how)
        except grpc.RpcError as error:
            refused = Refused.of(error)
            code = refused.code
            assert refused.detail.message or "message larger" in refused.text.lower(), refused
        assert code in TYPED, f"{method} {request[:200]!r}: {code}"
        self.answers[code] += 1
        assert self.server.popen.poll() is None
        self.most = self.server.peak_bytes()
        assert self.most < self.at_start + ALLOWED_BYTES
        return code


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    flags = ["--max-message", "4MiB", "--max-requests", str(MAX_REQUESTS), "--max-keys", "100000"]
    flags += ["--max-client-requests", str(MAX_REQUESTS), "--max-tables", "3", "--max-dim", "64"]
    flags += ["--max-flight", str(FLIGHT), "--max-client-flight", str(FLIGHT)]
    flags += ["--log-bytes", "64MiB"]
    table = f"name=ads,dim={DIM},optimizer=sgd,lr=1,init=constant:0"
    with (
        scratch_folder() as folder,
        process(folder / "store", "--table", table, "--table", WIDE, *flags) as server,
    ):
        target = Target(server)
        target.channel.call("OpenSession", pb.OpenSessionRequest(client_id="a"))
        yield target
        # What came before has taken nothing from those who behave.
        keys = np.array([2**63 + 5], np.uint64).tobytes()
        session = target.channel.call("OpenSession", pb.OpenSessionRequest(client_id="b"))
        identity = pb.Identity(
            client_id="b", incarnation=session.incarnation, sequence=session.marks.applied + 1
        )
        push = pb.PushRequest(id=identity, table="ads", keys=keys, grads=b"\0\0\x80\xbf" * DIM)
        before = target.channel.call("Pull", pb.PullRequest(table="ads", keys=keys)).rows
        target.channel.call("Push", push)
        after = target.channel.call("Pull", pb.PullRequest(table="ads", keys=keys)).rows
        moved = np.frombuffer(after, np.float32) - np.frombuffer(before, np.float32)
        assert moved.tolist() == [1.0] * DIM
        assert server.stop() == 0
        assert "internal" not in {line["event"] for line in server.log()}
        print(f"at start {target.at_start >> 20} MiB, most {target.most >> 20} MiB")
        print(target.answers)


TEXTS = st.sampled_from(["ads", "", "gone", "a/../b", "ads\0", "x" * 70, "\u2603"])
NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 64, 65, 2**31 - 1, 2**31, 2**32 - 1])
LONG_NUMBERS = NUMBERS | st.sampled_from([2**53, 2**63 - 1, 2**63, 2**64 - 1])
FLOATS = st.sampled_from([0.0, 1.0, -1.0, 1e38, float("inf"), float("nan"), 5e-324])
ARRAYS = st.builds(
    lambda unit, count, rest: unit * count + rest,
    st.sampled_from([bytes(8), b"\xff" * 8, bytes(range(8)), b"\0\0\xc0\x7f" * 2]),
    st.sampled_from([0, 1, 2, 4, 100, 5000]),
    st.sampled_from([b"", b"\1", b"\1\2\3\4"]),
)


def hostile(kind: type) -> SearchStrategy[Any]:
    """Messages of a kind whose every field has some value at or beyond its limits."""
    from google.protobuf.descriptor import FieldDescriptor as Field

    fields: dict[str, SearchStrategy[Any]] = {}
    for field in kind.DESCRIPTOR.fields:  # type: ignore[attr-defined]
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            fields[field.name] = st.dictionaries(TEXTS, FLOATS, max_size=2)
        elif field.type == Field.TYPE_MESSAGE:
            fields[field.name] = st.none() | hostile(field.message_type._concrete_class)
        elif field.is_repeated:
            parts = TEXTS if field.type == Field.TYPE_STRING else ARRAYS
            fields[field.name] = st.lists(parts, max_size=2)
        elif field.type == Field.TYPE_STRING:
            fields[field.name] = TEXTS
        elif field.type == Field.TYPE_BYTES:
            fields[field.name] = ARRAYS
        elif field.type in (Field.TYPE_FLOAT, Field.TYPE_DOUBLE):
            fields[field.name] = FLOATS
        elif field.type == Field.TYPE_BOOL:
            fields[field.name] = st.booleans()
        elif field.type == Field.TYPE_UINT64:
            fields[field.name] = LONG_NUMBERS
        elif field.type == Field.TYPE_ENUM:
            fields[field.name] = st.sampled_from([0, 1, 2, 3, 99, -1])
        else:
            fields[field.name] = NUMBERS
    return st.builds(kind, **fields)


METHODS = {
    method.name: getattr(pb, method.input_type.name)
    for method in pb.DESCRIPTOR.services_by_name["ParameterServer"].methods
}
METHODS |= {
    method.name: getattr(publishing_pb2, method.input_type.name)
    for method in publishing_pb2.DESCRIPTOR.services_by_name["Publishing"].methods
}
# Of those that take long, or end sessions, a few are enough.
QUICK = sorted(set(METHODS) - {"Checkpoint", "Restore", "CreateTable", "DeleteCheckpoint"})


def requests(names: list[str]) -> SearchStrategy[tuple[str, bytes]]:
    """(method, bytes): hostile messages, some of them damaged; or any bytes."""

    def damaged(name: str, data: bytes, place: int, change: int) -> tuple[str, bytes]:
        place %= len(data) + 1
        if change == 0:
            data = data[:place]
        elif change == 1:
            data = data + data
        elif change < 10 and place < len(data):
            data = data[:place] + bytes([data[place] ^ (1 << change % 8)]) + data[place + 1 :]
        return name, data

    def of(name: str) -> SearchStrategy[tuple[str, bytes]]:
        messages = hostile(METHODS[name]).map(lambda message: message.SerializeToString())
        return st.builds(
            damaged,
            st.just(name),
            messages | messages | st.binary(max_size=300),
            st.integers(0, 2**16),
            st.integers(0, 20),
        )

    return st.sampled_from(names).flatmap(of)


@settings(max_examples=300, suppress_health_check=list(HealthCheck), database=None)
@given(request=requests(QUICK))
def test_hostile_requests_get_a_typed_status(target: Target, request: tuple[str, bytes]) -> None:
    event(f"{request[0]} {target.attack(*request)}")


def test_hostile_requests_were_refused_for_many_reasons_and_some_were_not(target: Target) -> None:
    assert target.answers["INVALID_ARGUMENT"] > 20 and target.answers["OK"] > 5
    assert target.answers["NOT_FOUND"] > 5


@settings(max_examples=25, suppress_health_check=list(HealthCheck), database=None)
@given(request=requests(["Checkpoint", "Restore", "CreateTable", "DeleteCheckpoint"]))
def test_hostile_verbs_of_administrators_get_a_typed_status(
    target: Target, request: tuple[str, bytes]
) -> None:
    event(f"{request[0]} {target.attack(*request)}")


def test_batches_of_any_size_stay_within_the_memory(target: Target) -> None:
    """From many threads at once: messages of the largest size, and four times that."""
    failures: list[BaseException] = []
    codes: Counter[str] = Counter()

    def flood(number: int) -> None:
        try:
            for step in range(8):
                size = MAX_MESSAGE // 8 - 100 if step % 2 else MAX_MESSAGE // 2
                keys = np.arange(size, dtype=np.uint64).tobytes()
                pull = pb.PullRequest(table="ads", keys=keys).SerializeToString()
                codes[target.attack("Pull", pull)] += 1
                many = np.arange(90_000, dtype=np.uint64).tobytes()
                for table in ("ads", "wide"):  # 1.4 MB would come back, and 23
                    pull = pb.PullRequest(table=table, keys=many).SerializeToString()
                    codes[target.attack("Pull", pull)] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=flood, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    assert codes["RESOURCE_EXHAUSTED"] > 50 and codes["OK"] > 10


def test_a_message_that_unpacks_to_a_thousand_times_its_size_is_refused(target: Target) -> None:
    bomb = pb.PullRequest(table="ads", padding=[bytes(64 * 2**20)]).SerializeToString()
    with pytest.raises(grpc.RpcError) as caught:
        target.channel.call("Pull", bomb, compression=grpc.Compression.Gzip)
    assert Refused.of(caught.value).code in ("UNIMPLEMENTED", "RESOURCE_EXHAUSTED")
    assert target.server.peak_bytes() < target.at_start + ALLOWED_BYTES


def test_headers_beyond_the_limit_are_refused(target: Target) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        target.channel.channel.unary_unary(f"/{SERVICE_NAME}/Describe")(
            b"", metadata=[("authorization", "x" * 2**20)], timeout=60
        )
    assert Refused.of(caught.value).code in ("RESOURCE_EXHAUSTED", "UNAVAILABLE")


@settings(max_examples=20, suppress_health_check=list(HealthCheck), database=None)
@given(
    data=st.binary(min_size=1, max_size=2000),
    preface=st.sampled_from([b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]),
)
def test_what_is_no_grpc_at_all_hurts_nobody(target: Target, data: bytes, preface: bytes) -> None:
    host, port = target.server.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(preface + data)
    assert target.channel.call("Describe", pb.DescribeRequest()).limits.max_tables == 3
    assert target.server.popen.poll() is None


def test_every_method_was_met() -> None:
    assert set(METHODS) == set(REPLIES) and len(METHODS) >= 20
