"""Clients that were built from an older .proto still understand this one, and each break is found.

Above it: pytest. Below it: proto.py, fixtures/VERSION/proto.binpb.
"""

from collections.abc import Callable

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from tests.compatibility.made import FIXTURES
from tests.compatibility.proto import breaks, present

VERSIONS = sorted(path.name for path in FIXTURES.iterdir())


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_of_an_older_proto_is_gone(version: str) -> None:
    old = FileDescriptorSet.FromString((FIXTURES / version / "proto.binpb").read_bytes())
    assert len(old.file) >= 4 and sum(len(one.message_type) for one in old.file) > 50
    assert breaks(old, present()) == []


def rename(file: FileDescriptorProto) -> None:
    file.message_type[0].field[0].name += "_x"


def renumber(file: FileDescriptorProto) -> None:
    file.message_type[0].field[0].number = 900


def retype(file: FileDescriptorProto) -> None:
    field = file.message_type[0].field[0]
    field.type = 3 if field.type != 3 else 4


def drop_message(file: FileDescriptorProto) -> None:
    del file.message_type[0]


def drop_method(file: FileDescriptorProto) -> None:
    del file.service[0].method[0]


def make_stream(file: FileDescriptorProto) -> None:
    method = file.service[0].method[0]
    method.server_streaming = not method.server_streaming


def reuse(file: FileDescriptorProto) -> None:
    file.package += "x"


@pytest.mark.parametrize(
    "change", [rename, renumber, retype, drop_message, drop_method, make_stream, reuse]
)
def test_each_break_is_found(change: Callable[[FileDescriptorProto], None]) -> None:
    changed = present()
    change(changed.file[0])
    assert breaks(present(), changed)


def test_what_is_added_or_reserved_breaks_nothing() -> None:
    changed = present()
    message = changed.file[0].message_type[0]
    message.field.add(name="later", number=901, type=3, label=1)
    changed.file[0].message_type.add(name="Later")
    gone = message.field[0].number
    del message.field[0]
    message.reserved_range.add(start=gone, end=gone + 1)
    assert breaks(present(), changed) == []
