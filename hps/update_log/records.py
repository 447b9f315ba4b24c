"""Mutations, and the records of the update log that hold them.

Above it: replay.py, hps/service/shard/mutations.py, hps/parameter_server/logged.py. Below it:
bytes; the layout is in docs/exactly_once.md. One record holds one mutation whole, with the number
by which its client knows it, so that what is applied and what is marked as applied can never
differ.
"""

import struct
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from hps.common.arrays import HostArray
from hps.common.json_text import Json
from hps.common.occurrences import PACKED, Occurrences, pack, unpack
from hps.common.row_layout import Floats, Keys, Statistics
from hps.errors import ConfigError, CorruptionError
from hps.table.rows_where import WHERE_FIELDS, RowsWhere
from hps.update_log.log import Part, UpdateLog

VERSION = 1
MAX_NAME_BYTES = 64  # of a client and of a table
_HEAD = struct.Struct("<BBBBIQQdIIII")
_HAS_STATE, _HAS_SHOWS, _HAS_CLICKS, _HAS_STATISTICS, _HAS_WHERE = 1, 2, 4, 8, 16  # flags
_ALIGNMENT = 8  # of the keys, so that they are read where they lie
_MAX_SEQUENCE = 2**63 - 1


def _no_keys() -> Keys:
    return np.empty(0, np.uint64)


def _no_floats() -> Floats:
    return np.empty((0, 0), np.float32)


class Kind(IntEnum):
    """What a record does; stored, never renumbered."""

    SESSION = 1  # the client's new incarnation; fences older ones
    PUSH = 2
    ASSIGN = 3
    ERASE = 4
    CREATE = 5
    NOTHING = 6  # a sequence whose mutation was refused and given up
    PERIOD = 7  # a period begins, unless it has begun already
    ERASE_WHERE = 8  # rows go by what they have counted up to then


_FLAGS_OF = {
    Kind.PUSH: _HAS_SHOWS | _HAS_CLICKS,
    Kind.ASSIGN: _HAS_STATE | _HAS_STATISTICS,
    Kind.ERASE_WHERE: _HAS_WHERE,
}


@dataclass(frozen=True, slots=True)
class Identity:
    """Which mutation of which client.

    Args:
        client_id: 1 to 64 bytes of UTF-8.
        incarnation: of its session, as open_session gave it.
        sequence: 1, 2, 3 ..., counted by the client for each shard.

    Raises:
        ConfigError: a field outside its limits.
    """

    client_id: str
    incarnation: int
    sequence: int

    def __post_init__(self) -> None:
        check_client(self.client_id)
        for name, least in (("incarnation", 0), ("sequence", 1)):
            value = getattr(self, name)
            if not least <= value <= _MAX_SEQUENCE:
                raise ConfigError(f"Identity.{name}={value!r} must be from {least} to 2^63 - 1")


def check_client(client_id: object) -> None:
    """Raises ConfigError if it cannot name a client."""
    is_name = isinstance(client_id, str) and client_id.isprintable()
    if not is_name or not 1 <= len(str(client_id).encode()) <= MAX_NAME_BYTES:
        raise ConfigError(
            f"client_id={str(client_id)[:80]!r}: needs 1 to {MAX_NAME_BYTES} printable bytes"
        )


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one table, or of a session.

    Args:
        kind: what it does.
        identity: whose it is; the sequence of a SESSION is the mark at which it starts, plus 1.
        table: its name; "" for SESSION, NOTHING and PERIOD.
        lr: learning rate that it is applied with.
        keys: uint64 [L], contiguous.
        floats: float32 [L, dim]: gradients of a PUSH, rows of an ASSIGN; else [0, 0].
        state: float32 [L, state floats] of an ASSIGN; None starts the optimizer's anew.
        occurrences: what the keys of a PUSH stand for, in a table with statistics; None: one show
            each.
        statistics: of an ASSIGN, [L]; None: counts stay.
        period: of a PERIOD, else 0.
        where: of an ERASE_WHERE, else None.
    """

    kind: Kind
    identity: Identity
    table: str = ""
    lr: float = 0.0
    keys: Keys = field(default_factory=_no_keys)
    floats: Floats = field(default_factory=_no_floats)
    state: Floats | None = None
    occurrences: Occurrences | None = None
    statistics: Statistics | None = None
    period: int = 0
    where: RowsWhere | None = None


def encode(mutation: Mutation) -> list[Part]:
    """The parts of a record's payload; keys and floats as they are, without a copy."""
    client, table = mutation.identity.client_id.encode(), mutation.table.encode()
    state, statistics = mutation.state, mutation.statistics
    shows, clicks = mutation.occurrences or Occurrences()
    flags = (
        (0 if state is None else _HAS_STATE)
        | (0 if shows is None else _HAS_SHOWS)
        | (0 if clicks is None else _HAS_CLICKS)
        | (0 if statistics is None else _HAS_STATISTICS)
        | (0 if mutation.where is None else _HAS_WHERE)
    )
    head = _HEAD.pack(
        VERSION,
        mutation.kind,
        len(client),
        len(table),
        len(mutation.keys),
        mutation.identity.incarnation,
        mutation.identity.sequence,
        mutation.lr,
        mutation.floats.shape[1],
        0 if state is None else state.shape[1],
        flags,
        mutation.period,
    )
    names = client + table
    names += bytes(-len(names) % _ALIGNMENT)
    parts: list[Part] = [head + names]
    counted = None if statistics is None else pack(statistics)
    where = None if mutation.where is None else _where_numbers(mutation.where)
    arrays = (mutation.keys, mutation.floats, state, shows, clicks, counted, where)
    parts += [array for array in arrays if array is not None]
    return [part for part in parts if isinstance(part, bytes) or part.nbytes]


