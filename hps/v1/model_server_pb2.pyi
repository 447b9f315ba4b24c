from hps.v1 import parameter_server_pb2 as _parameter_server_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LookupReply(_message.Message):
    __slots__ = ("dim", "wire", "version", "padding", "rows")
    DIM_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    dim: int
    wire: _parameter_server_pb2.DType
    version: str
    padding: _containers.RepeatedScalarFieldContainer[bytes]
    rows: bytes
    def __init__(self, dim: _Optional[int] = ..., wire: _Optional[_Union[_parameter_server_pb2.DType, str]] = ..., version: _Optional[str] = ..., padding: _Optional[_Iterable[bytes]] = ..., rows: _Optional[bytes] = ...) -> None: ...
