"""Runs a module of this checkout, in a process of its own or, for a smoke test, in this one.

Above it: benchmarks whose contenders must not share a process. Below it: the interpreter.
"""

import io
import runpy
import subprocess
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_module(name: str, *arguments: object, is_here: bool = False) -> str:
    """What `python -m name arguments` prints.

    Args:
        is_here: in this process, which has most of it imported: seconds less, but what is measured
            then means nothing.

    Raises:
        RuntimeError: it failed; with what it printed.
    """
    words = [str(argument) for argument in arguments]
    if is_here:
        return _run_here(name, words)
    command = [sys.executable, "-m", name, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def _run_here(name: str, words: list[str]) -> str:
    printed, before = io.StringIO(), sys.argv
    sys.argv = [name, *words]
    try:
        with redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # it may have been imported before
            runpy.run_module(name, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{name} {' '.join(words)} failed:\n{printed.getvalue()}") from end
    finally:
        sys.argv = before
    return printed.getvalue()
