"""Readable twin of UpdateLog: real files, no thread, and a crash at any moment.

What is appended waits in memory until somebody waits for it, or until the twin feels like writing
it: a number drawn from a seed stands for the native log's thread. `crash` leaves what a kill would
leave: a prefix of the records, and maybe a torn one behind them. A `TwinLogDisk` opens logs, can be
full, and can fail its syncs.
"""

import errno
import os
import random
import struct
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from hps import _C
from hps.errors import CorruptionError, StoreError
from hps.update_log.log import FILE_PREFIX, Part

_HEAD = struct.Struct("<8sQQQI")  # magic, store, epoch, first number, checksum
_RECORD = struct.Struct("<IIQ")  # length, checksum, number
_MAGIC = b"HPSTWLOG"


def _alone(verb: Callable[..., Any]) -> Callable[..., Any]:
    """One verb at a time."""

    @wraps(verb)
    def call(self: "TwinUpdateLog", *arguments: Any) -> Any:
        with self.lock:
            return verb(self, *arguments)

    return call


class TwinLogDisk:
    """Opens logs.

    Args:
        seed: of when records are written that nobody waits for.
        file_bytes: a file that is longer is followed by another.
    """

    def __init__(self, seed: int = 0, file_bytes: int = 4096) -> None:
        self.chance = random.Random(seed)
        self.file_bytes = file_bytes
        self.free_bytes: int | None = None
        self.fails_syncs = False
        self.logs: list[TwinUpdateLog] = []  # all that were opened

    def open(self, folder: str, store: int, epoch: int, after: int) -> "TwinUpdateLog":
        """As hps._C.UpdateLog.open."""
        self.logs.append(TwinUpdateLog(self, Path(folder), store, epoch, after))
        return self.logs[-1]


