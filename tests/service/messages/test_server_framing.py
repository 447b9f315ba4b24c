"""Messages framed by hand are those of the generated code, and what is no message is refused.

Above it: pytest. Below it: hps/service/messages/framing.py; the generated classes are the truth.
"""

import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, SearchStrategy

from hps.service.messages.framing import MAX_FIELDS, MAX_HEAD_BYTES, Frame, FramingError
from hps.service.messages.in_place import Outgoing
from hps.v1.parameter_server_pb2 import Identity, PullReply, PullRequest, PushRequest

ARRAYS = ("shows", "clicks", "keys", "grads")
PUSH = Frame(PushRequest, (10, 11, 14, 15))
PULL = Frame(PullRequest, (15,))
KEYS = st.lists(st.integers(0, 2**64 - 1), max_size=20)
UNKNOWN = [
    b"\xf8\x07\x96\x01",
    b"\x82\x08\x03abc",
    b"\x8d\x08\x01\x02\x03\x04",
]  # fields 127 to 129


def pushes() -> SearchStrategy[PushRequest]:
    return st.builds(
        PushRequest,
        id=st.none()
        | st.builds(Identity, client_id=st.text(max_size=8), sequence=st.integers(0, 2**64 - 1)),
        table=st.text(max_size=10),
        ack=st.integers(0, 2),
        lr=st.none() | st.floats(width=32, allow_nan=False),
        wire=st.integers(0, 3),
        dim=st.integers(0, 2**32 - 1),
        padding=st.lists(st.binary(max_size=9), max_size=2),
        shows=st.binary(max_size=12),
        clicks=st.just(b"") | st.binary(max_size=12),
        keys=KEYS.map(lambda keys: np.array(keys, np.uint64).tobytes()),
        grads=st.binary(max_size=64),
    )


def encoded_fields(message: PushRequest) -> list[bytes]:
    """Each field of a message by itself, as the generated code writes it."""
    pieces = []
    for field, _ in message.ListFields():
        alone = PushRequest()
        alone.CopyFrom(message)
        for other, _ in message.ListFields():
            if other.number != field.number:
                alone.ClearField(other.name)
        pieces.append(alone.SerializeToString())
    return pieces


def head_of(message: PushRequest) -> PushRequest:
    head = PushRequest()
    head.CopyFrom(message)
    for name in ARRAYS:
        head.ClearField(name)
    return head


@settings(suppress_health_check=list(HealthCheck))
@given(message=pushes(), data=st.data())
def test_fields_are_read_in_any_order_with_unknown_ones_between(
    message: PushRequest, data: DataObject
) -> None:
    pieces = encoded_fields(message) + data.draw(st.lists(st.sampled_from(UNKNOWN), max_size=3))
    bytes_of_any_order = b"".join(data.draw(st.permutations(pieces)))
    incoming = PUSH.split(bytes_of_any_order)
    incoming.head.DiscardUnknownFields()
    assert incoming.head == head_of(message)
    assert incoming.array(14, np.uint64, "keys").tobytes() == message.keys
    assert incoming.array(15, np.uint8, "grads").tobytes() == message.grads


@settings(suppress_health_check=list(HealthCheck))
@given(message=pushes())
def test_what_is_joined_is_read_by_the_generated_code(message: PushRequest) -> None:
    head = head_of(message)
    head.ClearField("padding")
    joined = PUSH.join(head, [getattr(message, name) for name in ARRAYS])
    parsed = PushRequest.FromString(joined)
    parsed.ClearField("padding")
    message.ClearField("padding")
    assert parsed == message
    assert all(first % 8 == 0 for first, _ in PUSH.split(joined).places.values())


@settings(suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=60) | pushes().map(lambda message: message.SerializeToString()[:-1]))
def test_what_is_accepted_means_the_same_to_the_generated_code(data: bytes) -> None:
    try:
        incoming = PUSH.split(data)
        keys = incoming.array(14, np.uint64, "keys")
    except FramingError:
        return
    parsed = PushRequest.FromString(data)
    assert incoming.head == head_of(parsed)
    assert keys.tobytes() == parsed.keys
    assert incoming.num_bytes(15) == len(parsed.grads)


