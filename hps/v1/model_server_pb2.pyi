from hps.v1 import parameter_server_pb2 as _parameter_server_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
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

class GetVersionsRequest(_message.Message):
    __slots__ = ("name", "limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    limit: int
    def __init__(self, name: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class GetVersionsReply(_message.Message):
    __slots__ = ("served", "newest", "following", "changed_at", "error", "changing", "change_error", "versions", "kept")
    SERVED_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    CHANGED_AT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CHANGING_FIELD_NUMBER: _ClassVar[int]
    CHANGE_ERROR_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    served: int
    newest: int
    following: bool
    changed_at: float
    error: str
    changing: int
    change_error: str
    versions: _containers.RepeatedCompositeFieldContainer[PublishedVersion]
    kept: int
    def __init__(self, served: _Optional[int] = ..., newest: _Optional[int] = ..., following: bool = ..., changed_at: _Optional[float] = ..., error: _Optional[str] = ..., changing: _Optional[int] = ..., change_error: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[PublishedVersion, _Mapping]]] = ..., kept: _Optional[int] = ...) -> None: ...

class PublishedVersion(_message.Message):
    __slots__ = ("number", "kind", "created", "checkpoint", "lineage", "period", "rows", "bytes", "error")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    number: int
    kind: str
    created: float
    checkpoint: str
    lineage: str
    period: int
    rows: int
    bytes: int
    error: str
    def __init__(self, number: _Optional[int] = ..., kind: _Optional[str] = ..., created: _Optional[float] = ..., checkpoint: _Optional[str] = ..., lineage: _Optional[str] = ..., period: _Optional[int] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class SetVersionRequest(_message.Message):
    __slots__ = ("name", "version", "follow")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    follow: bool
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., follow: bool = ...) -> None: ...

class OutcomeRequest(_message.Message):
    __slots__ = ("name", "version", "scores", "labels", "weights")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    scores: _containers.RepeatedScalarFieldContainer[float]
    labels: _containers.RepeatedScalarFieldContainer[float]
    weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., scores: _Optional[_Iterable[float]] = ..., labels: _Optional[_Iterable[float]] = ..., weights: _Optional[_Iterable[float]] = ...) -> None: ...

class OutcomeReply(_message.Message):
    __slots__ = ("examples",)
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    examples: int
    def __init__(self, examples: _Optional[int] = ...) -> None: ...
