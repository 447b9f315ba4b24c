"""What a client of an older .proto would miss in a newer one.

Above it: test_proto.py, make_fixtures.py. Below it: hps.v1, hps.inference, protobuf's descriptors.
"""

from collections.abc import Iterator, Mapping

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from hps.inference import open_inference_pb2
from hps.v1 import model_server_pb2, parameter_server_pb2, publishing_pb2

MODULES = (parameter_server_pb2, model_server_pb2, publishing_pb2, open_inference_pb2)


def present() -> FileDescriptorSet:
    """The descriptors of the code that is here."""
    found = FileDescriptorSet()
    for module in MODULES:
        module.DESCRIPTOR.CopyToProto(found.file.add())
    return found


def breaks(old: FileDescriptorSet, new: FileDescriptorSet) -> list[str]:
    """Whatever is gone, has another number, type or direction; what was added breaks nothing."""
    files = {one.name: one for one in new.file}
    found = []
    for one in old.file:
        other = files.get(one.name)
        found += [f"{one.name} is gone"] if other is None else _of_file(one, other)
    return found


def _of_file(old: FileDescriptorProto, new: FileDescriptorProto) -> Iterator[str]:
    if old.package != new.package:
        yield f"{old.name}: package {old.package} is {new.package}"
    yield from _of_messages(old.package, old.message_type, new.message_type)
    yield from _of_enums(old.package, old.enum_type, new.enum_type)
    services = {one.name: {m.name: m for m in one.method} for one in new.service}
    for service in old.service:
        methods = services.get(service.name, {})
        for method in service.method:
            if methods.get(method.name) != method:
                yield f"{old.package}.{service.name}.{method.name} is gone, or takes other messages"


def _of_messages(
    where: str, old: "Iterator[DescriptorProto]", new: "Iterator[DescriptorProto]"
) -> Iterator[str]:
    by_name = {one.name: one for one in new}
    for message in old:
        name = f"{where}.{message.name}"
        other = by_name.get(message.name)
        if other is None:
            yield f"{name} is gone"
            continue
        fields = {one.number: one for one in other.field}
        for field in message.field:
            now = fields.get(field.number)
            is_reserved = any(one.start <= field.number < one.end for one in other.reserved_range)
            if now is None and is_reserved:
                continue  # taken out on purpose: nothing else may have its number
            kept = ("name", "type", "label", "type_name", "oneof_index", "proto3_optional")
            if now is None or any(getattr(now, one) != getattr(field, one) for one in kept):
                yield f"{name}: field {field.number} ({field.name}) is gone or another"
        yield from _of_messages(name, message.nested_type, other.nested_type)
        yield from _of_enums(name, message.enum_type, other.enum_type)


def _of_enums(
    where: str, old: "Iterator[EnumDescriptorProto]", new: "Iterator[EnumDescriptorProto]"
) -> Iterator[str]:
    values: Mapping[str, dict[int, str]] = {
        one.name: {value.number: value.name for value in one.value} for one in new
    }
    for enum in old:
        for value in enum.value:
            if values.get(enum.name, {}).get(value.number) != value.name:
                yield f"{where}.{enum.name}: {value.number} ({value.name}) is gone or another"
