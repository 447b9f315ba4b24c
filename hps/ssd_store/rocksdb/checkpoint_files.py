"""Checkpoints of a RocksDB store as files: digests, hard links, lock, readers' pins, verify.

Above it: store.py. Below it: manifest.py, the file system. A checkpoint's folder has a
database in `db` and a file an extra; its sorted files are hard links, so that an unchanged one
exists once on disk however many checkpoints have it.
"""

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hps import _C
from hps.common.durable_file import sync, write_durably
from hps.common.held_folder import HeldFolder
from hps.errors import CorruptionError, StoreError
from hps.ssd_store.engine import ROCKSDB_CHECKPOINT_PREFIX, ROCKSDB_MANIFEST
from hps.ssd_store.rocksdb.manifest import FileDigest, RocksDbCheckpoint, RocksDbManifest

DATABASE = "db"
LIVE_PREFIX = "live-"
PINS = "pins"
_PIN_PREFIX = "reader-"
_MOST_PIN_ATTEMPTS = 100
_LONGEST_HOLDER = 256  # characters of LOCK that an error shows
_PIECE_BYTES = 2**23
_SORTED = ".sst"  # files of rows; RocksDB never changes one
_BINDING = "rocksdict-config.json"


def digest_file(path: Path) -> FileDigest:
    """Reads a file once."""
    crc = length = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            crc = _C.crc32c(piece, crc)
            length += len(piece)
    return FileDigest(length, crc)


class DigestMemory:
    """Digests of files that do not change, remembered by inode, so that each is read once.

    An inode may be used again after its file is gone; length and time of change tell them apart.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], FileDigest] = {}

    @staticmethod
    def _identity(path: Path) -> tuple[int, int, int]:
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def learn(self, path: Path, checkpoint: RocksDbCheckpoint) -> None:
        """Takes over the digests of a checkpoint in the store at `path`."""
        for name, digest in checkpoint.files.items():
            file = path / checkpoint.folder / name
            if file.exists():
                self._known[self._identity(file)] = digest

    def digests(self, folder: Path) -> dict[str, FileDigest]:
        """Digests of all files under a checkpoint's folder, by their path in it."""
        found: dict[str, FileDigest] = {}
        for file in sorted(part for part in folder.rglob("*") if part.is_file()):
            identity = self._identity(file)
            if identity not in self._known:
                self._known[identity] = digest_file(file)
            found[file.relative_to(folder).as_posix()] = self._known[identity]
        return found


def extra_names(extras: Mapping[str, bytes]) -> dict[str, str]:
    """The file of each blob of a new checkpoint."""
    return {name: f"extra-{number}" for number, name in enumerate(extras)}


def write_checkpoint(
    path: Path,
    checkpoint: RocksDbCheckpoint,
    make_database: Callable[[Path], None],
    extras: Mapping[str, bytes],
    digests: DigestMemory,
) -> None:
    """Makes the folder of a new checkpoint, durable down to its name, and takes its files' digests.

    Args:
        path: of the store.
        checkpoint: its `files` are filled in.
        make_database: makes a database over the writer's files in a new folder.
        extras: blobs by the names in `checkpoint.extras`.
        digests: what is known already.
    """
    folder = path / checkpoint.folder
    shutil.rmtree(folder, ignore_errors=True)  # of a checkpoint that a kill cut short
    folder.mkdir()
    make_database(folder / DATABASE)
    for name, blob in extras.items():
        write_durably(folder / checkpoint.extras[name], blob)
    checkpoint.files.update(digests.digests(folder))
    for name in checkpoint.files:
        sync(folder / name)
    for changed in (folder / DATABASE, folder, path):
        sync(changed)


def check_checkpoint(path: Path, checkpoint: RocksDbCheckpoint) -> None:
    """What RocksDB does not check itself when it opens a database: every file but the sorted ones.

    Raises:
        CorruptionError: a file is missing, has another length or another checksum.
    """
    for name, expected in checkpoint.files.items():
        damage = _damage(path / checkpoint.folder / name, expected, not name.endswith(_SORTED))
        if damage:
            raise CorruptionError(
                f"{path / checkpoint.folder / name}: {damage}; restore another checkpoint"
            )


def _damage(file: Path, expected: FileDigest, reads: bool) -> str:
    """What is wrong with a file; empty if nothing is."""
    if not file.is_file():
        return "the file is missing"
    length = file.stat().st_size
    if length != expected.length:
        return f"offset {min(length, expected.length)}: {length} bytes, {expected.length} expected"
    if reads and digest_file(file) != expected:
        return f"offset 0: the checksum of its {length} bytes does not match"
    return ""


