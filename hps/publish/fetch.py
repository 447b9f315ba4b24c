"""fetched(): the files of a version on this machine, each checked against its length and sha256.

Above it: followers. Below it: destination.py. Of a folder of this machine they are read where they
lie; else they are copied.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from hps.errors import CorruptionError
from hps.publish.destination import Destination
from hps.publish.version import StoredFile

_PIECE_BYTES = 4 << 20


@contextmanager
def fetched(
    destination: Destination, files: Iterable[StoredFile], beside: Path
) -> Iterator[dict[str, Path]]:
    """Files of a version, whole and checked, for as long as the context is open.

    Args:
        destination: where they are.
        files: of a version.
        beside: a folder of this machine, in which copies lie meanwhile.

    Returns:
        By name the file's path.

    Raises:
        CorruptionError: one is missing, or not what the version says; names it.
        StoreError: one cannot be read, or there is no space for it.

    Cost: reads each file once, for its sha256.
    """
    with TemporaryDirectory(prefix="fetched-", dir=beside) as folder:
        found = {}
        for number, file in enumerate(files):
            own = destination.local(file.name)
            copy = None if own is not None else Path(folder, str(number))
            _read_checked(destination, file, copy)
            found[file.name] = own if copy is None else copy
        yield {name: path for name, path in found.items() if path is not None}


def read_checked(destination: Destination, file: StoredFile) -> bytes:
    """A small file, whole and checked; errors as `fetched`."""
    return b"".join(_pieces(destination, file))


def _read_checked(destination: Destination, file: StoredFile, copy: Path | None) -> None:
    if copy is None:
        for _ in _pieces(destination, file):
            pass
        return
    with copy.open("wb") as out:
        for piece in _pieces(destination, file):
            out.write(piece)


def _pieces(destination: Destination, file: StoredFile) -> Iterator[bytes]:
    """All bytes; raises at the end if they are not those of the version."""
    where = f"{destination.shown}/{file.name}"
    digest, count = hashlib.sha256(), 0
    try:
        with destination.open(file.name) as stream:
            while piece := stream.read(_PIECE_BYTES):
                digest.update(piece)
                count += len(piece)
                yield piece
    except FileNotFoundError:
        raise CorruptionError(f"{where} is missing, and a version names it") from None
    if count != file.bytes or digest.hexdigest() != file.sha256:
        raise CorruptionError(
            f"{where}: it has {count:,} bytes of sha256 {digest.hexdigest()[:16]}..., its version "
            f"names {file.bytes:,} of {file.sha256[:16]}..."
        )
