"""Checks of a caller's rights, and what it is told when it lacks one.

Above it: the handlers. Below it: auth.py.
"""

import re
from collections.abc import Iterable

from hps.service.auth import ADMIN, EVERY_TABLE, READ, WRITE, Caller
from hps.service.status import Code, Refusal
from hps.v1.parameter_server_pb2 import ErrorDetail

_NAMES = {READ: "read", WRITE: "write", ADMIN: "admin"}


def require_right(caller: Caller, table: str, right: int) -> None:
    """Raises a Refusal unless the caller has a right on a table; "*" means on all tables."""
    if caller.right(table) < right:
        what = "'*', all tables" if table == EVERY_TABLE else f"table {table[:80]!r}"
        raise _denied(f"{caller.name!r} lacks the right {_NAMES[right]!r} on {what}")


def require_some_right(caller: Caller, right: int) -> None:
    """Raises a Refusal unless the caller has a right on some table."""
    if caller.best_right() < right:
        raise _denied(f"{caller.name!r} has the right {_NAMES[right]!r} on no table")


def require_client(caller: Caller, client_id: str) -> None:
    """Raises a Refusal unless the caller may act under a client id."""
    if not caller.may_be(client_id):
        raise _denied(f"{caller.name!r} may not act as client {client_id[:80]!r}")


def may_not_read(caller: Caller, text: str, tables: Iterable[str]) -> bool:
    """True of a text with the name of a table that the caller may not see."""
    hidden = [re.escape(name) for name in tables if not caller.right(name)]
    found = re.search(rf"(?<![\w.-])(?:{'|'.join(hidden)})(?![\w-])", text) if hidden else None
    return found is not None


def _denied(message: str) -> Refusal:
    return Refusal(Code.PERMISSION_DENIED, ErrorDetail.PERMISSION, message)