class LogEntry:
    """A mutation on its way into a log; `number` is its record's once it is written, 0 before."""

    def __init__(self, log: UpdateLog, mutation: Mutation) -> None:
        self.number = 0
        self._log = log
        self._mutation = mutation

    def write(self) -> None:
        """Appends the record; to be called once.

        Raises:
            StoreError: no space (nothing happened), or the log has failed.
        """
        self.number = self._log.append(encode(self._mutation))


def decode(number: int, payload: bytes) -> Mutation:
    """The mutation of a record; its arrays are views of the payload.

    Raises:
        CorruptionError: the payload, whose checksum was right, is none that encode makes.
    """
    try:
        return _decode(payload)
    except (ConfigError, ValueError, struct.error) as error:
        raise CorruptionError(
            f"update log, record {number}: {error}; it was written by another version of hps, or "
            f"is damaged"
        ) from error


def _decode(payload: bytes) -> Mutation:
    version, kind, client_bytes, table_bytes, num_keys, incarnation, sequence, lr, *rest = (
        _HEAD.unpack_from(payload)
    )
    dim, state_floats, flags, period = rest
    is_known = version == VERSION and not flags & ~_FLAGS_OF.get(Kind(kind), 0)
    is_known &= bool(flags & _HAS_WHERE) == (kind == Kind.ERASE_WHERE)
    if not is_known or (period and kind != Kind.PERIOD):
        raise ValueError(f"version {version} with flags {flags} is not one that this hps reads")
    place = _HEAD.size
    client = payload[place : place + client_bytes].decode()
    table = payload[place + client_bytes : place + client_bytes + table_bytes].decode()
    place += client_bytes + table_bytes
    place += -place % _ALIGNMENT
    num_floats = num_keys * dim
    arrays = (  # dtype, elements, and whether the record has them
        (np.dtype(np.uint64), num_keys, True),
        (np.dtype(np.float32), num_floats, True),
        (np.dtype(np.float32), num_keys * state_floats, flags & _HAS_STATE),
        (np.dtype(np.uint32), num_keys, flags & _HAS_SHOWS),
        (np.dtype(np.uint32), num_keys, flags & _HAS_CLICKS),
        (PACKED, num_keys, flags & _HAS_STATISTICS),
        (np.dtype(np.float64), len(WHERE_FIELDS), flags & _HAS_WHERE),
    )
    expected = place + sum(dtype.itemsize * count for dtype, count, is_there in arrays if is_there)
    if len(payload) != expected:
        raise ValueError(f"its head says {expected} bytes, it has {len(payload)}")
    found: list[HostArray | None] = []
    for dtype, count, is_there in arrays:
        found.append(np.frombuffer(payload, dtype, count, place) if is_there else None)
        place += dtype.itemsize * count if is_there else 0
    keys, floats, state, shows, clicks, counted, where = found
    assert keys is not None and floats is not None
    return Mutation(
        Kind(kind),
        Identity(client, incarnation, sequence),
        table,
        lr,
        keys,
        floats.reshape(num_keys if dim else 0, dim),
        None if state is None else state.reshape(num_keys, state_floats),
        Occurrences(shows, clicks) if flags & (_HAS_SHOWS | _HAS_CLICKS) else None,
        None if counted is None else unpack(counted),
        period,
        None if where is None else _where_of(where),
    )


def _where_numbers(where: RowsWhere) -> HostArray:
    """float64 [4], NaN for what is not given."""
    given = (getattr(where, name) for name in WHERE_FIELDS)
    return np.array([np.nan if number is None else number for number in given], np.float64)


def _where_of(numbers: HostArray) -> RowsWhere:
    given = dict(zip(WHERE_FIELDS, numbers.tolist(), strict=True))
    found: Json = {name: number for name, number in given.items() if number == number}
    if (gap := found.get("unseen_for")) is not None and gap.is_integer():
        found["unseen_for"] = int(gap)
    return RowsWhere(**found)
