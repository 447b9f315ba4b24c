"""Where a command's output goes: tables for people, figures as JSON.

Above it: the commands of hps.cli. Below it: nothing.
"""

import argparse
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TextIO

from hps.errors import ConfigError, StoreError

JSON_HELP = "write the figures as JSON to a file; '-': to standard output"


def pages_root(package: Path = Path(__file__).parents[1]) -> Path:
    """The folder of docs/ and proto/: a wheel has them in the package, a checkout beside it."""
    return package if (package / "docs").is_dir() else package.parent


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Help that names a flag's default where there is one to name, and says where pages lie."""

    def format_help(self) -> str:
        text = super().format_help()
        return f"{text}\ndocs/ lies in {pages_root()}\n" if "docs/" in text else text

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default == [] or action.default is False:
            return action.help
        return super()._get_help_string(action)


def check_out_path(path: Path | None, flag: str = "--json") -> None:
    """Refuses a file that cannot be written, before the work whose figures it is to hold.

    Raises:
        ConfigError: its folder does not exist, it is a folder itself, or it cannot be opened.
    """
    if path is None or str(path) == "-":
        return
    path = path.resolve()  # a link stays one
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"needs the folder {path.parent}, which is not"
        raise ConfigError(f"{flag} {path}: {path} {what}; name a file in a folder that exists")
    if path.exists() and not path.is_file():
        return  # a pipe or a device: to open it would already tell its reader something
    is_new = not path.exists()
    try:
        with path.open("ab"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise ConfigError(
            f"{flag} {path}: it cannot be written ({error.strerror}); name another file"
        ) from error


class _Silence(io.StringIO):
    """Takes what a quiet command tells people, and drops it."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self.out = out  # what was standard output, which `--json -` still has

    def write(self, text: str) -> int:
        """Drops it."""
        return len(text)


@contextmanager
def quiet() -> Iterator[None]:
    """Within it a command tells people nothing; errors and warnings go to standard error as ever,
    and figures where --json has them."""
    with redirect_stdout(_Silence(sys.stdout)):
        yield


def stream_for_people(path: Path | None) -> TextIO:
    """Standard output, unless `--json -` wants it for itself: then standard error. Nowhere of a
    quiet command."""
    is_quiet = isinstance(sys.stdout, _Silence)
    return sys.stderr if str(path) == "-" and not is_quiet else sys.stdout


def stream_of_progress() -> TextIO:
    """Where a command tells how far it is: standard error, or nowhere of a quiet command."""
    return sys.stdout if isinstance(sys.stdout, _Silence) else sys.stderr


def write_json(path: Path | None, figures: object) -> None:
    """Writes figures to a file, or to standard output for "-"; nothing for None.

    Raises:
        StoreError: the file cannot be written.
    """
    if path is None:
        return
    import json  # which --help does not wait for

    text = json.dumps(_without_nan(figures), indent=2, sort_keys=True, default=str) + "\n"
    if str(path) == "-":
        out = sys.stdout.out if isinstance(sys.stdout, _Silence) else sys.stdout
        out.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(error.errno, f"--json {path}: {error.strerror}") from error


def checkpoint_name(text: str) -> str | int:
    """What `--checkpoint` names: `id:3` is a checkpoint's id, anything else its tag.

    >>> checkpoint_name("id:3"), checkpoint_name("3")
    (3, '3')
    """
    try:
        from hps.checkpoint.names import parse_name

        return parse_name(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _without_nan(value: object) -> object:
    """The value with NaN and infinities, which JSON lacks, as null."""
    if isinstance(value, dict):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return None
    return value
