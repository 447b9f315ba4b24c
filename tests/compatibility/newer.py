"""Files as a later version of hps might write them: a version number is raised, checksums fit.

Above it: test_newer_versions.py. Below it: the format pages of docs/.
"""

import struct
from pathlib import Path

from hps import _C


def _sealed(data: bytes, start: int, end: int) -> bytes:
    """The bytes with the checksum of [start, end) behind it."""
    checksum = struct.pack("<I", _C.crc32c(data[start:end]))
    return data[:end] + checksum + data[end + 4 :]


def raise_store(store: Path, version: int) -> None:
    """CURRENT of a store: 40 bytes, the version at 32, a checksum at 36."""
    path = store / "CURRENT"
    data = path.read_bytes()
    path.write_bytes(_sealed(data[:32] + struct.pack("<I", version) + data[36:], 0, 36))


def raise_log_file(path: Path, version: int) -> None:
    """A file of an update log: the version at 8, a checksum of the first 52 bytes behind them."""
    data = path.read_bytes()
    path.write_bytes(_sealed(data[:8] + struct.pack("<I", version) + data[12:], 0, 52))


def raise_log_mark(log: Path, version: int) -> None:
    """Both slots of the mark, at 0 and 512: the version at 8, a checksum at 108."""
    path = log / "mark"
    data = path.read_bytes()
    for at in (0, 512):
        slot = data[at : at + 112]
        if any(slot):
            slot = _sealed(slot[:8] + struct.pack("<I", version) + slot[12:], 0, 108)
        data = data[:at] + slot + data[at + 112 :]
    path.write_bytes(data)
