"""The last files of DATA, which `--valid-by files` holds out: validated on and not trained on.

Above it: options.py, whose `hps.train.run` asks once, before the log is opened; opening.py, which
tells what is wrong. Below it: `find_files`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from hps.errors import ConfigError, HpsError
from hps.reader.batch_source import BatchSource
from hps.reader.files import PathLike, find_files
from hps.reader.urls import LogFile

FILES = "files"


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """What DATA was cut into, once for the run: a pattern may match other files later.

    Args:
        asked: DATA as the user has it.
        files: held out, in their order.
        failure: why DATA cannot be cut; told where the log is opened, on all ranks together.
    """

    asked: Sequence[PathLike]
    files: Sequence[LogFile] = ()
    failure: HpsError | None = None


def num_held_out(share: float, num_files: int) -> int:
    """How many of some files a share is: rounded, at least one, and not all.

    >>> [num_held_out(share, 10) for share in (0.01, 0.1, 0.26, 0.99)]
    [1, 1, 3, 9]
    """
    return min(max(1, round(share * num_files)), num_files - 1)


def cut(data: Sequence[PathLike], share: float) -> tuple[Sequence[PathLike], HeldOut]:
    """The first files of DATA, to train on, and the last ones.

    Args:
        data: as the user has it.
        share: of its files, to hold out.

    Returns:
        DATA as it is where it cannot be cut; then the second says why.
    """
    try:
        files = find_files(data)
        num_trained = len(files) - num_held_out(share, len(files))
        _check(share, files, num_trained)
    except HpsError as error:
        return data, HeldOut(asked=data, failure=error)
    # Its paths are found: the readers take them as they are.
    trained = cast("Sequence[PathLike]", files[:num_trained])
    return trained, HeldOut(asked=data, files=files[num_trained:])


def _check(share: float, files: Sequence[LogFile], num_trained: int) -> None:
    asked = f"valid_share={share!r} with valid_by={FILES!r} (--valid-share, --valid-by)"
    if len(files) == 1:
        raise ConfigError(
            f"{asked} holds out the last files of DATA, and DATA is one file, {str(files[0])!r}; "
            "give several, or leave --valid-by out: examples are then chosen by a hash"
        )
    trained = {_identity(file) for file in files[:num_trained]}
    twice = [str(file) for file in files[num_trained:] if _identity(file) in trained]
    if twice:
        raise ConfigError(
            f"{asked} holds out {twice[0]!r}, which DATA names once more, among the files to train "
            "on; name it once"
        )


def _identity(file: LogFile) -> object:
    if isinstance(file, Path):
        return os.path.realpath(file)
    return id(file) if isinstance(file, BatchSource) else str(file)
