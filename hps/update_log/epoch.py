"""Epoch: which log belongs to a store, as one small file that is replaced as a whole.

Above it: history.py. Below it: common/durable_file.py. A restore drops the log's records together
with the rows, which lie in other files: the next epoch, named here, makes that one step. The file
HISTORY in the store's folder `log` is a line with the checksum of the JSON text that follows it.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from hps import _C
from hps.common.durable_file import replace_durably, sync
from hps.common.json_text import JsonView, parse_json
from hps.errors import CorruptionError, StoreError
from hps.update_log.log import FOLDER, has_files

NAME = "HISTORY"
_MAGIC = "HPSHIST1"
_MAX_BYTES = 2**16


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """A part of a served store's life between two restores.

    Args:
        store: random; ties the log's files to this store.
        number: 1, 2, 3 ...; the log's files carry it.
        lineage: names the history of the rows; all shards of a service have the same.
        fence: sessions up to this incarnation ended with the epochs before.
        index: of the shard, from 0.
        count: of shards.
        restoring: id of the checkpoint with which the epoch begins, until the store is there.
        tables: that the epoch begins with, as hps.checkpoint.blobs describes them: the checkpoint
        may
            lack some, which are empty then. The first epoch has none here.
    """

    store: int
    number: int
    lineage: str
    fence: int
    index: int = 0
    count: int = 1
    restoring: int | None = None
    tables: Sequence[JsonView] = ()

    @classmethod
    def load(cls, held: Path, path: Path | None = None) -> Self | None:
        """That of a store; None if it was never served.

        Args:
            held: what leads to its folder.
            path: of the store, as messages name it; None is `held`.

        Raises:
            CorruptionError: the file is damaged, or missing beside a log.
        """
        file = (path or held) / FOLDER / NAME
        try:
            text = (held / FOLDER / NAME).read_bytes()
        except FileNotFoundError:
            if has_files(held / FOLDER):
                raise CorruptionError(
                    f"{file}: missing beside the files of an update log; put it back, or remove "
                    f"the folder to go on from the newest checkpoint without what followed it"
                ) from None
            return None
        except OSError as error:
            raise StoreError(error.errno, f"{file}: {error.strerror}") from error
        head, _, body = text.partition(b"\n")
        if head != _head(body):
            raise CorruptionError(
                f"{file}: the checksum in its first line does not match; remove the folder to go "
                f"on from the newest checkpoint without what followed it"
            )
        try:
            return cls(**parse_json(body, str(file), max_bytes=_MAX_BYTES))
        except (TypeError, ValueError) as error:
            raise CorruptionError(f"{file}: written by another version of hps: {error}") from error

    def save(self, path: Path, held: Path | None = None) -> None:
        """Puts it in the place of the one of the store at `path`, durably.

        Args:
            path: of the store.
            held: what leads to its folder, as RowTier.held_folder; None is the path.

        Raises:
            StoreError: the system refused; the old one or this one stands.
        """
        held = held or path
        folder = held / FOLDER
        value = asdict(self)
        if not self.tables:
            del value["tables"]  # as an older hps wrote it
        body = json.dumps(value).encode()
        try:
            if not folder.is_dir():
                folder.mkdir()
                sync(held)
            replace_durably(folder / NAME, _head(body) + b"\n" + body)
        except OSError as error:
            file = path / FOLDER / NAME
            raise StoreError(error.errno, f"{file}: {error.strerror}") from error


def _head(body: bytes) -> bytes:
    return f"{_MAGIC} {_C.xxh64(body):016x} {len(body)}".encode()
