from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FLOAT32: _ClassVar[DType]
    FLOAT16: _ClassVar[DType]
    BFLOAT16: _ClassVar[DType]
    INT8_ROW: _ClassVar[DType]

class Ack(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMORY: _ClassVar[Ack]
    LOGGED: _ClassVar[Ack]
    DURABLE: _ClassVar[Ack]
FLOAT32: DType
FLOAT16: DType
BFLOAT16: DType
INT8_ROW: DType
MEMORY: Ack
LOGGED: Ack
DURABLE: Ack

class Identity(_message.Message):
    __slots__ = ("client_id", "incarnation", "sequence")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    incarnation: int
    sequence: int
    def __init__(self, client_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class Marks(_message.Message):
    __slots__ = ("applied", "logged", "durable")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    LOGGED_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    applied: int
    logged: int
    durable: int
    def __init__(self, applied: _Optional[int] = ..., logged: _Optional[int] = ..., durable: _Optional[int] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("kind", "message", "mark", "retry_after_ms")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OTHER: _ClassVar[ErrorDetail.Kind]
        CONFIG: _ClassVar[ErrorDetail.Kind]
        CAPACITY: _ClassVar[ErrorDetail.Kind]
        NON_FINITE: _ClassVar[ErrorDetail.Kind]
        CORRUPTION: _ClassVar[ErrorDetail.Kind]
        STORE: _ClassVar[ErrorDetail.Kind]
        GAP: _ClassVar[ErrorDetail.Kind]
        FENCED: _ClassVar[ErrorDetail.Kind]
        MISMATCH: _ClassVar[ErrorDetail.Kind]
        OVERLOADED: _ClassVar[ErrorDetail.Kind]
        DRAINING: _ClassVar[ErrorDetail.Kind]
        AUTHENTICATION: _ClassVar[ErrorDetail.Kind]
        PERMISSION: _ClassVar[ErrorDetail.Kind]
        DEADLINE: _ClassVar[ErrorDetail.Kind]
    OTHER: ErrorDetail.Kind
    CONFIG: ErrorDetail.Kind
    CAPACITY: ErrorDetail.Kind
    NON_FINITE: ErrorDetail.Kind
    CORRUPTION: ErrorDetail.Kind
    STORE: ErrorDetail.Kind
    GAP: ErrorDetail.Kind
    FENCED: ErrorDetail.Kind
    MISMATCH: ErrorDetail.Kind
    OVERLOADED: ErrorDetail.Kind
    DRAINING: ErrorDetail.Kind
    AUTHENTICATION: ErrorDetail.Kind
    PERMISSION: ErrorDetail.Kind
    DEADLINE: ErrorDetail.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    kind: ErrorDetail.Kind
    message: str
    mark: int
    retry_after_ms: int
    def __init__(self, kind: _Optional[_Union[ErrorDetail.Kind, str]] = ..., message: _Optional[str] = ..., mark: _Optional[int] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("version", "lineage", "shard_map", "limits", "tables", "seed", "cuts", "period", "has_rules", "has_rates", "has_names")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    SHARD_MAP_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CUTS_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    HAS_RULES_FIELD_NUMBER: _ClassVar[int]
    HAS_RATES_FIELD_NUMBER: _ClassVar[int]
    HAS_NAMES_FIELD_NUMBER: _ClassVar[int]
    version: str
    lineage: str
    shard_map: ShardMap
    limits: Limits
    tables: _containers.RepeatedCompositeFieldContainer[Table]
    seed: int
    cuts: CutNames
    period: int
    has_rules: bool
    has_rates: bool
    has_names: bool
    def __init__(self, version: _Optional[str] = ..., lineage: _Optional[str] = ..., shard_map: _Optional[_Union[ShardMap, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[Table, _Mapping]]] = ..., seed: _Optional[int] = ..., cuts: _Optional[_Union[CutNames, _Mapping]] = ..., period: _Optional[int] = ..., has_rules: bool = ..., has_rates: bool = ..., has_names: bool = ...) -> None: ...

class CutNames(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class ShardMap(_message.Message):
    __slots__ = ("index", "count", "num_virtual", "hash")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    NUM_VIRTUAL_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    index: int
    count: int
    num_virtual: int
    hash: str
    def __init__(self, index: _Optional[int] = ..., count: _Optional[int] = ..., num_virtual: _Optional[int] = ..., hash: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_message_bytes", "max_keys", "max_dim", "max_tables", "max_client_bytes", "max_client_requests", "default_deadline_ms")
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_KEYS_FIELD_NUMBER: _ClassVar[int]
    MAX_DIM_FIELD_NUMBER: _ClassVar[int]
    MAX_TABLES_FIELD_NUMBER: _ClassVar[int]
    MAX_CLIENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_CLIENT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    max_message_bytes: int
    max_keys: int
    max_dim: int
    max_tables: int
    max_client_bytes: int
    max_client_requests: int
    default_deadline_ms: int
    def __init__(self, max_message_bytes: _Optional[int] = ..., max_keys: _Optional[int] = ..., max_dim: _Optional[int] = ..., max_tables: _Optional[int] = ..., max_client_bytes: _Optional[int] = ..., max_client_requests: _Optional[int] = ..., default_deadline_ms: _Optional[int] = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ("name", "dim", "optimizer", "initializer", "features", "shared_vocabulary", "share", "state_floats", "statistics", "expiry", "admission", "max_rows", "max_bytes", "dtype", "rounding", "negative_rate")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    INITIALIZER_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    SHARED_VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    STATE_FLOATS_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ROUNDING_FIELD_NUMBER: _ClassVar[int]
    NEGATIVE_RATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dim: int
    optimizer: Optimizer
    initializer: Initializer
    features: FeatureList
    shared_vocabulary: bool
    share: float
    state_floats: int
    statistics: bool
    expiry: Expiry
    admission: Admission
    max_rows: int
    max_bytes: int
    dtype: str
    rounding: str
    negative_rate: float
    def __init__(self, name: _Optional[str] = ..., dim: _Optional[int] = ..., optimizer: _Optional[_Union[Optimizer, _Mapping]] = ..., initializer: _Optional[_Union[Initializer, _Mapping]] = ..., features: _Optional[_Union[FeatureList, _Mapping]] = ..., shared_vocabulary: bool = ..., share: _Optional[float] = ..., state_floats: _Optional[int] = ..., statistics: bool = ..., expiry: _Optional[_Union[Expiry, _Mapping]] = ..., admission: _Optional[_Union[Admission, _Mapping]] = ..., max_rows: _Optional[int] = ..., max_bytes: _Optional[int] = ..., dtype: _Optional[str] = ..., rounding: _Optional[str] = ..., negative_rate: _Optional[float] = ...) -> None: ...

class Expiry(_message.Message):
    __slots__ = ("unseen", "min_score", "decay", "nonclick", "click")
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    MIN_SCORE_FIELD_NUMBER: _ClassVar[int]
    DECAY_FIELD_NUMBER: _ClassVar[int]
    NONCLICK_FIELD_NUMBER: _ClassVar[int]
    CLICK_FIELD_NUMBER: _ClassVar[int]
    unseen: int
    min_score: float
    decay: float
    nonclick: float
    click: float
    def __init__(self, unseen: _Optional[int] = ..., min_score: _Optional[float] = ..., decay: _Optional[float] = ..., nonclick: _Optional[float] = ..., click: _Optional[float] = ...) -> None: ...

class Admission(_message.Message):
    __slots__ = ("count", "probability", "by", "min_score")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    MIN_SCORE_FIELD_NUMBER: _ClassVar[int]
    count: int
    probability: float
    by: str
    min_score: float
    def __init__(self, count: _Optional[int] = ..., probability: _Optional[float] = ..., by: _Optional[str] = ..., min_score: _Optional[float] = ...) -> None: ...

class FeatureList(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class Optimizer(_message.Message):
    __slots__ = ("kind", "lr", "numbers")
    class NumbersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    LR_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    lr: float
    numbers: _containers.ScalarMap[str, float]
    def __init__(self, kind: _Optional[str] = ..., lr: _Optional[float] = ..., numbers: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Initializer(_message.Message):
    __slots__ = ("kind", "numbers")
    class NumbersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    numbers: _containers.ScalarMap[str, float]
    def __init__(self, kind: _Optional[str] = ..., numbers: _Optional[_Mapping[str, float]] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("client_id", "incarnation", "shard_map", "lineage")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SHARD_MAP_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    incarnation: int
    shard_map: ShardMap
    lineage: str
    def __init__(self, client_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., shard_map: _Optional[_Union[ShardMap, _Mapping]] = ..., lineage: _Optional[str] = ...) -> None: ...

class OpenSessionReply(_message.Message):
    __slots__ = ("incarnation", "marks", "lineage")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    marks: Marks
    lineage: str
    def __init__(self, incarnation: _Optional[int] = ..., marks: _Optional[_Union[Marks, _Mapping]] = ..., lineage: _Optional[str] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("table", "wire", "dim", "lineage", "padding", "keys")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    table: str
    wire: DType
    dim: int
    lineage: str
    padding: _containers.RepeatedScalarFieldContainer[bytes]
    keys: bytes
    def __init__(self, table: _Optional[str] = ..., wire: _Optional[_Union[DType, str]] = ..., dim: _Optional[int] = ..., lineage: _Optional[str] = ..., padding: _Optional[_Iterable[bytes]] = ..., keys: _Optional[bytes] = ...) -> None: ...

class PullReply(_message.Message):
    __slots__ = ("dim", "wire", "padding", "rows")
    DIM_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    dim: int
    wire: DType
    padding: _containers.RepeatedScalarFieldContainer[bytes]
    rows: bytes
    def __init__(self, dim: _Optional[int] = ..., wire: _Optional[_Union[DType, str]] = ..., padding: _Optional[_Iterable[bytes]] = ..., rows: _Optional[bytes] = ...) -> None: ...

class ContainsRequest(_message.Message):
    __slots__ = ("table", "lineage", "padding", "keys")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    table: str
    lineage: str
    padding: _containers.RepeatedScalarFieldContainer[bytes]
    keys: bytes
    def __init__(self, table: _Optional[str] = ..., lineage: _Optional[str] = ..., padding: _Optional[_Iterable[bytes]] = ..., keys: _Optional[bytes] = ...) -> None: ...

class ContainsReply(_message.Message):
    __slots__ = ("stored",)
    STORED_FIELD_NUMBER: _ClassVar[int]
    stored: bytes
    def __init__(self, stored: _Optional[bytes] = ...) -> None: ...

class ItemsRequest(_message.Message):
    __slots__ = ("table", "batch", "state", "statistics")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    table: str
    batch: int
    state: bool
    statistics: bool
    def __init__(self, table: _Optional[str] = ..., batch: _Optional[int] = ..., state: bool = ..., statistics: bool = ...) -> None: ...

class ItemsReply(_message.Message):
    __slots__ = ("dim", "state_floats", "statistics", "padding", "keys", "rows", "state")
    DIM_FIELD_NUMBER: _ClassVar[int]
    STATE_FLOATS_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    dim: int
    state_floats: int
    statistics: bytes
    padding: _containers.RepeatedScalarFieldContainer[bytes]
    keys: bytes
    rows: bytes
    state: bytes
    def __init__(self, dim: _Optional[int] = ..., state_floats: _Optional[int] = ..., statistics: _Optional[bytes] = ..., padding: _Optional[_Iterable[bytes]] = ..., keys: _Optional[bytes] = ..., rows: _Optional[bytes] = ..., state: _Optional[bytes] = ...) -> None: ...

class NumRowsRequest(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: str
    def __init__(self, table: _Optional[str] = ...) -> None: ...

class NumRowsReply(_message.Message):
    __slots__ = ("num_rows",)
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    num_rows: int
    def __init__(self, num_rows: _Optional[int] = ...) -> None: ...

class DigestRequest(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: str
    def __init__(self, table: _Optional[str] = ...) -> None: ...

class DigestReply(_message.Message):
    __slots__ = ("low", "high")
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    low: int
    high: int
    def __init__(self, low: _Optional[int] = ..., high: _Optional[int] = ...) -> None: ...

class StatisticsRequest(_message.Message):
    __slots__ = ("table", "lineage", "padding", "keys")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    table: str
    lineage: str
    padding: _containers.RepeatedScalarFieldContainer[bytes]
    keys: bytes
    def __init__(self, table: _Optional[str] = ..., lineage: _Optional[str] = ..., padding: _Optional[_Iterable[bytes]] = ..., keys: _Optional[bytes] = ...) -> None: ...

class StatisticsReply(_message.Message):
    __slots__ = ("padding", "statistics", "dies_at")
    PADDING_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    DIES_AT_FIELD_NUMBER: _ClassVar[int]
    padding: _containers.RepeatedScalarFieldContainer[bytes]
    statistics: bytes
    dies_at: bytes
    def __init__(self, padding: _Optional[_Iterable[bytes]] = ..., statistics: _Optional[bytes] = ..., dies_at: _Optional[bytes] = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("id", "table", "ack", "lr", "wire", "dim", "lineage", "shows", "clicks", "padding", "keys", "grads")
    ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    LR_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    SHOWS_FIELD_NUMBER: _ClassVar[int]
    CLICKS_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    GRADS_FIELD_NUMBER: _ClassVar[int]
    id: Identity
    table: str
    ack: Ack
    lr: float
    wire: DType
    dim: int
    lineage: str
    shows: bytes
    clicks: bytes
    padding: _containers.RepeatedScalarFieldContainer[bytes]
    keys: bytes
    grads: bytes
    def __init__(self, id: _Optional[_Union[Identity, _Mapping]] = ..., table: _Optional[str] = ..., ack: _Optional[_Union[Ack, str]] = ..., lr: _Optional[float] = ..., wire: _Optional[_Union[DType, str]] = ..., dim: _Optional[int] = ..., lineage: _Optional[str] = ..., shows: _Optional[bytes] = ..., clicks: _Optional[bytes] = ..., padding: _Optional[_Iterable[bytes]] = ..., keys: _Optional[bytes] = ..., grads: _Optional[bytes] = ...) -> None: ...

class PushReply(_message.Message):
    __slots__ = ("marks", "is_repeat", "sequence")
    MARKS_FIELD_NUMBER: _ClassVar[int]
    IS_REPEAT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    marks: Marks
    is_repeat: bool
    sequence: int
    def __init__(self, marks: _Optional[_Union[Marks, _Mapping]] = ..., is_repeat: bool = ..., sequence: _Optional[int] = ...) -> None: ...

class AssignRequest(_message.Message):
    __slots__ = ("id", "table", "ack", "dim", "lineage", "statistics", "padding", "keys", "rows", "state")
    ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    id: Identity
    table: str
    ack: Ack
    dim: int
    lineage: str
    statistics: bytes
    padding: _containers.RepeatedScalarFieldContainer[bytes]
    keys: bytes
    rows: bytes
    state: bytes
    def __init__(self, id: _Optional[_Union[Identity, _Mapping]] = ..., table: _Optional[str] = ..., ack: _Optional[_Union[Ack, str]] = ..., dim: _Optional[int] = ..., lineage: _Optional[str] = ..., statistics: _Optional[bytes] = ..., padding: _Optional[_Iterable[bytes]] = ..., keys: _Optional[bytes] = ..., rows: _Optional[bytes] = ..., state: _Optional[bytes] = ...) -> None: ...

class AssignReply(_message.Message):
    __slots__ = ("marks", "is_repeat")
    MARKS_FIELD_NUMBER: _ClassVar[int]
    IS_REPEAT_FIELD_NUMBER: _ClassVar[int]
    marks: Marks
    is_repeat: bool
    def __init__(self, marks: _Optional[_Union[Marks, _Mapping]] = ..., is_repeat: bool = ...) -> None: ...

class EraseRequest(_message.Message):
    __slots__ = ("id", "table", "ack", "lineage", "padding", "keys")
    ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    id: Identity
    table: str
    ack: Ack
    lineage: str
    padding: _containers.RepeatedScalarFieldContainer[bytes]
    keys: bytes
    def __init__(self, id: _Optional[_Union[Identity, _Mapping]] = ..., table: _Optional[str] = ..., ack: _Optional[_Union[Ack, str]] = ..., lineage: _Optional[str] = ..., padding: _Optional[_Iterable[bytes]] = ..., keys: _Optional[bytes] = ...) -> None: ...

class EraseReply(_message.Message):
    __slots__ = ("marks", "is_repeat", "erased")
    MARKS_FIELD_NUMBER: _ClassVar[int]
    IS_REPEAT_FIELD_NUMBER: _ClassVar[int]
    ERASED_FIELD_NUMBER: _ClassVar[int]
    marks: Marks
    is_repeat: bool
    erased: bytes
    def __init__(self, marks: _Optional[_Union[Marks, _Mapping]] = ..., is_repeat: bool = ..., erased: _Optional[bytes] = ...) -> None: ...

class EraseWhereRequest(_message.Message):
    __slots__ = ("id", "table", "ack", "lineage", "show_below", "click_below", "unseen_for", "score_below")
    ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    SHOW_BELOW_FIELD_NUMBER: _ClassVar[int]
    CLICK_BELOW_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FOR_FIELD_NUMBER: _ClassVar[int]
    SCORE_BELOW_FIELD_NUMBER: _ClassVar[int]
    id: Identity
    table: str
    ack: Ack
    lineage: str
    show_below: float
    click_below: float
    unseen_for: int
    score_below: float
    def __init__(self, id: _Optional[_Union[Identity, _Mapping]] = ..., table: _Optional[str] = ..., ack: _Optional[_Union[Ack, str]] = ..., lineage: _Optional[str] = ..., show_below: _Optional[float] = ..., click_below: _Optional[float] = ..., unseen_for: _Optional[int] = ..., score_below: _Optional[float] = ...) -> None: ...

class EraseWhereReply(_message.Message):
    __slots__ = ("marks", "is_repeat", "erased")
    MARKS_FIELD_NUMBER: _ClassVar[int]
    IS_REPEAT_FIELD_NUMBER: _ClassVar[int]
    ERASED_FIELD_NUMBER: _ClassVar[int]
    marks: Marks
    is_repeat: bool
    erased: int
    def __init__(self, marks: _Optional[_Union[Marks, _Mapping]] = ..., is_repeat: bool = ..., erased: _Optional[int] = ...) -> None: ...

class CreateRequest(_message.Message):
    __slots__ = ("id", "table", "ack", "wire", "dim", "lineage", "padding", "keys")
    ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    id: Identity
    table: str
    ack: Ack
    wire: DType
    dim: int
    lineage: str
    padding: _containers.RepeatedScalarFieldContainer[bytes]
    keys: bytes
    def __init__(self, id: _Optional[_Union[Identity, _Mapping]] = ..., table: _Optional[str] = ..., ack: _Optional[_Union[Ack, str]] = ..., wire: _Optional[_Union[DType, str]] = ..., dim: _Optional[int] = ..., lineage: _Optional[str] = ..., padding: _Optional[_Iterable[bytes]] = ..., keys: _Optional[bytes] = ...) -> None: ...

class CreateReply(_message.Message):
    __slots__ = ("marks", "is_repeat", "dim", "wire", "padding", "rows")
    MARKS_FIELD_NUMBER: _ClassVar[int]
    IS_REPEAT_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    marks: Marks
    is_repeat: bool
    dim: int
    wire: DType
    padding: _containers.RepeatedScalarFieldContainer[bytes]
    rows: bytes
    def __init__(self, marks: _Optional[_Union[Marks, _Mapping]] = ..., is_repeat: bool = ..., dim: _Optional[int] = ..., wire: _Optional[_Union[DType, str]] = ..., padding: _Optional[_Iterable[bytes]] = ..., rows: _Optional[bytes] = ...) -> None: ...

class AdvancePeriodRequest(_message.Message):
    __slots__ = ("id", "ack", "lineage", "period")
    ID_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    id: Identity
    ack: Ack
    lineage: str
    period: int
    def __init__(self, id: _Optional[_Union[Identity, _Mapping]] = ..., ack: _Optional[_Union[Ack, str]] = ..., lineage: _Optional[str] = ..., period: _Optional[int] = ...) -> None: ...

class AdvancePeriodReply(_message.Message):
    __slots__ = ("marks", "is_repeat", "period")
    MARKS_FIELD_NUMBER: _ClassVar[int]
    IS_REPEAT_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    marks: Marks
    is_repeat: bool
    period: int
    def __init__(self, marks: _Optional[_Union[Marks, _Mapping]] = ..., is_repeat: bool = ..., period: _Optional[int] = ...) -> None: ...

class SkipRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: Identity
    def __init__(self, id: _Optional[_Union[Identity, _Mapping]] = ...) -> None: ...

class SkipReply(_message.Message):
    __slots__ = ("marks", "is_repeat")
    MARKS_FIELD_NUMBER: _ClassVar[int]
    IS_REPEAT_FIELD_NUMBER: _ClassVar[int]
    marks: Marks
    is_repeat: bool
    def __init__(self, marks: _Optional[_Union[Marks, _Mapping]] = ..., is_repeat: bool = ...) -> None: ...

class FlushRequest(_message.Message):
    __slots__ = ("ack",)
    ACK_FIELD_NUMBER: _ClassVar[int]
    ack: Ack
    def __init__(self, ack: _Optional[_Union[Ack, str]] = ...) -> None: ...

class FlushReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreateTableRequest(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: Table
    def __init__(self, table: _Optional[_Union[Table, _Mapping]] = ...) -> None: ...

class CreateTableReply(_message.Message):
    __slots__ = ("is_new",)
    IS_NEW_FIELD_NUMBER: _ClassVar[int]
    is_new: bool
    def __init__(self, is_new: bool = ...) -> None: ...

class ListTablesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTablesReply(_message.Message):
    __slots__ = ("tables",)
    TABLES_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[Table]
    def __init__(self, tables: _Optional[_Iterable[_Union[Table, _Mapping]]] = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ("tag", "model", "reader", "group", "clients", "model_cut")
    TAG_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_CUT_FIELD_NUMBER: _ClassVar[int]
    tag: str
    model: bytes
    reader: bytes
    group: str
    clients: _containers.RepeatedScalarFieldContainer[str]
    model_cut: str
    def __init__(self, tag: _Optional[str] = ..., model: _Optional[bytes] = ..., reader: _Optional[bytes] = ..., group: _Optional[str] = ..., clients: _Optional[_Iterable[str]] = ..., model_cut: _Optional[str] = ...) -> None: ...

class CheckpointReply(_message.Message):
    __slots__ = ("tag", "rows_written", "bytes_written", "seconds", "lineage", "sessions", "model_cut", "model_from")
    class SessionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: SessionMark
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[SessionMark, _Mapping]] = ...) -> None: ...
    TAG_FIELD_NUMBER: _ClassVar[int]
    ROWS_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    BYTES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MODEL_CUT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FROM_FIELD_NUMBER: _ClassVar[int]
    tag: str
    rows_written: int
    bytes_written: int
    seconds: float
    lineage: str
    sessions: _containers.MessageMap[str, SessionMark]
    model_cut: str
    model_from: str
    def __init__(self, tag: _Optional[str] = ..., rows_written: _Optional[int] = ..., bytes_written: _Optional[int] = ..., seconds: _Optional[float] = ..., lineage: _Optional[str] = ..., sessions: _Optional[_Mapping[str, SessionMark]] = ..., model_cut: _Optional[str] = ..., model_from: _Optional[str] = ...) -> None: ...

class SessionMark(_message.Message):
    __slots__ = ("incarnation", "sequence")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    sequence: int
    def __init__(self, incarnation: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("tag", "prepare", "group", "lineage")
    TAG_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    tag: str
    prepare: bool
    group: str
    lineage: str
    def __init__(self, tag: _Optional[str] = ..., prepare: bool = ..., group: _Optional[str] = ..., lineage: _Optional[str] = ...) -> None: ...

class RestoreReply(_message.Message):
    __slots__ = ("lineage",)
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    lineage: str
    def __init__(self, lineage: _Optional[str] = ...) -> None: ...

class ListCheckpointsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListCheckpointsReply(_message.Message):
    __slots__ = ("checkpoints", "descends_from")
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    DESCENDS_FROM_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[CheckpointInfo]
    descends_from: str
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[CheckpointInfo, _Mapping]]] = ..., descends_from: _Optional[str] = ...) -> None: ...

class CheckpointInfo(_message.Message):
    __slots__ = ("id", "tag", "rows", "bytes", "created", "group", "current", "names", "is_promoted")
    ID_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    IS_PROMOTED_FIELD_NUMBER: _ClassVar[int]
    id: int
    tag: str
    rows: int
    bytes: int
    created: float
    group: str
    current: bool
    names: _containers.RepeatedScalarFieldContainer[str]
    is_promoted: bool
    def __init__(self, id: _Optional[int] = ..., tag: _Optional[str] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., created: _Optional[float] = ..., group: _Optional[str] = ..., current: bool = ..., names: _Optional[_Iterable[str]] = ..., is_promoted: bool = ...) -> None: ...

class MoveNameRequest(_message.Message):
    __slots__ = ("name", "checkpoint", "leaves", "drop")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    name: str
    checkpoint: str
    leaves: float
    drop: bool
    def __init__(self, name: _Optional[str] = ..., checkpoint: _Optional[str] = ..., leaves: _Optional[float] = ..., drop: bool = ...) -> None: ...

class MoveNameReply(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class DeleteCheckpointRequest(_message.Message):
    __slots__ = ("tag",)
    TAG_FIELD_NUMBER: _ClassVar[int]
    tag: str
    def __init__(self, tag: _Optional[str] = ...) -> None: ...

class DeleteCheckpointReply(_message.Message):
    __slots__ = ("readers",)
    READERS_FIELD_NUMBER: _ClassVar[int]
    readers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, readers: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckpointStateRequest(_message.Message):
    __slots__ = ("tag",)
    TAG_FIELD_NUMBER: _ClassVar[int]
    tag: str
    def __init__(self, tag: _Optional[str] = ...) -> None: ...

class CheckpointStateReply(_message.Message):
    __slots__ = ("model", "reader", "group")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    model: bytes
    reader: bytes
    group: str
    def __init__(self, model: _Optional[bytes] = ..., reader: _Optional[bytes] = ..., group: _Optional[str] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...
