"""Run: the figures and the history of one training run, read from what it has written.

Above it: page.py. Below it: files of `hps train --report` and `--json`.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from hps.common.json_text import Json
from hps.errors import ConfigError, DataError, StoreError
from hps.report.history import BEGIN, FIGURES, LINES


@dataclass(frozen=True)
class Run:
    """One run.

    Args:
        name: that tells it from others.
        figures: as `hps train --json` writes them; empty while it runs, or where it was killed.
        history: lines of `run.jsonl`, oldest first, without what a run that went on has undone.
    """

    name: str
    figures: Json
    history: list[Json]

    def of_kind(self, kind: str) -> list[Json]:
        """Lines of one kind."""
        return [line for line in self.history if line["kind"] == kind]


def read_run(path: str | Path) -> Run:
    """A run from the folder of its --report, or from the file of its --json.

    Raises:
        ConfigError: there is no such file or folder, or nothing of a run in it.
        DataError: what is there is not what hps writes.
        StoreError: it cannot be read.
    """
    path = Path(path)
    if not path.exists():
        raise ConfigError(
            f"{path}: there is no such file or folder; name one of --report or --json"
        )
    if not path.is_dir():
        return Run(path.stem, _figures(path), [])
    figures, lines = path / FIGURES, path / LINES
    if not figures.exists() and not lines.exists():
        raise ConfigError(
            f"{path} has neither {FIGURES} nor {LINES}: it is no folder that 'hps train --report' "
            "has written"
        )
    return Run(
        path.resolve().name,
        _figures(figures) if figures.exists() else {},
        _history(lines) if lines.exists() else [],
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: it is not text: {error}") from error


def _figures(path: Path) -> Json:
    try:
        figures = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: it is not JSON: {error}") from error
    if not isinstance(figures, dict) or not {"examples", "stages"} <= figures.keys():
        raise DataError(f"{path}: it is not what 'hps train --json' writes")
    return figures


def parse_line(text: str | bytes) -> Json | None:
    """A line of a history: `kind`, `examples` and figures; None of one that a kill has torn.

    Raises:
        DataError: it is JSON, and no line of a history.
    """
    try:
        line = json.loads(text)
    except ValueError:
        return None
    if not isinstance(line, dict) or not {"kind", "examples"} <= line.keys():
        raise DataError("it is not what 'hps train --report' writes")
    return line


def _history(path: Path) -> list[Json]:
    """The lines of all attempts, without what was undone; a line that a kill has torn is the last
    of its attempt."""
    found: list[Json] = []
    for number, text in enumerate(_text(path).splitlines(), 1):
        try:
            line = parse_line(text)
        except DataError as error:
            raise DataError(f"{path}, line {number}: {error}") from error
        if line is None:
            continue
        if line["kind"] == BEGIN:
            found = [one for one in found if one["examples"] <= line["examples"]]
        found.append(line)
    return found
