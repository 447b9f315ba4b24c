"""Who may do what: bearer tokens from a file, with which a call's token is compared, each with its
rights, a name and an end.

Above it: the handlers, by way of admission.py. Below it: the file of `--tokens`, JSON:

    {"tokens": [{"name": "trainer",              what logs and limits call its bearer
                 "token": "...",                 the secret, 16 characters or more; or
                 "sha256": "...",                its SHA-256 in hex: then the file is no secret
                 "expires": "2027-01-31T00:00:00+00:00",         ISO 8601 with zone; absent: never
                 "tables": {"ads": ["read", "write"], "*": ["read"]},     "*": every table
                 "clients": ["trainer-*"]}]}     client ids it may open sessions of; absent: any

"write" includes "read" and "admin" includes both. Table "*" with "admin" may take checkpoints,
restore and make tables.
"""

import hashlib
import hmac
import re
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import cast

from hps.common.json_text import Json, parse_json
from hps.errors import ConfigError
from hps.service.messages.status import Code, Refusal
from hps.v1.parameter_server_pb2 import ErrorDetail

READ, WRITE, ADMIN = 1, 2, 3
EVERY_TABLE = "*"
_NAMES = {READ: "read", WRITE: "write", ADMIN: "admin"}
_RIGHTS = {"read": READ, "write": WRITE, "admin": ADMIN}
_FIELDS = {"name", "token", "sha256", "expires", "tables", "clients"}
_MIN_SECRET = 16
_MAX_TOKENS = 10_000
_MAX_FILE_BYTES = 2**26
_MAX_PRESENTED = 4096  # bytes of an authorization header that are looked at


@dataclass(frozen=True)
class Caller:
    """Whom a call comes from, and what it may do.

    Args:
        name: of the token, or of the connection where there are no tokens.
        tables: table (or "*") -> right.
        clients: patterns of client ids; None is any.
        expires: seconds since 1970, or None.
    """

    name: str
    tables: dict[str, int]
    clients: tuple[str, ...] | None = None
    expires: float | None = None

    def right(self, table: str) -> int:
        """What it may do with a table: 0 for nothing."""
        return max(self.tables.get(table, 0), self.tables.get(EVERY_TABLE, 0))

    def best_right(self) -> int:
        """The highest right on any table."""
        return max(self.tables.values(), default=0)

    def may_be(self, client_id: str) -> bool:
        """True if it may open sessions under this client id."""
        return self.clients is None or any(
            fnmatchcase(client_id, pattern) for pattern in self.clients
        )

    def is_expired(self) -> bool:
        """True from the end of its token on."""
        return self.expires is not None and time.time() >= self.expires


def anyone(name: str) -> Caller:
    """A caller of a server without tokens: it may do everything."""
    return Caller(name, {EVERY_TABLE: ADMIN})


class TokenFile:
    """The tokens of a file; thread-safe.

    Args:
        path: of the file.
        flag: that names it, for errors.

    Raises:
        ConfigError: the file cannot be read or is not as this module says; names the entry.
    """

    def __init__(self, path: Path, flag: str = "--tokens") -> None:
        self._path = path
        self._flag = flag
        self._lock = threading.Lock()
        self._entries = _read(path, flag)

    def reread(self) -> int:
        """Takes the file as it is now; the old tokens stay if it is not well-formed.

        Returns:
            The number of tokens.

        Raises:
            ConfigError: see the class.
        """
        entries = _read(self._path, self._flag)
        with self._lock:
            self._entries = entries
        return len(entries)

    def find(self, header: str | None) -> Caller | None:
        """The bearer of an `authorization` header; None if it names no token. It may have expired.

        Cost: one SHA-256, then a comparison in constant time with every token.
        """
        if header is None or len(header) > _MAX_PRESENTED or header[:7].lower() != "bearer ":
            return None
        presented = hashlib.sha256(header[7:].encode(errors="replace")).digest()
        with self._lock:
            entries = self._entries
        found = None
        for digest, caller in entries:
            if hmac.compare_digest(digest, presented):
                found = caller
        return found


def _read(path: Path, flag: str) -> list[tuple[bytes, Caller]]:
    """(SHA-256, caller) of every token of a file."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror or error}") from error
    value = parse_json(text, f"{flag} {path}", error=ConfigError, max_bytes=_MAX_FILE_BYTES)
    listed = value.get("tokens") if isinstance(value, dict) else None
    if not isinstance(listed, list) or not 1 <= len(listed) <= _MAX_TOKENS:
        raise ConfigError(f'{flag} {path}: needs {{"tokens": [...]}} with 1 to {_MAX_TOKENS}')
    entries = [_entry(value, f"{flag} {path}: entry {idx}") for idx, value in enumerate(listed)]
    for what, seen in (
        ("name", [caller.name for _, caller in entries]),
        ("token", [digest.hex() for digest, _ in entries]),
    ):
        if len(set(seen)) != len(seen):
            raise ConfigError(f"{flag} {path}: two entries have the same {what}")
    return entries


def _entry(value: object, where: str) -> tuple[bytes, Caller]:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        raise ConfigError(f'{where}: needs an object with a "name"')
    where = f"{where} ({value['name']})"
    unknown = set(value) - _FIELDS
    if unknown:
        raise ConfigError(f"{where}: unknown field {sorted(unknown)[0]!r}")
    caller = Caller(
        value["name"],
        _tables(value.get("tables"), where),
        _clients(value.get("clients"), where),
        _expires(value.get("expires"), where),
    )
    return _digest(value, where), caller


def _digest(value: Json, where: str) -> bytes:
    token, digest = value.get("token"), value.get("sha256")
    if isinstance(token, str) and digest is None:
        if len(token) < _MIN_SECRET:
            raise ConfigError(
                f"{where}: its token has {len(token)} characters; {_MIN_SECRET} or more"
            )
        return hashlib.sha256(token.encode()).digest()
    try:
        if token is None and isinstance(digest, str) and len(digest) == 64:
            return bytes.fromhex(digest)
    except ValueError:
        pass  # not hex: the error below says what is
    raise ConfigError(f'{where}: needs either "token", or "sha256" of 64 hex digits')


def _tables(value: object, where: str) -> dict[str, int]:
    if not isinstance(value, dict) or not value:
        raise ConfigError(f'{where}: needs "tables", such as {{"*": ["read"]}}')
    tables = {}
    for table, rights in value.items():
        is_list = isinstance(rights, list) and rights
        if not is_list or not all(str(right) in _RIGHTS for right in rights):
            raise ConfigError(
                f"{where}: rights of table {table!r} are {rights!r}; list some of {sorted(_RIGHTS)}"
            )
        tables[table] = max(_RIGHTS[right] for right in rights)
    return tables


def _clients(value: object, where: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(pattern, str) for pattern in value):
        raise ConfigError(f'{where}: "clients" is a list of patterns such as "trainer-*"')
    return tuple(value)


def _expires(value: object, where: str) -> float | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(cast("str", value))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: expires={value!r} is not an ISO 8601 time") from error
    if moment.tzinfo is None:
        raise ConfigError(f"{where}: expires={value!r} needs a zone, such as +00:00")
    return moment.timestamp()


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
