"""UpdateLog: numbered records in files, appended by one process, as a contract; and the door to it.

Above it: history.py, hps/service/shard/core.py. Below it: csrc/update_log (and, in tests, the twin
in tests/twins). What a record says is records.py's; the log knows bytes.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, cast

from hps import _C
from hps.common.arrays import HostArray

FOLDER = "log"  # in the store's directory
FILE_PREFIX = "log-"

Part = bytes | HostArray


class UpdateLog(Protocol):
    """Records 1, 2, 3 ... of one epoch; a crash leaves a prefix of those appended."""

    def read(self, max_bytes: int) -> list[tuple[int, bytes]]:
        """The next records after those that the checkpoint has, in order: (number, payload).

        At least one, whatever its size; [] at the end. Before the first append only.
        """

    def append(self, parts: Sequence[Part]) -> int:
        """Adds one record, its payload copied from the parts; returns its number.

        Raises:
            StoreError: no space (nothing happened), or the log has failed.
        """

    def take_back(self, number: int) -> None:
        """The last appended record never was."""

    @property
    def appended(self) -> int:
        """Number of the last record."""

    @property
    def logged(self) -> int:
        """Records up to it are with the operating system: they survive a kill."""

    @property
    def durable(self) -> int:
        """Records up to it are on the disk: they survive a loss of power."""

    def wait(self, number: int, durable: bool, timeout: float) -> bool:
        """True once records up to `number` are logged (or durable); False when time is up.

        Raises:
            StoreError: a write or a sync failed; the log takes nothing more.
        """

    def cut(self, number: int) -> None:
        """A durable checkpoint has all records up to `number`: their files go, or serve again."""

    def free_space(self) -> None:
        """The disk is full: files that are kept to be used again go."""

    @property
    def num_bytes(self) -> int:
        """Of the records after the last cut."""

    def close(self) -> None:
        """Writes and syncs what is buffered."""


# As open_update_log.
OpenLog = Callable[[str, int, int, int], UpdateLog]


def open_update_log(folder: str, store: int, epoch: int, after: int) -> UpdateLog:
    """Opens the native log.

    Args:
        folder: of its files.
        store: names the store that the log belongs to.
        epoch: files of another one are leftovers, and are removed.
        after: records up to this number are in the checkpoint, whether files have them or not.

    Raises:
        CorruptionError: damage anywhere but in the final record, with file and offset.
        StoreError: the system refused.
    """
    return cast(UpdateLog, _C.UpdateLog.open(folder, store, epoch, after))


def has_files(folder: Path) -> bool:
    """True if files of a log lie in a folder."""
    return next(folder.glob(f"{FILE_PREFIX}*"), None) is not None
