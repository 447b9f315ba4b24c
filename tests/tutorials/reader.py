"""A reader of a tutorial: runs the page's blocks from top to bottom, in a folder of its own.

Above it: the tests of this folder. Below it: the pages of docs/tutorials, the command `hps`, a bash
for what needs a shell.

What the kinds of blocks mean:

- `bash`: commands. A plain `hps` or `python FILE` runs in this process, which has imported torch
  already; anything with a pipe, a redirection or `&` runs in a bash that lives as long as the page,
  so that `kill %1` finds its job. A command whose comment begins with "fails" has to fail.
- `python`: a script. With a first line `# name.py` it is written under that name and not run.
- `toml`: a file, under the name of its first line.
- `text`: what the block before it printed, line by line. `...` is any text, or alone on its line
  any lines; `~0.83` is a number within 5 %: other processors round otherwise. Spaces do not count,
  nor do lines of a training's progress.

An address `127.0.0.1:PORT` of a page becomes one that no other test has.
"""

import io
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
import torch
import torch.distributed.run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from hps.cli.main import main
from tests.ports import HeldPort

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
CLOSE = 0.05  # what `~` allows, of a number
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ADDRESS = re.compile(r"127\.0\.0\.1:(\d+)")
_NAME = re.compile(r"# ([\w-]+\.(?:py|toml))\n")
_NUMBER = r"([-+]?[\d,]*\.?\d+(?:e[-+]?\d+)?)"
_ESCAPED_NUMBER = r"(?:\\?[-+])?[\d,]*(?:\\\.)?\d+(?:e(?:\\?[-+])?\d+)?"
_NEEDS_SHELL = re.compile(r"[|&<>$;*]")
_PROGRESS = re.compile(r"epoch \d+/\d+ ")  # of a run that takes its time: so many as it takes
_MARK = "the command has ended with"