def verify(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Reads every file of every checkpoint and compares it with the checksum of its checkpoint.

    Returns:
        (file, what is wrong with it) for each damaged file.

    Raises:
        StoreError: there is no store.
    """
    held = hold_store(Path(path))
    try:
        return verify_held(held)
    finally:
        held.close()


def verify_held(held: HeldFolder) -> list[tuple[str, str]]:
    """As `verify`, of a folder that is held, wherever it is now."""
    folder = held.inside
    if not (folder / PINS).is_dir() and not (folder / ROCKSDB_MANIFEST).exists():
        raise no_store(held.path)
    with held.showing(), ReaderPin(folder):
        try:
            manifest = RocksDbManifest.load(folder)
        except CorruptionError as error:
            return [(str(held.path / ROCKSDB_MANIFEST), held.shown(str(error)))]
        return [(held.shown(file), damage) for file, damage in _damages(folder, manifest)]


def no_store(path: Path) -> StoreError:
    """What is said of a folder without a store."""
    return StoreError(errno.ENOENT, f"{path}: there is no store here")


def hold_store(path: Path) -> HeldFolder:
    """The folder of a store that is there.

    Raises:
        StoreError: there is no such folder, or the system refused.
    """
    try:
        return HeldFolder(path)
    except StoreError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise no_store(path.absolute()) from None
        raise


def _damages(path: Path, manifest: RocksDbManifest) -> Iterator[tuple[str, str]]:
    whole: set[tuple[int, FileDigest]] = set()  # of files that several checkpoints share, by inode
    for checkpoint in manifest.checkpoints:
        for name, expected in checkpoint.files.items():
            file = path / checkpoint.folder / name
            inode = file.stat().st_ino if file.is_file() else -1
            if (inode, expected) in whole:
                continue
            damage = _damage(file, expected, True)
            if damage:
                yield str(file), damage
            else:
                whole.add((inode, expected))


def read_checked(file: Path, expected: FileDigest) -> bytes:
    """The bytes of a file.

    Raises:
        CorruptionError: they do not match their digest.
    """
    damage = _damage(file, expected, True)
    if damage:
        raise CorruptionError(f"{file}: {damage}; restore another checkpoint")
    return file.read_bytes()


def extra_bytes(path: Path, checkpoint: RocksDbCheckpoint | None) -> dict[str, int]:
    """The length of each blob of a checkpoint; none of no checkpoint."""
    if checkpoint is None:
        return {}
    folder = path / checkpoint.folder
    return {name: (folder / file).stat().st_size for name, file in checkpoint.extras.items()}


def read_extras(
    path: Path, checkpoint: RocksDbCheckpoint, names: Collection[str] | None = None
) -> dict[str, bytes]:
    """The blobs of a checkpoint of the store at `path`; None is all.

    Raises:
        CorruptionError: one does not match its digest.
    """
    folder = path / checkpoint.folder
    return {
        name: read_checked(folder / file, checkpoint.files[file])
        for name, file in checkpoint.extras.items()
        if names is None or name in names
    }


def link_database(source: Path, target: Path) -> None:
    """A database of its own over the same sorted files; what RocksDB writes into is copied."""
    target.mkdir()
    for file in source.iterdir():
        if file.suffix == _SORTED:
            os.link(file, target / file.name)
        else:
            shutil.copyfile(file, target / file.name)


def refer_to_database(source: Path, target: Path) -> None:
    """What a reader opens instead of `source`: links to all but the file that rocksdict writes."""
    for file in source.iterdir():
        if file.name == _BINDING:
            shutil.copyfile(file, target / file.name)
        else:
            (target / file.name).symlink_to(file.absolute())


def unique_bytes(folders: list[Path], suffix: str = "") -> dict[int, int]:
    """Bytes of each file under some folders whose name ends so, by inode; one may go meanwhile."""
    sizes: dict[int, int] = {}
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                if not name.endswith(suffix):
                    continue
                try:
                    found = os.stat(os.path.join(parent, name))
                except FileNotFoundError:
                    continue
                sizes[found.st_ino] = found.st_size
    return sizes


class WriterLock:
    """The flock of the writing process on the folder, and on `LOCK`, which holds its pid and host
    as text.

    Args:
        folder: of the store; looks at LOCK from now on.

    Raises:
        StoreError: another process, or another store of this one, has it; names the pid. Or the
            file may not be written.
    """

    def __init__(self, folder: HeldFolder) -> None:
        file = folder.inside / "LOCK"
        if not folder.try_lock():
            text = file.read_text(errors="replace") if file.exists() else ""
            raise _held_by_another(folder.path, text)
        try:
            self._file = file.open("a+", encoding="utf-8", errors="replace")
        except OSError as error:
            raise StoreError(
                error.errno,
                f"cannot open {file}: {error.strerror}; a writer needs this file: get the right to "
                "write it, or only read the store (hps.open(path, read_only=True))",
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            text = self._file.read()
            self._file.close()
            raise _held_by_another(folder.path, text) from None
        folder.guard(self._file.fileno(), "LOCK")
        folder.check()
        self._file.truncate(0)
        self._file.write(f"{os.getpid()} {os.uname().nodename}")
        self._file.flush()

    def release(self) -> None:
        """May be repeated."""
        self._file.close()


def check_no_writer(path: Path) -> None:
    """Refuses a store that a process has open for writing. Both engines lock alike; nothing is
    changed, and the lock is free again when this returns.

    Raises:
        StoreError: names pid and host; or there is no such folder.
    """
    folder = hold_store(path)
    try:
        lock = folder.inside / "LOCK"
        is_free = folder.try_lock()
        text = b""
        with suppress(FileNotFoundError, PermissionError), lock.open("rb") as file:
            text = file.read(_LONGEST_HOLDER)
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                is_free = False
        if not is_free:
            raise _held_by_another(folder.path, text.decode(errors="replace"))
    finally:
        folder.close()


def _held_by_another(path: Path, text: str) -> StoreError:
    """Of a writer whose LOCK has this text; it may have been removed, or written by anybody."""
    words = "".join(letter if " " <= letter <= "~" else "?" for letter in text[:_LONGEST_HOLDER])
    pid, _, host = words.partition(" ")
    holder = f"process {pid}" if pid else "another process"
    return StoreError(
        errno.EAGAIN,
        f"{path}: the store is open for writing by {holder}"
        f"{f' of host {host}' if host else ''}; end it first, or read beside it: "
        "hps.open(path, read_only=True), hps stats, evaluate, export and clone do",
    )


class ReaderPin:
    """A locked file in `pins` that keeps a reader's checkpoint alive; a dead reader's lock is gone.

    Until `narrow` names a checkpoint it keeps every one. A store on a read-only disk needs none.
    """

    def __init__(self, path: Path) -> None:
        self._path: Path | None = None
        self._descriptor = -1
        folder = path / PINS
        try:
            folder.mkdir(exist_ok=True)  # a copy of a store may lack the empty folder
            for _ in range(_MOST_PIN_ATTEMPTS):
                if self._take(folder / f"{_PIN_PREFIX}{os.getpid()}-{secrets.randbits(32)}"):
                    return
        except OSError as error:
            if error.errno == errno.EROFS:
                return
            raise
        raise StoreError(
            errno.EAGAIN, f"{folder}: no pin could be made in {_MOST_PIN_ATTEMPTS} attempts"
        )

    def _take(self, pin: Path) -> bool:
        descriptor = os.open(pin, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        # A writer may have met the file between its making and its lock, and cleaned it away.
        if os.fstat(descriptor).st_nlink == 0:
            os.close(descriptor)
            return False
        self._path, self._descriptor = pin, descriptor
        return True

    def narrow(self, checkpoint_id: int) -> None:
        """Keeps only this checkpoint from now on."""
        if self._path is not None:
            os.write(self._descriptor, f"checkpoint {checkpoint_id}\n".encode())

    def release(self) -> None:
        """May be repeated."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._path = None

    def __enter__(self) -> "ReaderPin":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


@dataclass
class ReaderPins:
    """Which checkpoints living readers need, and who they are."""

    holders: dict[int, list[str]] = field(default_factory=dict)
    everything: list[str] = field(default_factory=list)

    def of(self, checkpoint_id: int) -> list[str]:
        """The readers of one checkpoint, in words."""
        return self.holders.get(checkpoint_id, []) + self.everything


def read_pins(path: Path) -> ReaderPins:
    """Looks through the pins, and clears those of the dead away."""
    pins = ReaderPins()
    for pin in sorted((path / PINS).glob(f"{_PIN_PREFIX}*")):
        reader = f"process {pin.name.split('-')[1]}"
        try:
            with pin.open(encoding="ascii", errors="replace") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    words = file.read().split()
                else:
                    pin.unlink(missing_ok=True)
                    continue
        except FileNotFoundError:
            continue
        except OSError:  # of another user, perhaps: what cannot be asked lives
            pins.everything.append(reader)
            continue
        if len(words) == 2 and words[1].isdecimal():
            checkpoint_id = int(words[1])
            pins.holders.setdefault(checkpoint_id, []).append(
                f"{reader} (checkpoint {checkpoint_id})"
            )
        else:
            pins.everything.append(reader)
    return pins


def remove_unneeded(path: Path, manifest: RocksDbManifest, live: Path | None) -> ReaderPins:
    """Removes checkpoints that neither the manifest nor a living reader names, and databases left
    behind.

    What cannot be removed stays and is met again next time.
    """
    pins = read_pins(path)
    needed = {one.folder for one in manifest.checkpoints} | {live.name if live else ""}
    needed |= {f"{ROCKSDB_CHECKPOINT_PREFIX}{number:012d}" for number in pins.holders}
    for prefix in (ROCKSDB_CHECKPOINT_PREFIX, LIVE_PREFIX):
        if prefix == ROCKSDB_CHECKPOINT_PREFIX and pins.everything:
            continue
        for folder in path.glob(f"{prefix}*"):
            if folder.name not in needed:
                shutil.rmtree(folder, ignore_errors=True)
    return pins
