"""Replay: the records after the newest checkpoint, applied to a store that has just been opened.

Above it: parameter_server/opening.py. Below it: history.py, records.py, a ReplayTarget. The
rows come out bit for bit as they were when the records were made: the same gradients, in the same
order, with the learning rates of then.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from hps.common.arrays import HostArray
from hps.config import TableConfig
from hps.errors import ConfigError, CorruptionError, NonFiniteError
from hps.update_log.history import PIECE_BYTES, History
from hps.update_log.log import UpdateLog
from hps.update_log.records import Kind, Mutation, decode

# What a table may be given anew without the log's records meaning something else.
_FREE = ("lr",)
# By which rows come, count and die in the updates and periods of the log.
_LIFE = ("expiry", "admission", "max_rows", "max_bytes", "negative_rate")
_OF_NARROW_ROWS = ("rounding",)  # which changes their bits alone


class ReplayTarget(Protocol):
    """What a replay needs of a server."""

    @property
    def tables(self) -> Mapping[str, TableConfig]:
        """Those that it names."""

    def change(self, mutation: Mutation) -> HostArray | None:
        """Applies a mutation; returns its answer."""


def replay(
    server: ReplayTarget, history: History, log: UpdateLog, described: Sequence[TableConfig]
) -> int:
    """Applies what the log holds beyond the checkpoint; returns the number of records.

    Args:
        described: the tables as the checkpoint describes them.

    Raises:
        ConfigError: the log changes a table that the server does not name, or names with other
            rules or numbers of its optimizer; nothing has changed.
        CorruptionError: records that contradict each other or the checkpoint.
        StoreError: no space to write evicted rows.
    """
    count = 0
    while records := log.read(PIECE_BYTES):
        for number, payload in records:
            if not count:
                _check_numbers(server.tables, described)
            mutation = decode(number, payload)
            if number != history.number + 1:
                raise CorruptionError(
                    f"update log: record {number} follows record {history.number}; records between "
                    f"them are missing"
                )
            answer = _apply(server, history, mutation, number)
            note(history, mutation, number, answer)
            count += 1
    return count


def note(
    history: History, mutation: Mutation, number: int, answer: HostArray | None = None
) -> None:
    """The rows hold record `number`: so do the marks."""
    identity = mutation.identity
    if mutation.kind == Kind.SESSION:
        history.sessions.renew(identity.client_id, identity.incarnation, identity.sequence - 1)
    else:
        is_lost_later = mutation.kind in (Kind.ERASE, Kind.ERASE_WHERE)
        history.sessions.advance(identity, number, answer if is_lost_later else None)
    history.number = number


def _apply(
    server: ReplayTarget, history: History, mutation: Mutation, number: int
) -> HostArray | None:
    identity = mutation.identity
    if mutation.kind == Kind.SESSION:
        return None
    session = history.sessions.get(identity.client_id)
    if session is None or identity.incarnation != session.incarnation:
        raise CorruptionError(
            f"update log, record {number}: client {identity.client_id!r} is in incarnation "
            f"{identity.incarnation} there, and was in {session and session.incarnation} before"
        )
    if identity.sequence != session.mark + 1:
        raise CorruptionError(
            f"update log, record {number}: client {identity.client_id!r} is at sequence "
            f"{identity.sequence} there, and was at {session.mark} before"
        )
    if mutation.kind == Kind.NOTHING:
        return None
    if mutation.kind != Kind.PERIOD and mutation.table not in server.tables:
        raise ConfigError(
            f"the update log changes table {mutation.table!r}, which is not named here; open the "
            f"store once with hps.open(path, read_only=False) and leave its `with` block, or name "
            f"all tables"
        )
    try:
        return server.change(mutation)
    except NonFiniteError:
        return None  # older versions logged steps that overflow: refused as they would be today


def _check_numbers(tables: Mapping[str, TableConfig], described: Sequence[TableConfig]) -> None:
    for old in described:
        new = tables.get(old.name)
        if new is None:
            continue
        for name in (*_LIFE, *(_OF_NARROW_ROWS if old.is_narrow else ())):
            if (now := getattr(new, name)) != (then := getattr(old, name)):
                raise ConfigError(
                    f"table {old.name!r}: {name}={now!r} was {then!r} when the updates were made "
                    "that are in the log and still to be applied; open the store once with "
                    "hps.open(path, read_only=False) and leave its `with` block, then change it"
                )
        for name, value in vars(old.optimizer).items():
            now = getattr(new.optimizer, name)
            if name not in _FREE and now != value:
                raise ConfigError(
                    f"table {old.name!r}: {name}={now} was {value} when the updates were made that "
                    f"are in the log and still to be applied; open the store once with "
                    f"hps.open(path, read_only=False) and leave its `with` block, then change it"
                )