class Shell:
    """One bash, which keeps its folder and its jobs from command to command."""

    def __init__(self, folder: Path) -> None:
        self._outputs = (folder.with_name(f"{folder.name}.{number}") for number in count())
        tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env={**os.environ, "PATH": tools, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._send("set -m\n")

    def run(self, command: str) -> tuple[int, str]:
        """A command's exit status, 0 of a job in the background, and what it has printed so far."""
        printed = next(self._outputs)  # one each: a job goes on to write into its own
        self._send(f"{{ {command}\n}} > {shlex.quote(str(printed))} 2>&1\n")
        self._send(f'echo "{_MARK} $?"\n')
        assert self._bash.stdout is not None
        for line in self._bash.stdout:
            if line.startswith(_MARK):
                return int(line.removeprefix(_MARK)), printed.read_text()
        raise AssertionError(f"bash ended at {command}")

    def close(self) -> None:
        """Ends the jobs that are left, with all their processes."""
        self._send('for job in $(jobs -p); do kill -9 -- "-$job"; done; exit\n')
        self._bash.communicate()

    def _send(self, text: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(text)
        self._bash.stdin.flush()


@dataclass
class Reading:
    """What running the pages has left.

    Args:
        folder: in which the first page began.
        said: each command with what it printed.
        shown: each block of output of a page, with what was printed there.
    """

    folder: Path
    said: list[tuple[str, str]] = field(default_factory=list)
    shown: list[tuple[str, str]] = field(default_factory=list)

    def check(self) -> None:
        """Each block of output that the pages show is what was printed."""
        assert self.shown
        for shown, printed in self.shown:
            assert (found := difference(shown, printed)) is None, found

    def output_of(self, *words: str) -> str:
        """Of the one command that has all the words."""
        found = [out for command, out in self.said if all(word in command for word in words)]
        assert len(found) == 1, (words, [command for command, _ in self.said])
        return found[0]

    def figure(self, name: str, *words: str) -> float:
        """A line of the table at a run's end, of the one command that has all the words."""
        found = re.findall(rf"^{name} +([\d.,]+)$", self.output_of(*words), re.MULTILINE)
        assert len(found) == 1, (name, words, found)
        return float(found[0].replace(",", ""))

    def best_on_validation(self, *words: str) -> float:
        """The AUC of the line of the best validation in the table at a run's end."""
        found = re.findall(r"^ +[\d,]+ +([\d.]+) +[\d.]+  best$", self.output_of(*words), re.M)
        assert len(found) == 1, (words, found)
        return float(found[0])


@contextmanager
def read(folder: Path, *names: str) -> Iterator[Reading]:
    """Runs pages one after the other, as one reader at one terminal; their jobs live as long.

    Args:
        folder: an empty one.
        names: of pages in docs/tutorials, without ".md".
    """
    reading = Reading(folder)
    text = "".join((TUTORIALS / f"{name}.md").read_text() for name in names)
    shell = Shell(folder)
    ports = {number: HeldPort() for number in set(_ADDRESS.findall(text))}
    text = _ADDRESS.sub(lambda match: ports[match[1]].address, text)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            printed = ""
            for kind, block in _BLOCK.findall(text):
                if kind == "text":
                    reading.shown.append((block, printed))
                else:
                    printed = _run_block(kind, block, reading, shell)
            yield reading
    finally:
        torch.set_num_threads(threads)
        shell.close()
        for port in ports.values():
            port.close()


def _run_block(kind: str, text: str, reading: Reading, shell: Shell) -> str:
    name = _NAME.match(text)
    if name:
        Path(name[1]).write_text(text)
        return ""
    assert kind in ("bash", "python"), (kind, text)
    commands = [text] if kind == "python" else text.replace("\\\n", " ").splitlines()
    printed = ""
    for command in commands:
        if kind == "python":
            _, out = _captured(lambda text=command: exec(compile(text, "a page", "exec"), {}))
        else:
            out = run_command(command, shell)
        reading.said.append((command, out))
        printed += out if out.endswith("\n") or not out else f"{out}\n"  # as of curl
    return printed


def run_command(command: str, shell: Shell) -> str:
    """One line of a page; what it printed."""
    line, _, comment = command.partition("  # ")
    words = shlex.split(line)
    here: dict[str, Callable[[Sequence[str]], tuple[int, str]]] = {
        "hps": lambda arguments: _captured(lambda: main(arguments)),
        "python": lambda arguments: _captured(lambda: _run_script(arguments)),
        "torchrun": _start_ranks,
    }
    if words[0] in here and not _NEEDS_SHELL.search(re.sub(r"'[^']*'", "", line)):
        status, out = here[words[0]](words[1:])
    else:
        status, out = shell.run(line)
        if words[0] == "cd":
            os.chdir(words[1])
    should_fail = comment.startswith("fails")
    assert (status != 0) == should_fail, f"{command}\nended with {status}, after\n{out}"
    return out


def _captured(run: Callable[[], int | None]) -> tuple[int, str]:
    """The status that it returns, None being 0, and what it has printed."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        status = run()
    return status or 0, out.getvalue()


def _run_script(words: Sequence[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", list(words))
        runpy.run_path(words[0], run_name="__main__")


def _start_ranks(words: Sequence[str]) -> tuple[int, str]:
    """What the command torchrun does, without a process of its own that would import torch first.

    Ranks write to this process's standard output and error, not to Python's."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # torchrun's own
    handlers = [signal.getsignal(number) for number in numbers]
    kept = {number: os.dup(number) for number in (1, 2)}
    with tempfile.TemporaryFile("w+") as printed:
        for number in kept:
            os.dup2(printed.fileno(), number)
        status = 0
        try:
            torch.distributed.run.main(words)
        except ChildFailedError:
            status = 1
        finally:
            for number, copy in kept.items():
                os.dup2(copy, number)
                os.close(copy)
            for number, handler in zip(numbers, handlers, strict=True):
                signal.signal(number, handler)
        printed.seek(0)
        return status, printed.read()


def difference(shown: str, printed: str) -> str | None:
    """Why a block of output is not what was printed; None if it is."""
    found = [line for line in printed.splitlines() if not _PROGRESS.match(line)]
    place, is_gap = 0, False
    for line in shown.splitlines():
        if line == "...":
            is_gap = True
            continue
        rest = range(place, len(found) if is_gap else min(place + 1, len(found)))
        place = next((number for number in rest if is_like(line, found[number])), -1) + 1
        if place == 0:
            return f"{line!r} is not what comes next in:\n{printed}"
        is_gap = False
    if place < len(found) and not is_gap:
        return f"{found[place]!r} comes after what is shown"
    return None


def is_like(shown: str, printed: str) -> bool:
    """Whether a printed line is what a page shows."""
    pattern = re.escape(" ".join(shown.split())).replace(r"\.\.\.", ".*")
    about = [_value(number) for number in re.findall(f"~{_NUMBER}", shown)]
    pattern = re.sub(r"\\?~" + _ESCAPED_NUMBER, lambda _: _NUMBER, pattern)
    match = re.fullmatch(pattern, " ".join(printed.split()))
    if not match:
        return False
    pairs = zip(about, map(_value, match.groups()), strict=True)
    return all(abs(value - seen) <= CLOSE * abs(value) for value, seen in pairs)


def _value(number: str) -> float:
    return float(number.replace(",", ""))
