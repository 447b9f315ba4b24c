from hps.v1 import parameter_server_pb2 as _parameter_server_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribePartRequest(_message.Message):
    __slots__ = ("place", "created")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    place: str
    created: float
    def __init__(self, place: _Optional[str] = ..., created: _Optional[float] = ...) -> None: ...

class DescribePartReply(_message.Message):
    __slots__ = ("store", "lineage", "period", "seed", "can_follow", "tables", "rules")
    STORE_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CAN_FOLLOW_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    store: str
    lineage: str
    period: int
    seed: int
    can_follow: bool
    tables: str
    rules: str
    def __init__(self, store: _Optional[str] = ..., lineage: _Optional[str] = ..., period: _Optional[int] = ..., seed: _Optional[int] = ..., can_follow: bool = ..., tables: _Optional[str] = ..., rules: _Optional[str] = ...) -> None: ...

class PublishPartRequest(_message.Message):
    __slots__ = ("place", "folder", "created", "before", "is_base", "dtype", "tables", "min_score", "wait_ms")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    IS_BASE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    MIN_SCORE_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    place: str
    folder: str
    created: float
    before: float
    is_base: bool
    dtype: str
    tables: TableNames
    min_score: float
    wait_ms: int
    def __init__(self, place: _Optional[str] = ..., folder: _Optional[str] = ..., created: _Optional[float] = ..., before: _Optional[float] = ..., is_base: bool = ..., dtype: _Optional[str] = ..., tables: _Optional[_Union[TableNames, _Mapping]] = ..., min_score: _Optional[float] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class TableNames(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class PublishPartReply(_message.Message):
    __slots__ = ("has_ended", "rows", "bytes", "files", "error")
    HAS_ENDED_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    has_ended: bool
    rows: int
    bytes: int
    files: str
    error: _parameter_server_pb2.ErrorDetail
    def __init__(self, has_ended: bool = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., files: _Optional[str] = ..., error: _Optional[_Union[_parameter_server_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class DropPartRequest(_message.Message):
    __slots__ = ("place", "folder")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    place: str
    folder: str
    def __init__(self, place: _Optional[str] = ..., folder: _Optional[str] = ...) -> None: ...

class DropPartReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