class TwinUpdateLog:
    """As hps.update_log.UpdateLog."""

    def __init__(self, disk: TwinLogDisk, folder: Path, store: int, epoch: int, after: int) -> None:
        self.disk, self.folder, self.store, self.epoch = disk, folder, store, epoch
        self.lock = threading.RLock()
        folder.mkdir(exist_ok=True)
        self.files: list[tuple[int, Path]] = []  # (first number, path), oldest first
        self.pending: list[tuple[int, bytes]] = []  # appended, not written
        self.failure = ""
        self.is_closed = False
        self.sizes: dict[int, int] = {}  # bytes of each record after the last cut
        self.unread = [record for record in self._load() if record[0] > after]
        self.appended = self.logged = max([after, *(number for number, _ in self.unread)])
        if self.unread and self.unread[0][0] != after + 1:
            self._corrupt(self.files[0][1], 0, f"record {after + 1} first")
        if not self.unread:  # all of it is in the checkpoint, and the next number may leave a gap
            self._drop_files(len(self.files))
        for number, payload in self.unread:
            self.sizes[number] = len(payload)
        self.durable = after
        self._sync()

    # Opening.

    def _corrupt(self, path: Path, offset: int, expected: str) -> None:
        raise CorruptionError(f"{path}, offset {offset}: expected {expected}")

    def _load(self) -> list[tuple[int, bytes]]:
        records: list[tuple[int, bytes]] = []
        paths = sorted(self.folder.glob(f"{FILE_PREFIX}*"))
        for path in paths:
            head = path.read_bytes()[: _HEAD.size]
            is_whole = len(head) == _HEAD.size and _C.crc32c(head[:-4]) == _HEAD.unpack(head)[4]
            if not is_whole:
                if path is not paths[-1]:
                    self._corrupt(path, 0, "a header")
                path.unlink()
                continue
            magic, store, epoch, first, _ = _HEAD.unpack(head)
            if magic != _MAGIC or store != self.store:
                self._corrupt(path, 0, f"a log of store {self.store}")
            if epoch != self.epoch:
                path.unlink()
                continue
            if records and first != records[-1][0] + 1:
                self._corrupt(path, 24, f"first record {records[-1][0] + 1}")
            self.files.append((first, path))
            records += self._load_file(path, first, path is paths[-1])
        return records

    def _load_file(self, path: Path, first: int, is_last: bool) -> list[tuple[int, bytes]]:
        data, place, records = path.read_bytes(), _HEAD.size, []
        while place < len(data):
            number = first + len(records)
            record = self._parse(data[place:], number)
            if record is None:
                if not is_last:
                    self._corrupt(path, place, f"record {number}")
                os.truncate(path, place)
                break
            records.append((number, record))
            place += _RECORD.size + len(record)
        return records

    def _parse(self, data: bytes, expected: int) -> bytes | None:
        if len(data) < _RECORD.size:
            return None
        length, checksum, number = _RECORD.unpack_from(data)
        payload = data[_RECORD.size : _RECORD.size + length]
        is_right = len(payload) == length and number == expected
        return payload if is_right and checksum == self._checksum(number, payload) else None

    def _checksum(self, number: int, payload: bytes) -> int:
        return _C.crc32c(payload, (self.epoch * 1_000_003 + number) & 0xFFFFFFFF)

    # As UpdateLog.

    @_alone
    def read(self, max_bytes: int) -> list[tuple[int, bytes]]:
        piece: list[tuple[int, bytes]] = []
        while self.unread and (
            not piece or sum(len(r[1]) for r in piece) + len(self.unread[0][1]) <= max_bytes
        ):
            piece.append(self.unread.pop(0))
        return piece

    @_alone
    def append(self, parts: Sequence[Part]) -> int:
        self._check()
        assert not self.unread, "what the log holds is read before the first append"
        payload = b"".join(bytes(memoryview(part).cast("B")) for part in parts)
        if self.disk.free_bytes is not None:
            if self.disk.free_bytes < len(payload):
                raise StoreError(errno.ENOSPC, f"{self.folder}: no space for a record")
            self.disk.free_bytes -= len(payload)
        self.appended += 1
        self.pending.append((self.appended, payload))
        self.sizes[self.appended] = len(payload)
        if self.disk.chance.random() < 0.3:
            self._write(len(self.pending))
        return self.appended

    @_alone
    def take_back(self, number: int) -> None:
        assert number == self.appended
        self._check()
        if self.pending and self.pending[-1][0] == number:
            self.pending.pop()
        else:
            path = self.files[-1][1]
            os.truncate(path, path.stat().st_size - _RECORD.size - self.sizes[number])
            self.logged -= 1
            self.durable = min(self.durable, self.logged)
        del self.sizes[number]
        self.appended -= 1

    @_alone
    def wait(self, number: int, durable: bool, timeout: float) -> bool:
        self._check()
        assert number <= self.appended
        if number > self.logged:
            self._write(len(self.pending))
        if durable and number > self.durable:
            self._sync()
        return True

    @_alone
    def cut(self, number: int) -> None:
        self._check()
        done = [first for first, _ in self.files[1:] if first <= number + 1]
        self._drop_files(len(done))
        self.sizes = {place: size for place, size in self.sizes.items() if place > number}

    def free_space(self) -> None:
        """The twin keeps no files."""

    @property
    @_alone
    def num_bytes(self) -> int:
        return sum(self.sizes.values())

    @_alone
    def close(self) -> None:
        if not self.is_closed and not self.failure:
            self._write(len(self.pending))
            self._sync()
        self.is_closed = True

    @_alone
    def crash(self, chance: random.Random) -> None:
        """A kill: some of what was not written is, the last of it maybe in part."""
        if self.is_closed or self.failure:
            return
        self._write(chance.randint(0, len(self.pending)))
        if self.pending and chance.random() < 0.5:
            whole = self._bytes_of(*self.pending[0])
            self._append_bytes(whole[: chance.randrange(len(whole))])
        self.is_closed = True

    # Files.

    def _check(self) -> None:
        if self.failure or self.is_closed:
            raise StoreError(errno.EIO, f"{self.folder}: {self.failure or 'the log is closed'}")

    def _bytes_of(self, number: int, payload: bytes) -> bytes:
        return _RECORD.pack(len(payload), self._checksum(number, payload), number) + payload

    def _write(self, count: int) -> None:
        for number, payload in self.pending[:count]:
            if not self.files or self.files[-1][1].stat().st_size > self.disk.file_bytes:
                path = self.folder / f"{FILE_PREFIX}{number:012d}"
                head = _HEAD.pack(_MAGIC, self.store, self.epoch, number, 0)[:-4]
                path.write_bytes(head + struct.pack("<I", _C.crc32c(head)))
                self.files.append((number, path))
            self._append_bytes(self._bytes_of(number, payload))
            self.logged = number
        del self.pending[:count]

    def _append_bytes(self, data: bytes) -> None:
        if self.files:
            with self.files[-1][1].open("ab") as file:
                file.write(data)

    def _sync(self) -> None:
        if self.disk.fails_syncs:
            self.failure = "a sync failed"
            self._check()
        self.durable = self.logged

    def _drop_files(self, count: int) -> None:
        for _, path in self.files[:count]:
            path.unlink()
        del self.files[:count]
