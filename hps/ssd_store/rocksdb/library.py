"""What is asked of rocksdict's objects, as protocols: it need not be installed.

Above it: database.py, which makes them; live_table.py, which passes snapshots on.
Below it: nothing.
"""

from collections.abc import Iterator
from typing import Protocol


class Cursor(Protocol):
    """A place among the keys of a snapshot."""

    def seek(self, key: bytes) -> None:
        """To a key, or the next one."""

    def seek_to_first(self) -> None:
        """To the first key."""

    def next(self) -> None:
        """To the next key."""

    def status(self) -> None:
        """Raises what has stopped it."""


class Snapshot(Protocol):
    """The rows of a column family at one moment."""

    def values(self) -> Iterator[bytes]:
        """In the order of their keys."""

    def iter(self) -> Cursor:
        """A new cursor."""


class Batch(Protocol):
    """Changes that are written at once."""

    def __setitem__(self, key: bytes, value: bytes) -> None: ...

    def __delitem__(self, key: bytes) -> None: ...

    def put(self, key: bytes, value: bytes, column_family: object) -> None:
        """Into another column family than its own."""

    def delete(self, key: bytes, column_family: object) -> None:
        """Of another column family than its own."""


class Family(Protocol):
    """A column family: the rows of one table."""

    def get(self, key: list[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""

    def snapshot(self) -> Snapshot:
        """Its rows as they are now."""

    def keys(self, *, from_key: bytes) -> Iterator[bytes]:
        """From this one on, in order."""

    def property_int_value(self, name: str) -> int | None:
        """A figure of RocksDB's."""

    def compact_range(self, begin: None, end: None) -> None:
        """Merges its files."""

    def close(self) -> None:
        """Lets go of it."""


class Database(Protocol):
    """All column families of a folder."""

    def get_column_family(self, name: str) -> Family:
        """One of them."""

    def create_column_family(self, name: str, options: object) -> Family:
        """A new one."""

    def drop_column_family(self, name: str) -> None:
        """Removes one with all that is in it."""

    def get_column_family_handle(self, name: str) -> object:
        """What a batch names it by."""

    def write(self, batch: Batch, options: object) -> None:
        """Writes a batch."""

    def close(self) -> None:
        """Lets go of the folder."""