@settings(suppress_health_check=list(HealthCheck))
@given(message=pushes(), data=st.data())
def test_a_field_that_appears_twice_is_refused(message: PushRequest, data: DataObject) -> None:
    message.table = "ads"
    message.ClearField("padding")
    pieces = encoded_fields(message)
    pieces.append(data.draw(st.sampled_from(pieces)))
    with pytest.raises(FramingError, match="appears twice"):
        PUSH.split(b"".join(data.draw(st.permutations(pieces))))


def test_a_message_cut_off_anywhere_is_refused_or_is_whole_fields() -> None:
    message = PushRequest(id=Identity(client_id="a", sequence=3), table="ads", dim=300)
    message.keys, message.grads = bytes(32), bytes(64)
    whole = message.SerializeToString()
    ends = {0}
    for piece in encoded_fields(message):
        ends.add(max(ends) + len(piece))
    num_refused = 0
    for length in range(len(whole)):
        if length in ends:
            PUSH.split(whole[:length])
            continue
        with pytest.raises(FramingError):
            PUSH.split(whole[:length])
        num_refused += 1
    assert num_refused > 100 and len(ends) == 6


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x7a\xff\xff\xff\xff\x07abc", "within field 15"),  # 2 GiB - 1 are claimed
        (b"\x7a\x80\x80\x80\x80\x80\x01", "does not end"),
        (b"\x78\x01", "must be bytes"),
        (b"\x7b\x7c", "wire type"),
        (b"\x02\x00", "no field number"),
        (b"\x0a", "does not end"),
        (b"\x0a\x02\xff\xff", "not a PullRequest"),  # not UTF-8
        (UNKNOWN[0] * (MAX_FIELDS + 1), "more than"),
        (b"\x82\x08\x81\x80\x04" + bytes(MAX_HEAD_BYTES + 1), "beside its arrays"),
        (b"\x7a\x07" + bytes(7), "a multiple of 8"),
    ],
)
def test_malformed_messages_are_refused_without_allocating(data: bytes, words: str) -> None:
    with pytest.raises(FramingError, match=words):  # also what the first time alone allocates
        PULL.split(data).array(15, np.uint64, "keys")
    tracemalloc.start()
    with suppress(FramingError):
        PULL.split(data).array(15, np.uint64, "keys")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000


def test_arrays_are_views_where_they_are_aligned_and_copies_where_not() -> None:
    keys, grads = np.arange(5, dtype=np.uint64), np.ones(15, np.float32)
    data = PUSH.join(PushRequest(table="ads"), [b"", b"", keys, grads])
    incoming = PUSH.split(data)
    assert not incoming.array(14, np.uint64, "keys").flags.owndata
    assert not incoming.array(15, np.float32, "grads").flags.owndata
    moved = PUSH.split(b"\x30\x01" + data)
    assert moved.array(15, np.float32, "grads").flags.owndata
    assert moved.array(15, np.float32, "grads").tolist() == grads.tolist()
    assert moved.array(14, np.uint64, "keys").tolist() == keys.tolist()


@settings(suppress_health_check=list(HealthCheck))
@given(num_bytes=st.integers(0, 400), dim=st.integers(0, 2**32 - 1))
def test_a_reply_is_written_in_place(num_bytes: int, dim: int) -> None:
    reply = Outgoing(PullReply(dim=dim), 15, num_bytes)
    assert reply.rows.ctypes.data % 64 == 0 or not num_bytes
    reply.rows[:] = np.arange(num_bytes) % 251
    parsed = PullReply.FromString(reply.message)
    assert parsed.dim == dim
    assert np.array_equal(np.frombuffer(parsed.rows, np.uint8), np.arange(num_bytes) % 251)
