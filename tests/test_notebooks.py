"""The notebooks of examples/notebooks run from top to bottom, and print what they claim.

Above it: pytest. Below it: examples/notebooks, nbclient and ipykernel of the extra dev. They are
kept without outputs, which differ from machine to machine; what each has to print is said here. One
kernel runs them in turn, its names cleared between two: importing torch takes longer than they do.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="the extra dev has nbclient and ipykernel")
nbclient = pytest.importorskip("nbclient", reason="the extra dev has nbclient and ipykernel")
pytest.importorskip("ipykernel", reason="the extra dev has nbclient and ipykernel")

NOTEBOOKS = Path(__file__).resolve().parent.parent / "examples" / "notebooks"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
SECONDS = 120  # for a cell, on a busy machine


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One that starts `hps` of this environment, and writes nothing outside the tests' folder."""
    from jupyter_client import KernelManager

    folder = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        patch.setenv("OMP_NUM_THREADS", "1")
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(folder))
        manager = KernelManager(kernel_name="python3")
        manager.start_kernel(cwd=str(folder))
        yield manager
        manager.shutdown_kernel(now=True)


def run(name: str, kernel: Any) -> str:
    """What its cells have printed, all together; raises what a cell has raised."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    begin = nbformat.v4.new_code_cell("%reset -f")
    notebook.cells.insert(0, begin)
    nbclient.NotebookClient(notebook, km=kernel, timeout=SECONDS).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "".join(output.get("text", "") for output in outputs if output.get("name") == "stdout")


def numbers(pattern: str, text: str) -> list[float]:
    """The groups of the one place where a pattern is found."""
    (found,) = re.findall(pattern, text)
    return [float(number.replace(",", "")) for number in found]


def test_training_learns_both_ways(kernel: Any) -> None:
    said = run("train", kernel)
    examples, rows, auc = numbers(r"([\d,]+) examples, ([\d,]+) rows\ntest AUC (\S+)", said)
    assert examples == 40_000 and rows > 1000 and 0.72 < auc < 0.85
    assert f"\n{rows:,.0f} rows" in said  # of the loop, too
    first, last = numbers(r"loss (\S+) at the beginning, (\S+) at the end", said)
    assert last < first - 0.02


def test_rows_show_what_was_learned(kernel: Any) -> None:
    said = run("look_into_rows", kernel)
    assert said.startswith("6 rows\n")
    assert re.findall(r"(\d) keys, rows of shape \((\d), 5\)", said) == [("4", "4"), ("2", "2")]
    shown = re.findall(r"^(\w+) +shown +([\d,]+), clicked", said, re.M)
    assert [name for name, _ in shown] == ["red", "orange", "blue", "green"]
    assert sum(int(shows.replace(",", "")) for _, shows in shown) == 3 * 5_000
    alike = re.findall(r"^\w+ +(-?\d\.\d) +(-?\d\.\d) +(-?\d\.\d) +(-?\d\.\d)$", said, re.M)
    assert len(alike) == 4
    assert float(alike[0][1]) > 0.8 and float(alike[0][2]) < 0.2  # red: orange, blue
    assert said.endswith("[False] True 6\n")


def test_scores_follow_what_is_published(kernel: Any) -> None:
    said = run("serve", kernel)
    assert re.findall(r"version (\d) (\w+) \d+ rows", said) == [("1", "base"), ("2", "delta")]
    scores = re.findall(r"^version 1: (\S+)$", said, re.M)
    assert len(scores) == 2 and scores[0] == scores[1]
    after, before = numbers(r"version 2: (\S+), was (\S+)", said)
    assert after != before == float(scores[0])
    assert "version 1, as before: True\nthe server ended with 0\n" in said


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_are_kept_without_outputs(name: str) -> None:
    cells = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert code and not any(cell.outputs or cell.execution_count for cell in code)
